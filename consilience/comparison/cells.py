"""Rows of a table on the same splits and seeds: trained once where they can share replies, resumed after any kill.

A comparison's folder holds `plan.json`, and for every split and seed the problem and one file a row, each written as
soon as it exists.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from consilience import datasets
from consilience.comparison.rows import Row, assignments, fields, has, parse_word, read_settings, row
from consilience.comparison.summary import Problem, comparison
from consilience.data.sites import Data, Sites
from consilience.engines import choose_engine
from consilience.engines.participation import Participation
from consilience.engines.participation import check as check_participation
from consilience.errors import Diverged, InputError, unknown_name
from consilience.formats.settings import describe
from consilience.method import Needs, group
from consilience.methods import METHODS
from consilience.methods.bounds import bounds
from consilience.metrics.communication import curve
from consilience.models.remembered import remember_values
from consilience.parties import Received
from consilience.progress import track
from consilience.runs.provenance import check
from consilience.runs.recipe import Recipe
from consilience.runs.result import Result
from consilience.runs.run import run
from consilience.runs.store import FORMAT, Store
from consilience.splits.text import parse
from consilience.task import Task
from consilience.tree import Tree

Cell: TypeAlias = dict[str, Any]  # what one row gave on one split and seed


@dataclass(frozen=True)
class Plan:
    words: tuple[str, ...]  # the rows, as typed
    recipe: Recipe = Recipe()  # the problem; its split and seed are taken from below
    splits: tuple[str | None, ...] = (None,)
    seeds: tuple[int, ...] = (0,)
    rounds: int | None = None  # of methods that have many
    engine: str = "auto"
    common: tuple[str, ...] = ()  # settings for every row that has the field
    settings: str | None = None  # a file, or a preset's name
    bounds: bool = True  # add the rows every table should have
    participation: Participation = Participation()  # of every row that is no bound

    def rows(self, split: str | None) -> list[Row]:
        """The rows with their settings, bounds last."""
        if not self.words:
            raise InputError("Say what to compare, for example `consilience compare beta mixture fedavg`.")
        tuned = read_settings(self.settings, self.recipe.data, split) if self.settings else {}
        common = assignments(self.common)
        rows = [row(word, tuned.get(parse_word(word)[0]), common, self.rounds) for word in self.words]
        if self.bounds:
            given = {parse_word(word)[0] for word in self.words}
            listed = bounds(None, sites=2, labelled=bool(self.recipe.calibration))
            rows += [_bound(b, rows, tuned.get(b), common) for b in listed if b not in given]
        for path in common:
            if not any(has(r.method, path) for r in rows):
                raise unknown_name("setting", path, {p for r in rows for p in fields(r.method)})
        if len({slug(r.word) for r in rows}) < len(rows):
            raise InputError("Two rows are the same; give each method once, or with different settings in brackets.")
        twice = {r.name for r in rows if [s.name for s in rows].count(r.name) > 1}
        return [r._replace(name=r.word) if r.name in twice else r for r in rows]

    def check(self) -> dict[str | None, list[Row]]:
        """The rows of every split; refuses what can be refused before any data are read."""
        for split in self.splits:
            parse(split or "iid")
        if len(set(self.splits)) < len(self.splits):
            raise InputError("A split is named twice; give each once.")
        return {split: self.rows(split) for split in self.splits}

    def to_json(self) -> dict[str, Any]:
        """All that decides the numbers."""
        recipe = {k: v for k, v in self.recipe.to_json().items() if k not in ("method", "settings", "split", "seed")}
        rows = [
            {"split": split, "rows": [[r.word, r.rounds, describe(r.method)] for r in made]}
            for split, made in self.check().items()
        ]
        made = {"format": FORMAT, "recipe": recipe, "rows": rows, "seeds": list(self.seeds), "engine": self.engine}
        taking = self.participation
        return {**made, "participation": dataclasses.asdict(taking)} if taking.partial else made


def _bound(name: str, rows: Sequence[Row], tuned: Mapping[str, Any] | None, common: Mapping[str, str]) -> Row:
    """A bound infers as the first one-round row does, whose replies then serve both; the server's few rows need the
    many passes they have by default, whatever is set for all rows."""
    if METHODS[name].needs is Needs.LABELS:
        return row(name, tuned)
    first = next((r.method for r in rows if r.method.shares and r.rounds == 1), None)
    made = row(name, tuned, None if first else common)
    if tuned or first is None:
        return made
    return made._replace(method=dataclasses.replace(made.method, inference=getattr(first, "inference")))  # type: ignore[type-var]  # noqa: B009


def parse_seeds(text: str) -> tuple[int, ...]:
    """'0-9', '0,3,7' or '5'."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise InputError(f"'{text}' are no seeds: write for example 0-9, or 0,3,7, or 5.")
        seeds += range(int(match[1]), int(match[2] or match[1]) + 1)
    if len(set(seeds)) < len(seeds):
        raise InputError(f"'{text}' names a seed twice; give each once.")
    return tuple(seeds)


def slug(word: str) -> str:
    """A row or a split as a file's name."""
    return re.sub(r"[^\w=.,+-]+", "-", word).strip("-")


class Replay:
    """An engine that hands out the replies of another run's one round, and its losses."""

    def __init__(self, data: Sequence[Data], first: Result) -> None:
        self.replies = list(first.replies)
        self.memories: dict[int, Tree] = {}
        self.clients, self.forgiving = range(len(data)), False
        self.lost = {first.sites.names.index(f["site"]): f["why"] for f in first.report["failures"]}

    def gather(self, *_: Any) -> list[Received]:
        return self.replies


class Outcome(NamedTuple):
    row: Row
    result: Result | None  # None where training left the finite numbers
    failure: str = ""


def outcomes(
    rows: Sequence[Row],
    task: Task,
    sites: Sites,
    seed: int,
    engine: str = "auto",
    participation: Participation = Participation(),
) -> Iterator[Outcome]:
    """Run the rows on the same sites, start and server rows; those that share an inference train once.

    The numbers are those of separate runs: shared replies go through the same loop, in place of training.
    """
    kept: dict[str, Result] = {}
    for r in track(rows, "row"):
        taking = Participation() if r.method.bound else participation
        key = _shared(r, taking)
        first = kept.get(key) if key else None
        where: Any = engine if first is None else lambda data, first=first: Replay(data, first)
        try:
            result = run(r.method, task, sites, rounds=r.rounds, seed=seed, engine=where, participation=taking)
        except Diverged as error:
            yield Outcome(r, None, str(error))
            continue
        if first is not None:
            result.report["engine"] = first.report["engine"]
        elif key:
            kept[key] = result
        yield Outcome(r, result)


def _shared(r: Row, taking: Participation) -> str | None:
    """What two rows must have in common to use the same replies."""
    settings = r.method.reply_settings()
    if settings is None or r.rounds != 1:
        return None
    return json.dumps(describe([settings, taking]), sort_keys=True)


def line(name: str, result: Result) -> Cell:
    """One row's result, as tables and reports want it."""
    r = result.report
    sends_nothing = result.method.silent
    kept = ("method", "needs", "rounds", "metrics", "intervals", "tempered", "reliability", "seconds")
    return {
        "name": name,
        **{k: r.get(k) for k in kept},
        "up_bytes": 0 if sends_nothing else r["ledger"]["up_bytes"],
        "down_bytes": 0 if sends_nothing else r["ledger"]["down_bytes"],
        "settings": r["settings"],
        "curve": [] if sends_nothing or result.method.bound else curve(r),
    }


def compare(
    plan: Plan,
    folder: str | Path,
    reference: str | None = None,
    told: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Run what is not yet in the folder → what compare.json holds.

    `reference` is the row the others are paired with, the first that is no bound by default. `told` hears of the
    comparison so far after every row.
    """
    rows = plan.check()
    store = Store(folder)
    reference = None if reference is None else re.sub(r"\s", "", reference)  # as rows are written
    if reference is not None and reference not in {r.word for made in rows.values() for r in made}:
        raise unknown_name("row", reference, [r.word for made in rows.values() for r in made])
    claim(store, "plan.json", plan.to_json(), "comparison", "cells")
    fixed = None if plan.recipe.data.endswith(".csv") else datasets.load(plan.recipe.data, plan.recipe.data_dir).x_test
    found: dict[str | None, dict[int, tuple[Problem, dict[str, Cell]]]] = {split: {} for split in plan.splits}

    def so_far() -> dict[str, Any]:
        return comparison(plan.recipe, rows, found, plan.seeds, reference, fixed is not None)

    for split in track(plan.splits, "split"):
        for seed in track(plan.seeds, "seed"):
            recipe = dataclasses.replace(plan.recipe, split=split, seed=seed)
            with remember_values():  # rows that share replies predict with the same models
                for problem, cells in _cells(recipe, rows[split], plan, store):
                    found[split][seed] = (problem, cells)
                    if told is not None and cells:
                        told(so_far())
    return so_far()


def _cells(recipe: Recipe, rows: Sequence[Row], plan: Plan, store: Store) -> Iterator[tuple[Problem, dict[str, Cell]]]:
    """The cells of one split and seed as they come to exist, those of an earlier start first."""
    place = f"cells/{slug(recipe.split or 'default')}/{recipe.seed}"
    names = {r.word: f"{place}/{slug(r.word)}.json" for r in rows}
    cells = {word: store.read_json(name) for word, name in names.items() if (store.folder / name).exists()}
    if len(cells) == len(rows):
        yield store.read_json(f"{place}/problem.json"), cells
        return
    task, sites = recipe.build_problem()
    problem = _problem(task, sites)
    choose_engine(plan.engine, task, sites.train)
    for r in rows:
        check(r.method, task, sites.pooled() if r.method.pooled else sites, r.rounds)
        if not r.method.bound:
            check_participation(plan.participation, r.method, len(sites))
    claim(store, f"{place}/problem.json", problem, "comparison, on other rows", place)
    yield problem, cells
    left = [r for r in rows if r.word not in cells]
    for r, result, failure in outcomes(left, task, sites, recipe.seed, plan.engine, plan.participation):
        extra = {"format": FORMAT, "row": r.word, "failure": failure}
        if result is None:
            about = {
                "name": r.name,
                "method": parse_word(r.word)[0],
                "rounds": r.rounds,
                "settings": describe(r.method),
            }
            cell = {**about, "needs": group(r.method), "seconds": 0.0}
        else:
            kept = ("ece_if_calibrated", "worst_site", "best", "engine", "threads", "warnings", "versions", "failures")
            cell = {**line(r.name, result), **{k: result.report.get(k) for k in kept}}
        store.write_json(names[r.word], {**extra, **cell})
        cells = {**cells, r.word: store.read_json(names[r.word])}  # as a resumed comparison would see it
        yield problem, cells


def _problem(task: Task, sites: Sites) -> Problem:
    """What the rows of one split and seed have in common."""
    parts = {"train": sites.train, "validation": sites.validation or (), "test": sites.test}
    return {
        "format": FORMAT,
        "data": sites.name,
        "split": sites.split,
        "sites": len(sites),
        "site_names": list(sites.names),
        "task": "classification" if sites.classes else "regression",
        "class_names": list(sites.class_names) if sites.class_names else None,
        "labels": [[int(c) for c in site] for site in sites.label_counts()] if sites.classes else None,
        "rows_of_data": {
            **{role: sum(len(d.x) for d in part) for role, part in parts.items()},
            "calibration": 0 if sites.calibration is None else len(sites.calibration.x),
            "inputs": 0 if sites.inputs is None else len(sites.inputs),
        },
        "parameters": sum(p.numel() for p in task.like.values()),
        "fingerprint": sites.fingerprint(),
    }


def claim(store: Store, name: str, value: dict[str, Any], what: str, begun: str) -> None:
    """Write down what a folder is for, or refuse one where something else has `begun`."""
    if store.exists:
        raise InputError(f"{store.folder} holds a run; choose another folder with --out.")
    if not (store.folder / begun).exists():
        store.write_json(name, value)
    elif store.read_json(name) != json.loads(json.dumps(value)):
        raise InputError(f"{store.folder} holds another {what}; repeat its command to go on, or choose another --out.")
