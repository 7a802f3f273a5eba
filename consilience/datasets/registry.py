"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from consilience.data.dataset import Dataset
from consilience.data.sites import Features
from consilience.datasets import openml, synthetic, uci, vision
from consilience.datasets.folder import folder, locate
from consilience.errors import InputError, unknown_name

__all__ = ["DATASETS", "FACTS", "WITH_VARIANTS", "dataset", "describe_dataset", "fetch"]

EMBEDDED: dict[str, Callable[[], Dataset]] = synthetic.DATASETS
IN_FILES: dict[str, Callable[[str | None], Dataset]] = {
    "mnist": vision.mnist,
    "fashion_mnist": vision.fashion_mnist,
    "femnist": vision.femnist,
    "cifar10": vision.cifar10,
    "cifar100": vision.cifar100,
    "svhn": vision.svhn,
    "heart_disease": uci.heart_disease,
    "beijing_air": uci.beijing_air,
}
WITH_VARIANTS: dict[str, Callable[[str | None, str | None], Dataset]] = {
    "air_quality": uci.air_quality,
    "bike": uci.bike,
    "wine": uci.wine,
    "real_estate": uci.real_estate,
    "forest_fire": uci.forest_fire,
}
DATASETS: dict[str, Callable[..., Dataset]] = {**EMBEDDED, **IN_FILES, **WITH_VARIANTS}


class Facts(NamedTuple):
    """What is known of a data set without reading it."""

    rows: int  # the official test part included
    features: Features
    classes: int | None = None  # None: regression
    sites: int | None = None  # natural ones
    file: str | None = None  # None: embedded


FACTS = {
    "digits": Facts(1797, 64, 10),
    "moons": Facts(1000, 2, 2),
    "linear_gaussian": Facts(200, 4),
    "sine": Facts(500, 1, sites=5),
    "swiss_roll": Facts(1500, 2, 3),
    "mnist": Facts(70000, (1, 28, 28), 10, file="mnist.npz"),
    "fashion_mnist": Facts(70000, (1, 28, 28), 10, file="fashion_mnist.npz"),
    "femnist": Facts(45958, (1, 28, 28), 62, 300, "emnist62.npz"),
    "cifar10": Facts(60000, (3, 32, 32), 10, file="cifar10.npz"),
    "cifar100": Facts(22000, (3, 32, 32), 100, file="cifar100.npz"),
    "svhn": Facts(12000, (3, 32, 32), 10, file="svhn.npz"),
    "heart_disease": Facts(920, 29, 2, 4, "heart_disease.csv"),
    "beijing_air": Facts(15301, 15, sites=12, file="beijing_air.npz"),
    "air_quality": Facts(6941, 15, file="air_quality.csv"),
    "bike": Facts(731, 14, file="bike.csv"),
    "wine": Facts(1599, 11, file="winequality-red.csv"),
    "real_estate": Facts(414, 6, file="real_estate.csv"),
    "forest_fire": Facts(517, 14, file="forestfires.csv"),
}


def dataset(name: str, data_dir: str | None = None) -> Dataset:
    """A data set by its name, or by name and variant, such as 'wine@hasan2023'.

    `data_dir` is where files lie for those that are not embedded; without it, the folder in CONSILIENCE_DATA, or the
    user's cache.
    """
    name, at, variant = name.partition("@")
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    if name in WITH_VARIANTS:
        return WITH_VARIANTS[name](data_dir, variant if at else None)
    if at:
        raise InputError(f"{name} has no variants: ask for {name}.")
    return IN_FILES[name](data_dir) if name in IN_FILES else EMBEDDED[name]()


def describe_dataset(name: str, data_dir: str | None = None) -> tuple[str, ...]:
    """Rows, features, task, natural sites, whether it is here, and one sentence; no file is read."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    facts = FACTS[name]
    task = f"{facts.classes} classes" if facts.classes else "regression"
    sites = f"{facts.sites} named" if facts.sites else ""
    here = "built in" if facts.file is None else "present" if locate(facts.file, data_dir) else "missing"
    features = facts.features if isinstance(facts.features, int) else "×".join(str(n) for n in facts.features)
    sentence = (DATASETS[name].__doc__ or "").strip().splitlines()[0]
    return str(facts.rows), str(features), task, sites, here, sentence


def fetch(name: str, data_dir: str | None = None) -> Path:
    """Put a data set's file into the data folder, from OpenML, unless it is there; returns where it lies."""
    name = name.partition("@")[0]
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    file = FACTS[name].file
    if file is None:
        raise InputError(f"{name} is built in: there is nothing to fetch, use it.")
    if name not in openml.SOURCES:
        raise InputError(
            f"{name} cannot be fetched: put {file} into '{folder(data_dir)}', or pass the folder that has it with "
            f"--data-dir."
        )
    return locate(file, data_dir) or openml.download(name, folder(data_dir))
