"""Long tables: a CSV file of fifty columns, read and split into five sites; processor seconds and peak memory.

Every size runs in a process of its own, whose peak memory is then its own. The file repeats its rows.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import consilience as co
from benchmarks.squares import write_tables
from benchmarks.timing import in_a_new_process, peak, processor_seconds

TITLE = "Long tables"
ROWS, COLUMNS, BLOCK = (100_000, 1_000_000), 50, 10_000


def write_long(path: Path, rows: int) -> None:
    """Write a block of rows as often as it takes."""
    write_tables(path.parent, 1, BLOCK, COLUMNS - 1)
    block = path.parent / "0.csv"
    header, _, lines = block.read_text().partition("\n")
    block.unlink()
    with path.open("w") as file:
        file.write(f"{header}\n")
        for _ in range(rows // BLOCK):
            file.write(lines)


def read(file: str) -> dict[str, float]:
    """In this process: seconds and peak, of which torch is a part."""
    before = peak()
    took = processor_seconds(lambda: co.data.from_csv(file, "y", sites=5))
    return {"seconds": took, "gigabytes": peak() / 1024, "before": before / 1024}


def measure(options: Namespace) -> dict[str, Any]:
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for rows in ROWS:
            count = max(BLOCK, round(rows * min(options.scale * 10, 1)))
            file = Path(name) / f"{count}.csv"
            write_long(file, count)
            size = file.stat().st_size / 2**30
            results[str(count)] = {**in_a_new_process(read, str(file)), "file": size}
            file.unlink()
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    heads = ["rows × 50 columns", "file, GB", "CPU s", "µs a cell", "peak, GB", "of that, before reading, GB"]
    lines = [heads]
    for rows, f in results.items():
        cell = f"{1e6 * f['seconds'] / int(rows) / COLUMNS:.2f}"
        memory = [f"{f['gigabytes']:.2f}", f"{f['before']:.2f}"]
        lines.append([f"{int(rows):,}".replace(",", " "), f"{f['file']:.2f}", f"{f['seconds']:.1f}", cell, *memory])
    return lines
