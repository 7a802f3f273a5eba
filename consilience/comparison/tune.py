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
from typing import Any, NamedTuple, TypeAlias

from consilience.comparison.cells import claim, slug
from consilience.comparison.rows import Row, as_text, assignments, has, parse_word, row
from consilience.data.sites import Sites
from consilience.errors import Diverged, InputError, unknown_name
from consilience.formats.settings import describe
from consilience.key import Key
from consilience.method import Method
from consilience.metrics.scores import BETTER
from consilience.progress import track
from consilience.runs.provenance import check
from consilience.runs.recipe import Recipe
from consilience.runs.run import run
from consilience.runs.store import FORMAT, Store
from consilience.task import Task

Point: TypeAlias = dict[str, Any]  # field.path → value
Grid: TypeAlias = Mapping[str, Sequence[Any]]  # field.path → its values; several grids are tried one after another
SCORES = ("nll", "accuracy", "rmse", "brier", "crps")


class Trial(NamedTuple):
    point: Point
    values: list[float | None]  # one a seed; None where training left the finite numbers
    mean: float | None
    failure: str = ""


@dataclass(frozen=True)
class Search:
    word: str  # the method, as in `compare`; settings in its brackets stay as they are
    recipe: Recipe = Recipe(validation=0.2)
    seeds: tuple[int, ...] = (0,)
    grid: str = "papers"  # a JSON file, or the papers' own
    budget: int = 20  # trials, drawn from the grid without replacement
    score: str = "nll"
    rounds: int | None = None
    engine: str = "auto"
    common: tuple[str, ...] = ()

    def row(self, point: Mapping[str, Any]) -> Row:
        """The method at one point of the grid."""
        name, own = parse_word(self.word)
        inside = ",".join(f"{path}={as_text(value)}" for path, value in {**point, **own}.items())
        return row(f"{name}[{inside}]" if inside else name, None, assignments(self.common), self.rounds)


def on_validation(sites: Sites) -> Sites:
    """The same sites with their validation rows in the place of the test rows, which are gone."""
    if sites.validation is None or not any(len(part.x) for part in sites.validation):
        raise InputError("There are no validation rows to tune on: ask for some with --validation 0.2.")
    return dataclasses.replace(sites, test=sites.validation, validation=None)


def tune(search: Search, folder: str | Path, told: Callable[[list[Trial]], None] | None = None) -> list[Trial]:
    """Try every point on every seed, except those the folder already holds → the trials, best first."""
    if search.score not in SCORES:
        raise unknown_name("score", search.score, SCORES)
    if search.budget < 1:
        raise InputError(f"A budget of {search.budget} trials: at least one is needed.")
    store, name = Store(folder), parse_word(search.word)[0]
    problems = [dataclasses.replace(search.recipe, seed=seed).build_problem() for seed in search.seeds]
    problems = [(task, on_validation(sites)) for task, sites in problems]
    method = search.row({}).method
    grids = papers(method, problems[0][1]) if search.grid == "papers" else read_grid(search.grid)
    points = draw_points(grids, search.budget, search.seeds[0])
    rows = [search.row(point) for point in points]
    for r, (task, sites) in itertools.product(rows, problems):
        check(r.method, task, sites, r.rounds)
    plan = {
        "format": FORMAT,
        "recipe": {**search.recipe.to_json(), "method": search.word, "settings": list(search.common), "seed": None},
        "points": points,
        "rows": [[describe(r.method), r.rounds] for r in rows],
        **{"seeds": list(search.seeds), "score": search.score, "engine": search.engine},
        "fingerprints": [sites.fingerprint() for _, sites in problems],  # of the rows, one a seed
    }
    _know_rows(store, f"plan-{name}.json")
    claim(store, f"plan-{name}.json", plan, f"search for {name}", f"trials/{slug(name)}")
    trials: list[Trial] = []
    for i, (point, r) in enumerate(track(list(zip(points, rows, strict=True)), "trial")):
        values, failure = [], ""
        for seed, problem in track(list(zip(search.seeds, problems, strict=True)), "seed"):
            file = f"trials/{slug(name)}/{i:04d}/{seed}.json"
            if not (store.folder / file).exists():
                found = run_trial(r, *problem, seed, search.engine)
                store.write_json(file, {"format": FORMAT, "point": point, "seed": seed, **found})
            kept = store.read_json(file)
            if not kept["failure"] and search.score not in kept["metrics"]:
                raise unknown_name("score for this problem", search.score, kept["metrics"])
            values.append(kept["metrics"].get(search.score))
            failure = failure or kept["failure"]
        known = [v for v in values if v is not None]
        mean = statistics.fmean(known) if len(known) == len(values) else None
        trials.append(Trial(point, values, mean, failure))
        if told is not None:
            told(rank(trials, search.score))
    return rank(trials, search.score)


def _know_rows(store: Store, name: str) -> None:
    """Older versions did not write down which rows a search is on, so nobody can tell whether they are the same."""
    if (store.folder / name).exists() and "fingerprints" not in store.read_json(name):
        raise InputError(f"The search in {store.folder} does not say which rows it is on: choose another --out.")


def run_trial(r: Row, task: Task, sites: Sites, seed: int, engine: str) -> dict[str, Any]:
    """The scores of one row, or why there are none."""
    try:
        result = run(r.method, task, sites, rounds=r.rounds, seed=seed, engine=engine)
    except Diverged as error:
        return {"metrics": {}, "failure": str(error)}
    return {"metrics": result.metrics, "failure": ""}


def rank(trials: Sequence[Trial], score: str) -> list[Trial]:
    """Best first, failed ones last; equals stay in the order they were tried."""
    sign = -BETTER[score]
    return sorted(trials, key=lambda t: math.inf if t.mean is None else sign * t.mean)


def write(search: Search, trials: Sequence[Trial], folder: str | Path) -> dict[str, Any]:
    """Add the best settings to the folder's settings.json, and every trial to its tune.csv → what settings.json holds.

    Other methods tuned into the same folder keep their place.
    """
    store, (name, own) = Store(folder), parse_word(search.word)
    if trials[0].mean is None:
        raise InputError(
            f"Every trial of {name} failed, the first with: {trials[0].failure} Try a grid of smaller rates."
        )
    path = store.folder / "settings.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    best = search.row(trials[0].point)
    common = {p: v for p, v in assignments(search.common).items() if has(best.method, p)}
    rounds = {} if best.method.one_shot else {"rounds": best.rounds}
    settings = {**kept, name: {**rounds, **common, **trials[0].point, **own}}
    store.write_json("settings.json", settings)
    table = store.folder / "tune.csv"
    others = [r for r in csv.reader(table.read_text().splitlines())][1:] if table.exists() else []
    lines = [r for r in others if r[0] != name]
    for t in trials:
        for seed, value in zip(search.seeds, t.values, strict=True):
            lines.append([name, json.dumps(t.point), str(seed), search.score, "" if value is None else repr(value)])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("method", "settings", "seed", "score", "value"), *lines])
    store.write("tune.csv", text.getvalue().encode())
    return settings


def points_of(grids: Sequence[Grid]) -> list[Point]:
    """Every combination of the grids' values, without repetition."""
    found: list[Point] = []
    for grid in grids:
        found += [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return list({json.dumps(point, sort_keys=True): point for point in found}.values())


def draw_points(grids: Sequence[Grid], budget: int, seed: int) -> list[Point]:
    """As many points as the budget allows, at random and without replacement; the whole grid if it is smaller."""
    points = points_of(grids)
    if not points or points == [{}]:
        raise InputError("The grid is empty: give at least one field with at least one value.")
    if len(points) <= budget:
        return points
    return [points[i] for i in sorted(Key(seed).permutation(len(points))[:budget].tolist())]


def read_grid(source: str) -> list[Grid]:
    """A JSON file {"field.path": [values]}, or a list of such."""
    try:
        value = json.loads(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no grid '{source}': name a JSON file, or `papers`.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as JSON: {error}.") from error
    grids = value if isinstance(value, list) else [value]
    if not all(isinstance(g, dict) and all(isinstance(v, list) for v in g.values()) for g in grids):
        raise InputError(f'{source} should hold {{"inference.rate": [0.1, 0.01]}}, or a list of such.')
    return grids


def papers(method: Method, sites: Sites) -> list[Grid]:
    """The grid of Hasan 2023, Table B.1, in our fields, for what a method has.

    Temperature is in our units: the papers' T with noise of variance 2εαT/N is T·n_k/N here, so T/K on average.
    """
    numbers = sites.classes is None
    clients, total = len(sites), sum(len(part.x) for part in sites.train)
    rates = [0.1, 0.01, 0.001, *([1e-4] if numbers else [])]
    sampler: dict[str, list[Any]] = {
        "inference.rate": [0.5, *([0.2] if numbers else []), 0.1, 0.01, 0.001],
        "inference.keep": [4, 6, 12],
        "inference.temperature": [
            float(f"{t / clients:.3g}") for t in (*((1, 0.5, 0.05) if numbers else ()), 1 / total)
        ],
        "inference.cycles": [2, 4, 5] if numbers else [5],
        "inference.samples": [1, 2, 3] if numbers else [2],
    }
    server = [1.0, 0.5, 0.1, 0.01]
    axes: dict[str, list[Any]] = {
        "rate": server,
        "optimiser.rate": server,
        "rho": [0.4, 0.9, 1.0],
        "mu": [1.0, 0.1, 0.01, 0.001],
        "tau": [1.0, 0.1, 0.01, 0.001],
        "distil.inference.rate": [0.01, 0.005, *([0.001] if numbers else []), 1e-4],
        "distil.inference.epochs": [100, 50, 20],
    }
    shared = {path: values for path, values in axes.items() if has(method, path)}
    made: list[dict[str, list[Any]]] = [shared]
    if has(method, "inference.cycles"):
        made = [{**sampler, **shared}]
    elif has(method, "inference"):
        made = [
            {"inference": ["SGD"], "inference.momentum": [0.0, 0.9], "inference.rate": rates, **shared},
            {"inference": ["Adam"], "inference.rate": rates, **shared},
        ]
    if has(method, "distil.inference"):
        made = [{**g, "distil.inference": [kind]} for g in made for kind in ("SGD", "Adam", "SWA")]
    return list(made)
