"""Stochastic weight averaging.  Izmailov et al., UAI 2018; the cyclical steps of Chen and Chao, ICLR 2021, §5.1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.inference.chain import At, chain
from consilience.optim import Descent
from consilience.parties import Client
from consilience.posterior import Point, Posterior, centre
from consilience.task import Task
from consilience.tree import Tree


@dataclass(frozen=True)
class SWA:
    """Momentum SGD whose step falls from `rate` to `low` in every cycle; weights at the cycles' ends are averaged.

    Until `begin` steps are done the step stays at `rate` and nothing is averaged; if no cycle ends, the last weights
    stand.
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 1e-3  # at the start of a cycle
    low: float = 4e-4  # at its end
    begin: int = 250  # steps before averaging begins
    every: int = 25  # steps a cycle
    momentum: float = 0.9
    epochs: int = 20  # passes over the rows
    batch: int = 100  # rows a step

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        trace = chain(task, start, client, self, self.epochs, self.batch)
        _, _, mean, count = trace.state
        vector = torch.where(count > 0, mean, trace.vector)
        return Point(tree.unravel(vector, centre(start, task.like).params))

    def init(self, vector: Tensor) -> Tree:
        zero = torch.zeros((), dtype=vector.dtype)
        return Descent(momentum=self.momentum).init(vector), zero, torch.zeros_like(vector), zero

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        velocity, step, mean, count = state
        step = step + 1
        phase = (step - self.begin - 1) % self.every / max(self.every - 1, 1)
        rate = torch.where(
            step > self.begin, self.rate - (self.rate - self.low) * phase, torch.full_like(phase, self.rate)
        )
        new, velocity = Descent(momentum=self.momentum).step(vector, gradient, velocity, rate)
        ends = (step > self.begin) & ((step - self.begin) % self.every == 0)
        count = count + ends.to(count)
        mean = torch.where(ends, mean + (new - mean) / count.clamp(min=1), mean)
        return new, (velocity, step, mean, count)
