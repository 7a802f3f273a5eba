"""What a linear model says of its columns: coefficients in their units, ratios, and how much sites differ."""
