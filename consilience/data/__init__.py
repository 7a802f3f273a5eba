"""Rows, and who has which.

- `Data`, `Sites`: rows, and rows with their roles at the sites and the server (`sites`).
- `Dataset`: labelled rows in one place, and how `split` gives them roles (`dataset`, step by step in `roles`).
- `from_arrays`, `from_table` (also `from_csv`), `from_frame`: data sets from arrays (`arrays`), sites from files
  and data frames (`tables`); `formats` reads files, `delimited` CSV files.
- `map_sites`: rows replaced by the features that a fixed map makes of them (`mapped`).
- `inputs_from`: the server's inputs from another data set (`inputs`).
"""

from typing import TYPE_CHECKING

import lazy_loader

from consilience.data.arrays import from_arrays
from consilience.data.dataset import Dataset
from consilience.data.inputs import inputs_from
from consilience.data.mapped import map_sites
from consilience.data.sites import Data, Sites
from consilience.data.tables import from_csv, from_frame, from_table

if not TYPE_CHECKING:  # rooms inside this one, loaded when they are first used
    __getattr__ = lazy_loader.attach(__name__, ["datasets", "splits"])[0]

__all__ = [
    "Data",
    "Dataset",
    "Sites",
    "from_arrays",
    "from_csv",
    "from_frame",
    "from_table",
    "inputs_from",
    "map_sites",
]
