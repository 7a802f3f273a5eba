"""Scores against what was sent: curves over rounds, and the communication it takes to reach a score."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from consilience.metrics.scores import BETTER

Json: TypeAlias = Mapping[str, Any]
Curve: TypeAlias = list[dict[str, Any]]  # one entry a round: what was sent so far, both ways, and the scores
KEPT = ("nll", "accuracy", "rmse")  # scores that curves show
UNITS = ("floats", "bytes")
SUMS = ("up_floats", "down_floats", "up_bytes", "down_bytes")  # as a table has them


def curve(report: Json) -> Curve:
    """Read a run's curve from its report; a start from another run counts.

    Returns:
        What its history says, with the sums of all that was sent until then; empty for a report of an earlier version.
    """
    before = report.get("started_from") or {}
    sums = {f"{way}_{unit}": before.get(f"{way}_{unit}", 0) for way in ("up", "down") for unit in UNITS}
    names = [prefix + name for name in KEPT for prefix in ("", "validation_")]
    points: Curve = []
    for row in report["history"]:
        if not all(what in row for what in sums):
            return []  # written by an earlier version
        sums = {what: total + row[what] for what, total in sums.items()}
        scores = {name: row[name] for name in names if name in row}
        points.append({"round": row["round"], **sums, **scores})
    return points


def bytes_sent(point: Json, unit: str) -> float:
    """Add up what was sent both ways.

    Args:
        point: A point of a curve.

    Returns:
        The sum, in that unit.
    """
    total: float = point[f"up_{unit}"] + point[f"down_{unit}"]
    return total


def bytes_to_reach(points: Sequence[Json], key: str, target: float) -> Json | None:
    """Find the first round that is at least as good on the validation rows; test rows never decide.

    Args:
        target: The score to reach.

    Returns:
        That round's point; None if no round is as good.
    """
    better = BETTER[key]
    for point in points:
        score = point.get(f"validation_{key}")
        if score is not None and better * score >= better * target:
            return point
    return None


def communication(rows: Sequence[Json], reference: str, key: str) -> dict[str, Any] | None:
    """Compute what each row of a comparison sent to reach the reference's last validation score, seed by seed.

    Args:
        rows: The rows, each with its curves by seed.
        reference: The name of the row whose score is to be reached.

    Returns:
        The target and an entry a row; None without validation rows.
    """
    base = next((r for r in rows if r["row"] == reference), None)
    if base is None or not base.get("curves"):
        return None
    if not all(_has_score(points, key) for points in base["curves"].values()):
        return None
    targets = {seed: points[-1][f"validation_{key}"] for seed, points in base["curves"].items()}
    cost = statistics.fmean(bytes_sent(points[-1], "floats") for points in base["curves"].values())
    entries = []
    for row in rows:
        curves = {seed: points for seed, points in (row.get("curves") or {}).items() if seed in targets}
        if row["needs"] == "bound" or not curves:
            continue
        points = [bytes_to_reach(curve, key, targets[seed]) for seed, curve in curves.items()]
        entries.append({"row": row["row"], "name": row["name"], **_cost_entry(points, cost)})
    return {"score": key, "reference": base["name"], "target": statistics.fmean(targets.values()), "rows": entries}


def _cost_entry(points: Sequence[Json | None], reference: float) -> dict[str, Any]:
    """What it took over the seeds; None where a seed does not reach the target."""
    reached = [point for point in points if point is not None]
    entry: dict[str, Any] = dict.fromkeys(UNITS)
    entry |= {"reached": len(reached), "seeds": len(points), "rounds": None, "times": None}
    if len(reached) < len(points):
        return entry
    for unit in UNITS:
        entry[unit] = statistics.fmean(bytes_sent(point, unit) for point in reached)
    entry["rounds"] = statistics.fmean(point["round"] for point in reached)
    if reference:
        entry["times"] = entry["floats"] / reference
    return entry


def mean_curve(curves: Mapping[Any, Sequence[Json]]) -> Curve:
    """Average curves over seeds, round by round, as far as every seed goes.

    Args:
        curves: A curve a seed.
    """
    means: Curve = []
    for points in zip(*curves.values(), strict=False):
        names = [name for name in points[0] if all(point.get(name) is not None for point in points)]
        means.append({name: statistics.fmean(point[name] for point in points) for name in names})
    return means


def sentence(found: Json) -> str:
    """Say what it takes to reach the target.

    Args:
        found: What `communication` returned.
    """
    clauses = [_cost_clause(row) for row in found["rows"]]
    target = f"To reach the validation {found['score']} of {found['reference']} ({found['target']:.3f})"
    return f"{target}, both ways together: {'; '.join(clauses)}."


def _cost_clause(row: Json) -> str:
    """What one row takes, in words."""
    if row["floats"] is None and row["reached"]:
        return f"{row['name']} does not get there in {row['seeds'] - row['reached']} of {row['seeds']} seeds"
    if row["floats"] is None:
        return f"{row['name']} does not get there"
    clause = f"{row['name']} {row['floats']:.3g} floats in {row['rounds']:.3g} rounds"
    if row["times"] is None:
        return clause
    return f"{clause}, {row['times']:.3g} ×"


def csv_text(compared: Json) -> str:
    """Write every curve of a comparison in long form: one line a split, seed, row, round and score.

    Returns:
        The text of a CSV file.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("split", "seed", "row", "round", *SUMS, "score", "value"))
    for part in compared["splits"]:
        for row in part["rows"]:
            for seed, points in (row.get("curves") or {}).items():
                for point in points:
                    where = (part["split"], seed, row["row"], point["round"], *(point[name] for name in SUMS))
                    writer.writerows((*where, name, point[name]) for name in point if name not in (*SUMS, "round"))
    return text.getvalue()


def _has_score(points: Sequence[Json], key: str) -> bool:
    """Whether a curve ends with a validation score."""
    return bool(points) and points[-1].get(f"validation_{key}") is not None
