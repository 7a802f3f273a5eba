"""Ways to deal the rows of a data set to sites.

- By chance, class, origin or feature (`labels`): `iid`, `heterogeneous`, `dirichlet`, `natural`, `sorted_feature`.
- With a few classes to a site (`skew`): `step`, `dominant`.
- With features that change from site to site (`features`): `shifted` with a `Rotation` or `Noise`.
- As text (`text`): `parse` reads "dirichlet:0.1+rotate:15", which `str` writes.
- What every split is (`split`): `Split`.
"""

from consilience.data.splits.features import Noise, Rotation, shifted
from consilience.data.splits.labels import dirichlet, heterogeneous, iid, natural, sorted_feature
from consilience.data.splits.skew import dominant, step
from consilience.data.splits.split import Split
from consilience.data.splits.text import parse

__all__ = [
    "Noise",
    "Rotation",
    "Split",
    "dirichlet",
    "dominant",
    "heterogeneous",
    "iid",
    "natural",
    "parse",
    "shifted",
    "sorted_feature",
    "step",
]
