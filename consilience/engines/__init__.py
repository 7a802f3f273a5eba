"""Where `local` runs. The same method gives the same numbers on every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from consilience.data.data import Data
from consilience.engines.exchange import Engine
from consilience.engines.sequential import Sequential
from consilience.engines.vectorised import Vectorised
from consilience.errors import unknown
from consilience.task import Task

__all__ = ["ENGINES", "Engine", "Sequential", "Vectorised", "chosen"]

ENGINES: dict[str, Callable[[Sequence[Data]], Engine]] = {"sequential": Sequential, "vectorised": Vectorised}


def chosen(name: str, task: Task, clients: int) -> str:
    """The engine's name; `auto` is a rule on layers and clients, never a timing, so a command always picks the same."""
    if name == "auto":
        convolutions = any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())
        return "sequential" if convolutions or clients == 1 else "vectorised"
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "auto"])
    return name
