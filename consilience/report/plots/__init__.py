"""Pictures drawn from numbers: reliability, sites, trends, predictions, survival."""
