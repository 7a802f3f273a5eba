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

from consilience.metrics.scores import scores
from consilience.predictive import Categorical

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
    return {"repeats": len(trials), "reference": reference, "patients": [len(y) for y in labels], "rows": found}


def markdown(found: dict[str, Any], rows: list[str]) -> str:
    head = "| | " + " | ".join((*HOSPITALS, "all")) + " | all: difference of NLL | Brier | AUROC | slope |\n"
    lines = [head, "|" + " --- |" * 10 + "\n"]
    for row in rows:
        cells = found["rows"][row]
        nll = " | ".join(f"{cells[place]['nll']:.3f}" for place in (*HOSPITALS, "all"))
        d = cells["all"]["nll_difference"]
        rest = " | ".join(f"{cells['all'][s]:.3f}" for s in SHOWN[1:])
        lines.append(f"| {row} | {nll} | {interval(d)} | {rest} |\n")
    return "".join(lines)


def by_hospital(found: dict[str, Any], rows: list[str]) -> str:
    """Differences of NLL at each hospital."""
    lines = ["| | " + " | ".join(HOSPITALS) + " |\n", "|" + " --- |" * 5 + "\n"]
    for row in rows:
        each = [found["rows"][row][place]["nll_difference"] for place in HOSPITALS]
        lines.append(f"| {row} | " + " | ".join(interval(d) for d in each) + " |\n")
    return "".join(lines)


def interval(d: dict[str, float]) -> str:
    return "0" if d["low"] == d["high"] else f"{d['mean']:+.3f} ({d['low']:+.3f} to {d['high']:+.3f})"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "trials"
    both = {}
    for kind in ("folds", "left-out"):
        files = sorted(folder.glob(f"{kind}-*.json"))
        both[kind] = summary(files, REFERENCE)
        ranked = sorted(both[kind]["rows"], key=lambda r: both[kind]["rows"][r]["all"]["nll"])
        plain = [r for r in ranked if not r.startswith(("Without", "β, linear", "β, MLP")) or " + β" in r]
        print(f"\n### {kind}, {len(files)} repeats\n\n{markdown(both[kind], [r for r in plain if 'Without' not in r])}")
        print(
            f"\nAgainst «{REFERENCE}», by hospital\n\n{by_hospital(both[kind], [r for r in plain if ' + t' not in r])}"
        )
        gone = [r for r in ranked if r.startswith("Without") and "β, linear" not in r.replace(" + β", "")]
        if gone:
            print(f"\nWithout switzerland, against the same with it\n\n{by_hospital(both[kind], gone)}")
    made = json.loads(json.dumps(both), parse_float=lambda text: round(float(text), 4))
    (Path(__file__).parent / "results" / "summary.json").write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
