"""What is known of a data set without reading it."""

from __future__ import annotations

from typing import NamedTuple

from consilience.data.sites import Features


class Facts(NamedTuple):
    """What is known of a data set without reading it; every loader's file has the facts of its data sets.

    Attributes:
        rows: How many there are, the official test part included.
        features: How many a row has, or its shape.
        classes: How many there are; None for a regression.
        sites: How many natural sites there are; None where rows have none.
        file: The name of the file in the data folder; None where none is needed.
        outcome: `counts` or `survival`, where targets are neither classes nor plain numbers.
    """

    rows: int
    features: Features
    classes: int | None = None
    sites: int | None = None
    file: str | None = None
    outcome: str = ""
