"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from consilience.data.data import Data
from consilience.engines import offline  # noqa: F401 — before anything imports Flower
from consilience.engines.exchange import Engine
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
NUMBER = {"vectorised": "chunk", "parallel": "workers", "flower": "workers"}  # what a bare number sets


def engine(name: str, data: Sequence[Data]) -> Engine:
    """An engine by its name and fields: parallel:2 has two workers, vectorised:20 holds 20 sites at a time."""
    kind, fields = parsed(name)
    return ENGINES[kind](data, **fields)


def parsed(name: str) -> tuple[str, dict[str, int]]:
    """«flower:workers=2,memory=4» as the engine's name and its fields, all whole numbers above 0."""
    kind, _, text = name.partition(":")
    if kind not in ENGINES:
        raise unknown("engine", kind, [*ENGINES, "auto"])
    text = f"{NUMBER.get(kind)}={text}" if text.isdecimal() else text
    fields = dict(part.partition("=")[::2] for part in text.split(",") if part)
    known = [p for p in inspect.signature(ENGINES[kind]).parameters if p != "data"]
    if not all(field in known and value.isdecimal() and int(value) for field, value in fields.items()):
        can = f"its fields, whole numbers above 0, are {', '.join(known)}" if known else "it has no fields"
        raise InputError(f"«{name}»: {can}; write for example parallel:2 or flower:workers=2.")
    return kind, {field: int(value) for field, value in fields.items()}


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
    parsed(name)
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
