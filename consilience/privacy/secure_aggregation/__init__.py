"""Sums that nobody sees the parts of: masks, and numbers as whole multiples of a step."""
