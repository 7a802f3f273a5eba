"""Who gets which thread: rules on a network's size, and a pool of threads, each with its own copy of the network.

torch releases Python's lock inside its kernels, so threads run side by side and share the data. Sharing the network
would not do: `functional_call` swaps tensors inside it; two threads on one network give wrong weights, with no error.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import nn

from consilience.task import Task

SMALL = 50_000  # parameters; below, a step is mostly overhead
MEDIUM = 500_000  # parameters; above, clients side by side gain nothing over a core each


_sisters = [1]  # processes of ours that share the cores


def cores() -> int:
    """Those this process may use, less what its sisters take."""
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, there // _sisters[0])


def share_cores(processes: int) -> None:
    """Say that so many processes of ours run side by side, each with its part of the cores."""
    _sisters[0] = processes


@contextmanager
def pool_of(count: int, task: Task) -> Iterator[tuple[ThreadPoolExecutor, Callable[[], Task]]]:
    """The pool, and what gives a worker its own copy of the task; work that has not begun is dropped on an error."""
    own = threading.local()

    def prepare() -> None:
        torch.set_num_threads(1)  # a new thread has torch's default, whatever the main thread has set
        torch.set_grad_enabled(False)
        own.task = dataclasses.replace(task, model=copy.deepcopy(task.model))

    with ThreadPoolExecutor(count, initializer=prepare) as pool:
        try:
            yield pool, lambda: own.task
        finally:
            pool.shutdown(cancel_futures=True)


def small(task: Task) -> bool:
    """Whether a step is mostly overhead, which clients side by side can share; larger ones fill a core alone."""
    return _weights(task) < SMALL and not convolutional(task)


def together(task: Task) -> bool:
    """Whether clients side by side are faster than one after another on every core."""
    return _weights(task) < MEDIUM and not convolutional(task)


def convolutional(task: Task) -> bool:
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in task.model.modules())


def _weights(task: Task) -> int:
    return sum(p.numel() for p in task.like.values())


def threads_for(task: Task) -> int:
    """How many BLAS threads: one where steps are short, all of torch's otherwise; a rule, so that runs repeat.

    Threads wait for each other at the end of every operation; on a busy machine short ones become many times slower.
    """
    return 1 if together(task) else torch.get_num_threads()


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
