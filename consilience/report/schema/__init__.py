"""What a run, a comparison or a study found: typed, and in words. Tables, figures and pages are made from it."""
