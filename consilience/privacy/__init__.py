"""What sites show of their rows, and what keeps it from being seen.

exposure: how near a coreset's pseudo-rows come to single rows, `nearness`
disclosure: rows that sums over a table would show, merged or left out, `guard`
"""

from consilience.privacy.disclosure import Finding, Guarded, Span, guard
from consilience.privacy.exposure import Nearness, exposure_warning, nearness

__all__ = ["Finding", "Guarded", "Nearness", "Span", "exposure_warning", "guard", "nearness"]
