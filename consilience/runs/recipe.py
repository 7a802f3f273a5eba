"""A run in words: what the command line says, what run.json remembers, and what it takes to build it again."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from consilience import datasets
from consilience.data.inputs import inputs_from
from consilience.data.sites import Sites
from consilience.data.tables import from_csv
from consilience.errors import InputError
from consilience.formats.settings import configure
from consilience.method import Method
from consilience.methods import defaults, method
from consilience.models import model
from consilience.splits.text import parse
from consilience.task import Task, classification, regression


class Ingredients(NamedTuple):
    method: Method
    task: Task
    sites: Sites


@dataclass(frozen=True)
class Recipe:
    method: str = defaults.RUN
    data: str = "digits"  # a name, or a pattern of CSV files, one per site
    target: str | None = None  # the column to predict, for CSV files
    sites: int | None = None  # 5, or as many as the data name
    split: str | None = None  # natural where files or sites are named, else dirichlet:0.5, or iid for numbers
    model: str = "mlp"
    seed: int = 0
    test: float = 0.2
    calibration: int = 30
    inputs: float | str = 0  # how many, a share below 1, or another data set, as `cifar100:2000`
    validation: float = 0.0
    settings: tuple[str, ...] = ()
    data_dir: str | None = None

    def build(self) -> Ingredients:
        return Ingredients(self.build_method(), *self.build_problem())

    def build_method(self) -> Method:
        return configure(method(self.method), self.settings)

    def build_problem(self) -> tuple[Task, Sites]:
        """The same rows, split and network for every method with the same words."""
        sites = self.build_sites()
        network = model(self.model, sites.features, sites.classes)
        return (classification(network) if sites.classes else regression(network)), sites

    def build_sites(self) -> Sites:
        if isinstance(self.inputs, str):
            own = dataclasses.replace(self, inputs=0).build_sites()
            return elsewhere(own, self.inputs, self.seed, self.data_dir)
        roles: dict[str, Any] = {
            "test": self.test,
            "calibration": self.calibration,
            "inputs": self.inputs if 0 < self.inputs < 1 else int(self.inputs),
            "validation": self.validation,
            "seed": self.seed,
        }
        if self.data.endswith(".csv"):
            if self.target is None:
                raise InputError("CSV files need to know which column to predict: add --target COLUMN.")
            split = parse(self.split) if self.split else None
            return from_csv(self.data, self.target, split=split, sites=self.sites or None, **roles)
        if self.target is not None:
            raise InputError(f"--target is for CSV files, and {self.data} knows what it predicts: leave it out.")
        rows = datasets.load(self.data, self.data_dir)
        return rows.split(parse(self.split) if self.split else rows.usual_split(), self.sites or None, **roles)

    def to_json(self) -> dict[str, Any]:
        """Without the data folder, which is this machine's business."""
        return {**dataclasses.asdict(self), "settings": list(self.settings), "data_dir": None}

    @staticmethod
    def from_json(value: dict[str, Any], data_dir: str | None = None) -> Recipe:
        """What `to_json` wrote; a target that named data once ignored is left out."""
        known = {f.name for f in dataclasses.fields(Recipe)}
        if not isinstance(value, dict) or not set(value) <= known:
            raise InputError(
                "run.json does not say how this run was made: it was started from Python, resume it there."
            )
        made = Recipe(**{**value, "settings": tuple(value.get("settings", ())), "data_dir": data_dir})
        return made if made.data.endswith(".csv") else dataclasses.replace(made, target=None)


def elsewhere(sites: Sites, text: str, seed: int, data_dir: str | None) -> Sites:
    """The sites with the server's inputs from another data set: 'cifar100', or `cifar100:2000` for so many rows."""
    name, colon, number = text.partition(":")
    if colon and not number.isdecimal():
        raise InputError(f"'{text}' does not say how many rows: type for example {name}:2000.")
    return inputs_from(sites, datasets.load(name, data_dir), int(number) if colon else None, seed)


def run_folder(what: str, data: str) -> Path:
    """Where a run of that data is kept when nobody says where."""
    return free_folder(Path("runs"), f"{what}-{Path(data).stem.strip('*') or 'csv'}")


def free_folder(parent: Path, stem: str) -> Path:
    """The first of stem-1, stem-2, … that does not exist."""
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"
