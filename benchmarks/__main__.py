"""`python -m benchmarks [PART …]`: ratios measured in one run, as JSON, on the screen and in docs/speed.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import consilience as co
from benchmarks import (
    comparison,
    convolutions,
    coresets,
    engines,
    ensemble,
    floor,
    flower,
    growth,
    loaded,
    merging,
    private,
    protocols,
    reading,
    squares,
    start,
    sums,
)
from benchmarks.timing import machine

PARTS: dict[str, ModuleType] = {
    **{"protocols": protocols, "floor": floor, "loaded": loaded, "convolutions": convolutions},
    **{"engines": engines, "comparison": comparison, "growth": growth},
    **{"squares": squares, "reading": reading, "merging": merging, "ensemble": ensemble, "coresets": coresets},
    **{"sums": sums, "private": private, "start": start},
}
ASKED = {"flower": flower}  # what needs more than the library has: measured where it is named
EVERY = {**PARTS, **ASKED}
PAGE, BEGIN, END = (
    Path("docs/speed.md"),
    "<!-- measured: written by make bench -->",
    "<!-- end of what was measured -->",
)


def screen_table(title: str, rows: list[list[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for i, heading in enumerate(rows[0]):
        table.add_column(heading, justify="left" if i == 0 else "right")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def sections(results: dict[str, Any]) -> dict[str, str]:
    """Title → table and what it was measured under, for every part that was."""
    table = {}
    for name, part in results["parts"].items():
        rows = EVERY[name].table(part["results"])
        rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
        lines = [f"| {' | '.join(row)} |" for row in [rows[0], rule, *rows[1:]]]
        table[EVERY[name].TITLE] = "\n".join([*lines, "", about(part["facts"])])
    return table


def about(facts: dict[str, Any]) -> str:
    """What a part was measured under, in a sentence."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{facts['cores']} cores, {facts['threads']} thread(s), load {facts['load_before']:.1f} before and "
        f"{facts['load_after']:.1f} after, {versions}, scale {facts['scale']:g}, {facts['repeats']} alternating runs, "
        f"{facts['seconds']:.0f} s in all."
    )


def write_page(page: Path, results: dict[str, Any]) -> None:
    """Put the parts that were measured between the two marks, in place of their older tables; the others stay."""
    before, _, rest = page.read_text().partition(BEGIN)
    inside, _, after = rest.partition(END)
    older = dict(part.strip().split("\n\n", 1) for part in inside.split("### ")[1:])
    known = {**older, **sections(results)}
    text = "\n\n".join(f"### {m.TITLE}\n\n{known[m.TITLE]}" for m in EVERY.values() if m.TITLE in known)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    known = f"{', '.join(PARTS)}; all of these by default; and {', '.join(ASKED)}"
    words.add_argument("parts", nargs="*", metavar="PART", help=known)
    words.add_argument("--scale", type=float, default=0.1, help="share of MNIST's rows in the protocols; others by it")
    words.add_argument("--threads", type=int, default=1, help="torch's threads, for both sides of the protocols")
    words.add_argument("--repeats", type=int, default=3, help="runs of each row, alternating; medians are shown")
    words.add_argument(
        "--peers", action="store_true", help="measure FedJAX and pfl beside us, in their own environments"
    )
    words.add_argument("--before", type=Path, help="folder of an older version, which `squares` measures beside this")
    words.add_argument("--most", type=float, default=600, help="seconds after which `squares` gives a case up")
    words.add_argument("--data-dir", default=os.environ.get("CONSILIENCE_DATA"), help="drawn rows without it")
    words.add_argument("--out", type=Path, default=Path("build/bench.json"))
    words.add_argument("--resume", action="store_true", help="keep the parts that an interrupted run has measured")
    words.add_argument("--page", action="store_true", help=f"write the tables into {PAGE}")
    options = words.parse_args()
    if unknown := set(options.parts) - set(EVERY):
        words.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(EVERY)}")
    torch.set_num_threads(options.threads)
    screen = Console(width=140)
    wanted = options.parts or list(PARTS)
    results: dict[str, Any] = {"parts": {}}
    if options.resume:
        results["parts"] = parts_done(options, wanted)
    failed = []
    for name in wanted:
        if name in results["parts"]:
            screen.print(f"{name}: measured already, in {options.out}")
            continue
        try:
            results["parts"][name] = measure_part(name, options)
        except Exception:  # the other parts are worth having all the same
            screen.print_exception()
            failed.append(name)
            continue
        screen.print(screen_table(EVERY[name].TITLE, EVERY[name].table(results["parts"][name]["results"])))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")  # what is done stays done
        if options.page:
            write_page(PAGE, results)
    written = f"JSON: {options.out}"
    if options.page:
        written += f"; tables: {PAGE}"
    screen.print(written)
    if failed:
        sys.exit(f"These parts failed: {', '.join(failed)}; run the same with --resume when they are mended.")


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """What a part must have in common with another to stand beside it."""
    versions = {"consilience": co.__version__, "torch": torch.__version__, "Python": platform.python_version()}
    asked = {"scale": options.scale, "repeats": options.repeats, "peers": options.peers}
    return {"versions": versions, "threads": options.threads, **asked}


def measure_part(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A part's results, and what they were measured under."""
    facts = {**conditions(options), **machine()}
    begin = time.perf_counter()
    results = EVERY[name].measure(options)
    facts |= {"load_after": os.getloadavg()[0], "seconds": time.perf_counter() - begin}
    return {"facts": facts, "results": results}


def parts_done(options: argparse.Namespace, wanted: Sequence[str]) -> dict[str, Any]:
    """The parts that an interrupted run has measured under the same conditions; none of a run that has ended."""
    if not options.out.exists():
        return {}
    asked = conditions(options)
    done = {}
    for name, part in json.loads(options.out.read_text())["parts"].items():
        facts = part.get("facts", {})
        if name in EVERY and all(facts.get(key) == value for key, value in asked.items()):
            done[name] = part
    if set(wanted) <= set(done):
        return {}
    return done


if __name__ == "__main__":
    main()
