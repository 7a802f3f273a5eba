"""Who gets which thread: rules on a network's size, and a pool of threads, each with its own copy of the network.

torch releases Python's lock inside its kernels, so threads run side by side and share the data. Sharing the network
would not do: `functional_call` swaps tensors inside it; two threads on one network give wrong weights, with no error.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

import torch
from torch import nn

from consilience.runs.engines.arithmetic import choose_matmul, multiplying
from consilience.task import Task

T = TypeVar("T")
R = TypeVar("R")
SMALL = 50_000  # parameters; below, a step is mostly overhead
MEDIUM = 500_000  # parameters; above, clients side by side gain nothing over a core each


_processes = [1]  # how many of ours share the cores


def cores() -> int:
    """Count the cores that this process may use, less what processes beside it take.

    Returns:
        The number of cores, at least one.
    """
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    return max(1, available // _processes[0])


def share_cores(processes: int) -> None:
    """Say that several processes of ours run side by side, each with its part of the cores."""
    _processes[0] = processes


@contextmanager
def pool_of(count: int, task: Task) -> Iterator[tuple[ThreadPoolExecutor, Callable[[], Task]]]:
    """Start a pool of threads, each with its own copy of the task; work that has not begun is dropped on an error.

    Yields:
        The pool, and a function that gives a thread its copy of the task.
    """
    local = threading.local()

    def prepare() -> None:
        torch.set_num_threads(1)  # a new thread has torch's default, whatever the main thread has set
        torch.set_grad_enabled(False)
        local.task = dataclasses.replace(task, model=copy.deepcopy(task.model))

    with ThreadPoolExecutor(count, initializer=prepare) as pool:
        try:
            yield pool, lambda: local.task
        finally:
            pool.shutdown(cancel_futures=True)


class Crew:
    """The thread that calls and threads beside it, which stay for the next round, each with a copy of the network.

    The caller does its share, so that on two cores one thread has to be woken: two that were woken on a busy machine
    took as long as one, as if they had one core, and a short round is over before that changes. The threads end with
    the crew.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._model: nn.Module | None = None  # whose copies there are
        self._copies: list[nn.Module] = []

    def share(self, work: Callable[[Task, T], R], task: Task, items: Sequence[T]) -> Iterator[R]:
        """Do work on all cores, with one BLAS thread each; what has not begun is dropped on an error.

        Args:
            work: Called with a task, whose network nobody else uses meanwhile, and an item.
            items: What there is to do.

        Yields:
            What came of the items, in any order.
        """
        todo = deque(items)
        helpers = min(cores(), len(items)) - 1

        def take_turns(own: Task) -> Iterator[R]:
            while todo:
                try:
                    item = todo.popleft()
                except IndexError:  # another thread was faster
                    return
                yield work(own, item)

        def help_out(own: Task) -> list[R]:
            torch.set_num_threads(1)  # a new thread has torch's default, whatever the caller has set
            try:
                with torch.no_grad():
                    return list(take_turns(own))
            except BaseException:
                todo.clear()
                raise

        if self._pool is None:
            self._pool = ThreadPoolExecutor(max(1, cores() - 1))
        jobs = [self._pool.submit(help_out, own) for own in self._tasks(task, helpers)]
        try:
            with using_threads(1):
                yield from take_turns(task)
            for job in jobs:
                yield from job.result()
        finally:
            todo.clear()
            wait(jobs)

    def _tasks(self, task: Task, count: int) -> list[Task]:
        """The task with a network of its own for each thread; weights are passed in, so copies serve all rounds."""
        if self._model is not task.model:
            self._model = task.model
            self._copies = []
        while len(self._copies) < count:
            self._copies.append(copy.deepcopy(task.model))
        return [dataclasses.replace(task, model=model) for model in self._copies[:count]]


def small(task: Task) -> bool:
    """Say whether a step is mostly overhead, which clients side by side can share; larger ones fill a core alone.

    Returns:
        Whether its network is small and has no convolutions.
    """
    return _weights(task) < SMALL and not convolutional(task)


def together(task: Task) -> bool:
    """Say whether clients side by side are faster than one after another on every core.

    Returns:
        Whether its network is of small or medium size and has no convolutions.
    """
    return _weights(task) < MEDIUM and not convolutional(task)


def convolutional(task: Task) -> bool:
    """Say whether a network has convolutions.

    Returns:
        Whether one of its layers is a convolution.
    """
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())


def _weights(task: Task) -> int:
    return sum(p.numel() for p in task.like.values())


def threads_for(task: Task) -> int:
    """Choose the number of BLAS threads by a rule, so that runs repeat.

    Threads wait for each other at the end of every operation; on a busy machine short ones become many times slower.

    Returns:
        One where steps are short, all of torch's otherwise.
    """
    if together(task):
        return 1
    return torch.get_num_threads()


@contextmanager
def using_threads(count: int, matmul: str | None = None) -> Iterator[None]:
    """Compute with a number of BLAS threads and a way to multiply matrices in the block, and as before after it.

    Args:
        matmul: As `choose_matmul` names it; as it is if None.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with multiplying(matmul) if matmul else nullcontext():
            yield
    finally:
        torch.set_num_threads(before)


def computing(task: Task) -> AbstractContextManager[None]:
    """Compute as a network is best computed on this processor in the block, and as before after it."""
    return using_threads(threads_for(task), choose_matmul(task=task))
