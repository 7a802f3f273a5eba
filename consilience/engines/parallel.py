"""Clients on all cores: a pool of threads, each with its own copy of the network and one BLAS thread.

torch releases Python's lock inside its kernels, so threads run side by side and share the data. Sharing the network
would not do: `functional_call` swaps tensors inside it; two threads on one network give wrong weights, with no error.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from consilience.data.data import Data
from consilience.engines.exchange import alone, client_view, excused
from consilience.key import Key
from consilience.method import Method
from consilience.parties import Client, Received, Reply
from consilience.progress import track
from consilience.task import Task
from consilience.tree import Tree


class Parallel:
    """`workers` clients at a time; as many as there are cores by default."""

    def __init__(self, data: Sequence[Data], workers: int | None = None) -> None:
        self.data = data
        self.workers = workers or cores()
        self.memories: dict[int, Tree] = {}
        self.forgiving, self.lost = False, dict[int, str]()

    @property
    def clients(self) -> Sequence[int]:
        return range(len(self.data))

    def gather(
        self,
        method: Method,
        task: Task,
        message: Tree,
        cohort: Sequence[int],
        round: int,
        key: Key,
        progress: float = 0.0,
    ) -> list[Received]:
        if self.workers > cores():
            warnings.warn(f"{self.workers} workers share {cores()} cores and wait for each other.", stacklevel=2)
        worker = threading.local()

        def prepare() -> None:
            torch.set_num_threads(1)  # a new thread has torch's default, whatever the main thread has set
            worker.task = dataclasses.replace(task, model=copy.deepcopy(task.model))

        @torch.no_grad()
        def work(k: int, client: Client) -> Reply:
            return alone(method, worker.task, message, client, k, round)

        received, self.lost = [], {}
        with ThreadPoolExecutor(self.workers, initializer=prepare) as pool:
            views = {
                k: client_view(method, message, self.data[k], self.memories, k, round, key, progress) for k in cohort
            }
            jobs = [(k, pool.submit(work, k, view)) for k, view in views.items()]
            try:
                for k, job in track(jobs, "site"):
                    with excused(self, k):
                        reply = job.result()
                        self.memories[k] = reply.keep
                        received.append(Received(k, reply.size, reply.send))
            finally:
                pool.shutdown(cancel_futures=True)
        return received


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
