"""What a linear model says of columns, and what the columns hold: effects, table one, survival."""
