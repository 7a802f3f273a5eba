"""Values asked for again with the same tensors, computed once: where many rules pool the same replies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from consilience import tree

T = TypeVar("T")
_memory: ContextVar[dict[tuple[int, ...], tuple[Any, tuple[Any, ...]]] | None] = ContextVar("memory", default=None)


@contextmanager
def remember_values() -> Iterator[None]:
    """Keep the values of `remember` within this context; they are forgotten at its end."""
    token = _memory.set({})
    try:
        yield
    finally:
        _memory.reset(token)


def remember(value: Callable[[], T], *made_from: Any) -> T:
    """Compute a value, or take what it was for these very objects.

    Nobody changes tensors in place, so identity is enough.

    Args:
        *made_from: All objects that it depends on.

    Returns:
        The value, remembered inside `remember_values` and outside vmap.
    """
    memory = _memory.get()
    if memory is None or tree.under_vmap():
        return value()
    key = tuple(id(part) for part in made_from)
    if key not in memory:
        memory[key] = (value(), made_from)  # as long as they are held, no other object has their ids
    remembered: T = memory[key][0]
    return remembered
