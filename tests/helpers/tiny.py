"""Tiny problems and short settings, so that every method runs in a moment."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import consilience as co
from consilience.cli.device_check import shorten as shortened
from consilience.data.splits.split import Rows, Split
from consilience.key import Key
from consilience.method import Bound, OnFeatures
from consilience.methods import METHODS
from consilience.models.controlled import control
from consilience.models.maps import features, on_features

Invoke = Callable[..., tuple[int, str, str]]  # words of a command → exit code, output, errors

SPLIT: dict[str, Any] = {"test": 0.25, "calibration": 12, "inputs": 10, "seed": 1}


def classification(dtype: torch.dtype = torch.float32) -> tuple[co.Task, co.Sites]:
    """Moons over four sites of unequal size."""
    sites = co.datasets.moons(n=160).split(co.splits.dirichlet(0.8), sites=4, **SPLIT).to(dtype)
    return co.classification(co.models.mlp(sites.features, sites.classes, hidden=(5,)).to(dtype)), sites


def regression(dtype: torch.dtype = torch.float32) -> tuple[co.Task, co.Sites]:
    """The sine over its five sites."""
    sites = co.datasets.sine(n_per_site=30).split(co.splits.natural(), **SPLIT).to(dtype)
    return co.regression(co.models.mlp(sites.features, hidden=(5,)).to(dtype)), sites


PROBLEMS = {"classification": classification, "regression": regression}


def problem_of(name: str, problem: str, dtype: torch.dtype = torch.float32) -> tuple[co.Task, co.Sites]:
    """A problem that suits a method: a linear layer on fixed features for those that learn nothing else."""
    task, sites = PROBLEMS[problem](dtype)
    if not issubclass(METHODS[name], OnFeatures):
        return task, sites
    width = 6
    layer = co.models.linear(width, sites.classes)
    network = on_features(features(f"relu:{width}", sites.features), layer).to(dtype)
    return dataclasses.replace(task, model=control(network)), sites


def method(name: str) -> co.Method:
    return shortened(METHODS[name]())


def works_on(name: str, problem: str) -> bool:
    """Whether a method is for this kind of problem; a method says so in its `tasks`."""
    return problem in METHODS[name].about.tasks


CASES = [(name, problem) for name in sorted(METHODS) for problem in PROBLEMS if works_on(name, problem)]


def in_turn(*, bounds: bool = True) -> list[Any]:
    """All cases; where a method has several problems, all but one of them slow: the first, the second, the first …"""
    marked = []
    names = [name for name in sorted(METHODS) if bounds or not issubclass(METHODS[name], Bound)]
    for place, name in enumerate(names):
        problems = [problem for problem in PROBLEMS if works_on(name, problem)]
        for problem in problems:
            marks = [pytest.mark.slow] * (problem != problems[place % len(problems)])
            marked.append(pytest.param(name, problem, marks=marks))
    return marked


def labelled(labels: list[int] | torch.Tensor, classes: int = 4, site: torch.Tensor | None = None) -> Rows:
    y = torch.as_tensor(labels, dtype=torch.int64)
    return Rows(torch.zeros(len(y), 1), y, site, classes)


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))


def keeps_its_contract(split: Split, rows: Rows, sites: int, seed: int) -> None:
    """Disjoint, complete, never empty, and the same for the same key."""
    parts = split(rows, sites, Key(seed))

    assert len(parts) == sites
    assert min(len(part) for part in parts) >= 1
    assert torch.cat(parts).sort().values.tolist() == list(range(len(rows.y)))
    assert equal(parts, split(rows, sites, Key(seed)))


def hospitals(folder: Path) -> None:
    """Three CSV files with a disease that depends on age and dose; each hospital sees other patients."""
    folder.mkdir()
    g = torch.Generator().manual_seed(0)
    for k, name in enumerate(("north", "south", "west")):
        age = 40 + 10 * k + 12 * torch.randn(60, generator=g)
        dose = torch.rand(60, generator=g)
        ill = torch.rand(60, generator=g) < torch.sigmoid((age - 50) / 6 + 2 * dose - 1)
        lines = [f"{a:.1f},{d:.3f},{'yes' if i else 'no'}" for a, d, i in zip(age, dose, ill, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,disease", *lines]) + "\n")


def copy_tracked(under: str, folder: Path) -> None:
    """Copy what a fresh clone has under a path of this repository: the files that git knows, or all without git."""
    root = Path(__file__).parents[2]
    listed = subprocess.run(["git", "ls-files", under], cwd=root, capture_output=True, text=True, check=False)
    files = [root / line for line in listed.stdout.splitlines()]
    for file in files or [path for path in (root / under).rglob("*") if path.is_file()]:
        copy = folder / file.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
