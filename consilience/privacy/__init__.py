"""What sites show of their rows, and what keeps it from being seen.

exposure: how near a coreset's pseudo-rows come to single rows, `nearness`
"""

from consilience.privacy.exposure import Nearness, exposure_warning, nearness

__all__ = ["Nearness", "exposure_warning", "nearness"]
