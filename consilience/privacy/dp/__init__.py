"""Differential privacy: mechanisms, what they promise together, and a site's ledger."""
