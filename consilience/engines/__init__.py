"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from consilience.data.data import Data
from consilience.engines.exchange import Engine
from consilience.engines.parallel import Parallel
from consilience.engines.sequential import Sequential
from consilience.engines.vectorised import Vectorised
from consilience.errors import unknown
from consilience.task import Task

__all__ = ["ENGINES", "Engine", "Parallel", "Sequential", "Vectorised", "chosen", "threads_for", "using_threads"]

ENGINES: dict[str, Callable[[Sequence[Data]], Engine]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "parallel": Parallel,
}


WASTE = 1.5  # how much larger padding may make the work of clients side by side


def chosen(name: str, task: Task, data: Sequence[Data]) -> str:
    """The engine's name; `auto` is a rule on layers, parameters and sizes, never a timing, so it always picks the same.

    Small networks on clients of similar size run side by side (vectorised); larger ones, or clients so unequal that
    padding would waste the gain, run on all cores (parallel).
    """
    if name == "auto":
        sizes = [len(d.w) for d in data]
        if len(sizes) == 1:
            return "sequential"
        even = len(sizes) * max(sizes) <= WASTE * sum(sizes)
        return "vectorised" if small(task) and even else "parallel"
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    return name


def convolutional(task: Task) -> bool:
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())


SMALL = 50_000  # parameters; below, a second BLAS thread costs more than it brings


def threads_for(task: Task) -> int:
    """How many BLAS threads: one for small networks, all of torch's for large ones; a rule, so that runs repeat."""
    return 1 if small(task) else torch.get_num_threads()


def small(task: Task) -> bool:
    """Whether a step is mostly overhead, which clients side by side can share; larger ones fill a core alone."""
    return sum(p.numel() for p in task.like.values()) < SMALL and not convolutional(task)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
