"""Optimisers as steps on one flat vector, pure unless told to overwrite; clients, server and distiller share them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from consilience.tree import Tree


class Optimiser(Protocol):
    @property
    def rate(self) -> float: ...

    def init(self, vector: Tensor) -> Tree:
        """The state before the first step."""

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        """One step at this rate → the new vector and state, which may be the old ones changed if `overwrite`."""


def less(vector: Tensor, step: Tensor, rate: float | Tensor, overwrite: bool = False) -> Tensor:
    """θ − ε·s, in one pass over memory where the rate is a plain number."""
    if isinstance(rate, Tensor):
        return vector - rate * step
    return torch.sub(vector, step, alpha=rate, out=vector if overwrite else None)


@dataclass(frozen=True)
class Descent:
    """v ← m·v + g;  θ ← θ − ε·v.  Plain gradient descent when m = 0."""

    rate: float = 0.1
    momentum: float = 0.0

    def init(self, vector: Tensor) -> Tree:
        return torch.zeros_like(vector) if self.momentum else ()

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        if not self.momentum:
            return less(vector, gradient, rate, overwrite), ()
        velocity = torch.add(gradient, state, alpha=self.momentum, out=state if overwrite else None)
        return less(vector, velocity, rate, overwrite), velocity


@dataclass(frozen=True)
class FederatedAdam:
    """Reddi et al., ICLR 2021, Algorithm 2: Adam with v starting at τ² and no bias correction."""

    rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-2  # adaptivity; v starts at τ²

    def init(self, vector: Tensor) -> Tree:
        return torch.zeros_like(vector), torch.full_like(vector, self.tau**2)

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
        m = self.beta1 * state[0] + (1 - self.beta1) * gradient
        v = self.second(state[1], gradient**2)
        return vector - rate * m / (v.sqrt() + self.tau), (m, v)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The memory of squared gradients."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(FederatedAdam):
    """The same with a memory that grows and shrinks by at most (1−β₂)g²."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


@dataclass(frozen=True)
class AdamSteps:
    """Kingma and Ba, ICLR 2015, Algorithm 1."""

    rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, vector: Tensor) -> Tree:
        return torch.zeros_like(vector), torch.zeros_like(vector), torch.zeros((), dtype=torch.float64)

    def step(
        self, vector: Tensor, gradient: Tensor, state: Tree, rate: float | Tensor, overwrite: bool = False
    ) -> tuple[Tensor, Tree]:
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
        shrunk, shrunk_root = (1 - self.beta1**t).to(m), (1 - self.beta2**t).sqrt().to(v)  # powers in double precision
        scale = v.sqrt().div_(shrunk_root).add_(self.epsilon)  # in place on what is new here: half the time
        return vector - (m * (rate / shrunk)).div_(scale), (m, v, t)
