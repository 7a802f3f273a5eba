"""A run: what is computed, in which loop, what is kept of it, and how good it is."""
