"""Whether what left tells who was in: canaries among the rows, and guesses from what left."""
