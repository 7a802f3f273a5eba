"""The Cancer Genome Atlas's breast cancer patients, by region, with the folds of FLamby."""

from __future__ import annotations

import csv
from collections.abc import Callable

import torch

from consilience.data.dataset import Dataset
from consilience.data.datasets.facts import Facts
from consilience.disk.data_folder import find

FILE = "tcga_brca.csv"
ABOUT = ("region", "fold", "event", "days")  # the other columns are features


def tcga_brca(data_dir: str | None = None) -> Dataset:
    """Survival of 1 088 breast cancer patients in six regions, as FLamby's Fed-TCGA-BRCA has them, with its test fold.

    Liu et al., Cell 2018; du Terrail et al., NeurIPS 2022. Times are days to death, or to when a patient was last seen.

    Args:
        data_dir: The folder of the data files.

    Returns:
        The data set, an outcome of times with events.

    Raises:
        InputError: The file is missing.
    """
    with find(FILE, data_dir).open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = tuple(name for name in rows[0] if name not in ABOUT)
    x = torch.tensor([[float(row[name]) for name in names] for row in rows])
    y = torch.tensor([[float(row["days"]), float(row["event"])] for row in rows])
    site = torch.tensor([int(row["region"]) for row in rows])
    tested = torch.tensor([row["fold"] == "test" for row in rows])
    return Dataset(
        name="tcga_brca",
        x=x[~tested],
        y=y[~tested],
        site=site[~tested],
        x_test=x[tested],
        y_test=y[tested],
        site_test=site[tested],
        site_names=tuple(f"region {i}" for i in range(int(site.max()) + 1)),
        feature_names=names,
        public=True,
        standardise=True,
        outcome="survival",
    )


DATASETS: dict[str, Callable[[str | None], Dataset]] = {"tcga_brca": tcga_brca}
FACTS = {"tcga_brca": Facts(1088, 39, None, 6, FILE, "survival")}
