"""Methods compared on the same splits and seeds, tuned on validation rows, and set beside what papers print."""

from consilience.comparison.running import compare
from consilience.comparison.search import tune
from consilience.comparison.summary import Comparison

__all__ = ["Comparison", "compare", "tune"]
