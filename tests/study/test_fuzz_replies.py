"""Honest replies with something changed, at both doors: never a traceback, never a pool that cannot predict."""

from __future__ import annotations

import contextlib
import importlib.util
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from doors import LIAR, Lie, by_files, by_flower
from lies import BASES
from torch import Tensor
from torch.utils import _pytree as pytree

from consilience import tree
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import invent_rows, server_of

needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs Flower")
DOORS = [pytest.param(by_files, id="files"), pytest.param(by_flower, id="flower", marks=needs_flower)]
STUDIES = [base for base in BASES if base != "other kinds"]
EXTREMES = (0.0, 0.5, -1.0, 7.5, 1e9, 1e14, 3e38, -3e38, 1e-45, float(2**62), torch.inf, -torch.inf, torch.nan)


def one_element(draw: random.Random, leaf: Tensor) -> Tensor:
    changed = leaf.clone().flatten()
    if leaf.numel():
        changed[draw.randrange(leaf.numel())] = _fitting(draw.choice(EXTREMES), leaf)
    return changed.reshape(leaf.shape)


def _fitting(value: float, leaf: Tensor) -> float:
    """A whole number where the tensor holds such."""
    if leaf.is_floating_point() or not abs(value) < 2**62:
        return value if leaf.is_floating_point() else -1
    return int(value)


CHANGES: dict[str, Callable[[random.Random, Tensor], Tensor]] = {
    "sign": lambda draw, leaf: -leaf,
    "scale": lambda draw, leaf: leaf * 10.0 ** draw.uniform(-45, 38),
    "modest scale": lambda draw, leaf: leaf * draw.uniform(-20, 20),
    "shift": lambda draw, leaf: leaf + draw.choice(EXTREMES),
    "all": lambda draw, leaf: torch.full_like(leaf, _fitting(draw.choice(EXTREMES), leaf)),
    "one": one_element,
    "flip": lambda draw, leaf: leaf.flip(0) if leaf.ndim else leaf + 1,
    "transpose": lambda draw, leaf: leaf.mT if leaf.ndim > 1 else leaf.unsqueeze(0),
    "cut": lambda draw, leaf: leaf[:1] if leaf.ndim else leaf.reshape(1),
    "empty": lambda draw, leaf: leaf.flatten()[:0],
    "shuffle": lambda draw, leaf: leaf.flatten()[torch.randperm(leaf.numel())].reshape(leaf.shape),
    "whole": lambda draw, leaf: leaf.nan_to_num().clamp(-(2.0**40), 2.0**40).long(),
    "double": lambda draw, leaf: leaf.double(),
    "half": lambda draw, leaf: leaf.half(),
}


def mutate(seed: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """One to three changes of one to all tensors, by a seed."""
    draw = random.Random(seed)

    def change(value: dict[str, Any]) -> dict[str, Any]:
        torch.manual_seed(seed)
        leaves, shape = pytree.tree_flatten(value)
        for _ in range(draw.randint(1, 3)):
            how = CHANGES[draw.choice(sorted(CHANGES))]
            count = draw.choice((1, 1, 1, len(leaves)))
            for at in draw.sample(range(len(leaves)), count):
                with contextlib.suppress(RuntimeError):  # half precision holds no 3e38
                    leaves[at] = how(draw, leaves[at]).contiguous()
        mutated: dict[str, Any] = pytree.tree_unflatten(leaves, shape)
        return mutated

    return change


def predicts(study: Study, received: Any) -> bool:
    """Whether the pool of what was let in gives finite predictions for plausible rows."""
    agreement = study.agreement
    method, task = agreement.build_method(), agreement.build_task()
    server = server_of(agreement, len(study.active))
    with torch.no_grad():
        state = method.aggregate(task, method.init(task, server), received, server)
        p = method.predictive(task, state)(3 * invent_rows(agreement).x)
    return all(not bool(leaf.isnan().any() | (leaf == torch.inf).any()) for leaf in tree.leaves(p))


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Study, Path]]:
    made: dict[str, tuple[Study, Path]] = {}

    def home(base: str) -> tuple[Study, Path]:
        if base not in made:
            folder = tmp_path_factory.mktemp(base)
            made[base] = (studies.study(folder, **BASES[base]), folder)
        return made[base]

    return home


def fuzz(door: Any, base: str, seeds: range, home: tuple[Study, Path], folder: Path) -> None:
    study, place = home
    for seed in seeds:
        into = folder / str(seed)
        into.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = door(study, place, into, Lie("", base, mutate(seed)))
            others = tuple(name for name in studies.NAMES if name != LIAR)
            assert found.names in (studies.NAMES, others), (base, seed, found.refused)
            assert (LIAR in found.names) != bool(found.refused), (base, seed)
            if LIAR in found.names:
                assert predicts(study, found.received), (base, seed)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("base", STUDIES)
def test_a_few_changed_replies(base: str, door: Any, homes: Any, tmp_path: Path) -> None:
    seeds = range(4)
    if door is by_flower:
        seeds = range(2)  # a message takes longer than a file, and passes the same gate
    fuzz(door, base, seeds, homes(base), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("base", STUDIES)
def test_hundreds_of_changed_files(base: str, homes: Any, tmp_path: Path) -> None:
    fuzz(by_files, base, range(100, 500), homes(base), tmp_path)


@needs_flower
@pytest.mark.slow
@pytest.mark.parametrize("base", STUDIES)
def test_many_changed_messages(base: str, homes: Any, tmp_path: Path) -> None:
    fuzz(by_flower, base, range(1000, 1040), homes(base), tmp_path)
