"""One client after another: the definition of correct."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from consilience.data.sites import Data
from consilience.messages import Received
from consilience.method import Method
from consilience.progress import track
from consilience.runs.engines.client_turn import Turn, alone, client_view, excuse
from consilience.runs.engines.memory import keep_memory
from consilience.task import Task
from consilience.tree import Tree


class Sequential:
    """One client after another.

    Args:
        data: The rows of each site.
    """

    def __init__(self, data: Sequence[Data]) -> None:
        keep_memory()
        self.data = data
        self.memories: dict[int, Tree] = {}
        self.forgiving = False
        self.lost: dict[int, str] = {}

    @property
    def clients(self) -> Sequence[int]:
        """The clients' numbers."""
        return range(len(self.data))

    @torch.no_grad()
    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Ask clients, as `Engine.gather` says."""
        received: list[Received] = []
        self.lost = {}
        for k in track(cohort, "site"):
            client = client_view(method, message, self.data[k], self.memories, k, turn)
            with excuse(self, k):
                reply = alone(method, task, message, client, k, turn.round)
                self.memories[k] = reply.keep
                received.append(Received(k, reply.size, reply.send))
        return received
