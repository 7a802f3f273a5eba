"""What one row gave on one split and seed, and what the rows there have in common: one file each in the folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from consilience.benchmark.outcomes import Outcome
from consilience.data.sites import Sites
from consilience.disk.typed import Rows, Share, Size, matches, restore_fields
from consilience.disk.writing import PART
from consilience.errors import InputError
from consilience.method import Bound, group, name
from consilience.method.declared import sends_nothing
from consilience.metrics.calibration import Bin
from consilience.metrics.communication import SUMS, Curve, curve
from consilience.metrics.findings import Own, Scores, Site
from consilience.runs.store import FORMAT, Store
from consilience.serialisation.settings import describe
from consilience.task import Task

Json: TypeAlias = dict[str, Any]
Numbers: TypeAlias = dict[str, float | None]
Intervals: TypeAlias = dict[str, list[float | None] | None]
ROLES = ("train", "validation", "test")


@dataclass(frozen=True)
class Cell:
    """One row on one split and seed.

    Attributes:
        row: The row, as typed.
        failure: Why there are no scores; empty if there are.
        name: The row's name for people.
        method: The method's name.
        needs: What the server needs, or `bound`.
        rounds: How many.
        metrics: Score → value.
        intervals: Score → its 95 % interval.
        tempered: Scores after tempering, their intervals and the temperature.
        reliability: The bins of a reliability diagram.
        seconds: How long it took.
        up_bytes: Sent by the sites.
        down_bytes: Sent by the server.
        settings: The method's settings.
        curve: Scores against what was sent, round by round.
        ece_if_calibrated: The ECE that a calibrated model would show on so many rows.
        worst_site: The scores of the weakest site.
        best: The scores of the best site's own model, for a bound that has one.
        newcomer: The scores of the common model, where sites have models of their own beside it.
        own_rows: Its scores, tempered ones with them, where each site's own model predicts that site's rows alone.
        models: How many sites' own models were scored on all rows.
        engine: Where the sites' work ran.
        threads: Torch's.
        warnings: What was noticed while training.
        versions: Of Python and the libraries.
        failures: Sites that were lost, when and why.
        calibration: Each site's test rows, bins or coverage, and intercept and slope; None where that was not kept.
    """

    row: str
    failure: str
    name: str
    method: str
    needs: str
    rounds: Rows
    metrics: Numbers | None = None
    intervals: Intervals | None = None
    tempered: Json | None = None
    reliability: list[Json] | None = None
    seconds: Size = 0.0
    up_bytes: Rows | None = None
    down_bytes: Rows | None = None
    settings: Json = field(default_factory=dict)
    curve: Curve | None = None
    ece_if_calibrated: Share | None = None
    worst_site: Json | None = None
    best: Numbers | None = None
    own_rows: Json | None = None
    models: Rows | None = None
    newcomer: Json | None = None
    engine: str | None = None
    threads: Rows | None = None
    warnings: list[str] | None = None
    versions: Json | None = None
    failures: list[Json] | None = None
    calibration: list[Json] | None = None

    @staticmethod
    def from_outcome(outcome: Outcome) -> Cell:
        """Take from a run what tables and reports want.

        Args:
            outcome: How the row ended.

        Returns:
            The cell; without scores where training diverged.
        """
        row, result, failure = outcome
        identity: Json = {"row": row.word, "failure": failure, "name": row.name, "rounds": row.rounds}
        if result is None:
            return Cell(
                **identity, method=name(row.method), needs=group(row.method), settings=describe(row.method), seconds=0.0
            )
        report = result.report
        traffic: Json = {"up_bytes": 0, "down_bytes": 0, "curve": []}
        if not sends_nothing(result.method):
            traffic["up_bytes"] = report["ledger"]["up_bytes"]
            traffic["down_bytes"] = report["ledger"]["down_bytes"]
            if not isinstance(result.method, Bound):
                traffic["curve"] = curve(report)
        rest = [f.name for f in dataclasses.fields(Cell) if f.name not in {*identity, *traffic, "calibration"}]
        about: Json = {key: report.get(key) for key in rest}
        return Cell(**identity, **traffic, **about, calibration=_calibration(report))

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Cell:
        """Read what `to_json` wrote.

        Args:
            value: The JSON; keys that are missing have their defaults.

        Raises:
            InputError: A value is of another type.
        """
        known = {f.name for f in dataclasses.fields(Cell)}
        cell = restore_fields(Cell, {key: entry for key, entry in value.items() if key in known})
        sound = {
            **{part: all(_reads(kind, entry) for entry in entries) for part, kind, entries in _typed_parts(cell)},
            "curve": all(_is_point(entry) for entry in cell.curve or ()),
            "worst_site": matches(dict[str, str | float | None] | None, cell.worst_site),
        }
        for part, whole in sound.items():
            if not whole:
                raise InputError(f"The '{part}' of the row {cell.row} is damaged: delete its file to run it again.")
        return cell

    def to_json(self) -> Json:
        """Write the cell as JSON; a failed one leaves out what it does not have."""
        value = {"format": FORMAT, **_shallow(self)}
        if self.failure:
            return {key: entry for key, entry in value.items() if entry is not None}
        return value


def _calibration(report: Json) -> list[Json] | None:
    """What a report says of the calibration at each site; None where it says nothing."""
    sites = []
    for site in report.get("per_site") or []:
        if "reliability" in site or "coverage" in site:
            kept = {key: site[key] for key in ("site", "test", "reliability", "coverage", "intervals") if key in site}
            fitted = {key: x for key, x in site["metrics"].items() if key.startswith("calibration_")}
            sites.append({**kept, "metrics": fitted})
    return sites or None


@dataclass(frozen=True)
class Described:
    """What the rows of one split and seed have in common.

    Attributes:
        data: The data's name.
        split: The split, in words.
        sites: How many.
        site_names: Their names.
        task: `classification` or `regression`.
        class_names: The classes' names, if they have any.
        labels: Rows of each class at each site; None for regression.
        rows_of_data: Role → number of rows.
        parameters: Of the network.
        fingerprint: Of all rows.
    """

    data: str
    split: str
    sites: Rows
    site_names: list[str]
    task: str
    class_names: list[str] | None
    labels: list[list[int]] | None
    rows_of_data: dict[str, Rows]
    parameters: Rows
    fingerprint: str

    @staticmethod
    def of(task: Task, sites: Sites) -> Described:
        """Describe a problem.

        Args:
            sites: Everybody's rows, by role.

        Returns:
            What its rows have in common.
        """
        labels = None
        if sites.classes:
            labels = [[int(count) for count in site] for site in sites.label_counts()]
        class_names = None
        if sites.class_names:
            class_names = list(sites.class_names)
        return Described(
            data=sites.name,
            split=sites.split,
            sites=len(sites),
            site_names=list(sites.names),
            task=sites.kind,
            class_names=class_names,
            labels=labels,
            rows_of_data=count_rows(sites),
            parameters=sum(p.numel() for p in task.like.values()),
            fingerprint=sites.fingerprint(),
        )

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Described:
        """Read what `to_json` wrote.

        Returns:
            The problem.

        Raises:
            InputError: A value is missing or of another type.
        """
        known = {f.name for f in dataclasses.fields(Described)}
        return restore_fields(Described, {key: entry for key, entry in value.items() if key in known})

    def to_json(self) -> Json:
        """Write the problem as JSON."""
        return {"format": FORMAT, **_shallow(self)}


def count_rows(sites: Sites) -> dict[str, int]:
    """Count the rows of every role.

    Returns:
        Role → number of rows.
    """
    counts = {role: sum(len(part.x) for part in getattr(sites, role) or ()) for role in ROLES}
    counts["calibration"] = 0
    counts["inputs"] = 0
    if sites.calibration is not None:
        counts["calibration"] = len(sites.calibration.x)
    if sites.inputs is not None:
        counts["inputs"] = len(sites.inputs)
    return counts


def claim(store: Store, file: str, value: Json, what: str, begun: str) -> None:
    """Write down what a folder is for.

    Args:
        file: Where to write it.
        value: What the folder is for, as JSON.
        what: The same in a word, for people.
        begun: A folder in it that holds a file once work has begun; killed before, it may be there and empty.

    Raises:
        InputError: The folder holds a run, or something else has begun there.
    """
    if store.exists:
        raise InputError(f"{store.folder} holds a run: choose another folder.")
    if not any(path.is_file() and not PART.fullmatch(path.name) for path in (store.folder / begun).rglob("*")):
        store.write_checked(file, value)
    elif store.read_json(file) != json.loads(json.dumps(value)):
        raise InputError(
            f"{store.folder} holds another {what}: repeat it as it was to continue, or choose another folder."
        )


def _typed_parts(cell: Cell) -> list[tuple[str, type, Sequence[Json]]]:
    """The parts of a cell that are something a run found: their names, what they are, and their entries."""
    single = {"tempered": (Scores, cell.tempered), "own_rows": (Own, cell.own_rows), "newcomer": (Own, cell.newcomer)}
    parts: list[tuple[str, type, Sequence[Json]]] = [
        (part, kind, [value]) for part, (kind, value) in single.items() if value is not None
    ]
    return [*parts, ("reliability", Bin, cell.reliability or ()), ("calibration", Site, cell.calibration or ())]


def _reads(kind: type, entry: Json) -> bool:
    """Whether an entry of a file is what a run finds."""
    try:
        restore_fields(kind, entry, others=True)
    except InputError:
        return False
    return "metrics" in entry or kind is Bin


def _is_point(entry: Json) -> bool:
    """Whether an entry of a curve has its round, what was sent so far, and numbers."""
    return all(matches(float, entry.get(name)) for name in ("round", *SUMS)) and matches(Numbers, entry)


def _shallow(value: Any) -> Json:
    """The fields of a dataclass, in order; their values are JSON already."""
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
