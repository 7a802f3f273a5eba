"""Run an experiment, resume it, and print ours beside the paper's.

An experiment is a file `experiments/<paper>/<name>.py` with an `EXPERIMENT`. Its trials are independent: one column and
one seed give the values of all rows, are saved as they finish, and are not run again. A trial of hours gives its runs
`resumable()`, and goes on from the last whole round of the run it was stopped in.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consilience.disk.locks import locking
from consilience.errors import Diverged, InputError, unknown_name
from consilience.progress import track
from consilience.report.schema.numbers import count
from consilience.runs.engines.processes import run_in_processes
from consilience.runs.store import FORMAT, Store

_RUNS: ContextVar[Iterator[Path] | None] = ContextVar("runs of the trial under way", default=None)
DRAWING = "_drawing"  # what a trial's picture needs beside its scores: any JSON, for `draw`
Values = dict[str, dict[str, float | None]]  # row → score → value
Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Experiment:
    """A paper's table or figure, and how to fill it again.

    Attributes:
        title: What it shows.
        columns: Data sets, or degrees of heterogeneity.
        trial: From a column, a seed, a scale and the data folder to the values of all rows.
        score: The score that is compared with the paper's.
        digits: Decimals to print.
        spread: What the paper prints after ±.
        paper: Row → column → printed value and spread.
        incomparable: Columns on other data than the paper's.
        open_rows: Rows of the paper that nothing here fills yet.
        scales: How much of it can be run; the first is the default.
    """

    title: str
    columns: tuple[str, ...]
    trial: Callable[[str, int, str, str | None], Values]
    score: str
    digits: int = 3
    spread: str = "standard error over seeds"
    paper: dict[str, dict[str, tuple[float, float]]] | None = None
    incomparable: tuple[str, ...] = ()
    open_rows: tuple[str, ...] = ()
    scales: tuple[str, ...] = ("full",)


def folder() -> Path:
    """Find where the experiments lie: in the working folder, beside the package in a clone, or inside it.

    Raises:
        InputError: There is none.
    """
    package = Path(__file__).parents[1]
    for parent in (Path.cwd(), package.parent, package):  # a wheel has them inside the package
        if any((parent / "experiments").glob("*/*.py")):
            return parent / "experiments"
    raise InputError("There are no experiments here: run this inside a clone, or install the package from its wheel.")


def names() -> list[str]:
    """List the experiments, as `paper/name`."""
    return sorted(f"{p.parent.name}/{p.stem}" for p in folder().glob("*/*.py") if "EXPERIMENT" in p.read_text())


def load(name: str) -> Experiment:
    """Load an experiment.

    Args:
        name: As `paper/name`.

    Raises:
        InputError: There is none of that name.
    """
    if name not in names():
        raise unknown_name("experiment", name, names())
    experiment: Experiment = module(name).EXPERIMENT
    return experiment


def module(name: str) -> ModuleType:
    """Import an experiment's file, or one beside it that several share.

    Args:
        name: As `paper/name`.
    """
    path = folder() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"experiments_{name.replace('/', '_')}", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded  # dataclasses look there for the names in their annotations
    spec.loader.exec_module(loaded)
    return loaded


def resumable() -> Json:
    """What a trial gives `co.run` beside the rest, so that a trial begun again goes on in the run it was stopped in.

    Runs are told apart by their order in the trial, and forgotten as soon as it ends.

    Returns:
        Arguments of `co.run`; none where no experiment is being reproduced.
    """
    runs = _RUNS.get()
    if runs is None:
        return {}
    return {"out": next(runs), "resume": True}


@locking("out")
def reproduce(
    name: str,
    seeds: Sequence[int],
    scale: str | None,
    out: Path,
    data_dir: str | None,
    workers: int = 1,
    columns: Sequence[str] = (),
) -> Json:
    """Run what is missing of an experiment and write `results.json`.

    Args:
        name: The experiment, as `paper/name`.
        scale: How much of it; all if None.
        out: Where every trial is kept as soon as it ends.
        data_dir: Where data sets are kept.
        workers: How many trials run at a time.
        columns: Which columns are run; all if empty. results.json holds the others as far as they ran before.

    Returns:
        What results.json holds.

    Raises:
        InputError: The experiment, the scale or a column is unknown.
    """
    experiment = load(name)
    scale = scale or experiment.scales[0]
    if scale not in experiment.scales:
        raise unknown_name("scale", scale, experiment.scales)
    for column in columns:
        if column not in experiment.columns:
            raise unknown_name("column", column, experiment.columns)
    store = Store(out)
    every = [(column, seed) for seed in seeds for column in columns or experiment.columns]
    missing = [(column, seed) for column, seed in every if not (out / _file(scale, column, seed)).exists()]

    trials = _trials(name, missing, scale, out, data_dir, workers)
    for _ in track(missing, "trial"):
        column, seed, outcome = next(trials)
        value: Json = {"format": FORMAT, "values": outcome}
        if isinstance(outcome, Diverged):
            value = {"format": FORMAT, "values": {}, "lost": str(outcome)}
        store.write_checked(_file(scale, column, seed), value)
        shutil.rmtree(_unfinished(out, scale, column, seed), ignore_errors=True)
    results = collect(name, experiment, seeds, scale, out)
    store.write_checked("results.json", results)
    return results


def run_plan(
    experiment: Experiment,
    plan: Sequence[tuple[str, Sequence[int]]],
    out: Path,
    data_dir: str | None,
    known: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Run what is missing of a plan, one trial after another on one thread; the files are those of `reproduce`.

    Args:
        plan: Columns and their seeds, what decides most first.
        out: Where the trials are kept.
        data_dir: Where data sets are kept.
        known: Trials that were kept elsewhere, by column and seed, which are not run again.
    """
    torch.set_num_threads(1)
    for column, seeds in plan:
        for seed in seeds:
            file = _file("full", column, seed)
            if str(seed) in (known or {}).get(column, {}) or (out / file).exists():
                continue
            values = experiment.trial(column, seed, "full", data_dir)
            Store(out).write_checked(file, {"format": FORMAT, "values": values})
            print(column, seed, flush=True)


def _trials(
    name: str, missing: Sequence[tuple[str, int]], scale: str, out: Path, data_dir: str | None, workers: int
) -> Iterator[tuple[str, int, Values | Diverged]]:
    """Every trial as it ends; one that diverged is handed on, and after any other error no more are begun."""
    jobs = [(name, column, seed, scale, out, data_dir) for column, seed in missing]
    for (_, column, seed, *_), outcome in run_in_processes(_trial, jobs, workers):
        yield column, seed, outcome


def _trial(name: str, column: str, seed: int, scale: str, out: Path, data_dir: str | None) -> Values | Diverged:
    torch.set_num_threads(1)
    folder = _unfinished(out, scale, column, seed)
    begun = _RUNS.set(folder / str(n) for n in itertools.count())
    try:
        return load(name).trial(column, seed, scale, data_dir)
    except Diverged as error:
        return error
    finally:
        _RUNS.reset(begun)


def _unfinished(out: Path, scale: str, column: str, seed: int) -> Path:
    """The folder with the runs of a trial under way."""
    return (out / "unfinished" / _file(scale, column, seed)).with_suffix("")


def _file(scale: str, column: str, seed: int) -> str:
    return f"trials/{scale}/{column.replace(':', '-').replace('/', '-')}/seed-{seed}.json"


def collect(name: str, experiment: Experiment, seeds: Sequence[int], scale: str, out: Path) -> Json:
    """Set ours beside the paper's.

    Args:
        name: The experiment, as `paper/name`.
        seeds: The seeds; those that have not run are left out.
        scale: How much of it was run.
        out: Where the trials are.

    Returns:
        For each row and column ours, its spread, the paper's, and whether they can be compared.
    """
    cells: list[Json] = []
    lost: list[str] = []
    drawings: dict[str, dict[int, Any]] = {}
    for column in experiment.columns:
        trials = _read_trials(out, scale, column, seeds)
        lost += [f"{column}, seed {seed}: {trial['lost']}" for seed, trial in trials.items() if "lost" in trial]
        values = {seed: trial["values"] for seed, trial in trials.items()}
        drawing = {seed: rows.pop(DRAWING) for seed, rows in values.items() if DRAWING in rows}
        if drawing:
            drawings[column] = drawing
        cells += _column_cells(experiment, column, list(values.values()))
    results: Json = {
        "format": FORMAT,
        "experiment": name,
        "title": experiment.title,
        "score": experiment.score,
        "spread": experiment.spread,
        "digits": experiment.digits,
        "scale": scale,
        "seeds": list(seeds),
        "cells": cells,
    }
    if drawings:
        results["drawings"] = drawings
    if lost:
        results["lost"] = lost
    return results


def _read_trials(out: Path, scale: str, column: str, seeds: Sequence[int]) -> dict[int, Json]:
    """The trials of a column that have ended, by seed."""
    files = {seed: _file(scale, column, seed) for seed in seeds}
    trials = {seed: Store(out).read_json(file) for seed, file in files.items() if (out / file).exists()}
    for seed, trial in trials.items():
        if not isinstance(trial.get("values"), dict):
            raise InputError(f"{out / files[seed]} is damaged: delete it, and the trial is run again.")
    return trials


def _column_cells(experiment: Experiment, column: str, trials: Sequence[Values]) -> Iterator[Json]:
    """The cells of one column: rows that were run, then those that the paper alone has."""
    printed = {row: columns[column] for row, columns in (experiment.paper or {}).items() if column in columns}
    run = [row for trial in trials for row in trial]
    for row in dict.fromkeys([*run, *printed]):
        yield _cell(experiment, row, column, trials, printed.get(row, (None, None)))


def _cell(
    experiment: Experiment,
    row: str,
    column: str,
    trials: Sequence[Values],
    printed: tuple[float | None, float | None],
) -> Json:
    each = [trial[row] for trial in trials if row in trial]
    values = [value for scores in each if (value := scores.get(experiment.score)) is not None]
    keys = dict.fromkeys(key for scores in each for key in scores)
    error = _error(values)
    ours = _mean(values)
    paper, paper_error = printed
    away = None
    if ours is not None and paper is not None and paper_error:
        away = (ours - paper) / math.hypot(paper_error, error or 0)
    return {
        "row": row,
        "column": column,
        "ours": ours,
        "spread": error,
        "seeds": len(values),
        "per_seed": values,
        "scores": {key: _mean([scores.get(key) for scores in each]) for key in keys},
        "errors": {key: _error([scores.get(key) for scores in each]) for key in keys},
        "paper": paper,
        "paper_spread": paper_error,
        "away_in_standard_errors": away,
        "comparable": paper is not None and column not in experiment.incomparable,
        "open": row in experiment.open_rows,
    }


def _error(values: Sequence[float | None]) -> float | None:
    """The standard error of the mean of those that are known; None with fewer than two."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return statistics.stdev(known) / math.sqrt(len(known))


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean of those that are known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return statistics.fmean(known)


def results_table(results: Json, digits: int) -> RenderableType:
    """Print ours beside theirs.

    Returns:
        A table for the terminal.
    """
    columns = list(dict.fromkeys(c["column"] for c in results["cells"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row")
    for column in columns:
        table.add_column(f"{column}\nours (paper)", justify="right")
    for row in dict.fromkeys(c["row"] for c in results["cells"]):
        by_column = {c["column"]: c for c in results["cells"] if c["row"] == row}
        table.add_row(row, *(_format(by_column.get(column), digits) for column in columns))
    seeds = count(len(results["seeds"]), "seed")
    note = f"{results['score']}, mean ± {results['spread']}, {seeds}, scale {results['scale']}."
    return Group(Text(results["title"], "bold"), table, Text(note, "dim"))


def _format(cell: Json | None, digits: int) -> str:
    """A cell as text: '2.500 ± 0.645 (1.500)'."""
    if cell is None:
        return ""
    text = "–"
    if cell["open"]:
        text = "open"
    elif cell["ours"] is not None:
        text = f"{cell['ours']:.{digits}f}"
    if cell["spread"] is not None:
        text += f" ± {cell['spread']:.{digits}f}"
    if cell["paper"] is not None:
        text += f" ({cell['paper']:.{digits}f})"
        if not cell["comparable"]:
            text += " other data"
    return text
