"""Reports: pages of runs, comparisons, studies and reproductions, and the tables of the terminal."""
