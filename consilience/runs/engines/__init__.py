"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence

from consilience.data.sites import Data
from consilience.data.streamed import Streamed
from consilience.errors import InputError, unknown_name
from consilience.runs.engines.client_turn import Engine, Turn
from consilience.runs.engines.parallel import Parallel
from consilience.runs.engines.sequential import Sequential
from consilience.runs.engines.vectorised import FEW, Vectorised, even, refusal
from consilience.runs.engines.workers import computing, small, threads_for, together, using_threads
from consilience.task import Task

__all__ = [
    "ENGINES",
    "Engine",
    "Parallel",
    "Sequential",
    "Turn",
    "Vectorised",
    "choose_engine",
    "computing",
    "engine",
    "threads_for",
    "using_threads",
]


def flower(data: Sequence[Data], workers: int | None = None, memory: int | None = None) -> Engine:
    """Make Flower's simulation, if the extra is installed.

    Args:
        data: The rows of each site.
        memory: How many bytes they share.

    Raises:
        InputError: Flower is not installed.
    """
    try:
        simulation = importlib.import_module("consilience.study.flower.simulation")  # a room above, there if Flower is
    except ImportError as error:
        raise InputError("The engine 'flower' needs Flower: pip install 'consilience[flower]'.") from error
    simulated: Engine = simulation.FlowerSimulation(data, workers, memory)
    return simulated


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
    """Make an engine.

    Args:
        name: Its name; `vectorised:20` holds 20 sites at a time, `parallel:2` has two workers.
        data: The rows of each site.

    Raises:
        InputError: There is no engine of that name, or it takes no such numbers.

    Example:
        >>> import consilience as co
        >>> sites = co.Problem("moons", sites=3).build_sites()
        >>> type(co.engines.engine("sequential", sites.train)).__name__
        'Sequential'
    """
    kind, colon, text = name.partition(":")
    if kind not in ENGINES:
        raise unknown_name("engine", kind, [*ENGINES, "auto"])
    if not colon:
        return ENGINES[kind](data)
    numbers = text.split(",")
    allowed = len(NUMBERED.get(kind, ()))
    if len(numbers) > allowed or not all(n.isdecimal() and int(n) for n in numbers):
        examples = " or ".join(f"`{numbered}:4` ({', '.join(what)})" for numbered, what in NUMBERED.items())
        raise InputError(f"'{name}' is not an engine; a number can stand in {examples}.")
    return ENGINES[kind](data, *map(int, numbers))


def choose_engine(name: str, task: Task, data: Sequence[Data]) -> str:
    """Choose an engine by its name; `auto` is a rule on layers, parameters and sizes, never a timing, so it repeats.

    Networks without convolutions run side by side (vectorised) up to some size, if there are eight clients or more and
    groups of similar size hold two on average (for larger networks: four), and one after another otherwise, for threads
    that take short steps mostly wait for each other. Larger networks and those with convolutions run on all cores
    (parallel), a single client sequentially. Side by side is tried once, on a row: a network that torch cannot pass so
    runs one client after another, with a warning that names the reason.

    Args:
        name: An engine's name, or `auto`.
        task: The statistical problem, for the size of its network.
        data: The rows of each site.

    Returns:
        The engine's name.

    Raises:
        InputError: There is no such engine.

    Example:
        >>> import consilience as co
        >>> task, sites = co.Problem("moons", sites=3, model="linear").build()
        >>> co.engines.choose_engine("auto", task, sites.train) in ("sequential", "parallel", "vectorised")
        True
    """
    streamed = any(isinstance(rows.x, Streamed) for rows in data)
    if streamed and name not in ("auto", "sequential"):
        raise InputError("Sums over rows that stay in their files are made one site after another: leave engine out.")
    if name != "auto":
        engine(name, data[:1])
        if not task.by_rows and name.partition(":")[0] == "vectorised":
            raise InputError("A partial likelihood sorts each site's rows, which cannot be padded: use sequential.")
        return name
    if streamed or not task.by_rows:
        return "sequential"
    if not together(task):
        if len(data) == 1:
            return "sequential"
        return "parallel"
    if _side_by_side(task, data):
        return "vectorised"
    return "sequential"


def _side_by_side(task: Task, data: Sequence[Data]) -> bool:
    """Whether small clients are many and alike enough to be passed together, and torch can do so."""
    sizes = {k: len(d.w) for k, d in enumerate(data)}
    company = FEW
    if small(task):
        company = 2
    if len(sizes) < max(2 * FEW, company * len(even(sizes))):
        return False
    reason = refusal(task, data[0])
    if reason:
        sentence = f"Sites are computed one after another: torch cannot pass them side by side ({reason})."
        warnings.warn(sentence, stacklevel=3)
    return not reason
