"""What a user can put right: one sentence saying what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """Something the user gave cannot be used; the message says what to do instead."""


class Diverged(InputError):
    """Training or sampling diverged: weights, scores or predictions are no longer finite."""


class Exploded(Diverged):
    """Training ended with finite weights, but far above the loss it began with."""


class SiteWarning(UserWarning):
    """What should be known of one site's work.

    Args:
        sentence: What is to be known, without the site.
    """

    def __init__(self, client: int, sentence: str) -> None:
        super().__init__(f"Site {client}: {sentence}")
        self.client = client
        self.sentence = sentence


class RunWarning(UserWarning):
    """What the report of a run warns of, said where the run ends."""


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


@contextmanager
def refuse_damage(sentence: str) -> Iterator[None]:
    """Take any error for damage while values are made from what a file holds: any byte of it may be anything.

    Args:
        sentence: What is wrong with the file, and what to do.

    Raises:
        InputError: Whatever went wrong; a sentence that was there already stays as it is.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(sentence) from error
