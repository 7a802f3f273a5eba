"""What the columns hold before any model: counts, means, deviations, quartiles and gaps, by site and over all."""
