"""Methods compared on the same splits and seeds, tuned on validation rows, and set beside what papers print."""

from consilience.benchmark.running import compare
from consilience.benchmark.summary import Comparison
from consilience.benchmark.tuning import Tuning, tune

__all__ = ["Comparison", "Tuning", "compare", "tune"]
