"""Methods compared on the same splits and seeds, tuned on validation rows, and set beside what papers print."""

from consilience.comparison.running import compare
from consilience.comparison.summary import Comparison
from consilience.comparison.tuning import Tuning, tune

__all__ = ["Comparison", "Tuning", "compare", "tune"]
