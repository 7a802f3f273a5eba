"""What once grew with the square: doubling sites, columns and rows, and processor seconds before and after.

Every case runs in a process of its own; processor time is taken, because the machine may have other work. With
`--before FOLDER`, the same cases run on the package in that folder, in turn.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

TITLE = "Growth of what once grew with the square"
LINEAR = 2.2  # wanted: at most, for twice the size
SIZES = {"sites": (50, 100), "columns": (1_000, 2_000), "rehearsal": (1, 2), "rows": (50_000, 100_000)}
WORDS = {
    "sites": "`run mixture`, sites of 20 rows",
    "columns": "`study new`, columns",
    "rehearsal": "coreset rehearsal, default network, times",
    "rows": "CSV of 20 columns, rows",
}
SCRIPT = """
import resource, sys, time
from pathlib import Path
case, size, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
import consilience.cli
import consilience as co
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.target import Target
from consilience.study.protocol.rehearsal import rehearse
def invoke(*words):
    sys.argv = ["consilience", *words]
    try:
        consilience.cli.main()
    except SystemExit as end:
        assert not end.code, end.code
def sites():
    invoke("run", "mixture", "--data", str(folder / "*.csv"), "--target", "y", "--model", "linear",
           "--out", str(folder / "run"), "--json")
def columns():
    invoke("study", "new", "trial", "--like", str(folder / "0.csv"), "--target", "y", "--folder", str(folder))
def rehearsal():
    agreed = tuple(Column(f"c{i}") for i in range(10))
    for _ in range(size):
        target = Target("y", ("no", "yes"))
        agreement = Agreement("trial", "", target, agreed, model="mlp", method="coreset", settings=())
        rehearse(agreement)
def rows():
    co.data.from_csv(folder / "0.csv", "y", sites=5)
begin = time.process_time()
locals()[case]()
status = Path("/proc/self/status")
if status.exists():  # ru_maxrss would begin with what the process had that started this one
    peak = next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM")) / 1024**2
else:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
print(time.process_time() - begin, peak, file=sys.stderr)
"""


def write_tables(folder: Path, files: int, rows: int, columns: int) -> None:
    draw = np.random.default_rng(0)
    for k in range(files):
        x = draw.normal(size=(rows, columns))
        y = (x[:, :3].sum(1) + draw.normal(size=rows) > 0).astype(int)
        header = ",".join([*(f"x{j}" for j in range(columns)), "y"])
        formats = ["%.4f"] * columns + ["%d"]
        np.savetxt(folder / f"{k}.csv", np.column_stack([x, y]), formats, ",", header=header, comments="")


def work(case: str, size: int, package: str, most: float) -> dict[str, float]:
    """Processor seconds and peak memory of one case; the limit where it did not end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shapes = {"sites": (size, 20, 10), "columns": (1, 20, size), "rows": (1, size, 19)}
        if case in shapes:
            write_tables(folder, *shapes[case])
        words = [sys.executable, "-c", SCRIPT, case, str(size), name]
        environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1"}
        try:
            ended = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=most, check=True)
        except subprocess.TimeoutExpired:
            return {"seconds": float("inf"), "gigabytes": float("nan")}
        seconds, gigabytes = map(float, ended.stderr.splitlines()[-1].split())
        return {"seconds": seconds, "gigabytes": gigabytes}


def measure(options: Namespace) -> dict[str, Any]:
    packages = {"after": str(Path.cwd())}
    if options.before:
        packages["before"] = str(options.before)
    results: dict[str, Any] = {}
    for case, sizes in SIZES.items():
        for size in sizes:
            found = {name: work(case, size, package, options.most) for name, package in packages.items()}
            results[f"{case} {size}"] = found
    return results


def table(results: dict[str, Any]) -> list[list[str]]:
    heads = [
        "case",
        "N",
        "2N / N, before",
        f"2N / N (wanted: ≤ {LINEAR})",
        "CPU s at 2N, before",
        "CPU s",
        "GB, before",
    ]
    lines = [[*heads, "GB"]]
    for case, (small, large) in SIZES.items():
        pair = [results[f"{case} {size}"] for size in (small, large)]
        cells = [WORDS[case], f"{small:,}".replace(",", " ")]
        shown = []
        for name in ("before", "after"):
            if name not in pair[0]:
                shown.append(["–", "–", "–"])
                continue
            first, second = (each[name] for each in pair)
            if second["seconds"] == float("inf"):
                shown.append(["–", "not ended", "–"])
                continue
            ratio = second["seconds"] / first["seconds"]
            shown.append([f"{ratio:.1f}", f"{second['seconds']:.1f}", f"{second['gigabytes']:.2f}"])
        for before, after in zip(*shown, strict=True):
            cells += [before, after]
        lines.append(cells)
    return lines
