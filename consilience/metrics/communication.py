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


def curve(report: Json) -> Curve:
    """What run.json's history says, with the sums of all that was sent until then; a start from another run counts."""
    before = report.get("started_from") or {}
    sums = {f"{way}_{unit}": before.get(f"{way}_{unit}", 0) for way in ("up", "down") for unit in UNITS}
    points: Curve = []
    for row in report["history"]:
        if not all(what in row for what in sums):
            return []  # written by an earlier version
        sums = {what: total + row[what] for what, total in sums.items()}
        scores = {k: row[k] for name in KEPT for k in (name, f"validation_{name}") if k in row}
        points.append({"round": row["round"], **sums, **scores})
    return points


def bytes_sent(point: Json, unit: str) -> float:
    """Both ways together."""
    total: float = point[f"up_{unit}"] + point[f"down_{unit}"]
    return total


def bytes_to_reach(points: Sequence[Json], key: str, target: float) -> Json | None:
    """The first round that is at least as good on the validation rows; test rows never decide."""
    better = BETTER[key]
    for point in points:
        found = point.get(f"validation_{key}")
        if found is not None and better * found >= better * target:
            return point
    return None


def communication(rows: Sequence[Json], reference: str, key: str) -> dict[str, Any] | None:
    """What each row sent to reach the reference's last validation score, seed by seed; None without validation rows."""
    base = next((r for r in rows if r["row"] == reference), None)
    if base is None or not base.get("curves") or not all(_scored(points, key) for points in base["curves"].values()):
        return None
    targets = {seed: points[-1][f"validation_{key}"] for seed, points in base["curves"].items()}
    own = statistics.fmean(bytes_sent(points[-1], "floats") for points in base["curves"].values())
    found = []
    for row in rows:
        curves = {seed: points for seed, points in (row.get("curves") or {}).items() if seed in targets}
        if row["needs"] == "bound" or not curves:
            continue
        at = [bytes_to_reach(points, key, targets[seed]) for seed, points in curves.items()]
        there = [point for point in at if point is not None]
        whole = len(there) == len(at)
        means = {u: statistics.fmean(bytes_sent(p, u) for p in there) if whole else None for u in UNITS}
        found.append(
            {
                **{"row": row["row"], "name": row["name"], **means, "reached": len(there), "seeds": len(at)},
                "rounds": statistics.fmean(p["round"] for p in there) if whole else None,
                "times": None if means["floats"] is None or not own else means["floats"] / own,
            }
        )
    return {"score": key, "reference": base["name"], "target": statistics.fmean(targets.values()), "rows": found}


def mean_curve(curves: Mapping[Any, Sequence[Json]]) -> Curve:
    """The mean over seeds, round by round, as far as every seed goes."""
    every = list(curves.values())
    return [
        {k: statistics.fmean(p[k] for p in same) for k in same[0] if all(p.get(k) is not None for p in same)}
        for same in zip(*every, strict=False)
    ]


def sentence(found: Json) -> str:
    """What it takes, in words."""
    said = []
    for row in found["rows"]:
        if row["floats"] is None:
            some = f" in {row['seeds'] - row['reached']} of {row['seeds']} seeds" if row["reached"] else ""
            said.append(f"{row['name']} does not get there{some}")
        else:
            times = "" if row["times"] is None else f", {row['times']:.3g} ×"
            said.append(f"{row['name']} {row['floats']:.3g} floats in {row['rounds']:.3g} rounds{times}")
    whose = f"To reach the validation {found['score']} of {found['reference']} ({found['target']:.3f})"
    return f"{whose}, both ways together: {'; '.join(said)}."


def csv_text(compared: Json) -> str:
    """Every curve in long form: one line a split, seed, row, round and score."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    sums = ("up_floats", "down_floats", "up_bytes", "down_bytes")
    writer.writerow(("split", "seed", "row", "round", *sums, "score", "value"))
    for part in compared["splits"]:
        for row in part["rows"]:
            for seed, points in (row.get("curves") or {}).items():
                for p in points:
                    for key in [k for k in p if k not in (*sums, "round")]:
                        where = (part["split"], seed, row["row"], p["round"])
                        writer.writerow((*where, *(p[s] for s in sums), key, p[key]))
    return text.getvalue()


def _scored(points: Sequence[Json], key: str) -> bool:
    return bool(points) and points[-1].get(f"validation_{key}") is not None
