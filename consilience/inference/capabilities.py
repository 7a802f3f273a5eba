"""What an inference can do beside inferring: one that has these members can, and others ask by `isinstance`."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable

from consilience.privacy.dp.subsampled import Steps
from consilience.task import Task


@runtime_checkable
class MovesStatistics(Protocol):
    """It trains batch normalisation as it should, where it says so."""

    moves_statistics: bool


@runtime_checkable
class TakesAllRows(Protocol):
    """It takes all rows of a client in every step, where it says so."""

    all_rows: bool


@runtime_checkable
class Narrowest(Protocol):
    """It knows the smallest variance of its Gaussians that rows need not explain; None where they explain all."""

    narrowest: float | None


@runtime_checkable
class Floored(Protocol):
    """Its variances have a floor, whose logarithm this is."""

    floor: float


@runtime_checkable
class Partial(Protocol):
    """It gives a variance to some weights alone."""

    def uncertain(self, task: Task) -> tuple[str, ...]:
        """Name them."""


@runtime_checkable
class FromMode(Protocol):
    """It starts from a mode, which another inference finds."""

    mode: Any


@runtime_checkable
class Passes(Protocol):
    """It passes over the rows so many times; None: until it converges."""

    epochs: int | None


@runtime_checkable
class Batched(Protocol):
    """It takes so many rows a step."""

    batch: int


@runtime_checkable
class Abridged(Protocol):
    """It takes many steps, and knows a cheap copy of itself whose values have the same names, types and shapes."""

    def abridge(self) -> Self:
        """Make it."""


@runtime_checkable
class SlowedDown(Protocol):
    """It has steps of a size that is no plain `rate`."""

    def slow_down(self, factor: float) -> Self:
        """Make the copy whose steps are so much as long."""


@runtime_checkable
class Prolonged(Protocol):
    """It counts its work otherwise than by `epochs`."""

    def prolong(self, times: int) -> Self:
        """Make the copy that works so many times as long."""


@runtime_checkable
class Promises(Protocol):
    """It promises differential privacy of what it returns, and spends a budget over the rounds."""

    def for_rounds(self, rounds: int) -> Self:
        """Make the copy that spends its budget over so many."""

    def privacy_statement(self) -> dict[str, Any] | None:
        """Say what is promised, by the names of `privacy` in run.json; None where nothing is."""

    @property
    def steps_of_round(self) -> Steps:
        """The noisy steps on random batches that a client takes in a round."""


@runtime_checkable
class Whole(Protocol):
    """It can give a whole precision matrix, where it says so."""

    dense: bool
