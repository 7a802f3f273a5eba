"""The tables of docs/hospitals.md from what table.py found: python experiments/hospitals/summary.py

A score is the mean over repeats of the score over all patients (of a hospital). An interval of a difference is over
patients, each patient's loss averaged over the repeats first: it leaves out that these four hospitals are fixed.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from consilience.distributions.predictive import Categorical
from consilience.metrics.scores import scores

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
REFERENCE = "Product of Laplace, linear"
SHOWN = ("nll", "brier", "auroc", "calibration_slope")


def categorical(p: Tensor) -> Categorical:
    p = p.double().clamp(1e-9, 1 - 1e-9)
    return Categorical(torch.stack([1 - p, p], 1).log())


def losses(p: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Each patient's NLL and Brier score (over both classes, as everywhere)."""
    logs = categorical(p).log_probs
    truth = torch.nn.functional.one_hot(y, 2)
    return {"nll": -logs.gather(1, y.unsqueeze(1)).squeeze(1), "brier": ((logs.exp() - truth) ** 2).sum(1)}


def difference(a: Tensor, b: Tensor) -> dict[str, float]:
    """a − b per patient [repeats, patients] → mean and 95 % interval over patients."""
    d = (a - b).mean(0).tolist()
    half = 1.96 * stdev(d) / math.sqrt(len(d))
    return {"mean": fmean(d), "low": fmean(d) - half, "high": fmean(d) + half}


def summary(files: list[Path], reference: str) -> dict[str, Any]:
    trials = [json.loads(f.read_text()) for f in files]
    labels = [torch.tensor(y) for y in trials[0]["labels"]]
    everyone = torch.cat(labels)
    found: dict[str, Any] = {}
    per: dict[tuple[str, int | None], dict[str, Tensor]] = {}
    for row in trials[0]["rows"]:
        found[row] = {}
        for k, place in (*enumerate(HOSPITALS), (None, "all")):
            y = everyone if k is None else labels[k]
            ps = [
                torch.cat([torch.tensor(x) for x in t["rows"][row]]) if k is None else torch.tensor(t["rows"][row][k])
                for t in trials
            ]
            each = [scores(categorical(p), y) for p in ps]
            cell: dict[str, Any] = {s: fmean(e[s] for e in each if s in e) for s in SHOWN if any(s in e for e in each)}
            own = [losses(p, y) for p in ps]
            per[row, k] = {s: torch.stack([o[s] for o in own]) for s in ("nll", "brier")}
            found[row][place] = cell
    for row in found:
        base = row.removeprefix("Without switzerland: ") if row.startswith("Without") else reference
        for k, place in (*enumerate(HOSPITALS), (None, "all")):
            for s in ("nll", "brier"):
                found[row][place][f"{s}_difference"] = difference(per[row, k][s], per[base, k][s])
    for row, cells in found.items():
        twin = row.replace("MLP sampled", "linear sampled").replace("MLP", "linear")
        if "MLP" in row and twin in found:
            cells["all"]["minus_linear"] = difference(per[row, None]["nll"], per[twin, None]["nll"])
    return {"repeats": len(trials), "reference": reference, "patients": [len(y) for y in labels], "rows": found}


TABLE = (  # every row as it comes and, after the bar, with what the sites' statistics choose
    "Alone, logistic regression",
    "Alone, Laplace linear",
    "Alone, MLP sampled",
    "Pooled data, logistic regression",
    "Pooled data, Laplace linear",
    "Pooled data, MLP sampled",
    "Product of Laplace, linear",
    "FedAvg (10 rounds), linear",
    "FedAvg (10 rounds), MLP",
    "Mixture, linear",
    "Mixture, MLP",
    "BCM, linear",
    "BCM, MLP",
    "β, linear",
    "β, MLP",
    "Evidence, linear",
    "Evidence, MLP",
)
PLACES = (*HOSPITALS, "all")


def interval(d: dict[str, float]) -> str:
    if d["low"] == d["high"]:
        return "0"
    return f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"


def markdown_table(head: tuple[str, ...], lines: list[list[str]]) -> str:
    return (
        "\n".join(["| " + " | ".join(line) + " |" for line in (["", *head], ["---"] * (len(head) + 1), *lines)]) + "\n"
    )


def describe_choice(rows: dict[str, Any], row: str) -> str:
    return next(name for name in rows if name.startswith(f"{row} + "))


def tables(found: dict[str, Any], kind: str) -> str:
    """Scores, then differences from the reference at each hospital, then each score at each hospital."""
    rows = found["rows"]
    listed = [row for row in TABLE if row in rows]
    plain = [row for row in listed if not row.startswith("β")]
    named = [*plain, *(describe_choice(rows, row) for row in listed)]
    ranked = sorted(named, key=lambda row: rows[row]["all"]["nll"])
    scored = [
        [row, *(f"{rows[row][p]['nll']:.3f}" for p in PLACES), interval(rows[row]["all"]["nll_difference"])]
        + [f"{rows[row]['all'][s]:.3f}" for s in SHOWN[1:]]
        for row in ranked
    ]
    parts = [
        f"### {kind}, {found['repeats']} repeats",
        markdown_table((*PLACES, "all: difference", *SHOWN[1:]), scored),
    ]
    gaps = [
        [row, *(interval(rows[row][p]["nll_difference"]) for p in HOSPITALS)] for row in ranked if " + t" not in row
    ]
    parts += [f"NLL against '{found['reference']}'", markdown_table(HOSPITALS, gaps)]
    for s in SHOWN[1:]:
        each = [[row, *(f"{rows[row][p][s]:.3f}" if s in rows[row][p] else "" for p in PLACES)] for row in plain]
        parts += [s, markdown_table(PLACES, each)]
    pairs = [row for row in ranked if "minus_linear" in rows[row]["all"]]
    lines = [[row, interval(rows[row]["all"]["minus_linear"])] for row in pairs]
    parts += [
        "The network less the linear model, pooled alike: NLL over all patients",
        markdown_table(("difference",), lines),
    ]
    gone = [row for row in rows if row.startswith("Without") and "β" not in row] + [
        row for row in rows if row.startswith("Without") and " + β" in row
    ]
    if gone:
        lines = [[row, *(interval(rows[row][p]["nll_difference"]) for p in PLACES)] for row in gone]
        parts += ["Without switzerland, NLL against the same with it", markdown_table(PLACES, lines)]
    return "\n\n".join(parts)


def main() -> None:
    folder = Path(__file__).parent / "trials"
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
    both = {}
    for kind in ("folds", "left-out"):
        both[kind] = summary(sorted(folder.glob(f"{kind}-*.json")), REFERENCE)
        print(tables(both[kind], kind), "\n")
    made = json.loads(json.dumps(both), parse_float=lambda text: round(float(text), 4))
    (Path(__file__).parent / "results" / "summary.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
