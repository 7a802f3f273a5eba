"""Tune a method from Python, without folder plumbing."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from consilience.benchmark.cells import Json
from consilience.benchmark.grids import Grid
from consilience.benchmark.row_words import read_layers
from consilience.benchmark.running import as_seeds, for_many, the_problem
from consilience.benchmark.search import Search, Trial, run_search, write_settings
from consilience.benchmark.summary import plain_text
from consilience.errors import InputError
from consilience.method import Method
from consilience.report.schema.frames import to_frame
from consilience.report.table import trial_table
from consilience.runs.callbacks import OnRound, observing
from consilience.runs.problem import Problem
from consilience.runs.run import Compute
from consilience.runs.store import FORMAT

VALIDATION = 0.2  # of the training rows, where nobody says how many to tune on


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
    problem: Problem,
    *,
    seeds: int | str | Iterable[int] = 0,
    grid: str | Grid | Sequence[Grid] = "papers",
    budget: int = 20,
    score: str = "nll",
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str | Compute = "auto",
    out: str | Path | None = None,
    on_round: OnRound | None = None,
) -> Tuning:
    """Choose a method's settings on validation rows; test rows are never looked at.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", model="linear")
        >>> tuning = co.tune("fedavg", problem, rounds=2, grid={"inference.rate": [0.1, 1e-6]})
        >>> tuning.settings
        {'rounds': 2, 'inference.rate': 0.1}

    `co.compare([tuning.best, ...], problem)` then compares the method at its best point.

    Args:
        method: The method's name, with settings in brackets that stay as they are, or a method object.
        problem: What is to be learned from which rows. Where it names no validation rows, a fifth of the training
            rows; sites of your own bring theirs.
        seeds: One, several, or a text such as `0-9`; every point is tried on each.
        grid: Path → values to try, several such, a JSON file, or `papers` for the papers' own.
        budget: How many points, drawn from the grid; give every method the same.
        score: `nll`, `brier`, `crps`, `accuracy` or `rmse`.
        rounds: The rounds of methods that have many; what is usual if None.
        settings: Path → value, which count where a method in words has the field.
        engine: Where the sites' work runs; a `Compute` also says on which device.
        out: A folder to keep everything in, which several methods may share; a temporary one if None.
        on_round: Is called with a `RoundEvent` after every round of every trial.

    Returns:
        The trials, best first, and the method at the best point.

    Raises:
        InputError: A method, setting, score or data set is unknown, every trial failed, or `out` holds something else.
    """
    compute = for_many(engine)
    if compute.workers > 1:
        raise InputError("Trials run one after another: leave out `workers`.")
    problem = the_problem(problem)
    if not problem.given_sites and not problem.validation:
        problem = dataclasses.replace(problem, validation=VALIDATION)
    search = Search(
        method,
        problem,
        seeds=as_seeds(seeds),
        grid=grid,
        budget=budget,
        score=score,
        rounds=rounds,
        engine=str(compute.engine),
        device=compute.device,
        common=read_layers(settings)[1],
    ).settle()
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
