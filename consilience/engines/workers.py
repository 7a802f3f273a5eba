"""A pool of threads, each with its own copy of the network and one BLAS thread.

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

from consilience.task import Task


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
