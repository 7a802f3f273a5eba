"""Medians of alternating runs, so that what else the machine does falls on every row alike; and peaks of memory."""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from consilience.runs.engines.workers import cores


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def processor_seconds(work: Callable[[], Any]) -> float:
    """What this process used of the processor, whatever else the machine does."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def alternating(
    rows: Mapping[str, Callable[[], Any]],
    repeats: int,
    warm: int = 1,
    clock: Callable[[Callable[[], Any]], float] = seconds,
) -> dict[str, list[float]]:
    """Seconds of every row, `repeats` times in turn, after `warm` unmeasured runs of each."""
    for _ in range(warm):
        for work in rows.values():
            work()
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeats):
        for name, work in rows.items():
            times[name].append(clock(work))
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in times.items()}


def peak() -> float:
    """The most memory this process has held, in megabytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage also counts what the parent held when it started this process
        return next(int(line.split()[1]) for line in status.open() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def in_a_new_process(work: Callable[..., Any], *words: Any) -> Any:
    """What `work` returns there, where the peak of memory is its own."""
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(work, words)


def machine() -> dict[str, Any]:
    """What the figures depend on; no names of machines."""
    return {"cores": cores(), "threads": torch.get_num_threads(), "load_before": os.getloadavg()[0]}
