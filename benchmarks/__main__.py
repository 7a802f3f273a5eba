"""`python -m benchmarks [PART …]`: ratios measured in one run, as JSON, on the screen and in docs/speed.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import coresets, engines, ensemble, floor, growth, merging, private, protocols, squares, sums
from benchmarks.timing import machine

PARTS: dict[str, ModuleType] = {
    **{"protocols": protocols, "floor": floor, "engines": engines, "growth": growth},
    **{"squares": squares, "merging": merging, "ensemble": ensemble, "coresets": coresets},
    **{"sums": sums, "private": private},
}
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
    facts = results["machine"]
    about = (
        f"{facts['cores']} cores, {facts['threads']} thread(s), load before {facts['load_before']:.1f}, torch "
        f"{results['torch']}, scale {results['scale']:g}; medians of {results['repeats']} alternating runs."
    )
    table = {}
    for name, part in results["parts"].items():
        rows = PARTS[name].table(part)
        rule = ["---"] + ["---:"] * (len(rows[0]) - 1)
        table[PARTS[name].TITLE] = "\n".join([*(f"| {' | '.join(r)} |" for r in [rows[0], rule, *rows[1:]]), "", about])
    return table


def write_page(page: Path, results: dict[str, Any]) -> None:
    """Put the parts that were measured between the two marks, in place of their older tables; the others stay."""
    before, _, rest = page.read_text().partition(BEGIN)
    inside, _, after = rest.partition(END)
    older = dict(part.strip().split("\n\n", 1) for part in inside.split("### ")[1:])
    known = {**older, **sections(results)}
    text = "\n\n".join(f"### {m.TITLE}\n\n{known[m.TITLE]}" for m in PARTS.values() if m.TITLE in known)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    words = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    words.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all by default")
    words.add_argument("--scale", type=float, default=0.1, help="share of MNIST's rows in the protocols; others by it")
    words.add_argument("--threads", type=int, default=1, help="torch's threads, for both sides of the protocols")
    words.add_argument("--repeats", type=int, default=5, help="runs of each row, alternating; medians are shown")
    words.add_argument(
        "--peers", action="store_true", help="measure FedJAX and pfl beside us, in their own environments"
    )
    words.add_argument("--before", type=Path, help="folder of an older version, which `squares` measures beside this")
    words.add_argument("--most", type=float, default=600, help="seconds after which `squares` gives a case up")
    words.add_argument("--data-dir", default=os.environ.get("CONSILIENCE_DATA"), help="drawn rows without it")
    words.add_argument("--out", type=Path, default=Path("build/bench.json"))
    words.add_argument("--page", action="store_true", help=f"write the tables into {PAGE}")
    options = words.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        words.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    torch.set_num_threads(options.threads)
    screen = Console(width=140)
    results: dict[str, Any] = {
        **{"scale": options.scale, "repeats": options.repeats, "torch": torch.__version__, "machine": machine()},
        **{"python": platform.python_version(), "parts": {}},
    }
    for name in options.parts or PARTS:
        results["parts"][name] = PARTS[name].measure(options)
        screen.print(screen_table(PARTS[name].TITLE, PARTS[name].table(results["parts"][name])))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")  # what is done stays done
    if options.page:
        write_page(PAGE, results)
    written = f"JSON: {options.out}"
    if options.page:
        written += f"; tables: {PAGE}"
    screen.print(written)


if __name__ == "__main__":
    main()
