"""Long tables: a CSV file read, checked and split into five sites, beside polars and pandas, which read it alone.

Every size and every reader runs in a process of its own, whose peak memory is then its own. The file repeats its rows.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.squares import write_tables
from benchmarks.timing import in_a_new_process, peak, processor_seconds

TITLE = "Long tables"
SHAPES, BLOCK = ((100_000, 50), (1_000_000, 50), (5_000_000, 20)), 10_000


def write_long(path: Path, rows: int, columns: int) -> None:
    """Write a block of rows as often as it takes."""
    write_tables(path.parent, 1, BLOCK, columns - 1)
    block = path.parent / "0.csv"
    header, _, lines = block.read_text().partition("\n")
    block.unlink()
    with path.open("w") as file:
        file.write(f"{header}\n")
        for _ in range(rows // BLOCK):
            file.write(lines)


def ours() -> Callable[[str], Any]:
    import scipy.special  # noqa: F401 - loaded when rows are dealt

    import consilience as co

    return lambda file: co.data.from_table(file, "y", sites=5)


def polars() -> Callable[[str], Any]:
    import polars

    return polars.read_csv


def pandas() -> Callable[[str], Any]:
    import pandas

    return pandas.read_csv


READERS = {reader.__name__: reader for reader in (ours, polars, pandas)}


def read(name: str, file: str) -> dict[str, float]:
    """In this process: seconds and peak, of which the library is a part."""
    reader = READERS[name]()
    before = peak()
    took = processor_seconds(lambda: reader(file))
    return {"seconds": took, "gigabytes": peak() / 1024, "before": before / 1024}


def measure(options: Namespace) -> dict[str, Any]:
    os.environ["POLARS_MAX_THREADS"] = str(options.threads)  # of the processes to come, for every reader
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for rows, columns in SHAPES:
            count = max(BLOCK, round(rows * min(options.scale * 10, 1)))
            file = Path(name) / f"{count}.csv"
            write_long(file, count, columns)
            size = file.stat().st_size / 2**30
            found = {reader: in_a_new_process(read, reader, str(file)) for reader in READERS}
            results[f"{count} {columns}"] = {**found, "file": size}
            file.unlink()
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    heads = ["rows × columns", "file, GB", "reader", "CPU s", "× polars (wanted: ≤ 3)", "peak, GB"]
    lines = [[*heads, "× polars (≤ 2)", "of that, before reading, GB"]]
    for shape, found in results.items():
        rows, columns = shape.split()
        cells = [f"{int(rows):,} × {columns}".replace(",", " "), f"{found['file']:.2f}"]
        base = found["polars"]
        for name in READERS:
            own = found[name]
            ratios = [f"{own[what] / base[what]:.1f}" for what in ("seconds", "gigabytes")]
            numbers = [f"{own['seconds']:.1f}", ratios[0], f"{own['gigabytes']:.2f}", ratios[1]]
            lines.append([*cells, name, *numbers, f"{own['before']:.2f}"])
            cells = ["", ""]
    return lines
