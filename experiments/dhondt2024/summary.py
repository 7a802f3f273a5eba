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

from consilience.benchmark.reproduce import collect, load, module

HERE = Path("experiments/dhondt2024")
STORED_PAGES = module("stored")
STORED = {  # what is stored, at which scales; the first is that of the page's table
    "table1": ("small",),
    "table8": ("evening",),
    "table9": ("evening", "averaged", "wide", "patient", "overnight"),
}
SCORES = ("nll", "accuracy", "ece")
SHOWN_OF_ROWS = ("copies", "closest")  # how near pseudo-rows come to rows
ROW, REAL, ALL = "BPC-FL + SGD", "real rows, as many, the server's SGD", "all rows in one place, the server's SGD"
STARTS = {  # column of Table 9 → where pseudo-rows and weights begin
    "30 writers": ("noise around the mean", "torch's"),
    "30 writers, own rows": ("the writer's rows", "torch's"),
    "30 writers, haiku": ("noise around the mean", "haiku's"),
    "30 writers, own rows, haiku": ("the writer's rows", "haiku's"),
}
SAME = {  # column of Table 9 → one whose controls are the same runs, since these have no pseudo-rows that were learned
    "30 writers": "30 writers, own rows",
    "30 writers, haiku": "30 writers, own rows, haiku",
}
SIZE_OF_TABLE_9 = "62 rows"  # column of Table 8 whose runs are those of Table 9's first
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
                for score in (*SCORES, "times_to_accuracy", *SHOWN_OF_ROWS):
                    if scores.get(score) is not None:
                        cell.setdefault(score, []).append(scores[score])
    found = collect(f"dhondt2024/{name}", experiment, sorted(seeds), scale, folder)
    found.pop("drawings", None)
    return {**found, "per_seed": per_seed}


def keep_stored(found: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Keep the cells that are stored with more seeds than the folder has.

    Args:
        found: What `results` returned.
        stored: What was stored before.

    Returns:
        `found`, with those cells.
    """
    found["per_seed"] = {column: {} for column in stored["per_seed"]} | found["per_seed"]  # in the order of before
    for old in STORED_PAGES.longer(found, stored):
        if old["column"] in stored["per_seed"] and old["row"] in stored["per_seed"][old["column"]]:
            scores = stored["per_seed"][old["column"]][old["row"]]
            found["per_seed"].setdefault(old["column"], {})[old["row"]] = scores
    joined: dict[str, Any] = STORED_PAGES.joined(found, stored)
    return joined


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


def starts(found: dict[str, Any]) -> str:
    """Table 9 by where pseudo-rows and weights begin, beside as many real rows and all rows.

    Args:
        found: What `results` returned.

    Returns:
        Markdown: NLL and accuracy of each, and how near pseudo-rows come to rows.
    """
    heads = ["pseudo-rows begin at", "weights begin as", "seeds", "BPC-FL + SGD", "real rows, as many", "all rows"]
    heads += ["copies of 1 860", "closest"]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- |" + " ---: |" * 6]
    cells = {(c["column"], c["row"]): c["scores"] for c in found["cells"]}
    for column, start in STARTS.items():
        rows = found["per_seed"].get(column, {})
        if ROW in rows:
            numbers = [
                f"{mean_of(scores['nll'], 2)}, {mean_of([100 * value for value in scores['accuracy']], 1)} %"
                for scores in (rows[row] for row in (ROW, REAL, ALL) if row in rows)
            ]
            near = cells[column, ROW]
            exposed = [f"{near['copies']:.0f}", f"{near['closest']:.2f}"]
            lines.append(f"| {' | '.join([*start, str(len(rows[ROW]['nll'])), *numbers, *exposed])} |")
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


def stored_results(name: str) -> dict[str, dict[str, Any]]:
    """Read what is stored of an experiment.

    Args:
        name: `table1`, `table8` or `table9`.

    Returns:
        Scale → what `results` returned, in the page's order.
    """
    files = {scale: HERE / "results" / f"{name}-{scale}.json" for scale in STORED[name]}
    return {scale: json.loads(file.read_text(encoding="utf-8")) for scale, file in files.items() if file.exists()}


def take_same_runs(name: str, per_seed: Values) -> None:
    """Take scores from where the same run has more seeds.

    Args:
        name: `table1`, `table8` or `table9`.
        per_seed: Of its evening, which is changed.
    """
    if name == "table9":
        for column, other in SAME.items():
            for row in (REAL, ALL):
                take_longer(per_seed[column], per_seed[other], row)
    if name == "table8":
        writers = stored_results("table9")["evening"]["per_seed"]
        take_same_runs("table9", writers)
        for column, rows in per_seed.items():
            for row in rows:
                if row == ALL or column == SIZE_OF_TABLE_9:
                    take_longer(rows, writers["30 writers"], row)


def take_longer(rows: dict[str, dict[str, list[float]]], others: dict[str, dict[str, list[float]]], row: str) -> None:
    """Take a row from another column if it has more seeds there.

    Args:
        rows: A column, which is changed.
        others: The other column.
        row: Which.
    """
    if len(others[row]["nll"]) > len(rows[row]["nll"]):
        rows[row] = others[row]


def tables(name: str) -> dict[str, str]:
    """The page's tables of an experiment, from what is stored.

    Args:
        name: `table1`, `table8` or `table9`.

    Returns:
        Mark → Markdown.
    """
    stored = stored_results(name)
    take_same_runs(name, stored.get("evening", {}).get("per_seed", {}))
    made = {name: table(stored[STORED[name][0]])}
    if name == "table9":
        made |= {"one at a time": one_at_a_time([*stored.values()]), "starts": starts(stored["evening"])}
    return made


if __name__ == "__main__":
    content = (HERE / "README.md").read_text(encoding="utf-8")
    for table_name, scales in STORED.items():
        folder_of_table = Path(sys.argv[1]) / table_name
        before = stored_results(table_name)
        for scale in scales:
            if (folder_of_table / "trials" / scale).exists():
                found_here = results(table_name, scale, folder_of_table)
                if scale in before:
                    found_here = keep_stored(found_here, before[scale])
                stored = HERE / "results" / f"{table_name}-{scale}.json"
                stored.write_text(json.dumps(found_here, indent=1) + "\n", encoding="utf-8")
        for mark, text in tables(table_name).items():
            content = renew(content, mark, text)
    (HERE / "README.md").write_text(content, encoding="utf-8")
