"""The papers' protocols here and in plain research code, alternately."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from benchmarks import ours, plain
from benchmarks.problems import Problem, mnist, wine

TITLE = "The papers' protocols against plain research code"


def time_protocol(protocol: Callable[[Problem, int], dict[str, float]], p: Problem, threads: int) -> tuple[float, Any]:
    begin = time.perf_counter()
    results = protocol(p, threads)
    return time.perf_counter() - begin, results


def measure_protocol(p: Problem, threads: int, repeats: int) -> dict[str, Any]:
    """Medians of alternating runs; what else the machine does then falls on both."""
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    scores: dict[str, Any] = {}
    for _ in range(repeats):
        for name, protocol in (("ours", ours.protocol), ("plain", plain.protocol)):
            took, scores[name] = time_protocol(protocol, p, threads)
            seconds[name].append(took)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["plain"], strict=True)]
    return {
        **{"rows": p.source, "client_steps": p.steps, "seconds": middle, "every_run": seconds},
        **{"ratio": middle["plain"] / middle["ours"], "ratios": ratios, "nll": scores},
    }


def measure(options: Namespace) -> dict[str, Any]:
    problems = {"mnist": lambda: mnist(options.scale, options.data_dir), "wine": lambda: wine(options.data_dir)}
    return {name: measure_protocol(make(), options.threads, options.repeats) for name, make in problems.items()}


def table(results: dict[str, Any]) -> list[list[str]]:
    """Heading and rows."""
    rows = [["protocol", "ours, s", "plain, s", "ratio (wanted: 8)", "NLL distilled β, ours", "plain"]]
    for name, f in results.items():
        scores = [f"{f['nll'][side]['distilled β']:.3f}" for side in ("ours", "plain")]
        times = [f"{f['seconds'][side]:.2f}" for side in ("ours", "plain")]
        rows.append([f"{name}, {f['client_steps']} client steps, {f['rows']}", *times, f"{f['ratio']:.1f}", *scores])
    return rows
