"""Data sets by name."""

from __future__ import annotations

from consilience.data.dataset import Dataset
from consilience.data.synthetic import DATASETS
from consilience.errors import unknown

__all__ = ["DATASETS", "dataset", "describe_dataset"]


def dataset(name: str, data_dir: str | None = None) -> Dataset:
    """A data set by its name; `data_dir` is where files lie for those that are not embedded."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]()


def describe_dataset(name: str, data_dir: str | None = None) -> tuple[str, str, str, str, str]:
    """Rows, features, task, natural sites and one sentence."""
    found = dataset(name, data_dir)
    task = f"{found.classes} classes" if found.classes else "regression"
    sites = "" if found.site is None else f"{len(found.site.unique())} named"
    features = str(found.features).replace(" ", "")
    sentence = (DATASETS[name].__doc__ or "").strip().splitlines()[0]
    return str(len(found.x)), features, task, sites, sentence
