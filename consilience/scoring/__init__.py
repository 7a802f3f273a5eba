"""How good a model is: scores of all rows and of each site, lines to beat, survival on a grid of times."""
