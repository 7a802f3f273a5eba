"""Work that shares nothing, in processes of its own: trials or seeds side by side, each with its part of the cores."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import torch

from consilience.errors import InputError
from consilience.runs.engines.workers import cores, share_cores

FEW = 4  # jobs below which starting processes, a second or two each, is not worth it
Result = TypeVar("Result")


def usual_workers(jobs: int) -> int:
    """Choose how many processes to use by a rule, so that the same command always uses the same.

    Returns:
        One for few jobs, otherwise as many as there are cores and jobs.
    """
    if jobs < FEW:
        return 1
    return min(cores(), jobs)


def run_in_processes(
    work: Callable[..., Result], jobs: Sequence[tuple[Any, ...]], workers: int
) -> Iterator[tuple[tuple[Any, ...], Result]]:
    """Run jobs side by side; after an error no more are begun, and what runs already is yielded before it is raised.

    Args:
        work: A function of a module, called with the parts of a job.
        jobs: What it is called with; processes hand each other all of it.
        workers: How many processes; one is this process.

    Yields:
        Each job with its result, as they end.
    """
    if workers == 1 or len(jobs) == 1:
        for job in jobs:
            yield job, work(*job)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _prepare, (workers,))
    try:
        asked = {pool.submit(work, *job): job for job in jobs}
        first: BaseException | None = None
        for done in as_completed(asked):
            if done.cancelled():
                continue
            error = done.exception()
            if error is None:
                yield asked[done], done.result()
            elif first is None:
                first = error
                for other in asked:
                    other.cancel()  # what runs already goes on, and is kept
        if first is not None:
            raise first
    finally:
        pool.shutdown(cancel_futures=True)  # what nobody will wait for is not begun


def check_sendable(value: Any, what: str) -> None:
    """Refuse what other processes cannot be sent.

    Args:
        value: What they would be sent.
        what: The same for people.

    Raises:
        InputError: A part of it is defined where other processes do not find it.
    """
    try:
        ForkingPickler.dumps(value)
    except Exception as error:
        raise InputError(
            f"Other processes cannot be sent {what} ({error}): define its classes and functions in a module, or leave "
            "out `workers`."
        ) from error


def _prepare(workers: int) -> None:
    """What a new process does first."""
    share_cores(workers)
    torch.set_num_threads(cores())
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Nobody writes into a folder whose command was killed: the next one may have begun there."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
