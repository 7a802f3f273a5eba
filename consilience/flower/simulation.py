"""Many sites on one machine with Flower's simulation: Ray's workers take the place of sites.

Method, network and rows are put into Ray's shared memory once; a message then carries a method's message and nothing
else. **Ray listens on all of a machine's addresses**: run it where nobody else can reach it (docs/deploy.md).
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy
import torch

from consilience.data.sites import Data
from consilience.engines.exchange import Turn
from consilience.errors import InputError
from consilience.flower import SETTINGS
from consilience.flower.client import Site, client_app
from consilience.flower.engine import Flower
from consilience.method import Method
from consilience.parties import Received
from consilience.task import Task
from consilience.tree import Tree

START = 600.0  # seconds Ray may take to start its workers on a busy machine


class FlowerSimulation:
    """`workers` sites at a time; `memory` bytes for the rows and messages that workers share."""

    def __init__(
        self,
        data: Sequence[Data],
        workers: int | None = None,  # as many as there are cores
        memory: int | None = None,  # four times the rows and at least 256 MB
        deadline: float = 3600.0,  # seconds a round may take
    ) -> None:
        self.data, self.workers, self.deadline = data, workers or os.cpu_count() or 1, deadline
        rows = sum(t.numel() * t.element_size() for d in data for t in d)
        self.memory = memory or max(2**28, 4 * rows)
        self.memories: dict[int, Tree] = {}
        self.forgiving, self.lost = False, dict[int, str]()
        self.started: tuple[Method, Task] | None = None
        self.done = threading.Event()

    @property
    def clients(self) -> Sequence[int]:
        return range(len(self.data))

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        if self.started is None or self.started[0] != method or self.started[1] is not task:
            self.close()
            self.engine = self.start(method, task)
        self.engine.forgiving = self.forgiving
        try:
            return self.engine.gather(method, task, message, cohort, turn)
        finally:
            self.lost = self.engine.lost

    def start(self, method: Method, task: Task) -> Flower:
        """Start Ray and its workers, and hand its grid out of Flower's server thread."""
        ray, simulate = _extra()
        if ray.is_initialized():
            raise InputError(
                "Ray is running in this process already; shut it down first, so that it can be started here."
            )
        path = os.pathsep.join(p for p in (*sys.path, os.environ.get("PYTHONPATH", "")) if p)
        ray.init(
            num_cpus=self.workers,
            object_store_memory=self.memory,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            runtime_env={"env_vars": {"PYTHONPATH": path, **SETTINGS}},
        )
        common = ray.put((method, task))
        rows = [ray.put([t.numpy() for t in d]) for d in self.data]
        app = client_app(lambda context: _site(int(context.node_config["partition-id"]), common, rows))
        grids: queue.Queue[Any] = queue.Queue()
        self.done = threading.Event()

        def simulated() -> None:
            try:
                simulate(grids.put, self.done, app, len(self.data))
            except BaseException as error:  # handed to whoever waits for the grid
                grids.put(error)

        self.thread = threading.Thread(target=simulated, daemon=True)
        self.thread.start()
        grid = grids.get(timeout=START)
        if isinstance(grid, BaseException):
            raise InputError(f"Flower's simulation did not start: {grid}.") from grid
        self.started = (method, task)
        names = [str(k) for k in self.clients]
        found = Flower(grid, names, self.data[0], wait=START, deadline=self.deadline, pause=0.02, simulated=True)
        found.memories = self.memories
        return found

    def close(self) -> None:
        """End Ray and its workers."""
        if self.started is not None:
            self.done.set()
            self.thread.join(60)
            self.started = None


def _extra() -> tuple[Any, Any]:
    try:
        import ray
        from flwr.app import Context
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise InputError("The simulation on Flower needs Ray: pip install 'consilience[flower]'.") from error
    import logging

    logging.getLogger("flwr").setLevel(logging.ERROR)

    def simulate(hand_over: Any, done: threading.Event, app: Any, sites: int) -> None:
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            hand_over(grid)
            done.wait()

        run_simulation(server, app, sites, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})

    return ray, simulate


def _site(k: int, common: Any, rows: Sequence[Any]) -> Site:
    """In a worker: site k, from shared memory; its rows are not copied."""
    import ray

    method, task = _common(common)
    arrays: list[numpy.ndarray[Any, Any]] = ray.get(rows[k])
    return Site(k, str(k), method, task, Data(*(_tensor(a) for a in arrays)), simulated=True)


@lru_cache(maxsize=2)
def _common(reference: Any) -> tuple[Method, Task]:
    import ray

    torch.set_num_threads(1)
    found: tuple[Method, Task] = ray.get(reference)
    return found


def _tensor(array: numpy.ndarray[Any, Any]) -> torch.Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shared memory cannot be written, and no method writes its rows
        return torch.from_numpy(array)
