"""A Kaplan–Meier curve of several sites: from their tables, or from files in which each sends its sums."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from consilience.data.formats import read_table
from consilience.data.targets import read_outcome
from consilience.distributions.curves import Curve, TimeSums, hide_few, protect, sum_times
from consilience.errors import InputError, refuse_damage, unknown_name

MOST_STEPS = 10_000
FORMAT = 1  # of a file of sums


def even_grid(every: float, until: float) -> Tensor:
    """Lay the agreed grid.

    Args:
        every: The width of a step, in the unit of the times.
        until: Where the last one ends.

    Returns:
        The grid [T].

    Raises:
        InputError: There is no step, or too many.
    """
    if not (0 < every <= until and math.isfinite(until)):
        raise InputError(f"Steps of {every:g} until {until:g} make no grid: give a step above 0 and a later end.")
    steps = math.ceil(until / every - 1e-9)
    if steps > MOST_STEPS:
        raise InputError(f"{steps:,} steps are more than the {MOST_STEPS:,} that can be: take wider ones.")
    return every * torch.arange(1, steps + 1, dtype=torch.float64)


def read_times(path: Path, time: str, event: str, delimiter: str = ",") -> Tensor:
    """Read times and events from a CSV file.

    Args:
        time: The column of times.
        event: The column that is 1 where the event was seen, else 0.
        delimiter: What stands between two cells.

    Returns:
        Times and events [N, 2].

    Raises:
        InputError: A column is missing, or a cell cannot be used.
    """
    columns = dict(read_table(path, delimiter).columns)
    for name in (time, event):
        if name not in columns:
            raise unknown_name("column", name, columns)
    return read_outcome(columns, (time, event), "survival")


def write_sums(y: Tensor, grid: Tensor, smallest: int) -> dict[str, Any]:
    """Write what a site sends: sums of which no step shows few people.

    Args:
        y: The site's times and events [N, 2].
        grid: The agreed grid [T].
        smallest: The smallest number of events or censored rows that a step may show.

    Returns:
        The sums as JSON.

    Raises:
        InputError: The site has too few rows.
    """
    sums = protect(sum_times(hide_few(y, grid, smallest), grid), grid, smallest)
    return {"format": FORMAT, "grid": grid.tolist(), **{name: leaf.tolist() for name, leaf in sums._asdict().items()}}


def read_sums(path: Path) -> tuple[Tensor, TimeSums]:
    """Read a file that a site sent.

    Returns:
        Its grid and its sums.

    Raises:
        InputError: It is no such file, or its numbers cannot be sums of people.
    """
    with refuse_damage(f"{path} does not hold a site's sums: ask the site to write it again."):
        value = json.loads(path.read_text())
        grid = torch.tensor(value["grid"], dtype=torch.float64)
        sums = TimeSums(*(torch.tensor(value[name], dtype=torch.float64) for name in TimeSums._fields))
        shapes = {tuple(leaf.shape) for leaf in sums[:3]} | {tuple(grid.shape)}
        if value["format"] != FORMAT or len(shapes) != 1 or grid.ndim != 1 or sums.rows.ndim:
            raise ValueError("another shape")
    impossible = float((sums.events + sums.censored).sum()) > float(sums.rows) + 1e-6
    negative = any(bool((leaf < 0).any()) or not bool(torch.isfinite(leaf).all()) for leaf in sums)
    if impossible or negative or bool((sums.at_risk > sums.rows + 1e-6).any()):
        raise InputError(f"{path} holds numbers that are no counts of its rows: ask the site to write it again.")
    return grid, sums


def read_all_sums(paths: Sequence[Path]) -> tuple[Tensor, list[TimeSums]]:
    """Read the files of all sites.

    Returns:
        The grid they agreed on, and each site's sums.

    Raises:
        InputError: Two files are on different grids, or one cannot be read.
    """
    pairs = [read_sums(path) for path in paths]
    grid = pairs[0][0]
    for path, (other, _) in zip(paths, pairs, strict=True):
        if not torch.equal(grid, other):
            raise InputError(f"{path} is on another grid than {paths[0]}: agree on one, and let each site write again.")
    return grid, [sums for _, sums in pairs]


def curve_csv(found: Curve) -> str:
    """Write a curve as CSV.

    Returns:
        A header, the point (0, 1), and a line for every step.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "survival", "low95", "high95", "at_risk", "events"])
    writer.writerow([0, 1, 1, 1, f"{float(found.at_risk[0]):.6g}", 0])
    for row in zip(*(leaf.tolist() for leaf in found), strict=True):
        writer.writerow([f"{value:.6g}" for value in row])
    return text.getvalue()
