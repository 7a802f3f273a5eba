"""Where tensors live while a run computes. Numbers are drawn on the processor and carried over: keys mean the same."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Sites
from consilience.errors import InputError
from consilience.task import Task
from consilience.tree import Tree

CPU = torch.device("cpu")


def device(name: str) -> torch.device:
    """Find a device.

    Args:
        name: Its name: `cpu`, `cuda`, `cuda:0` or `mps`.

    Raises:
        InputError: There is no device of that name, or this machine lacks it.
    """
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"There is no device called '{name}'; use cpu, cuda, cuda:0 or mps.") from error
    if (place.index or 0) >= _count(place.type):
        raise InputError(f"This machine has no '{name}' that torch can use; use device='cpu'.")
    return place


def _count(kind: str) -> int:
    """How many devices of a kind this machine has."""
    if kind == "cpu":
        return 1
    if kind == "cuda" and torch.cuda.is_available():
        return torch.cuda.device_count()
    if kind == "mps" and torch.backends.mps.is_available():
        return 1
    return 0


def place_on(task: Task, sites: Sites, where: torch.device) -> tuple[Task, Sites]:
    """Copy the task and everyone's rows to a device.

    Returns:
        Both on the device; as they are if it is the processor.
    """
    if where.type == "cpu":
        return task, sites
    return dataclasses.replace(task, model=copy.deepcopy(task.model).to(where)), sites.to(where)


def move(value: Tree, where: torch.device) -> Any:
    """Move a tree's tensors to a device.

    Returns:
        The same tree there.
    """

    def move_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(where)
        return leaf

    return tree.map(move_leaf, value)


def on(engine: str, name: str) -> str:
    """Name an engine with its device, where that decides the numbers.

    Returns:
        The engine's name on the processor, else with the kind of device.
    """
    if name == "cpu":
        return engine
    return f"{engine} on {torch.device(name).type}"
