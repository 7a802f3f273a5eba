"""What sums and replies would show of few rows, and the rules that keep it from being seen."""
