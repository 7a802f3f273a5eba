"""A study between real sites by files: what is agreed, what leaves, what is pooled, what is released."""
