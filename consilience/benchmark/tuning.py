"""Tune a method from Python, without folder plumbing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.benchmark.cells import Json
from consilience.benchmark.grids import Grid
from consilience.benchmark.rows import as_text
from consilience.benchmark.running import as_seeds
from consilience.benchmark.search import Search, Trial, run_search, write_settings
from consilience.benchmark.summary import plain_text
from consilience.data.reading import Reading
from consilience.data.tables import merge_reading
from consilience.method import Method
from consilience.report.schema.frames import to_frame
from consilience.report.table import trial_table
from consilience.runs.callbacks import OnRound, observing
from consilience.runs.recipe import Recipe
from consilience.runs.store import FORMAT


@dataclass(frozen=True)
class Tuning:
    """What a search found; `str()` is a table of the best trials.

    Attributes:
        name: The method's name.
        score: What decided, on the validation rows.
        seeds: Every point was tried on each.
        trials: Best first, failed ones last.
        best: The method at the best point.
        rounds: Its rounds.
        settings: All settings that make it, as settings.json holds them.
    """

    name: str
    score: str
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    best: Method
    rounds: int
    settings: Json

    def to_json(self) -> Json:
        """Write the search as JSON."""
        return {
            "kind": "tuning",
            "format": FORMAT,
            "method": self.name,
            "score": self.score,
            "seeds": list(self.seeds),
            "settings": self.settings,
            "trials": [trial._asdict() for trial in self.trials],
        }

    def to_frame(self) -> Any:
        """Every trial as a data frame, best first: its point, the score of each seed and their mean.

        Raises:
            InputError: Pandas is not installed.
        """
        rows = []
        for trial in self.trials:
            by_seed = {f"seed {seed}": value for seed, value in zip(self.seeds, trial.values, strict=False)}
            rows.append({**trial.point, **by_seed, "mean": trial.mean})
        return to_frame(rows)

    def __repr__(self) -> str:
        """What was tuned, and where it ended."""
        return f"Tuning({self.name}: best of {len(self.trials)} trials by {self.score}, {self.settings})"

    def __str__(self) -> str:
        trials = [(trial.point, trial.values, trial.mean) for trial in self.trials]
        return plain_text(trial_table(self.name, trials, self.score))


def tune(
    method: str | Method,
    *,
    data: str = "digits",
    target: str | None = None,
    sites: int | None = None,
    split: str | None = None,
    seeds: int | str | Iterable[int] = 0,
    grid: str | Grid | Sequence[Grid] = "papers",
    budget: int = 20,
    score: str = "nll",
    model: str | None = None,
    features: str | None = None,
    rounds: int | None = None,
    engine: str = "auto",
    calibration: int = 30,
    inputs: float | str = 0,
    validation: float = 0.2,
    common: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    data_dir: str | None = None,
    device: str = "cpu",
    test: float = 0.2,
    columns: str | Path | None = None,
    on_round: OnRound | None = None,
) -> Tuning:
    """Choose a method's settings on validation rows; test rows are never looked at.

    Example:
        >>> from consilience.benchmark import tune
        >>> tuning = tune("fedavg", data="moons", model="linear", rounds=2, grid={"inference.rate": [0.1, 1e-6]})
        >>> tuning.settings
        {'rounds': 2, 'inference.rate': 0.1}

    `compare([tuning.best, ...])` then compares the method at its best point.

    Args:
        method: The method's name, with settings in brackets that stay as they are, or a method object.
        data: A data set's name, or a pattern of CSV files, one a site.
        target: The column to predict, for CSV files.
        sites: How many; 5, or as many as the data name, if None.
        split: How the rows are spread over the sites; what is usual for the data if None.
        seeds: One, several, or a text such as `0-9`; every point is tried on each.
        grid: Path → values to try, several such, a JSON file, or `papers` for the papers' own.
        budget: How many points, drawn from the grid; give every method the same.
        score: `nll`, `brier`, `crps`, `accuracy` or `rmse`.
        model: The network, in words; `mlp`, or `linear` on features, if None.
        features: The feature map under the network: a name, as `conv:512`, or a run's folder. If None and no network
            is named either, what is usual for the rows if the method needs fixed features; else none.
        rounds: The rounds of methods that have many; what is usual if None.
        engine: Where the sites' work runs.
        calibration: Labelled rows that the server has.
        inputs: Unlabelled rows that the server has: how many, a share below 1, or another data set.
        validation: The share of training rows to tune on.
        common: Path → value, which count where a method in words has the field.
        out: A folder to keep everything in, which several methods may share; a temporary one if None.
        data_dir: Where data sets are kept.
        device: Where sites and server compute.
        test: The share of rows held out for testing.
        columns: A columns.toml that says how CSV files are read.
        on_round: Is called with a `RoundEvent` after every round of every trial.

    Returns:
        The trials, best first, and the method at the best point.

    Raises:
        InputError: A method, setting, score or data set is unknown, every trial failed, or `out` holds something else.
    """
    reading, named = merge_reading(Reading(), columns)
    recipe = Recipe(
        data=data,
        target=target or named,
        reading=reading.to_text(),
        test=test,
        sites=sites,
        split=split,
        calibration=calibration,
        inputs=inputs,
        validation=validation,
        data_dir=data_dir,
    )
    search = Search(
        method,
        recipe,
        seeds=as_seeds(seeds),
        grid=grid,
        budget=budget,
        score=score,
        rounds=rounds,
        engine=engine,
        device=device,
        common=tuple(f"{path}={as_text(value)}" for path, value in (common or {}).items()),
    ).choose_network(model, features)
    with observing(on_round):
        if out is not None:
            return _tune_in(search, out)
        with tempfile.TemporaryDirectory() as folder:
            return _tune_in(search, folder)


def _tune_in(search: Search, folder: str | Path) -> Tuning:
    trials = run_search(search, folder)
    settings = write_settings(search, trials, folder)[search.name]
    best = search.row(trials[0].point)
    return Tuning(search.name, search.score, search.seeds, tuple(trials), best.method, best.rounds, settings)
