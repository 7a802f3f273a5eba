"""Compare methods on the same splits and seeds: what a folder already holds is not run again.

A comparison's folder holds `plan.json`, and for every split and seed the problem and one file a row, each written as
soon as it exists.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from consilience.benchmark.cells import Cell, Described, Json, claim
from consilience.benchmark.export import write_comparison
from consilience.benchmark.outcomes import outcomes
from consilience.benchmark.plan import Plan, parse_seeds, slug
from consilience.benchmark.row_words import AnySettings, Row, read_layers
from consilience.benchmark.summary import Cells, Comparison, summarise_part, title
from consilience.data.sites import Sites
from consilience.data.splits.split import Split
from consilience.disk.locks import locking
from consilience.errors import InputError, refuse_damage, unknown_name
from consilience.inference.fast.shared import share_training
from consilience.method import Bound, Method
from consilience.method.declared import pools_rows
from consilience.methods import register_plugins
from consilience.metrics.baselines import lines_to_beat
from consilience.models.remembered import remember_values
from consilience.plugins import any_plugins
from consilience.progress import track
from consilience.runs.callbacks import OnRound, observing
from consilience.runs.engines import choose_engine
from consilience.runs.engines.participation import Participation
from consilience.runs.engines.participation import check as check_participation
from consilience.runs.engines.participation import participation as as_participation
from consilience.runs.engines.processes import check_sendable, run_in_processes
from consilience.runs.identity import check
from consilience.runs.problem import Problem
from consilience.runs.run import Compute
from consilience.runs.store import FORMAT, Store
from consilience.task import Task

AnySplit: TypeAlias = str | Split | None  # of a table; None is the data's usual one


def compare(
    methods: Iterable[str | Method] | str | Method,
    problem: Problem,
    *,
    seeds: int | str | Iterable[int] = 0,
    rounds: int | None = None,
    settings: AnySettings = None,
    bounds: bool = True,
    participation: float | Participation | None = None,
    engine: str | Compute = "auto",
    out: str | Path | None = None,
    on_round: OnRound | None = None,
) -> Comparison:
    """Run several methods on the same problem, splits and seeds.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", model="linear", sites=3)
        >>> rows = ["mixture", "fedavg[rounds=2]", co.methods.BCM()]
        >>> comparison = co.compare(rows, problem, seeds=range(2), bounds=False)
        >>> [row.row for row in comparison.rows]
        ['mixture', 'fedavg[rounds=2]', 'bcm']

    Printed, `comparison` is a table.

    Args:
        methods: The rows: a method's name, with settings in brackets or without, or a method object, which keeps its
            settings whatever is set for other rows. The others are paired with the first that is not a bound.
        problem: What is to be learned from which rows; with several splits, a table each.
        seeds: One, several, or a text such as `0-9`; each has its own split, start and draws. Fixed `Sites` are one
            split, which all seeds share.
        rounds: The rounds of methods that have many; what is usual for each if None.
        settings: A file that `tune` wrote, or a preset's name; path → value, for every row in words that has the
            field; or both in a list.
        bounds: Whether to add each site alone, the server alone and pooled data.
        participation: How many sites, or which fraction, are asked a round; a `Participation` says more.
        engine: Where the sites' work runs; a `Compute` also says on which device, and how many seeds at a time.
        out: A folder to keep everything in; the same call continues what is there. A temporary one if None.
        on_round: Is called with a `RoundEvent` after every round of every run.

    Returns:
        The comparison: `rows`, `to_json()`, `to_frame()`, and the table as `str()`.

    Raises:
        InputError: A method, setting, split or data set is unknown, or `out` holds something else.
    """
    if isinstance(methods, (str, Method)):
        methods = (methods,)
    compute = for_many(engine)
    if compute.workers > 1 and on_round is not None:
        raise InputError("Rounds in other processes are not reported: leave out `on_round`, or `workers`.")
    source, common = read_layers(settings)
    plan = Plan(
        tuple(methods),
        the_problem(problem),
        splits=problem.splits,
        seeds=as_seeds(seeds),
        rounds=rounds,
        engine=str(compute.engine),
        common=common,
        settings=source,
        bounds=bounds,
        participation=as_participation(participation),
        device=compute.device,
    ).settle()
    if compute.workers > 1:
        check_sendable(plan, "this problem")
    with observing(on_round):
        if out is not None:
            comparison = compare_plan(plan, out, workers=compute.workers)
            write_comparison(comparison, out)
            return comparison
        with tempfile.TemporaryDirectory() as folder:
            return compare_plan(plan, folder, workers=compute.workers)


def the_problem(problem: Any) -> Problem:
    """Refuse what is not a problem.

    Raises:
        InputError: It is something else; the sentence says how to make one.
    """
    if not isinstance(problem, Problem):
        kind = type(problem).__name__
        raise InputError(f"problem= is a {kind}: pass co.Problem('moons'), or co.Problem(sites=sites, task=task).")
    return problem


def for_many(engine: str | Compute) -> Compute:
    """Read where the sites' work of many runs is done.

    Args:
        engine: An engine's name, or a `Compute`.

    Returns:
        The `Compute`.

    Raises:
        InputError: It sets what many runs cannot have alike.
    """
    compute = engine if isinstance(engine, Compute) else Compute(engine)
    if not isinstance(compute.engine, str):
        raise InputError("An engine of your own is for one run: name an engine, for example 'sequential'.")
    if compute.threads is not None or compute.compiled is not None:
        raise InputError("threads and compiled are chosen for each of many runs by its network: leave them out.")
    return compute


def as_seeds(seeds: int | str | Iterable[int]) -> tuple[int, ...]:
    """Read seeds in any form.

    Args:
        seeds: One, several, or a text such as `0-9`.

    Raises:
        InputError: There is none, one twice, or a text that is not a list of seeds.
    """
    if isinstance(seeds, str):
        return parse_seeds(seeds)
    if isinstance(seeds, int):
        return (seeds,)
    return parse_seeds(",".join(str(seed) for seed in seeds))


@locking("folder")
def compare_plan(
    plan: Plan,
    folder: str | Path,
    reference: str | None = None,
    on_row: Callable[[Comparison], None] | None = None,
    workers: int = 1,
) -> Comparison:
    """Run what is not yet in a folder.

    Args:
        folder: Where every cell is kept as soon as it exists.
        reference: The row that the others are paired with; the first that is not a bound if None.
        on_row: Called with the comparison so far after every row; with several workers, after every seed.
        workers: How many seeds run at a time, each in a process of its own.

    Raises:
        InputError: The plan cannot work, or the folder holds something else.
    """
    rows = plan.check()
    store = Store(folder)
    if reference is not None:
        reference = _known_reference(reference, [r.word for table in rows.values() for r in table])
    resumed = (store.folder / "cells").exists()
    claim(store, "plan.json", plan.to_json(), "comparison", "cells")
    progress = _Progress(plan, rows, reference, _first(plan).has_fixed_test)
    if resumed:  # cells of versions without checksums may hold anything
        damage = f"A file in {store.folder / 'cells'} is damaged: delete that folder, and its rows are run again."
        progress.reading = lambda: refuse_damage(damage)
    if workers > 1:
        for split, seed in _run_missing(plan, rows, store, workers):
            for problem, cells, baselines in _fill(plan, split, seed, rows[split], store):
                progress.add(split, seed, problem, cells, baselines)
            if on_row is not None:
                on_row(progress.summarise())
    for split in track(plan.splits, "split"):
        for seed in track(plan.seeds, "seed"):
            with remember_values(), share_training():  # rows that share replies predict with the same models
                for problem, cells, baselines in _fill(plan, split, seed, rows[split], store):
                    progress.add(split, seed, problem, cells, baselines)
                    if on_row is not None and cells and workers == 1:
                        on_row(progress.summarise())
    return progress.summarise()


def _run_missing(
    plan: Plan, rows: Mapping[AnySplit, Sequence[Row]], store: Store, workers: int
) -> Iterator[tuple[AnySplit, int]]:
    """The splits and seeds that a folder did not have whole, as they are finished by other processes."""
    every = [(split, seed) for split in plan.splits for seed in plan.seeds]
    jobs = []
    for split, seed in every:
        place = _place(split, seed)
        if any(not (store.folder / f"{place}/{slug(r.word)}.json").exists() for r in rows[split]):
            jobs.append((plan, split, seed, store.folder))
    finished = run_in_processes(_run_seed, jobs, workers)
    for _ in track(jobs, "seed"):
        (_, split, seed, _), _ = next(finished)
        yield split, seed
    next(finished, None)  # the processes end


def _run_seed(plan: Plan, split: AnySplit, seed: int, folder: Path) -> None:
    """In a process of its own: what is missing of a split and seed, each row written as soon as it exists."""
    if any_plugins():
        register_plugins()
    with remember_values(), share_training():
        for _ in _fill(plan, split, seed, plan.rows(split), Store(folder)):
            pass


def _first(plan: Plan) -> Problem:
    """The problem with the first split."""
    return dataclasses.replace(plan.problem, split=plan.splits[0])


def _place(split: AnySplit, seed: int) -> str:
    """Where the cells of one split and seed are."""
    return f"cells/{slug(str(split or 'default'))}/{seed}"


class _Progress:
    """The cells that exist so far, and the comparison they make."""

    def __init__(
        self, plan: Plan, rows: Mapping[AnySplit, Sequence[Row]], reference: str | None, fixed_test: bool
    ) -> None:
        self.plan = plan
        self.rows = rows
        self.reference = reference
        self.fixed_test = fixed_test
        self.cells: dict[AnySplit, dict[int, Cells]] = {split: {} for split in plan.splits}
        self.problems: dict[AnySplit, dict[int, Described]] = {split: {} for split in plan.splits}
        self.baselines: dict[AnySplit, dict[int, Json]] = {split: {} for split in plan.splits}
        self.reading: Callable[[], AbstractContextManager[None]] = nullcontext

    def add(self, split: AnySplit, seed: int, problem: Described, cells: Cells, baselines: Json) -> None:
        self.baselines[split][seed] = baselines
        self.cells[split][seed] = cells
        self.problems[split][seed] = problem

    def summarise(self) -> Comparison:
        parts = []
        for split, known in self.cells.items():
            seeds = [seed for seed in self.plan.seeds if seed in known]  # whichever was finished first
            cells = {seed: known[seed] for seed in seeds}
            if any(cells.values()):
                problems = [self.problems[split][seed] for seed in seeds]
                with self.reading():
                    lines = [self.baselines[split][seed] for seed in seeds if self.baselines[split][seed]]
                    rows = self.rows[split]
                    parts.append(summarise_part(rows, cells, problems, self.reference, self.fixed_test, lines))
        return Comparison(
            title=title(self.rows[self.plan.splits[0]], parts[0].problem.data),
            model=self.plan.problem.network,
            seeds=self.plan.seeds,
            fixed_test_set=self.fixed_test,
            fixed_split=not self.plan.problem.redraws,
            parts=tuple(parts),
        )


def _known_reference(reference: str, known: Sequence[str]) -> str:
    """The reference as rows are written, without blanks."""
    word = re.sub(r"\s", "", reference)
    if word not in known:
        raise unknown_name("row", word, known)
    return word


def _fill(
    plan: Plan, split: AnySplit, seed: int, rows: Sequence[Row], store: Store
) -> Iterator[tuple[Described, Cells, Json]]:
    """The cells of one split and seed as they come to exist, those of an earlier start first; with the baselines.

    A folder that an older version finished has no such lines.
    """
    place = _place(split, seed)
    files = {r.word: f"{place}/{slug(r.word)}.json" for r in rows}
    cells = {word: _read_cell(store, file, word) for word, file in files.items() if (store.folder / file).exists()}
    lines: Json = {}
    lines_file = f"baselines/{slug(str(split or 'default'))}/{seed}.json"
    if (store.folder / lines_file).exists():
        lines = store.read_json(lines_file)["baselines"]
    if len(cells) == len(rows):
        yield Described.from_json(store.read_json(f"{place}/problem.json")), cells, lines
        return
    task, sites = dataclasses.replace(plan.problem, split=split).build(seed)
    problem = Described.of(task, sites)
    _check(plan, rows, task, sites)
    claim(store, f"{place}/problem.json", problem.to_json(), "comparison, on other rows", place)
    if not lines:
        store.write_checked(lines_file, {"format": FORMAT, "baselines": lines_to_beat(sites)})
        lines = store.read_json(lines_file)["baselines"]
    yield problem, cells, lines
    missing = [r for r in rows if r.word not in cells]
    for outcome in outcomes(missing, task, sites, seed, plan.engine, plan.participation, plan.device):
        file = files[outcome.row.word]
        store.write_checked(file, Cell.from_outcome(outcome).to_json())
        cells = {**cells, outcome.row.word: _read_cell(store, file, outcome.row.word)}  # as a resumed comparison does
        yield problem, cells, lines


def _read_cell(store: Store, file: str, word: str) -> Cell:
    """A cell of the folder; not one of another row, whose file was put in its place."""
    cell = Cell.from_json(store.read_json(file))
    if cell.row != word:
        raise InputError(f"{store.folder / file} is of another row: delete it, and the row is run again.")
    return cell


def _check(plan: Plan, rows: Sequence[Row], task: Task, sites: Sites) -> None:
    """Refuse what cannot work on these sites before anything trains."""
    choose_engine(plan.engine, task, sites.train)
    for r in rows:
        seen = sites
        if pools_rows(r.method):
            seen = sites.pooled()
        check(r.method, task, seen, r.rounds)
        if not isinstance(r.method, Bound):
            check_participation(plan.participation, r.method, len(sites))
