"""Training asked for again with equal inputs, run once: where many rules begin with the same chains or sums."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from consilience import tree
from consilience.tree import Tree

P = ParamSpec("P")
T = TypeVar("T", bound=Tree)
BUDGET = 256 * 2**20  # bytes of values that are kept


class _Kept(NamedTuple):
    """A value, what it cost, and the objects behind it that are known by identity, which no other has while held."""

    value: Tree
    seconds: float
    held: list[Any]


class _NotComparable(TypeError):
    """An input that might change without our seeing it."""


class SharedTraining:
    """What has been trained inside `share_training`.

    Args:
        budget: How many bytes of values are kept; those used longest ago go first.

    Attributes:
        spared: Processor seconds that repeated training took when it ran, and did not take again: what a rule costs
            alone is its own time and what it was spared.
        repeated: How many trainings were not run again.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.spared = 0.0
        self.repeated = 0
        self._kept: OrderedDict[tuple[Any, ...], _Kept] = OrderedDict()
        self._bytes = 0

    def recall(self, value: Callable[[], T], made_from: tuple[Any, ...]) -> T:
        """Compute a value, or take what it was for equal inputs.

        Args:
            made_from: Everything that it depends on.

        Returns:
            The value, a copy of its own for every caller.
        """
        held: list[Any] = []
        try:
            key = (torch.get_num_threads(), torch.get_float32_matmul_precision(), _fingerprint(made_from, held))
        except _NotComparable:
            return value()
        kept = self._kept.get(key)
        if kept is not None:
            self._kept.move_to_end(key)
            self.spared += kept.seconds
            self.repeated += 1
            copied: T = tree.map(torch.clone, kept.value)
            return copied
        began = time.process_time()
        made = value()
        seconds = time.process_time() - began
        self._keep(key, _Kept(tree.map(torch.clone, made), seconds, held))
        return made

    def _keep(self, key: tuple[Any, ...], kept: _Kept) -> None:
        self._kept[key] = kept
        self._bytes += _size(kept)
        while self._bytes > self.budget:
            self._bytes -= _size(self._kept.popitem(last=False)[1])


_shared: ContextVar[SharedTraining | None] = ContextVar("shared_training", default=None)


@contextmanager
def share_training(budget: int = BUDGET) -> Iterator[SharedTraining]:
    """Run chains, and sums over rows, with equal inputs once within this context; they are forgotten at its end.

    No number changes: target, start, rows, key and all settings are compared by value, and the network and functions,
    which hold code, by identity. The work of several clients side by side, and on other threads, is not shared.

    Args:
        budget: How many bytes of trained weights are kept; those used longest ago go first.

    Yields:
        What was spared so far.
    """
    shared = SharedTraining(budget)
    token = _shared.set(shared)
    try:
        yield shared
    finally:
        _shared.reset(token)


def run_once(value: Callable[[], T], *made_from: Any) -> T:
    """Compute a value; inside `share_training`, take what it was for equal inputs.

    Args:
        *made_from: Everything that it depends on.
    """
    shared = _shared.get()
    if shared is None or tree.under_vmap():
        return value()
    return shared.recall(value, made_from)


def once(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function that is called once with equal arguments inside `share_training`.

    Args:
        function: Depends on its arguments alone.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_once(lambda: function(*args, **kwargs), args, kwargs)

    return call


def _size(kept: _Kept) -> int:
    return sum(leaf.nbytes for leaf in tree.leaves(kept.value))


def _fingerprint(value: Any, held: list[Any]) -> Any:
    """Something hashable that equal inputs share and others do not; networks and functions are held, by identity."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return kind, repr(value)
    if kind in (Tensor, nn.Parameter):
        return kind, value.dtype, value.device, tuple(value.shape), value.stride(), _digest(value)
    if kind is dict:
        return kind, tuple((_fingerprint(k, held), _fingerprint(v, held)) for k, v in value.items())
    if kind in (list, range) or isinstance(value, tuple):
        return kind, tuple(_fingerprint(part, held) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return kind, tuple(_fingerprint(part, held) for part in fields)
    if isinstance(value, nn.Module) or inspect.isroutine(value):
        held.append(value)
        return kind, id(value)
    raise _NotComparable(kind.__name__)


def _digest(tensor: Tensor) -> bytes:
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(numbers.numpy().data).digest()
