"""What a user can put right: one sentence saying what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what to do instead."""


class Diverged(InputError):
    """Training or sampling left the finite numbers."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name nobody knows, with the nearest one that exists."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(names)}."
    return InputError(f"There is no {kind} called '{name}'. {hint}")
