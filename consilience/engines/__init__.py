"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from consilience.data.data import Data
from consilience.engines import offline  # noqa: F401 — before anything imports Flower
from consilience.engines.exchange import Engine, Turn
from consilience.engines.parallel import Parallel
from consilience.engines.sequential import Sequential
from consilience.engines.vectorised import Vectorised, even
from consilience.errors import InputError, unknown
from consilience.task import Task

__all__ = [
    "ENGINES",
    "Engine",
    "Parallel",
    "Sequential",
    "Turn",
    "Vectorised",
    "chosen",
    "engine",
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
NUMBERED = {  # as in parallel:2 or flower:2,1000000000
    "vectorised": ("sites at a time",),
    "parallel": ("workers",),
    "flower": ("workers", "bytes they share"),
}


def engine(name: str, data: Sequence[Data]) -> Engine:
    """An engine by its name; «vectorised:20» holds 20 sites at a time, «parallel:2» has two workers."""
    kind, colon, text = name.partition(":")
    if kind not in ENGINES:
        raise unknown("engine", kind, [*ENGINES, "auto"])
    if not colon:
        return ENGINES[kind](data)
    numbers, known = text.split(","), NUMBERED.get(kind, ())
    if len(numbers) > len(known) or not all(n.isdecimal() and int(n) for n in numbers):
        words = " or ".join(f"{known}:4 ({', '.join(what)})" for known, what in NUMBERED.items())
        raise InputError(f"«{name}» is not an engine; a number can stand in {words}.")
    return ENGINES[kind](data, *map(int, numbers))


def chosen(name: str, task: Task, data: Sequence[Data]) -> str:
    """The engine's name; `auto` is a rule on layers, parameters and sizes, never a timing, so it always picks the same.

    Small networks run side by side (vectorised) where at least half of the clients find company of similar size; larger
    ones, or clients so unequal that padding would waste the gain, run on all cores (parallel); one client sequentially.
    """
    if name == "auto":
        sizes = {k: len(d.w) for k, d in enumerate(data)}
        if len(sizes) == 1:
            return "sequential"
        return "vectorised" if small(task) and 2 * len(even(sizes)) <= len(sizes) else "parallel"
    engine(name, data[:1])
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
