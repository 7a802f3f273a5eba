"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from consilience.data.data import Data
from consilience.engines import offline  # noqa: F401 — before anything imports Flower
from consilience.engines.exchange import Engine
from consilience.engines.parallel import Parallel
from consilience.engines.sequential import Sequential
from consilience.engines.vectorised import Vectorised
from consilience.errors import InputError, unknown
from consilience.task import Task

__all__ = [
    "ENGINES",
    "Engine",
    "Parallel",
    "Sequential",
    "Vectorised",
    "chosen",
    "made",
    "threads_for",
    "using_threads",
]


def flower(data: Sequence[Data], workers: int | None = None, memory: int | None = None) -> Engine:
    """Flower's simulation, if the extra is there."""
    try:
        from consilience.engines.flower_simulation import FlowerSimulation
    except ImportError as error:
        raise InputError("The engine «flower» needs Flower: pip install 'consilience[flower]'.") from error
    return FlowerSimulation(data, workers, memory)


ENGINES: dict[str, Callable[..., Engine]] = {
    "sequential": Sequential,
    "vectorised": Vectorised,
    "parallel": Parallel,
    "flower": flower,
}


def made(name: str, data: Sequence[Data]) -> Engine:
    """An engine by its name, its fields after a colon: parallel:workers=4, or flower:workers=2,memory=2000000000."""
    word, _, fields = name.partition(":")
    try:
        return ENGINES[word](data, **{k: int(v) for k, v in (field.split("=") for field in fields.split(",") if field)})
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"«{name}»: write the engine's fields as whole numbers, such as flower:workers=2.") from error


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
    word = name.partition(":")[0]
    if word not in ENGINES:
        raise unknown("engine", word, [*ENGINES, "auto"])
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
