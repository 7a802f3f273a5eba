"""The released tables of README.md: python experiments/hasan2024/summary.py FOLDER

FOLDER is the `--out` of `consilience reproduce hasan2024/released`. Its cells go to `results/released.json`, and those
of its MSE to `../hasan2023/results/regression_released.json`, whose table `hasan2023/summary.py` writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from consilience.benchmark.reproduce import collect, load, module

PAGE, BEGIN = Path("experiments/hasan2024/README.md"), "<!-- released: summary.py -->"
RESULTS = Path("experiments/hasan2024/results/released.json")
MSE = Path("experiments/hasan2023/results/regression_released.json")
RELEASED = module("hasan2024/released")
SHARED = module("evidence/summary")
AIR = [
    "air_quality",
    *(f"air_quality, {variant}" for variant in RELEASED.VARIANTS),
    RELEASED.WHOLE_FILE,
    RELEASED.MEASURED,
]

Cells = dict[tuple[str, str], dict[str, Any]]


def read_cells(path: Path) -> Cells:
    """(row, column) → the stored cell, where it has a figure."""
    return {(c["row"], c["column"]): c for c in json.loads(path.read_text())["cells"] if c["ours"] is not None}


def figures(cells: Cells, columns: list[str]) -> str:
    """Ours ± its standard error (the paper's), and the distance in standard errors of the difference."""
    body = []
    for row in RELEASED.TABLE2.PAPER:
        body.append([row, *(format_cell(cells.get((row, column))) for column in columns)])
    heads = [f"{c.replace('_', ' ')} ({seeds(cells, c)})" for c in columns]
    return str(SHARED.lines(["NLL, summed (paper), distance", *heads], body))


def format_cell(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "–"
    error = f" ± {cell['spread']:.2f}" if cell["spread"] is not None else ""
    away = cell["away_in_standard_errors"]
    distance = f" {away:+.1f}" if away is not None else ""
    return f"{cell['ours']:.2f}{error} ({cell['paper']:.2f}){distance}".replace("-", "−")


def seeds(cells: Cells, column: str) -> int:
    return max((c["seeds"] for (_, k), c in cells.items() if k == column), default=0)


def betas(cells: Cells) -> str:
    """Where ten passes of Adam end, a mean a column."""
    found = {c: cells["β-PredBayes", c]["scores"]["beta"] for c in RELEASED.SETTINGS if ("β-PredBayes", c) in cells}
    return ", ".join(f"{c.replace('_', ' ')} {beta:.2f}" for c, beta in found.items()).replace("-", "−")


def page(cells: Cells) -> str:
    return f"""{figures(cells, list(RELEASED.SETTINGS))}

β ends at {betas(cells)} (means over seeds).

Air quality again:

{figures(cells, AIR)}"""


if __name__ == "__main__":
    for name, path in (("hasan2024/released", RESULTS), ("hasan2023/regression_released", MSE)):
        results = collect(name, load(name), range(20), "full", Path(sys.argv[1]))
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(SHARED.between(PAGE.read_text(), BEGIN, page(read_cells(RESULTS))))
