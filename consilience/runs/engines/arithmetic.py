"""Which of torch's two libraries multiplies matrices of float32 on a processor.

MKL does, if nobody says more; on AMD's processors at half of their rate. oneDNN has the whole, and torch calls it where
its matmul precision is "medium". That word allows fewer digits, and some processors take them: Intel's AMX computes
with eight bits then. So the arithmetic is asked, once a process: known products must keep the digits of float32. What
is not of float32, or on another device, is as before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

from consilience.errors import InputError, unknown_name
from consilience.task import Task

AUTO = "auto"
CHOICES = (AUTO, "highest", "medium")
VARIABLE = "CONSILIENCE_MATMUL"
SLOW = {"AuthenticAMD"}  # vendors on whose processors oneDNN was measured to be faster than MKL: docs/speed.md
SHAPES = ((1, 256, 512, 512), (4, 32, 784, 200), (4, 20, 3072, 100), (1, 300, 64, 10))  # B, M, K, N of [M, K] × [K, N]
FEWEST = 40_000  # weights of the largest matrix: a call of oneDNN costs 13 µs more, which is what it gains on 32 rows
ALLOWED = 4e-6  # of a product's norm: float32 leaves 2e-7 to 1.3e-6 over these lengths, bfloat16 2e-3


def choose_matmul(asked: str | None = None, task: Task | None = None) -> str:
    """Name the precision to compute with, as run.json has it: "highest" or "medium".

    Args:
        asked: One of these, "auto", or None for what `CONSILIENCE_MATMUL` says, and "auto" where it says nothing.
        task: What is learned: "auto" leaves small networks to MKL.

    Raises:
        InputError: There is no such way.
    """
    way = asked or os.environ.get(VARIABLE) or AUTO
    if way not in CHOICES:
        raise unknown_name("way to multiply matrices", way, CHOICES)
    if way != AUTO:
        return way
    if task is not None and max((w.numel() for w in task.like.values() if w.ndim > 1), default=0) < FEWEST:
        return "highest"
    return "medium" if vendor() in SLOW and keeps_digits() else "highest"


def resumed_matmul(asked: str | None, before: object, task: Task | None = None) -> str:
    """Go on as a stored run began, where this processor keeps the digits too; runs of before had MKL."""
    if asked is not None or before is None:
        return choose_matmul(asked or "highest", task)
    if before == "medium" and not keeps_digits():
        return "highest"
    return choose_matmul(str(before))


_lock = threading.Lock()
_ways: list[str] = []  # of the blocks that are open, in any thread
_before = ["highest"]


@contextmanager
def multiplying(way: str) -> Iterator[None]:
    """Multiply that way in the block, and as before after it."""
    with _lock:
        if not _ways:
            try:
                _before[0] = torch.get_float32_matmul_precision()
            except RuntimeError:  # somebody has set it for a library by name: it is theirs
                way = ""
        _ways.append(way)
        _settle()
    try:
        yield
    finally:
        with _lock:
            _ways.remove(way)
            _settle()


def _settle() -> None:
    """The process has one precision: that of the block entered last, and its own after all of them."""
    way = _ways[-1] if _ways else _before[0]
    if way:
        torch.set_float32_matmul_precision(way)


@cache
def keeps_digits() -> bool:
    """Say whether products under "medium" are as near to those in float64 as float32 comes."""
    generator = torch.Generator().manual_seed(0)
    with multiplying("medium"), torch.no_grad():
        for b, m, k, n in SHAPES:
            x = torch.randn(b, m, k, generator=generator)
            y = torch.randn(b, k, n, generator=generator)
            right = torch.bmm(x.double(), y.double())
            for product in (torch.bmm(x, y), torch.baddbmm(torch.zeros(b, m, n), x, y), (x[0] @ y[0])[None]):
                miss = product.double() - right[: len(product)]
                if not float(miss.norm()) < ALLOWED * float(right[: len(product)].norm()):
                    return False
    return True


@cache
def vendor() -> str:
    """Name the processor's maker in its own letters; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def check_matmul(way: str | None, device: str) -> None:
    """Refuse a way that does not exist, or that says something else on another device.

    Raises:
        InputError: It is one of the two.
    """
    if way is not None and way not in CHOICES:
        raise unknown_name("way to multiply matrices", way, CHOICES)
    if way == "medium" and device != "cpu":
        raise InputError(f"matmul='medium' is for the processor; on {device} it would lose digits: leave it out.")
