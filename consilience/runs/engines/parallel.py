"""Clients on all cores, one a thread."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from consilience.data.sites import Data
from consilience.messages import Client, Received, Reply
from consilience.method import Method
from consilience.progress import track
from consilience.runs.engines.client_turn import Turn, alone, client_view, excuse
from consilience.runs.engines.memory import keep_memory
from consilience.runs.engines.workers import cores, pool_of
from consilience.task import Task
from consilience.tree import Tree


class Parallel:
    """Clients on all cores, one a thread.

    Args:
        data: The rows of each site.
        workers: How many clients run at a time; as many as there are cores if None.
    """

    def __init__(self, data: Sequence[Data], workers: int | None = None) -> None:
        keep_memory()
        self.data = data
        self.workers = workers or cores()
        self.memories: dict[int, Tree] = {}
        self.forgiving = False
        self.lost: dict[int, str] = {}

    @property
    def clients(self) -> Sequence[int]:
        """The clients' numbers."""
        return range(len(self.data))

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Ask clients, as `Engine.gather` says."""
        if self.workers > cores():
            warnings.warn(f"{self.workers} workers share {cores()} cores and wait for each other.", stacklevel=2)
        received: list[Received] = []
        self.lost = {}
        with pool_of(self.workers, task) as (pool, worker_task):

            def work(k: int, client: Client) -> Reply:
                return alone(method, worker_task(), message, client, k, turn.round)

            views = {k: client_view(method, message, self.data[k], self.memories, k, turn) for k in cohort}
            jobs = [(k, pool.submit(work, k, view)) for k, view in views.items()]
            for k, job in track(jobs, "site"):
                with excuse(self, k):
                    reply = job.result()
                    self.memories[k] = reply.keep
                    received.append(Received(k, reply.size, reply.send))
        return received
