"""The tables of FEMNIST in README.md: python experiments/dhondt2024/summary.py FOLDER

FOLDER holds the `--out` folders of `consilience reproduce dhondt2024/table1`, `table8` and `table9` under these names,
with trials of any scale. Stored results and the page are renewed from the trials that are there; means and standard
errors over seeds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from consilience.benchmark.reproduce import collect, load

HERE = Path("experiments/dhondt2024")
STORED = {  # what is stored, at which scales; the first is that of the page's table
    "table1": ("small",),
    "table8": ("evening",),
    "table9": ("evening", "averaged", "wide", "patient", "overnight"),
}
SCORES = ("nll", "accuracy", "ece")
Values = dict[str, dict[str, dict[str, list[float]]]]  # column → row → score → one value a seed


def results(name: str, scale: str, folder: Path) -> dict[str, Any]:
    """What is stored of an experiment: its cells, and each seed's scores.

    Args:
        name: `table1`, `table8` or `table9`.
        scale: At which it ran.
        folder: The `--out` of its run.

    Returns:
        JSON, with the seeds that have run.
    """
    experiment = load(f"dhondt2024/{name}")
    per_seed: Values = {}
    seeds: set[int] = set()
    for column in experiment.columns:
        for seed in range(100):
            trial = folder / "trials" / scale / column / f"seed-{seed}.json"
            if not trial.exists():
                continue
            for row, scores in json.loads(trial.read_text())["values"].items():
                if row.startswith("_"):
                    continue
                seeds.add(seed)
                cell = per_seed.setdefault(column, {}).setdefault(row, {})
                for score in (*SCORES, "times_to_accuracy"):
                    if scores.get(score) is not None:
                        cell.setdefault(score, []).append(scores[score])
    found = collect(f"dhondt2024/{name}", experiment, sorted(seeds), scale, folder)
    found.pop("drawings", None)
    return {**found, "per_seed": per_seed}


def table(found: dict[str, Any]) -> str:
    """A table of the page.

    Args:
        found: What `results` returned.

    Returns:
        Markdown: scores of every row, beside the paper's NLL.
    """
    printed = {(c["row"], c["column"]): c["paper"] for c in found["cells"]}
    lines = ["| | seeds | NLL (paper) | accuracy, % | ECE | times BPC-FL's floats until as accurate |"]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |")
    for column, rows in found["per_seed"].items():
        for row, scores in rows.items():
            paper = printed.get((row, column))
            nll = mean_of(scores["nll"], 3)
            if paper is not None:
                nll += f" ({paper:.3f})"
            times = "–"
            if "times_to_accuracy" in scores:
                times = f"{fmean(scores['times_to_accuracy']):.1f}"
            accuracy = mean_of([100 * value for value in scores["accuracy"]], 1)
            ece = mean_of(scores["ece"], 3)
            lines.append(f"| {row}; {column} | {len(scores['nll'])} | {nll} | {accuracy} | {ece} | {times} |")
    return "\n".join(lines)


def one_at_a_time(found: list[dict[str, Any]]) -> str:
    """What each scale of Table 9 changes: thirty writers, the first seed of each.

    Args:
        found: What `results` returned, for each scale.

    Returns:
        Markdown: scores of the plain row and of its bound.
    """
    lines = ["| scale | row | NLL | accuracy, % | ECE |", "| --- | --- | ---: | ---: | ---: |"]
    for each in found:
        for row, scores in each["per_seed"].get("30 writers", {}).items():
            if "momentum" not in row:
                nll, accuracy, ece = (scores[score][0] for score in SCORES)
                lines.append(f"| `{each['scale']}` | {row} | {nll:.3f} | {100 * accuracy:.1f} | {ece:.3f} |")
    return "\n".join(lines)


def mean_of(values: list[float], digits: int) -> str:
    """Write a mean with its standard error, where there are two seeds or more.

    Args:
        values: One a seed.
        digits: Behind the point.

    Returns:
        Text.
    """
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{fmean(values):.{digits}f} ± {stdev(values) / len(values) ** 0.5:.{digits}f}"


def renew(page: str, name: str, text: str) -> str:
    """Put a table between its marks.

    Args:
        page: The page.
        name: Of the table.
        text: The table.

    Returns:
        The page with the table.
    """
    before, begin, rest = page.partition(f"<!-- {name}: summary.py -->\n")
    _, end, after = rest.partition("<!-- end -->\n")
    assert begin and end, name
    return f"{before}{begin}{text}\n{end}{after}"


if __name__ == "__main__":
    content = (HERE / "README.md").read_text(encoding="utf-8")
    for table_name, scales in STORED.items():
        folder_of_table = Path(sys.argv[1]) / table_name
        ran = [scale for scale in scales if (folder_of_table / "trials" / scale).exists()]
        made = {scale: results(table_name, scale, folder_of_table) for scale in ran}
        for table_scale, found_here in made.items():
            stored = HERE / "results" / f"{table_name}-{table_scale}.json"
            stored.write_text(json.dumps(found_here, indent=1) + "\n", encoding="utf-8")
        if scales[0] in made:
            content = renew(content, table_name, table(made[scales[0]]))
        if len(made) > 1:
            content = renew(content, "one at a time", one_at_a_time([*made.values()]))
    (HERE / "README.md").write_text(content, encoding="utf-8")
