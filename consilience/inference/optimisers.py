"""Optimisers as steps on one flat vector, pure unless told to overwrite; clients, server and distiller share them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from consilience.tree import Tree


class Optimiser(Protocol):
    """Steps down a gradient, with a memory of earlier ones."""

    @property
    def rate(self) -> float:
        """The step size."""

    def init(self, vector: Tensor) -> Tree:
        """The state before the first step.

        Returns:
            The optimiser's memory.
        """

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        """Take one step at this rate.

        Args:
            gradient: of the loss at `vector`
            rate: the step size, in place of the optimiser's own
            overwrite: whether the step may write over `vector` and `state`, which nobody needs again

        Returns:
            The new vector and state, which may be the old ones changed if `overwrite`.
        """


def descend(vector: Tensor, direction: Tensor, rate: float | Tensor, overwrite: bool = False) -> Tensor:
    """θ − ε·s, in one pass over memory where the rate is a plain number.

    Args:
        overwrite: whether the result may be written into `vector`

    Returns:
        The new vector.
    """
    if isinstance(rate, Tensor):
        return vector - rate * direction
    if overwrite:
        return torch.sub(vector, direction, alpha=rate, out=vector)
    return torch.sub(vector, direction, alpha=rate)


@dataclass(frozen=True)
class Descent:
    """v ← m·v + g;  θ ← θ − ε·v.  Plain gradient descent when m = 0.

    Attributes:
        rate: ε, the step size
        momentum: m, the share of the last step that goes on

    Example:
        >>> import consilience as co
        >>> import torch
        >>> optimiser = co.inference.Descent(rate=0.5)
        >>> weights = torch.tensor([1.0])
        >>> optimiser.step(weights, torch.tensor([0.4]), optimiser.init(weights), 0.5)[0]
        tensor([0.8000])
    """

    rate: float = 0.1
    momentum: float = 0.0

    def init(self, vector: Tensor) -> Tree:
        """The velocity before the first step.

        Returns:
            Zeros, or nothing without momentum.
        """
        if not self.momentum:
            return ()
        return torch.zeros_like(vector)

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        """Take one step at this rate.

        Args:
            gradient: of the loss at `vector`
            rate: the step size, in place of the optimiser's own
            overwrite: whether the step may write over `vector` and `state`

        Returns:
            The new vector and velocity.
        """
        if not self.momentum:
            return descend(vector, gradient, rate, overwrite), ()
        if overwrite:
            velocity = torch.add(gradient, state, alpha=self.momentum, out=state)
        else:
            velocity = torch.add(gradient, state, alpha=self.momentum)
        return descend(vector, velocity, rate, overwrite), velocity


@dataclass(frozen=True)
class FederatedAdam:
    """Reddi et al., ICLR 2021, Algorithm 2: Adam with v starting at τ² and no bias correction.

    Attributes:
        rate: ε, the step size
        beta1: memory of gradients
        beta2: memory of squared gradients
        tau: τ, the adaptivity; v starts at τ²
        start: where v starts; None: at τ²
    """

    rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-2
    start: float | None = field(default=None, metadata={"added": True})

    def init(self, vector: Tensor) -> Tree:
        """The two moments before the first step.

        Returns:
            m = 0 and v = τ², or where it is said to start.
        """
        start = self.start
        if start is None:
            start = self.tau**2
        return torch.zeros_like(vector), torch.full_like(vector, start)

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        """Take one step at this rate.

        Args:
            gradient: of the loss at `vector`
            rate: the step size, in place of the optimiser's own
            overwrite: allowed, and not made use of

        Returns:
            The new vector, m and v.
        """
        m = self.beta1 * state[0] + (1 - self.beta1) * gradient
        v = self.second_moment(state[1], gradient**2)
        return vector - rate * m / (v.sqrt() + self.tau), (m, v)

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The memory of squared gradients after one more of them.

        Args:
            v: the memory so far

        Returns:
            The new v.
        """
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(FederatedAdam):
    """The same with a memory that grows and shrinks by at most (1−β₂)g²."""

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """The memory of squared gradients, changed by at most (1−β₂)g².

        Args:
            v: the memory so far

        Returns:
            The new v.
        """
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class AdamSteps:
    """Kingma and Ba, ICLR 2015, Algorithm 1.

    Attributes:
        rate: step size
        beta1: memory of gradients
        beta2: memory of squared gradients
        epsilon: added to the root of the second moment
    """

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, vector: Tensor) -> Tree:
        """The two moments and the count of steps before the first.

        Returns:
            m = 0, v = 0 and t = 0.
        """
        return torch.zeros_like(vector), torch.zeros_like(vector), torch.zeros((), dtype=torch.float64)

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        """Take one step at this rate.

        Args:
            gradient: of the loss at `vector`
            state: m, v and t
            rate: the step size, in place of the optimiser's own
            overwrite: whether the step may write over `vector` and `state`

        Returns:
            The new vector, m, v and t.
        """
        m, v, t = state
        if overwrite and not isinstance(rate, Tensor):
            t += 1
            torch._fused_adam_(  # the same step in one pass over memory, rounded alike
                *([vector], [gradient], [m], [v], [], [t]),
                lr=rate,
                beta1=self.beta1,
                beta2=self.beta2,
                weight_decay=0.0,
                eps=self.epsilon,
                amsgrad=False,
                maximize=False,
            )
            return vector, state
        t = t + 1
        m = torch.lerp(m, gradient, 1 - self.beta1)  # β₁ m + (1 − β₁) g
        v = torch.addcmul(self.beta2 * v, gradient, gradient, value=1 - self.beta2)
        correction = (1 - self.beta1**t).to(m)  # powers in double precision
        root_correction = (1 - self.beta2**t).sqrt().to(v)
        scale = v.sqrt().div_(root_correction).add_(self.epsilon)  # in place on what is new here: half the time
        return vector - (m * (rate / correction)).div_(scale), (m, v, t)
