"""A site's commands on 10 000 rows × 30 columns: seconds and peak memory on one core.  python -m benchmarks.site"""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS, COLUMNS = 10_000, 30
STUDIES = {"the default (linear, Laplace)": [], "MLP, β": ["--model", "mlp", "--method", "beta"]}


def table(path: Path) -> None:
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"c{i}" for i in range(COLUMNS)), "ill"])
        for _ in range(ROWS):
            values = [draw.gauss(0, 1) for _ in range(COLUMNS)]
            risk = sum(values[:5]) + draw.gauss(0, 1)
            writer.writerow([*(f"{v:.4f}" for v in values), "yes" if risk > 0 else "no"])


def time_command(folder: Path, *words: str) -> tuple[float, float, float]:
    """Wall seconds, processor seconds and peak megabytes of one command."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "consilience.cli", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, words
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    print("| study | command | seconds | of processor | MB | file |\n| --- | --- | --- | --- | --- | --- |")
    for name, words in STUDIES.items():
        with tempfile.TemporaryDirectory() as folder_name:
            folder = Path(folder_name)
            table(folder / "rows.csv")
            time_command(folder, "study", "new", "s", "--like", "rows.csv", "--target", "ill", *words)
            time_command(folder, "site", "join", "s.toml", "a")
            time_command(folder, "study", "add", "s.toml", "a.join")
            for command, file in (
                (("site", "check", "s.toml", "rows.csv"), None),
                (("site", "fit", "s.toml", "rows.csv", "--key", "a.key"), "a.reply"),
                (("study", "pool", "s.toml", "a.reply"), "s.model"),
                (("site", "statistics", "s.toml", "s.model", "rows.csv", "--key", "a.key"), "a.statistics"),
                (("site", "evaluate", "s.model", "rows.csv", "--study", "s.toml", "--key", "a.key"), None),
                (("predict", "s.model", "rows.csv"), "rows.predictions.csv"),
            ):
                wall, cpu, memory = time_command(folder, *command)
                size = ""
                if file:
                    size = f"{(folder / file).stat().st_size:,} bytes"
                print(
                    f"| {name} | {' '.join(command[:2])} | {wall:.1f} | {cpu:.1f} | {memory:.0f} | {size} |", flush=True
                )


if __name__ == "__main__":
    main()
