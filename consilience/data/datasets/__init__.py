"""Data sets by name.

- `load`, `describe`, `fetch`, `DATASETS`, `FACTS`: the registry (`registry`).
- `digits`, `moons`, `sine`, `swiss_roll`, `linear_gaussian`: data sets that need no file (`synthetic`).
- `vision`: images from the data folder; `uci` and `uci_sites`: tables from it.
- `decoding`: a cache of what was decoded; `openml`: what can be fetched into it.
"""

from consilience.data.datasets.facts import Facts
from consilience.data.datasets.registry import DATASETS, FACTS, WITH_VARIANTS, describe, fetch, load
from consilience.data.datasets.synthetic import digits, linear_gaussian, moons, sine, swiss_roll

__all__ = [
    "DATASETS",
    "FACTS",
    "WITH_VARIANTS",
    "Facts",
    "describe",
    "digits",
    "fetch",
    "linear_gaussian",
    "load",
    "moons",
    "sine",
    "swiss_roll",
]
