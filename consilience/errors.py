"""What a user can put right: one sentence saying what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what to do instead."""


class Diverged(InputError):
    """Training or sampling diverged: weights, scores or predictions are no longer finite."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """Make the error for a name that does not exist; the caller raises it.

    Args:
        kind: What is named, such as 'method' or 'model'.
        name: The name that was given.
        known: All names that exist.

    Returns:
        An error that suggests the nearest name, or lists all of them where none is near.
    """
    names = sorted(known)
    hint = f"Known: {', '.join(names)}."
    for nearest in difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        hint = f"Did you mean '{nearest}'?"
    return InputError(f"There is no {kind} called '{name}'. {hint}")
