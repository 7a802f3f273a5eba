"""How long the papers' protocols take here and in plain research code: `python -m benchmarks`."""
