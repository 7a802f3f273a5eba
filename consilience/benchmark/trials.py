"""Tables of Markdown from the stored trials of an experiment: what a page's summary script is written with."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TypeAlias

import scipy  # its parts are imported when they are used

from consilience.benchmark.reproduce import load
from consilience.disk.writing import write_whole
from consilience.metrics.paired import difference

Cell: TypeAlias = dict[str, dict[str, float | None]]  # seed → score → value
Trials: TypeAlias = dict[str, dict[str, Cell]]  # column → seed → row → score → value


def collect_trials(experiment: str, folder: Path, results: Path, scale: str = "full") -> Trials:
    """Put together the trials of a folder and those that were stored before.

    Args:
        experiment: Its name, as `consilience reproduce` takes it.
        folder: Where `run_plan` or `reproduce` kept its trials.
        results: The stored trials, a JSON file that need not exist yet.
        scale: Which trials of the folder.

    Returns:
        All of them, in order, numbers cut to seven digits.
    """
    trials: Trials = {}
    if results.exists():
        trials = json.loads(results.read_text())
    for column in load(experiment).columns:
        place = folder / "trials" / scale / column.replace(":", "-").replace("/", "-")
        for file in place.glob("seed-*.json"):
            values = json.loads(file.read_text())["values"]
            rows = {row: {score: cut(v) for score, v in cells.items()} for row, cells in values.items()}
            trials.setdefault(column, {})[file.stem.removeprefix("seed-")] = rows
    return {column: dict(sorted(trials[column].items(), key=lambda pair: int(pair[0]))) for column in sorted(trials)}


def cut(value: float | None) -> float | None:
    """Round a number to seven digits.

    Args:
        value: Any number; None stays None.

    Returns:
        The number as it is stored.
    """
    if value is None:
        return None
    return float(f"{value:.7g}")


def mean_with_interval(values: Cell, score: str, overlap: float, form: str, rows: int = 0) -> str:
    """Write a mean and half the width of its 95 % interval: over seeds, or (°) over test rows where few or equal.

    Args:
        values: A row's scores by seed.
        overlap: Test rows / training rows, where every seed splits the same table anew (see `difference`).
        form: How numbers are written, as in '.3f'.
        rows: How many test rows there are, for an accuracy's interval over rows.

    Returns:
        The text of a table's cell.
    """
    known = [v for scores in values.values() if (v := scores.get(score)) is not None]
    if not known:
        return "–"
    mean = fmean(known)
    if len(known) >= 3 and max(known) > min(known):
        error = stdev(known) * math.sqrt(1 / len(known) + overlap)
        half = float(scipy.stats.t.ppf(0.975, len(known) - 1)) * error
        return f"{mean:{form}} ± {half:{form}}"
    errors = [e for scores in values.values() if (e := scores.get(f"{score}_error")) is not None]
    if score == "accuracy" and rows:
        errors = [math.sqrt(mean * (1 - mean) / rows)]
    if errors:
        return f"{mean:{form}} ± {1.96 * fmean(errors):{form}}°"
    return f"{mean:{form}}"


def paired_difference(values: Cell, reference: Cell, overlap: float, score: str = "nll") -> str:
    """Write a row's score less the reference's, paired over the seeds that both have.

    Args:
        values: The row's scores by seed.
        overlap: As for `mean_with_interval`.

    Returns:
        The mean, from three seeds on with its 95 % interval; empty for the reference itself.
    """
    if values == reference:
        return ""
    pairs = [(values[seed].get(score), reference[seed].get(score)) for seed in values if seed in reference]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return ""
    d = difference([a for a, _ in known], [b for _, b in known], overlap)
    if len(known) < 3:
        return f"{d.mean:+.3f}".replace("-", "−")
    return f"{d.mean:+.3f} ({d.low:+.3f} to {d.high:+.3f})".replace("-", "−")


def markdown_table(heading: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Write a table whose first column is text, and all others numbers.

    Args:
        heading: The names of the columns.
    """
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *body))


def replace_between(page: Path, begin: str, inside: str, end: str) -> None:
    """Renew what stands between two marks of a page.

    Args:
        begin: The mark before it.
        inside: What should stand there.
        end: The mark after it.
    """
    before, _, rest = page.read_text().partition(begin)
    text = f"{before}{begin}\n\n{inside}\n\n{end}{rest.partition(end)[2]}"
    write_whole(page, text.encode(), "Choose a page that can be written.")
