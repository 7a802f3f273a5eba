"""Run an experiment, resume it, and print ours beside the paper's.

An experiment is a file `experiments/<paper>/<name>.py` with an `EXPERIMENT`. Its trials are independent: one column and
one seed give the values of all rows, are saved as they finish, and are not run again.
"""

from __future__ import annotations

import importlib.util
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from consilience.engines.workers import share_cores
from consilience.errors import Diverged, InputError, unknown_name
from consilience.progress import track
from consilience.runs.store import FORMAT, Store

DRAWING = "_drawing"  # what a trial's picture needs beside its scores: any JSON, for `draw`
Values = dict[str, dict[str, float | None]]  # row → score → value


@dataclass(frozen=True)
class Experiment:
    title: str
    columns: tuple[str, ...]  # data sets, or degrees of heterogeneity
    trial: Callable[[str, int, str, str | None], Values]  # column, seed, scale, data folder → all rows
    score: str  # the score that is compared with the paper's
    digits: int = 3
    spread: str = "standard error over seeds"
    paper: dict[str, dict[str, tuple[float, float]]] | None = None  # row → column → printed value and spread
    incomparable: tuple[str, ...] = ()  # columns on other data than the paper's
    open_rows: tuple[str, ...] = ()  # rows of the paper that nothing here fills yet
    scales: tuple[str, ...] = ("full",)  # the first is the default


def folder() -> Path:
    """Where the experiments lie: in the working folder, or beside the package in a clone."""
    for parent in (Path.cwd(), Path(__file__).parents[2]):
        if (parent / "experiments").is_dir():
            return parent / "experiments"
    raise InputError("There is no experiments/ folder here: run this inside a clone of the project.")


def names() -> list[str]:
    return sorted(f"{p.parent.name}/{p.stem}" for p in folder().glob("*/*.py") if "EXPERIMENT" in p.read_text())


def load(name: str) -> Experiment:
    if name not in names():
        raise unknown_name("experiment", name, names())
    experiment: Experiment = module(name).EXPERIMENT
    return experiment


def module(name: str) -> ModuleType:
    """An experiment's file, or one beside it that several share."""
    path = folder() / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"experiments_{name.replace('/', '_')}", path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look there for the names in their annotations
    spec.loader.exec_module(found)
    return found


def reproduce(
    name: str, seeds: Sequence[int], scale: str | None, out: Path, data_dir: str | None, workers: int = 1
) -> dict[str, Any]:
    """Run what is missing and write `results.json`."""
    experiment = load(name)
    scale = scale or experiment.scales[0]
    if scale not in experiment.scales:
        raise unknown_name("scale", scale, experiment.scales)
    store = Store(out)
    wanted = [(column, seed) for seed in seeds for column in experiment.columns]
    missing = [(c, s) for c, s in wanted if not (out / _file(scale, c, s)).exists()]

    trials = _trials(name, missing, scale, data_dir, workers)
    for _ in track(missing, "trial"):
        column, seed, found = next(trials)
        told = {"values": {}, "lost": str(found)} if isinstance(found, Diverged) else {"values": found}
        store.write_json(_file(scale, column, seed), {"format": FORMAT, **told})
    results = collect(name, experiment, seeds, scale, out)
    store.write_json("results.json", results)
    return results


def _trials(
    name: str, missing: Sequence[tuple[str, int]], scale: str, data_dir: str | None, workers: int
) -> Iterator[tuple[str, int, Values | Diverged]]:
    """Every trial as it ends; one that leaves the finite numbers is told, after any other error no more are begun."""
    if workers == 1 or len(missing) == 1:
        for column, seed in missing:
            yield column, seed, _trial(name, column, seed, scale, data_dir)
        return
    pool = ProcessPoolExecutor(workers, get_context("spawn"), share_cores, (workers,))
    try:
        jobs = {pool.submit(_trial, name, c, s, scale, data_dir): (c, s) for c, s in missing}
        first: BaseException | None = None
        for job in as_completed(jobs):
            if job.cancelled():
                continue
            error = job.exception()
            if error is None:
                yield *jobs[job], job.result()
            elif first is None:
                first = error
                for other in jobs:
                    other.cancel()  # what runs already goes on, and is kept
        if first is not None:
            raise first
    finally:
        pool.shutdown(cancel_futures=True)  # what nobody will wait for is not begun


def _trial(name: str, column: str, seed: int, scale: str, data_dir: str | None) -> Values | Diverged:
    torch.set_num_threads(1)
    try:
        return load(name).trial(column, seed, scale, data_dir)
    except Diverged as error:
        return error


def _file(scale: str, column: str, seed: int) -> str:
    return f"trials/{scale}/{column.replace(':', '-').replace('/', '-')}/seed-{seed}.json"


def collect(name: str, experiment: Experiment, seeds: Sequence[int], scale: str, out: Path) -> dict[str, Any]:
    """For each row and column: ours, its spread, the paper's, and whether they can be compared."""
    cells: list[dict[str, Any]] = []
    lost: list[str] = []
    drawings: dict[str, dict[int, Any]] = {}
    for column in experiment.columns:
        files = [out / _file(scale, column, s) for s in seeds]
        told = [json.loads(file.read_text()) for file in files if file.exists()]
        trials = [t["values"] for t in told]
        there = [seed for seed, file in zip(seeds, files, strict=True) if file.exists()]
        lost += [f"{column}, seed {s}: {t['lost']}" for s, t in zip(there, told, strict=True) if "lost" in t]
        drawn = {seed: t.pop(DRAWING) for seed, t in zip(there, trials, strict=True) if DRAWING in t}
        drawings |= {column: drawn} if drawn else {}
        printed = {row: cols[column] for row, cols in (experiment.paper or {}).items() if column in cols}
        for row in dict.fromkeys([*(r for t in trials for r in t), *printed]):
            cells.append(_cell(experiment, row, column, trials, printed.get(row, (None, None))))
    return {
        "format": FORMAT,
        "experiment": name,
        "title": experiment.title,
        "score": experiment.score,
        "spread": experiment.spread,
        "digits": experiment.digits,
        "scale": scale,
        "seeds": list(seeds),
        "cells": cells,
        **({"drawings": drawings} if drawings else {}),
        **({"lost": lost} if lost else {}),
    }


def _cell(
    experiment: Experiment,
    row: str,
    column: str,
    trials: Sequence[Values],
    printed: tuple[float | None, float | None],
) -> dict[str, Any]:
    own = [t[row] for t in trials if row in t]
    values = [v for scored in own if (v := scored.get(experiment.score)) is not None]
    scores = {name: _mean([scored.get(name) for scored in own]) for name in dict.fromkeys(n for s in own for n in s)}
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    ours, (paper, paper_error) = _mean(values), printed
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
        "scores": scores,
        "paper": paper,
        "paper_spread": paper_error,
        "away_in_standard_errors": away,
        "comparable": paper is not None and column not in experiment.incomparable,
        "open": row in experiment.open_rows,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def results_table(results: dict[str, Any], digits: int) -> RenderableType:
    """Ours beside theirs."""
    columns = list(dict.fromkeys(c["column"] for c in results["cells"]))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("row")
    for column in columns:
        table.add_column(f"{column}\nours (paper)", justify="right")
    for row in dict.fromkeys(c["row"] for c in results["cells"]):
        by_column = {c["column"]: c for c in results["cells"] if c["row"] == row}
        table.add_row(row, *(_shown(by_column.get(column), digits) for column in columns))
    note = f"{results['score']}, mean ± {results['spread']}, {len(results['seeds'])} seeds, scale {results['scale']}."
    return Group(Text(results["title"], "bold"), table, Text(note, "dim"))


def _shown(cell: dict[str, Any] | None, digits: int) -> str:
    if cell is None:
        return ""
    ours = "open" if cell["open"] else "–" if cell["ours"] is None else f"{cell['ours']:.{digits}f}"
    spread = f" ± {cell['spread']:.{digits}f}" if cell["spread"] is not None else ""
    paper = "" if cell["paper"] is None else f" ({cell['paper']:.{digits}f})"
    return ours + spread + paper + ("" if cell["comparable"] or cell["paper"] is None else " other data")
