"""Choosing settings on validation rows: the same number of trials for every method, and never a look at a test row."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from consilience.benchmark.cells import Json, claim
from consilience.benchmark.grids import Grid, Point, check_grids, draw_points, papers, read_grid
from consilience.benchmark.plan import slug
from consilience.benchmark.row_words import (
    Row,
    as_text,
    assignments,
    changed_settings,
    has,
    method_row,
    parse_word,
    row,
)
from consilience.data.sites import Sites
from consilience.disk.locks import locking
from consilience.disk.typed import restore_fields
from consilience.errors import Diverged, InputError, refuse_damage, unknown_name
from consilience.method import Method
from consilience.method import name as method_name
from consilience.metrics.scores import BETTER
from consilience.progress import track
from consilience.runs.device import on
from consilience.runs.identity import check
from consilience.runs.problem import Problem
from consilience.runs.recipe import Recipe
from consilience.runs.run import Compute, run
from consilience.runs.store import FORMAT, Store
from consilience.serialisation.settings import configure, describe
from consilience.task import Task

SCORES = ("nll", "accuracy", "rmse", "brier", "crps")
HEAD = ["method", "settings", "seed", "score", "value"]


class Trial(NamedTuple):
    """One point of the grid, tried on every seed.

    Attributes:
        point: The settings tried, by path.
        values: The score on each seed; None where training diverged.
        mean: Over the seeds; None where one diverged.
        failure: Why the first that diverged did.
    """

    point: Point
    values: list[float | None]
    mean: float | None
    failure: str = ""


@dataclass(frozen=True)
class Search:
    """What to tune, and on what.

    Attributes:
        word: The method, as in `compare`: settings in its brackets stay as they are. Or a method object, whose
            settings stay as they are but for those in the grid.
        problem: The problem, with validation rows.
        seeds: Every point is tried on each.
        grid: `papers` for the papers' own, a JSON file, or one or several mappings from paths to values.
        budget: How many points, drawn from the grid without replacement.
        score: What decides, on the validation rows.
        rounds: The rounds of methods that have many; what is usual if None.
        engine: Where the sites' work runs.
        common: `field=value` texts that count where a method in words has the field.
        device: Where sites and server compute.
    """

    word: str | Method
    problem: Problem
    seeds: tuple[int, ...] = (0,)
    grid: str | Grid | Sequence[Grid] = "papers"
    budget: int = 20
    score: str = "nll"
    rounds: int | None = None
    engine: str = "auto"
    common: tuple[str, ...] = ()
    device: str = "cpu"

    @property
    def name(self) -> str:
        """The method's name."""
        if isinstance(self.word, Method):
            return method_name(self.word)
        return parse_word(self.word)[0]

    def settle(self) -> Search:
        """Choose the feature map and the network on it, where nobody named them.

        Returns:
            The search with both, as `Problem.settle` chooses them.

        Raises:
            InputError: The method or one of its settings is unknown.
        """
        return dataclasses.replace(self, problem=self.problem.settle([self.row({}).method], self.seeds[0]))

    def row(self, point: Mapping[str, Any]) -> Row:
        """Set the method to one point of the grid.

        Raises:
            InputError: The method has no such field.
        """
        if isinstance(self.word, Method):
            outer_first = sorted(point.items(), key=lambda item: item[0].count("."))
            changes = [f"{path}={as_text(value)}" for path, value in outer_first]
            return method_row(configure(self.word, changes), self.rounds)
        name, brackets = parse_word(self.word)
        inside = ",".join(f"{path}={as_text(value)}" for path, value in {**point, **brackets}.items())
        word = name
        if inside:
            word = f"{name}[{inside}]"
        return row(word, None, assignments(self.common), self.rounds)

    def settings(self, point: Mapping[str, Any]) -> Json:
        """List all settings that make the method at one point, as settings.json holds them.

        Returns:
            Path → value, with `rounds` for methods that have many.
        """
        best = self.row(point)
        settings: Json = {}
        if not best.method.about.one_shot:
            settings["rounds"] = best.rounds
        if isinstance(self.word, Method):
            return {**settings, **changed_settings(best.method), **point}
        common = {path: value for path, value in assignments(self.common).items() if has(best.method, path)}
        return {**settings, **common, **point, **parse_word(self.word)[1]}

    def grids(self, sites: Sites) -> list[Grid]:
        """Find the grids.

        Args:
            sites: The sites, which the papers' grids depend on.

        Raises:
            InputError: A file does not exist or holds something else.
        """
        if self.grid == "papers":
            return papers(self.row({}).method, sites)
        if isinstance(self.grid, str):
            return read_grid(self.grid)
        return check_grids(self.grid, "grid")


def on_validation(sites: Sites) -> Sites:
    """Put the validation rows in the place of the test rows, which are gone.

    Returns:
        The same sites, scored on their validation rows.

    Raises:
        InputError: There are no validation rows.
    """
    if sites.validation is None or not any(len(part.x) for part in sites.validation):
        raise InputError("There are no validation rows to tune on: ask for some, for example validation=0.2.")
    return dataclasses.replace(sites, test=sites.validation, validation=None)


@locking("folder")
def run_search(
    search: Search, folder: str | Path, on_trial: Callable[[list[Trial]], None] | None = None
) -> list[Trial]:
    """Try every point on every seed, except those the folder already holds.

    Args:
        search: What to tune, and on what.
        folder: Where every trial is kept as soon as it exists.
        on_trial: Called with the trials so far, best first, after every trial.

    Returns:
        The trials, best first.

    Raises:
        InputError: The search cannot work, or the folder holds another one.
    """
    if search.score not in SCORES:
        raise unknown_name("score", search.score, SCORES)
    if search.budget < 1:
        raise InputError(f"budget={search.budget}: at least one trial is needed.")
    store = Store(folder)
    problems = {}
    for seed in search.seeds:
        task, sites = search.problem.build(seed)
        problems[seed] = (task, on_validation(sites))
    first_sites = problems[search.seeds[0]][1]
    points = draw_points(search.grids(first_sites), search.budget, search.seeds[0])
    rows = [search.row(point) for point in points]
    for r, (task, sites) in itertools.product(rows, problems.values()):
        check(r.method, task, sites, r.rounds)
    _claim_search(store, search, points, rows, [sites.fingerprint() for _, sites in problems.values()])
    trials: list[Trial] = []
    for i, (point, r) in enumerate(track(list(zip(points, rows, strict=True)), "trial")):
        place = f"trials/{slug(search.name)}/{i:04d}"
        trials.append(_try_point(search, store, place, point, r, problems))
        if on_trial is not None:
            on_trial(rank(trials, search.score))
    return rank(trials, search.score)


def _claim_search(
    store: Store, search: Search, points: Sequence[Point], rows: Sequence[Row], fingerprints: Sequence[str]
) -> None:
    """Write down what decides the numbers: the rows of every seed by their fingerprints, and every point."""
    word = search.word
    if isinstance(word, Method):
        word = method_row(word).word
    plan = {
        "format": FORMAT,
        "recipe": {**Recipe(word, search.problem, 0, search.common).to_json(), "seed": None},
        "points": list(points),
        "rows": [[describe(r.method), r.rounds] for r in rows],
        "seeds": list(search.seeds),
        "score": search.score,
        "engine": on(search.engine, search.device),
        "fingerprints": list(fingerprints),
    }
    file = f"plan-{search.name}.json"
    if (store.folder / file).exists() and "fingerprints" not in store.read_json(file):
        # Older versions did not write them down, so nobody can tell whether the rows are the same.
        raise InputError(f"The search in {store.folder} does not say which rows it is on: choose another folder.")
    claim(store, file, plan, f"search for {search.name}", f"trials/{slug(search.name)}")


def _try_point(
    search: Search, store: Store, place: str, point: Point, r: Row, problems: Mapping[int, tuple[Task, Sites]]
) -> Trial:
    """One point on every seed, read from the folder where it is there."""
    values: list[float | None] = []
    failure = ""
    for seed, (task, sites) in track(list(problems.items()), "seed"):
        file = f"{place}/{seed}.json"
        if not (store.folder / file).exists():
            scored = run_trial(r, task, sites, seed, search.engine, search.device)
            store.write_checked(file, {"format": FORMAT, "point": point, "seed": seed, **scored})
        scores = _read_trial(store, file, point, seed)
        if not scores.failure and search.score not in scores.metrics:
            raise unknown_name("score for this problem", search.score, scores.metrics)
        values.append(scores.metrics.get(search.score))
        failure = failure or scores.failure
    mean = None
    known = [value for value in values if value is not None]
    if len(known) == len(values):
        mean = statistics.fmean(known)
    return Trial(point, values, mean, failure)


class _Scores(NamedTuple):
    """What one point gave on one seed."""

    metrics: dict[str, float | None]
    failure: str


def _read_trial(store: Store, file: str, point: Point, seed: int) -> _Scores:
    """The scores of a trial in the folder; not those of another trial, whose file was put in its place."""
    saved = store.read_json(file)
    if (saved.get("point"), saved.get("seed")) != (json.loads(json.dumps(point)), seed):
        raise InputError(f"{store.folder / file} is of another trial: delete it, and the trial is run again.")
    with refuse_damage(f"{store.folder / file} is damaged: delete it, and the trial is run again."):
        return restore_fields(_Scores, {name: saved[name] for name in _Scores._fields})


def run_trial(r: Row, task: Task, sites: Sites, seed: int, engine: str, device: str = "cpu") -> Json:
    """Run one row and score it.

    Args:
        task: The network, its likelihood and its prior.
        sites: The sites, scored on their validation rows.
        engine: Where the sites' work runs.
        device: Where sites and server compute.

    Returns:
        The scores under `metrics`, or why there are none under `failure`.
    """
    try:
        result = run(
            r.method, task, sites, rounds=r.rounds, seed=seed, engine=Compute(engine, device=device), effects=False
        )
    except Diverged as error:
        return {"metrics": {}, "failure": str(error)}
    return {"metrics": result.metrics, "failure": ""}


def rank(trials: Sequence[Trial], score: str) -> list[Trial]:
    """Sort trials, best first and failed ones last; equals stay in the order they were tried.

    Returns:
        The trials in their new order.
    """

    def loss(trial: Trial) -> float:
        if trial.mean is None:
            return math.inf
        return -BETTER[score] * trial.mean

    return sorted(trials, key=loss)


@locking("folder")
def write_settings(search: Search, trials: Sequence[Trial], folder: str | Path) -> Json:
    """Add the best settings to the folder's settings.json, and every trial to its tune.csv.

    Other methods tuned into the same folder keep their place.

    Args:
        trials: The trials, best first.

    Returns:
        What settings.json holds: method → path → value.

    Raises:
        InputError: Every trial failed.
    """
    store = Store(folder)
    best = trials[0]
    if best.mean is None:
        raise InputError(
            f"Every trial of {search.name} failed, the first with: {best.failure} Try a grid of smaller rates."
        )
    settings: Json = {}
    if (store.folder / "settings.json").exists():
        with refuse_damage(f"{store.folder / 'settings.json'} is damaged: restore it from a copy, or delete it."):
            settings = dict(json.loads((store.folder / "settings.json").read_text(encoding="utf-8")))
    settings[search.name] = search.settings(best.point)
    store.write_json("settings.json", settings)
    store.write("tune.csv", _trials_csv(search, trials, store.folder / "tune.csv").encode())
    return settings


def _trials_csv(search: Search, trials: Sequence[Trial], table: Path) -> str:
    """The table with the trials of this search after those of other methods."""
    lines = [HEAD]
    if table.exists():
        with refuse_damage(f"{table} is damaged: restore it from a copy, or delete it."):
            present = list(csv.reader(table.read_text(encoding="utf-8").splitlines()))[1:]
            lines += [line for line in present if line[0] != search.name]
    for trial in trials:
        for seed, value in zip(search.seeds, trial.values, strict=True):
            text = ""
            if value is not None:
                text = repr(value)
            lines.append([search.name, json.dumps(trial.point), str(seed), search.score, text])
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(lines)
    return buffer.getvalue()
