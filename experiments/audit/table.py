"""How much of single rows every method's first reply tells, by the one-run audit: a lower bound on ε.

    python experiments/audit/table.py DATA [COLUMN]     # writes results/COLUMN.json as it goes, and prints the table

Every method that METHODS knows, alone at one site: 100 rows that are always in, and 200 canaries, half of them like the
site's rows with another outcome, half at the ends of the features' ranges with outcomes by lot. Run again, it goes on.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import consilience as co
from consilience.data import datasets
from consilience.data.sites import Data, concatenate
from consilience.errors import InputError
from consilience.key import Key
from consilience.method import Bound, Method, Needs, OnFeatures, needs
from consilience.methods import METHODS
from consilience.privacy.audit.canaries import corners, wrong_outcomes
from consilience.runs.audit import audit_method
from consilience.task import Task

RESULTS = Path(__file__).parent / "results"
COLUMNS = ("digits", "heart_disease")
SEEDS = range(5)
KNOWN, CANARIES, DELTA = 100, 200, 1e-5
QUICK = 1.0  # processor seconds a reply: of slower ones, all canaries are put into one run
LAST = ("coreset", "dosfl")  # take minutes a reply, and so come after all others
SLOW = 8.0  # and of these, a score is compared with one other model instead of three


class Problem(NamedTuple):
    """Rows of one site and a model for them.

    Attributes:
        task: The statistical problem.
        known: Rows that are always in.
        canaries: Rows that are in or out.
    """

    task: Task
    known: Data
    canaries: Data


def problem(name: str, seed: int, folder: str, heads: bool) -> Problem:
    """All rows of a data set in one place, of which some are drawn."""
    rows = datasets.load(name, folder)
    sites = rows.split(rows.usual_split(), test=0.2, seed=seed).standardised().pooled()
    train = sites.train[0]
    order = Key(seed).fold(9).permutation(len(train.y))
    known = Data(*(leaf[order[:KNOWN]] for leaf in train))
    others = Data(*(leaf[order[KNOWN : KNOWN + CANARIES // 2]] for leaf in train))
    assert sites.classes is not None
    half = CANARIES // 2
    wrong = wrong_outcomes(others, sites.classes, half, Key(seed).fold(10))
    far = corners(train.x.amin(0), train.x.amax(0), sites.classes, half, Key(seed).fold(11))
    network = co.models.mlp(sites.features, sites.classes)
    if heads or name == "heart_disease":
        network = co.models.linear(sites.features, sites.classes)
    mixed = concatenate([wrong, far])
    shuffled = Key(seed).fold(12).permutation(CANARIES)
    return Problem(co.classification(network), known, Data(*(leaf[shuffled] for leaf in mixed)))


def audit(method: Method, name: str, seed: int, folder: str) -> dict[str, Any]:
    """One audit; slower methods are run less often."""
    task, known, canaries = problem(name, seed, folder, isinstance(method, OnFeatures))
    runs, references = 5, 3
    if not isinstance(method, OnFeatures):
        before = time.process_time()
        audit_method(method, task, known, canaries, Key(99), references=0, delta=DELTA)
        seconds = time.process_time() - before
        if seconds > QUICK:
            runs = 1
        if seconds > SLOW:
            references = 1
    rounds = 1
    options = {"runs": runs, "references": references, "delta": DELTA}
    audited = audit_method(method, task, known, canaries, Key(seed).fold(13), **options)
    if not bool(audited.scores.any()):  # the first round only asks, and its model is the one before it
        rounds = 2
        audited = audit_method(method, task, known, canaries, Key(seed).fold(13), rounds=rounds, **options)
    return {
        "rounds": rounds,
        "runs": runs,
        "references": references,
        "attack": audited.attack,
        **audited.bound._asdict(),
    }


def methods() -> Iterator[tuple[str, Method]]:
    """All federated methods that send something a stranger would see, with their default settings."""
    for name, kind in METHODS.items():
        method = kind()
        if not issubclass(kind, Bound) and Needs.LABELS not in needs(method):
            yield name, method


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Means over the seeds, the leakiest first."""
    lines = [
        "| method | sends | digits | heart disease |",
        "| --- | --- | ---: | ---: |",
    ]

    def mean(name: str, column: str) -> float:
        bounds = [cell["epsilon"] for cell in found.get(column, {}).get(name, {}).values()]
        return statistics.mean(bounds) if bounds else float("nan")

    def cell(name: str, column: str) -> str:
        cells = list(found.get(column, {}).get(name, {}).values())
        if not cells:
            return "–"
        bounds = [each["epsilon"] for each in cells]
        fewer = "" if len(bounds) == len(SEEDS) else f", {len(bounds)} seeds"
        return f"{statistics.mean(bounds):.2f} ({min(bounds):.2f} – {max(bounds):.2f}{fewer})"

    audited = [name for name in METHODS if any(found.get(column, {}).get(name) for column in COLUMNS)]
    for name in sorted(audited, key=lambda name: (-mean(name, "digits"), name)):
        lines.append(
            f"| `{name}` | {METHODS[name].about.sends} | {cell(name, 'digits')} | {cell(name, 'heart_disease')} |"
        )
    return "\n".join(lines)


def main(folder: str, columns: Sequence[str]) -> None:
    """Go through seeds first, so that every method has a number early."""
    for column, late, seed in itertools.product(columns, (False, True), SEEDS):
        path = RESULTS / f"{column}.json"
        found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        for name, method in methods():
            cells = found.setdefault(name, {})
            if str(seed) in cells or (name in LAST) != late:
                continue
            try:
                cells[str(seed)] = audit(method, column, seed, folder)
            except (InputError, RuntimeError) as error:
                print(f"{column} {name} {seed}: {error}", file=sys.stderr, flush=True)
                continue
            print(column, name, seed, round(cells[str(seed)]["epsilon"], 2), flush=True)
            path.write_text(json.dumps(found, indent=1) + "\n")
    print(table(read()))


def read() -> dict[str, dict[str, dict[str, Any]]]:
    """All results that there are."""
    return {
        name: json.loads((RESULTS / f"{name}.json").read_text())
        for name in COLUMNS
        if (RESULTS / f"{name}.json").exists()
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2:] or COLUMNS)
