"""Grids of settings to try: read from a file, or the papers' own, and points drawn from them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from consilience.benchmark.row_words import has
from consilience.data.sites import Sites
from consilience.errors import InputError
from consilience.key import Key
from consilience.method import Method

Point: TypeAlias = dict[str, Any]  # field.path → value
Grid: TypeAlias = Mapping[str, Sequence[Any]]  # field.path → its values; several grids are tried one after another


def points_of(grids: Sequence[Grid]) -> list[Point]:
    """List every combination of the grids' values.

    Args:
        grids: The grids, one after another.

    Returns:
        The points, without repetition.
    """
    points: list[Point] = []
    for grid in grids:
        points += [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return list({json.dumps(point, sort_keys=True): point for point in points}.values())


def draw_points(grids: Sequence[Grid], budget: int, seed: int) -> list[Point]:
    """Draw points at random and without replacement.

    Args:
        budget: How many points at most.
        seed: What the draw comes from.

    Returns:
        The points in the grids' order; all if there are no more than the budget.

    Raises:
        InputError: The grids hold no point.
    """
    points = points_of(grids)
    if not points or points == [{}]:
        raise InputError("The grid is empty: give at least one field with at least one value.")
    if len(points) <= budget:
        return points
    return [points[i] for i in sorted(Key(seed).permutation(len(points))[:budget].tolist())]


def read_grid(source: str) -> list[Grid]:
    """Read grids from a file.

    Args:
        source: A JSON file {"field.path": [values]}, or a list of such.

    Raises:
        InputError: There is no such file, or it holds something else.
    """
    try:
        value = json.loads(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"There is no grid '{source}': name a JSON file, or `papers`.") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as JSON: {error}.") from error
    return check_grids(value, source)


def check_grids(value: Any, source: str) -> list[Grid]:
    """Check that a value is a grid or a list of grids.

    Args:
        source: Where it comes from, for people.

    Raises:
        InputError: It is something else.
    """
    grids = value
    if isinstance(value, Mapping):
        grids = [value]
    if not isinstance(grids, (list, tuple)) or not all(_is_grid(grid) for grid in grids):
        raise InputError(f'{source} should hold {{"inference.rate": [0.1, 0.01]}}, or a list of such.')
    return list(grids)


def _is_grid(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(values, (list, tuple)) for values in value.values())


def papers(method: Method, sites: Sites) -> list[Grid]:
    """List the grids of Hasan 2023, Table B.1, in our fields, for what a method has.

    Temperature is in our units: the papers' T with noise of variance 2εαT/N is T·n_k/N here, so T/K on average.

    Args:
        sites: The sites; regression has finer grids.
    """
    regression = sites.classes is None
    axes = {path: values for path, values in _axes(regression).items() if has(method, path)}
    grids: list[dict[str, list[Any]]] = [axes]
    if has(method, "inference.cycles"):
        grids = [{**_sampler_axes(sites, regression), **axes}]
    elif has(method, "inference"):
        rates = [0.1, 0.01, 0.001]
        if regression:
            rates.append(1e-4)
        grids = [
            {"inference": ["SGD"], "inference.momentum": [0.0, 0.9], "inference.rate": rates, **axes},
            {"inference": ["Adam"], "inference.rate": rates, **axes},
        ]
    if has(method, "distil.inference"):
        students = ("SGD", "Adam", "SWA")
        grids = [{**grid, "distil.inference": [student]} for grid in grids for student in students]
    return list(grids)


def _axes(regression: bool) -> dict[str, list[Any]]:
    """What a method may have beside its inference: a server's rate, penalties, a student."""
    server = [1.0, 0.5, 0.1, 0.01]
    student = [0.01, 0.005, 1e-4]
    if regression:
        student = [0.01, 0.005, 0.001, 1e-4]
    return {
        "rate": server,
        "optimiser.rate": server,
        "rho": [0.4, 0.9, 1.0],
        "mu": [1.0, 0.1, 0.01, 0.001],
        "tau": [1.0, 0.1, 0.01, 0.001],
        "distil.inference.rate": student,
        "distil.inference.epochs": [100, 50, 20],
    }


def _sampler_axes(sites: Sites, regression: bool) -> dict[str, list[Any]]:
    """What a cyclical sampler has."""
    total = sum(len(part.x) for part in sites.train)
    rates = [0.5, 0.1, 0.01, 0.001]
    temperatures = [1 / total]
    cycles = [5]
    samples = [2]
    if regression:
        rates = [0.5, 0.2, 0.1, 0.01, 0.001]
        temperatures = [1, 0.5, 0.05, 1 / total]
        cycles = [2, 4, 5]
        samples = [1, 2, 3]
    return {
        "inference.rate": rates,
        "inference.keep": [4, 6, 12],
        "inference.temperature": [float(f"{t / len(sites):.3g}") for t in temperatures],
        "inference.cycles": cycles,
        "inference.samples": samples,
    }
