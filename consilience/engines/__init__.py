"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from consilience.data.sites import Data
from consilience.engines.exchange import Engine, Turn
from consilience.engines.parallel import Parallel
from consilience.engines.sequential import Sequential
from consilience.engines.vectorised import FEW, Vectorised, even
from consilience.engines.workers import small, threads_for, together, using_threads
from consilience.errors import InputError, unknown_name
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
        simulation = importlib.import_module("consilience.flower.simulation")  # a room above, there if Flower is
    except ImportError as error:
        raise InputError("The engine 'flower' needs Flower: pip install 'consilience[flower]'.") from error
    made: Engine = simulation.FlowerSimulation(data, workers, memory)
    return made


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
    """An engine by its name; `vectorised:20` holds 20 sites at a time, `parallel:2` has two workers."""
    kind, colon, text = name.partition(":")
    if kind not in ENGINES:
        raise unknown_name("engine", kind, [*ENGINES, "auto"])
    if not colon:
        return ENGINES[kind](data)
    numbers, known = text.split(","), NUMBERED.get(kind, ())
    if len(numbers) > len(known) or not all(n.isdecimal() and int(n) for n in numbers):
        words = " or ".join(f"{known}:4 ({', '.join(what)})" for known, what in NUMBERED.items())
        raise InputError(f"'{name}' is not an engine; a number can stand in {words}.")
    return ENGINES[kind](data, *map(int, numbers))


def choose_engine(name: str, task: Task, data: Sequence[Data]) -> str:
    """The engine's name; `auto` is a rule on layers, parameters and sizes, never a timing, so it always picks the same.

    Networks without convolutions run side by side (vectorised) up to some size, if there are eight clients or more and
    groups of similar size hold two on average (for larger networks: four), and one after another otherwise, for threads
    that take short steps mostly wait for each other. Larger networks and those with convolutions run on all cores
    (parallel), a single client sequentially.
    """
    if name == "auto":
        sizes = {k: len(d.w) for k, d in enumerate(data)}
        company = 2 if small(task) else FEW
        if together(task) and len(sizes) >= max(2 * FEW, company * len(even(sizes))):
            return "vectorised"
        return "sequential" if together(task) or len(sizes) == 1 else "parallel"
    engine(name, data[:1])
    return name
