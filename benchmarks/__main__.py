"""`python -m benchmarks`: the papers' protocols here and in plain research code, alternately, in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import ours, plain
from benchmarks.problems import Problem, mnist, wine


def timed(protocol: Callable[[Problem, int], dict[str, float]], p: Problem, threads: int) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = protocol(p, threads)
    return time.perf_counter() - begin, found


def measured(p: Problem, threads: int, repeats: int) -> dict[str, Any]:
    """Medians of alternating runs; what else the machine does then falls on both."""
    seconds: dict[str, list[float]] = {"ours": [], "plain": []}
    scores: dict[str, Any] = {}
    for _ in range(repeats):
        for name, protocol in (("ours", ours.protocol), ("plain", plain.protocol)):
            took, scores[name] = timed(protocol, p, threads)
            seconds[name].append(took)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["plain"], strict=True)]
    return {
        **{"rows": p.source, "client_steps": p.steps, "seconds": middle, "every_run": seconds},
        **{"ratio": middle["plain"] / middle["ours"], "ratios": ratios, "nll": scores},
    }


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    words.add_argument("--scale", type=float, default=0.1, help="share of MNIST's rows; 1 for the whole protocol")
    words.add_argument("--threads", type=int, choices=(1, 2), default=1, help="torch's threads, for both")
    words.add_argument("--repeats", type=int, default=3, help="runs of each, alternating; medians are shown")
    words.add_argument("--only", choices=("mnist", "wine"), help="one protocol alone")
    words.add_argument("--data-dir", default=os.environ.get("CONSILIENCE_DATA"), help="drawn rows without it")
    words.add_argument("--out", type=Path, default=Path("build/bench.json"))
    given = words.parse_args()
    torch.set_num_threads(given.threads)
    load = os.getloadavg()[0]
    made = {"mnist": lambda: mnist(given.scale, given.data_dir), "wine": lambda: wine(given.data_dir)}
    found = {
        name: measured(make(), given.threads, given.repeats)
        for name, make in made.items()
        if given.only in (None, name)
    }

    machine = {"processors": os.cpu_count(), "load_before": load, "python": platform.python_version()}
    facts = {"scale": given.scale, "threads": given.threads, "torch": torch.__version__, **machine}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({**facts, "protocols": found}, indent=2, ensure_ascii=False) + "\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("protocol", "ours, s", "plain, s", "ratio", "each run", "NLL distilled β, ours", "plain"):
        table.add_column(column, justify="left" if column == "protocol" else "right")
    for name, f in found.items():
        scores = (f"{f['nll'][side]['distilled β']:.3f}" for side in ("ours", "plain"))
        each = " ".join(f"{r:.1f}" for r in f["ratios"])
        size = f", {given.scale:g} of its rows" if name == "mnist" and given.scale != 1 else ""
        title = f"{name}{size} ({f['rows']})"
        table.add_row(title, *(f"{f['seconds'][s]:.2f}" for s in ("ours", "plain")), f"{f['ratio']:.1f}", each, *scores)
    screen = Console(width=140)
    screen.print(table)
    screen.print(f"Medians of {given.repeats}, {given.threads} thread(s), load before {load:.1f}. JSON: {given.out}")


if __name__ == "__main__":
    main()
