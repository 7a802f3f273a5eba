"""One step of a chain: what a step is told, what it does, and optimisers as such steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from consilience.inference.optimisers import Optimiser
from consilience.key import Key
from consilience.tree import Tree


class At(NamedTuple):
    """Where a step stands.

    Attributes:
        epoch: the pass over the rows
        progress: share of the whole chain that is done, in [0, 1)
        size: n, the client's number of examples
        key: of the epoch
        step: its number within the epoch
        overwrite: whether the step may write over vector and state, which nobody needs again
    """

    epoch: int
    progress: float | Tensor
    size: Tensor
    key: Key
    step: int
    overwrite: bool = False

    def noise(self, vector: Tensor) -> Tensor:
        """This step's own standard normals.

        Args:
            vector: whose shape and type they take

        Returns:
            Normals of the shape of `vector`.
        """
        return self.key.fold(self.step).normal_like(vector)


class Kernel(Protocol):
    """One step of an optimiser or a sampler."""

    def init(self, vector: Tensor) -> Tree:
        """The state before the first step.

        Args:
            vector: the first weights, flat

        Returns:
            The kernel's state.
        """

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Take one step.

        Args:
            gradient: ∇(U/n) at `vector`, on this step's batch

        Returns:
            The new weights and state.
        """


@dataclass(frozen=True)
class Optimise:
    """An optimiser as a kernel.

    Attributes:
        optimiser: takes the steps
        schedule: maps progress to a factor of the rate
        factor: another factor of the rate, constant
    """

    optimiser: Optimiser
    schedule: Callable[[float | Tensor], float | Tensor]
    factor: float | Tensor = 1.0

    def init(self, vector: Tensor) -> Tree:
        """The optimiser's memory before the first step.

        Args:
            vector: the first weights, flat
        """
        return self.optimiser.init(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Take one step at the rate that the schedule allows here.

        Args:
            gradient: ∇(U/n) on this step's batch

        Returns:
            The new weights and memory.
        """
        rate = self.optimiser.rate * self.factor * self.schedule(at.progress)
        if isinstance(rate, Tensor):
            rate = rate.to(vector)
        return self.optimiser.step(vector, gradient, state, rate, at.overwrite)


@dataclass(frozen=True)
class Held:
    """An optimiser as a kernel whose memory stays as it was handed over.

    Attributes:
        optimiser: takes the steps
        memory: its state at every step
    """

    optimiser: Optimiser
    memory: Tree

    def init(self, vector: Tensor) -> Tree:
        """Nothing: the memory does not change.

        Args:
            vector: the first weights, flat

        Returns:
            The empty state.
        """
        return ()

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Take one step with the memory handed over.

        Args:
            gradient: ∇(U/n) on this step's batch
            state: empty

        Returns:
            The new weights and the empty state.
        """
        return self.optimiser.step(vector, gradient, self.memory, self.optimiser.rate)[0], ()
