"""What is handed over in a study: files, what is admitted of them, masks and sums."""
