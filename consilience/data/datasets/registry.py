"""The data sets by name: what there is, how to load it, and how to get its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from consilience.data.dataset import Dataset
from consilience.data.datasets import openml, synthetic, tcga, uci, uci_sites, vision
from consilience.data.datasets.facts import Facts
from consilience.disk.data_folder import data_folder, locate, presence
from consilience.errors import InputError, unknown_name

EMBEDDED: dict[str, Callable[[], Dataset]] = synthetic.DATASETS
IN_FILES: dict[str, Callable[[str | None], Dataset]] = {**vision.DATASETS, **uci_sites.DATASETS, **tcga.DATASETS}
WITH_VARIANTS: dict[str, Callable[[str | None, str | None], Dataset]] = uci.WITH_VARIANTS
DATASETS: dict[str, Callable[..., Dataset]] = {**EMBEDDED, **IN_FILES, **WITH_VARIANTS}
FACTS: dict[str, Facts] = {
    **synthetic.FACTS,
    **vision.FACTS,
    **uci_sites.FACTS,
    **tcga.FACTS,
    **uci.FACTS,
}


def load(name: str, data_dir: str | None = None) -> Dataset:
    """Load a data set by its name.

    Args:
        name: One of `DATASETS`, or a name and a variant, such as "wine@hasan2023".
        data_dir: The folder of the data files; by default the one in CONSILIENCE_DATA, or the user's cache.

    Raises:
        InputError: There is no such data set or variant, or its file is missing.

    Example:
        >>> import consilience as co
        >>> rows = co.datasets.load("digits")
        >>> rows.x.shape, rows.classes
        (torch.Size([1797, 64]), 10)
    """
    name, at, variant = name.partition("@")
    _check_name(name)
    if at and name in WITH_VARIANTS:
        return WITH_VARIANTS[name](data_dir, variant)
    if at:
        raise InputError(f"{name} has no variants: ask for {name}.")
    if name in EMBEDDED:
        return EMBEDDED[name]()
    return DATASETS[name](data_dir)


def describe(name: str, data_dir: str | None = None) -> tuple[str, ...]:
    """Describe a data set in words; no file is read.

    Args:
        name: One of `DATASETS`.
        data_dir: The folder of the data files, as in `load`.

    Returns:
        Rows, features, task, natural sites, whether its file is present, and one sentence.

    Raises:
        InputError: There is no such data set.

    Example:
        >>> import consilience as co
        >>> co.datasets.describe("moons")[:3]
        ('1000', '2', '2 classes')
    """
    _check_name(name)
    facts = FACTS[name]
    features = str(facts.features)
    if not isinstance(facts.features, int):
        features = "×".join(str(n) for n in facts.features)
    task = f"{facts.classes} classes" if facts.classes else facts.outcome or "regression"
    sites = f"{facts.sites} named" if facts.sites else ""
    sentence = (DATASETS[name].__doc__ or "").strip().splitlines()[0]
    return str(facts.rows), features, task, sites, presence(facts.file, data_dir), sentence


def fetch(name: str, data_dir: str | None = None) -> Path:
    """Put a data set's file into the data folder, from OpenML, unless it is there.

    Args:
        name: One of `DATASETS`, with or without a variant.
        data_dir: The folder of the data files, as in `load`.

    Returns:
        Where the file lies.

    Raises:
        InputError: There is no such data set, it has no file or none that can be fetched, or fetching failed.
    """
    name = name.partition("@")[0]
    _check_name(name)
    file = FACTS[name].file
    if file is None:
        raise InputError(f"{name} is built in: there is nothing to fetch, use it.")
    if name not in openml.SOURCES:
        raise InputError(
            f"{name} cannot be fetched: put {file} into '{data_folder(data_dir)}', or pass the folder that has it as "
            "data_dir."
        )
    return locate(file, data_dir) or openml.download(name, data_folder(data_dir))


def _check_name(name: str) -> None:
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
