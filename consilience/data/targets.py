"""Targets of two columns or of one kind of number: counts with an exposure, and times with events."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.data.cells import Cells
from consilience.data.columns import read_target
from consilience.errors import InputError, unknown_name

OUTCOMES = ("counts", "survival")


def check_outcome(what: str, y: Tensor, outcome: str) -> None:
    """Refuse targets that cannot be counts, or times with events.

    Args:
        what: Whose targets, for the sentence.
        outcome: `counts` or `survival`.

    Raises:
        InputError: They are of another shape or hold other numbers.
    """
    if outcome not in OUTCOMES:
        raise unknown_name("outcome", outcome, OUTCOMES)
    if outcome == "counts":
        counts = y
        if y.ndim == 2 and y.shape[1] == 2:
            counts = y[:, 0]
            if bool((y[:, 1] <= 0).any()):
                raise InputError(f"{what} have an exposure that is not above 0: leave those rows out.")
        if counts.ndim != 1 or bool((counts < 0).any()) or not torch.equal(counts, counts.floor()):
            raise InputError(f"{what} must be whole numbers from 0, with an exposure beside each or without.")
        return
    if y.ndim != 2 or y.shape[1] != 2:
        raise InputError(f"{what} must be a time and an event, 1 or 0, for every row.")
    time, event = y.unbind(1)
    if not bool(torch.isin(event, torch.tensor([0.0, 1.0]).to(event)).all()):
        raise InputError(f"{what} have an event that is neither 1 (it was seen) nor 0 (it was not, so far).")
    if bool((time < 0).any()) or bool(((time == 0) & (event == 1)).any()):
        raise InputError(f"{what} have a time below 0, or an event at time 0: count time from entry and leave it out.")


def pair_up(first: Tensor, second: Tensor) -> Tensor:
    """Put two columns of numbers beside each other, in single precision where nothing is lost.

    Args:
        first: Counts or times [N].
        second: Exposures or events [N].

    Returns:
        Targets [N, 2].
    """
    y = torch.stack([first.double(), second.double()], 1)
    if bool((y.float().double() == y).all()):
        return y.float()
    return y


def read_outcome(columns: dict[str, Cells], names: tuple[str, str | None], outcome: str) -> Tensor:
    """Read targets of one or two columns.

    Args:
        columns: All columns by name; those that are read are taken out.
        names: The columns: count and exposure, or time and event.
        outcome: `counts` or `survival`.

    Returns:
        Targets [N], or [N, 2].

    Raises:
        InputError: A cell is missing or not what its column should hold.
    """
    parts = []
    for name in names:
        if name is not None:
            values, _ = read_target(name, columns.pop(name), "regression")
            parts.append(values)
    y = parts[0]
    if len(parts) == 2:
        y = pair_up(*parts)
    check_outcome(" and ".join(f"'{name}'" for name in names if name is not None), y, outcome)
    return y
