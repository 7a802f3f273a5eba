"""Store an experiment's results and renew its table in the README: python experiments/stored.py PAPER/NAME FOLDER

FOLDER is the `--out` of `consilience reproduce PAPER/NAME`. Its results.json becomes `PAPER/results/NAME-SCALE.json`,
but for cells that are stored there with more seeds, and the table between the marks `<!-- NAME-SCALE: stored.py -->`
and `<!-- end -->` is written anew; `NAME-SCALE by column` has columns side by side. Without arguments all tables with
such marks are.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from consilience.report.schema.numbers import count

HERE = Path(__file__).parent
SHOWN = {  # score → heading and decimals; a score that no row has is left out
    "accuracy": ("accuracy, %", 1),
    "nll": ("NLL", 3),
    "nll, tempered": ("NLL, tempered", 3),
    "ece": ("ECE", 3),
    "overconfidence": ("confidence − accuracy, points", 1),
}
MARKED = re.compile(r"<!-- (?P<name>[\w-]+)(?P<form> by column)?: stored.py -->\n.*?<!-- end -->\n", re.DOTALL)


def table(results: dict[str, Any]) -> str:
    """A row a line: the mean of each score over seeds, and its standard error from two seeds on.

    Args:
        results: What results.json holds.

    Returns:
        Markdown.
    """
    cells = [c for c in results["cells"] if c["ours"] is not None]
    columns = list(dict.fromkeys(c["column"] for c in cells))
    scores = [key for key in SHOWN if any(c["scores"].get(key) is not None for c in cells)]
    lines = [" | ".join(["|", "seeds", *(SHOWN[key][0] for key in scores)]) + " |"]
    lines.append("| --- |" + " ---: |" * (len(scores) + 1))
    for cell in cells:
        name = cell["row"]
        if len(columns) > 1:
            name += f"; {cell['column']}"
        values = [_number(cell, key) for key in scores]
        lines.append(" | ".join([f"| {name}", str(cell["seeds"]), *values]) + " |")
    return "\n".join(lines)


def by_column(results: dict[str, Any]) -> str:
    """A row a line, and its accuracy and NLL in every column beside the accuracy in print.

    Args:
        results: What results.json holds.

    Returns:
        Markdown.
    """
    cells = {(c["row"], c["column"]): c for c in results["cells"] if c["ours"] is not None}
    seeds = {column: cell["seeds"] for (_, column), cell in cells.items()}
    heads = [f"{column}, {count(number, 'seed')}" for column, number in seeds.items()]
    lines = [f"| {' | '.join(['accuracy, %; NLL (accuracy in print)', *heads])} |"]
    lines.append("| --- |" + " ---: |" * len(heads))
    for row in dict.fromkeys(row for row, _ in cells):
        texts = [_pair(cells[row, column]) if (row, column) in cells else "–" for column in seeds]
        lines.append(f"| {' | '.join([row, *texts])} |")
    return "\n".join(lines)


def _pair(cell: dict[str, Any]) -> str:
    text = f"{_number(cell, 'accuracy')}; {_number(cell, 'nll')}"
    if cell["paper"] is not None:
        text += f" ({cell['paper']:.1f})"
    return text


def _number(cell: dict[str, Any], score: str) -> str:
    value, error = cell["scores"].get(score), cell["errors"].get(score)
    if value is None:
        return "–"
    text = f"{value:.{SHOWN[score][1]}f}"
    if error is not None:
        text += f" ± {error:.{SHOWN[score][1]}f}"
    return text.replace("-", "−")


def renewed(page: str, folder: Path) -> str:
    """A page with all its marked tables as the stored results have them.

    Args:
        page: The text.
        folder: Where the results are stored.

    Returns:
        The text.
    """

    def write(found: re.Match[str]) -> str:
        results = json.loads((folder / f"{found['name']}.json").read_text(encoding="utf-8"))
        form = found["form"] or ""
        made = by_column(results) if form else table(results)
        return f"<!-- {found['name']}{form}: stored.py -->\n{made}\n<!-- end -->\n"

    return MARKED.sub(write, page)


def longer(found: dict[str, Any], stored: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are stored with more seeds than were found.

    Args:
        found: What results.json holds.
        stored: What was stored before.

    Returns:
        Stored cells.
    """
    seeds = {(c["column"], c["row"]): c["seeds"] for c in found["cells"]}
    return [c for c in stored["cells"] if c["seeds"] > seeds.get((c["column"], c["row"]), 0)]


def joined(found: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """What was found, with the cells that are stored with more seeds in their place.

    Args:
        found: What results.json holds.
        stored: What was stored before.

    Returns:
        The same, column by column.
    """
    cells = {(c["column"], c["row"]): c for c in [*found["cells"], *longer(found, stored)]}
    columns = list(dict.fromkeys(column for column, _ in cells))
    seeds = sorted({*found["seeds"], *stored["seeds"]})
    return {**found, "seeds": seeds, "cells": sorted(cells.values(), key=lambda c: columns.index(c["column"]))}


def main(words: list[str]) -> None:
    if words:
        paper, _, name = words[0].partition("/")
        results = json.loads((Path(words[1]) / "results.json").read_text(encoding="utf-8"))
        results.pop("drawings", None)
        file = HERE / paper / "results" / f"{name}-{results['scale']}.json"
        if file.exists():
            results = joined(results, json.loads(file.read_text(encoding="utf-8")))
        file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    for page in HERE.glob("*/README.md"):
        page.write_text(renewed(page.read_text(encoding="utf-8"), page.parent / "results"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
