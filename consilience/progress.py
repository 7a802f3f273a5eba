"""How far the work is. Loops say `track(range(n), "round")`; whoever shows a bar listens.

Nested loops multiply: round 2 of 10, site 3 of 5 is (1 + 2/5) / 10 of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Listener: TypeAlias = Callable[[float, str], None]  # fraction done, 'round 2/10 · site 3/5'

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_loops: ContextVar[tuple[tuple[int, int, str], ...]] = ContextVar("loops", default=())


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Tell a listener how far the loops inside this context are.

    Args:
        listener: Called with the fraction done and a line of words at every step of a tracked loop.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield the items, telling the listener, if there is one, how far all enclosing loops are.

    Args:
        items: What the loop goes over.
        what: One item's name, such as 'round' or 'site'.

    Yields:
        The items, one after another.
    """
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    outer = _loops.get()
    try:
        for i, item in enumerate(items):
            loops = (*outer, (i, len(items), what))
            _loops.set(loops)
            listener(_fraction(loops), _describe(loops))
            yield item
    finally:
        _loops.set(outer)


def _fraction(loops: Sequence[tuple[int, int, str]]) -> float:
    """The part of the whole that is done, the outermost loop first."""
    fraction = 0.0
    for done, count, _ in reversed(loops):
        fraction = (done + fraction) / max(count, 1)
    return fraction


def _describe(loops: Sequence[tuple[int, int, str]]) -> str:
    """Every loop of more than one step, as 'round 2/10 · site 3/5'."""
    return " · ".join(f"{name} {done + 1}/{count}" for done, count, name in loops if count > 1)
