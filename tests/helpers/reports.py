"""Reports of runs and comparisons as they are written, with invented numbers, and readers of what is shown."""

from __future__ import annotations

import io
import random
from html.parser import HTMLParser
from typing import Any

from rich.console import Console

VOID = {"meta", "br", "hr", "img", "input", "link"}


def wilson(right: int, n: int) -> list[float]:
    """The 95 % Wilson interval, so that the samples look like what a run writes."""
    z, p = 1.96, right / n
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return [(middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)]


def reliability(counts: list[int], shift: float = 0.0) -> list[dict[str, Any]]:
    width, bins = 1 / len(counts), []
    for i, n in enumerate(counts):
        confidence = (i + 0.6) * width
        right = max(0, min(n, round(n * (confidence + shift))))
        seen = {"confidence": confidence, "accuracy": right / n, "interval": wilson(right, n)} if n else {}
        empty = {"confidence": None, "accuracy": None, "interval": None}
        bins.append({"low": i * width, "high": (i + 1) * width, "count": n, **empty, **seen})
    return bins


def classification(sites: int = 5, classes: int = 10, rounds: int = 1, seed: int = 0) -> dict[str, Any]:
    draw = random.Random(seed)
    labels = [[int(280 / classes * 10 * draw.random() ** 6) for _ in range(classes)] for _ in range(sites)]
    metrics = {
        "accuracy": 0.942,
        "nll": 0.231,
        "brier": 0.091,
        "ece": 0.034,
        "ece_debiased": 0.017,
        "ece_adaptive": 0.031,
    }
    spans = {"accuracy": [0.913, 0.962], "nll": [0.181, 0.284], "brier": [0.069, 0.114], "ece": [0.022, 0.055]}
    soft = {"accuracy": 0.942, "nll": 0.219, "brier": 0.088, "ece": 0.025, "ece_debiased": 0.008, "ece_adaptive": 0.024}

    def bound(accuracy: float, nll: float, brier: float) -> dict[str, Any]:
        return {"metrics": {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": 0.08, "ece_debiased": 0.06}}

    def site(i: int) -> dict[str, Any]:
        worst = i == 3
        scores = {
            "accuracy": 0.81 if worst else 0.9 + 0.08 * draw.random(),
            "nll": 0.71 if worst else 0.1 + 0.3 * draw.random(),
        }
        return {"site": str(i), "train": sum(labels[i]), "test": 72, "labels": labels[i], "metrics": scores}

    return {
        "consilience": "0.1.0", "format": 1, "method": "beta", "title": "β-Predictive Bayes",
        "summary": "Hasan et al., AAAI 2024: pool the predictions, then let a few labelled rows say how sure to be.",
        "needs": "labels", "data": "digits", "split": "dirichlet:0.1", "sites": sites, "rounds": rounds, "seed": 0,
        "engine": "vectorised", "threads": 2, "model": "mlp", "parameters": 17510, "task": "classification",
        "classes": classes, "class_names": None,
        "settings": {"inference": {"name": "CyclicalSGHMC", "epochs": 40, "temperature": 1.0}, "distil": None},
        "rows": {"train": 1407, "calibration": 30, "inputs": 0, "validation": 0, "test": 360},
        "metrics": metrics, "intervals": spans,
        "tempered": {"temperature": 1.31, "metrics": soft, "intervals": {"nll": [0.175, 0.262]}},
        "per_site": [site(i) for i in range(sites)], "worst_site": {"site": "3", "nll": 0.71},
        "bounds": {"local_only": bound(0.412, 3.1, 0.91), "server_only": bound(0.691, 1.12, 0.44),
                   "centralised": bound(0.972, 0.11, 0.045)},
        "history": [{"round": r + 1, "accuracy": 0.95 - 0.5 / (r + 1), "nll": 0.2 + 1 / (r + 1), "up_bytes": 240_000,
                     "down_bytes": 70_000} for r in range(rounds)],
        "ledger": {"up_bytes": 1_234_567, "down_bytes": 350_200, "up_floats": 308_641, "down_floats": 87_550,
                   "per_site": [{"site": str(i), "up_bytes": 240_000 + 900 * i, "down_bytes": 70_040}
                                for i in range(sites)]},
        "seconds": 3.2, "failures": [], "warnings": ["Site 4 has 3 classes of 10; its own score is over those."],
        "versions": {"python": "3.12.3", "torch": "2.13.0"},
        "reliability": reliability([0, 0, 0, 2, 4, 7, 9, 8, 11, 13, 14, 19, 26, 47, 200], -0.02),
        "ece_if_calibrated": 0.021,
    }  # fmt: skip


def regression() -> dict[str, Any]:
    run = classification(sites=8)
    run |= {"task": "regression", "classes": None, "data": "bike", "reliability": None, "ece_if_calibrated": None}
    run["metrics"] = {"rmse": 0.412, "nll": -0.231, "crps": 0.208, "coverage50": 0.48, "coverage80": 0.79,
                      "coverage95": 0.94, "sharpness": 0.39}  # fmt: skip
    run["intervals"] = {"rmse": [0.39, 0.44], "nll": [-0.31, -0.15], "coverage80": [0.76, 0.82]}
    run["tempered"] = {"temperature": 1.12, "metrics": {**run["metrics"], "nll": -0.236}, "intervals": {}}
    run["bounds"] = {
        "server_only": {"metrics": {"rmse": 0.83, "nll": 1.4}},
        "centralised": {"metrics": {"rmse": 0.35, "nll": -0.4}},
    }
    run["coverage"] = [
        {"level": q / 10, "observed": q / 10 - 0.012, "interval": [q / 10 - 0.05, q / 10 + 0.03]} for q in range(1, 10)
    ]
    for i, site in enumerate(run["per_site"]):
        site |= {"labels": None, "metrics": {"rmse": 0.35 + 0.03 * i, "nll": -0.3 + 0.05 * i}}
    return run


def comparison() -> dict[str, Any]:
    def row(
        name: str, needs: str, rounds: int, up: int | None, accuracy: float, nll: float, t: float
    ) -> dict[str, Any]:
        scores = {
            "accuracy": accuracy,
            "nll": nll,
            "brier": 1.45 * (1 - accuracy),
            "ece": 0.03 * t,
            "ece_debiased": 0.02 * t,
        }
        soft = {
            **scores,
            "nll": nll - 0.12 * abs(t - 1) * nll,
            "brier": 1.38 * (1 - accuracy),
            "ece": 0.025,
            "ece_debiased": 0.01,
        }
        spans = {
            "nll": [0.8 * nll, 1.2 * nll],
            "accuracy": wilson(round(360 * accuracy), 360),
            "ece": [0.02 * t, 0.05 * t],
        }
        return {"name": name, "needs": needs, "rounds": rounds, "up_bytes": up, "down_bytes": up, "metrics": scores,
                "intervals": spans, "tempered": {"temperature": t, "metrics": soft}, "seconds": 4.0,
                "reliability": reliability([0, 0, 3, 9, 12, 15, 21, 30, 60, 210], 0.1 - 0.1 * t)}  # fmt: skip

    rows = [
        row("FedAvg, 1 round", "nothing", 1, 350_200, 0.292, 4.441, 2.9),
        row("FedAvg, 10 rounds", "nothing", 10, 3_502_000, 0.871, 0.552, 1.6),
        row("Mixture of samples", "nothing", 1, 2_101_200, 0.61, 1.285, 0.5),
        row("FedBE, distilled on the server's inputs", "inputs", 1, 2_101_200, 0.642, 1.141, 0.7),
        row("β-Predictive Bayes", "labels", 1, 2_101_200, 0.9, 0.462, 1.1),
        row("β-Predictive Bayes, distilled", "labels", 1, 2_101_200, 0.886, 0.489, 1.2),
        row("Local only, averaged", "bound", 1, None, 0.367, 3.98, 3.1),
        row("Server only, 30 rows", "bound", 0, None, 0.691, 1.12, 1.4),
        row("Centralised", "bound", 1, None, 0.967, 0.133, 1.1),
    ]
    run = classification()
    return {
        "kind": "comparison", "title": "One round against ten on digits", "data": "digits", "split": "dirichlet:0.1",
        "sentence": "With one round and 30 labelled rows, β-Predictive Bayes is ahead of ten rounds of FedAvg here; "
                    "the intervals overlap and one seed decides nothing.",
        "sites": 5, "seed": 0, "rows": rows, "labels": [s["labels"] for s in run["per_site"]],
        "site_names": ["Aberdeen", "Basel", "Coimbra", "Dresden", "Espoo"], "rows_of_data": run["rows"],
        "versions": run["versions"], "settings": run["settings"], "seconds": 41.0,
    }  # fmt: skip


class Reader(HTMLParser):
    """Checks that tags nest, and keeps what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def text(renderable: Any, width: int) -> str:
    out = io.StringIO()
    Console(width=width, file=out).print(renderable)
    return out.getvalue()


def cell(row: str, column: str, ours: float | None, paper: float | None, **more: Any) -> dict[str, Any]:
    return {"row": row, "column": column, "ours": ours, "spread": 0.1, "seeds": 4, "per_seed": [ours] * 4, "scores": {},
            "paper": paper, "paper_spread": 0.2, "away_in_standard_errors": None, "comparable": paper is not None,
            "open": False, **more}  # fmt: skip


def results(**changes: Any) -> dict[str, Any]:
    cells = [
        cell("mixture", "a", 1.25, 1.0, away_in_standard_errors=1.118),  # 0.25 / √(0.1² + 0.2²)
        cell("product", "a", 3.0, 1.0, away_in_standard_errors=8.944, scores={"nll": 0.5, "beta": 0.3}),
        cell("beta", "a", 2.0, 2.0, away_in_standard_errors=-0.01),
        cell("mixture", "b", 5.0, 1.0, away_in_standard_errors=17.889, comparable=False),
        cell("theirs", "b", None, 7.0, seeds=0, spread=None, open=True),
        cell("ours alone", "b", -4.0, None, paper_spread=None),
    ]
    return {"format": 1, "experiment": "papers/toy", "title": "A <toy>", "score": "brier", "digits": 2, "scale": "full",
            "spread": "standard error over seeds", "seeds": [0, 1, 2, 3], "cells": cells, **changes}  # fmt: skip
