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
from consilience.errors import InputError
from consilience.messages import Received
from consilience.method import Method
from consilience.runs.engines.client_turn import Turn
from consilience.study.flower import SETTINGS
from consilience.study.flower.client import Site, client_app
from consilience.study.flower.engine import Flower
from consilience.task import Task
from consilience.tree import Tree

# By default Ray's workers are at niceness 15: other programs, and the thread of Flower's that looks for messages all
# the time, then leave them next to nothing of a core.
PRIORITY = ("RAY_worker_niceness", "0")
START = 600.0  # seconds Ray may take to start its workers on a busy machine


class FlowerSimulation:
    """An engine whose sites are Ray's workers.

    Attributes:
        memories: What each site remembers.
        forgiving: Whether a round goes on without a site that fails.
        lost: Who of the last cohort did not reply, and why.
    """

    def __init__(
        self,
        data: Sequence[Data],
        workers: int | None = None,
        memory: int | None = None,
        deadline: float = 3600.0,
    ) -> None:
        """Prepare a simulation; Ray starts with the first round.

        Args:
            workers: How many sites work at a time; as many as there are cores by default.
            memory: Bytes for the rows and messages that workers share; four times the rows and at least 256 MB by
                default.
            deadline: Seconds a round may take.
        """
        self.data = data
        self.workers = workers or os.cpu_count() or 1
        self.deadline = deadline
        rows = sum(t.numel() * t.element_size() for d in data for t in d)
        self.memory = memory or max(2**28, 4 * rows)
        self.memories: dict[int, Tree] = {}
        self.forgiving = False
        self.lost: dict[int, str] = {}
        self.started: tuple[Method, Task] | None = None
        self.done = threading.Event()

    @property
    def clients(self) -> Sequence[int]:
        """All sites."""
        return range(len(self.data))

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Ask sites; Ray is started if need be.

        Args:
            task: The problem they run it on.
            message: What the method broadcasts.
            cohort: The sites that are asked.

        Returns:
            Replies, sorted by site.
        """
        if self.started is None or self.started[0] != method or self.started[1] is not task:
            self.close()
            self.engine = self.start(method, task)
        self.engine.forgiving = self.forgiving
        try:
            return self.engine.gather(method, task, message, cohort, turn)
        finally:
            self.lost = self.engine.lost

    def start(self, method: Method, task: Task) -> Flower:
        """Start Ray and its workers, and hand its grid out of Flower's server thread.

        Args:
            task: The problem they run it on.

        Returns:
            The engine over that grid.

        Raises:
            InputError: Ray is not installed, runs already, or does not start.
        """
        ray, simulate = _import_ray()
        if ray.is_initialized():
            raise InputError(
                "Ray is running in this process already; shut it down first, so that it can be started here."
            )
        os.environ.setdefault(*PRIORITY)
        path = os.pathsep.join(p for p in (*sys.path, os.environ.get("PYTHONPATH", "")) if p)
        try:
            ray.init(
                num_cpus=self.workers,
                object_store_memory=self.memory,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
                runtime_env={"env_vars": {"PYTHONPATH": path, **SETTINGS}},
            )
        except Exception as error:  # of no kind of its own; Ray gives its processes half a minute
            ray.shutdown()
            raise InputError(f"Ray did not start: {error} Run the same again when the machine is less busy.") from error
        common = ray.put((method, task, torch.get_float32_matmul_precision()))
        rows = [ray.put([t.numpy() for t in d]) for d in self.data]

        def site(context: Any) -> Site:
            k = int(context.node_config["partition-id"])
            return _site(k, common, rows[k])

        app = client_app(site)
        grids: queue.Queue[Any] = queue.Queue()
        self.done = threading.Event()

        def run_server() -> None:
            try:
                simulate(grids.put, self.done, app, len(self.data))
            except BaseException as error:  # handed to whoever waits for the grid
                grids.put(error)

        self.thread = threading.Thread(target=run_server, daemon=True)
        self.thread.start()
        grid = grids.get(timeout=START)
        if isinstance(grid, BaseException):
            raise InputError(f"Flower's simulation did not start: {grid}.") from grid
        self.started = (method, task)
        names = [str(k) for k in self.clients]
        engine = Flower(grid, names, self.data[0], wait=START, deadline=self.deadline, pause=0.02, simulated=True)
        engine.memories = self.memories
        return engine

    def close(self) -> None:
        """End Ray and its workers."""
        if self.started is not None:
            self.done.set()
            self.thread.join(60)
            self.started = None


def _import_ray() -> tuple[Any, Any]:
    """Ray, and a function that runs a ServerApp over it; both are an extra."""
    try:
        import ray
        from flwr.app import Context
        from flwr.serverapp import Grid, ServerApp
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise InputError("The simulation on Flower needs Ray: `pip install 'consilience[flower]'`.") from error
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


@lru_cache(maxsize=1000)
def _site(k: int, common: Any, rows: Any) -> Site:
    """In a worker: site k, from shared memory; its rows are not copied, and what is known of them stays."""
    import ray

    method, task = _common(common)
    arrays: list[numpy.ndarray[Any, Any]] = ray.get(rows)
    return Site(k, str(k), method, task, Data(*(_tensor(a) for a in arrays)), simulated=True)


@lru_cache(maxsize=2)
def _common(reference: Any) -> tuple[Method, Task]:
    """In a worker: what all sites share, from shared memory, once."""
    import ray

    torch.set_num_threads(1)
    method, task, matmul = ray.get(reference)
    torch.set_float32_matmul_precision(matmul)  # as in the process that asks
    return method, task


def _tensor(array: numpy.ndarray[Any, Any]) -> torch.Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shared memory cannot be written, and no method writes its rows
        return torch.from_numpy(array)
