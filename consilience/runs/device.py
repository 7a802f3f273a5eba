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
    """A device by its name, refused if it is not there."""
    try:
        found = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"There is no device called '{name}'; use cpu, cuda or cuda:0.") from error
    there = {"cpu": 1, "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0}.get(found.type, 0)
    if (found.index or 0) >= there:
        raise InputError(f"This machine has no '{name}' that torch can use; use --device cpu.")
    return found


def place_on(task: Task, sites: Sites, where: torch.device) -> tuple[Task, Sites]:
    """The task and everyone's rows on a device; as they are on the processor."""
    if where.type == "cpu":
        return task, sites
    return dataclasses.replace(task, model=copy.deepcopy(task.model).to(where)), sites.to(where)


def move(value: Tree, where: torch.device) -> Any:
    """The same tree with its tensors on a device."""
    return tree.map(lambda leaf: leaf.to(where) if isinstance(leaf, Tensor) else leaf, value)


def on(engine: str, name: str) -> str:
    """An engine and its device, where that decides the numbers."""
    return engine if name == "cpu" else f"{engine} on {torch.device(name).type}"
