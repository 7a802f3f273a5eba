"""Cyclical stochastic gradient Hamiltonian Monte Carlo.  Zhang et al., ICLR 2020; Chen et al., ICML 2014."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.parties import Client
from consilience.posterior import Posterior, Samples
from consilience.task import Task
from consilience.training.chain import At, sample
from consilience.training.optimisers import descend
from consilience.training.schedules import cosine
from consilience.tree import Tree


@dataclass(frozen=True)
class CyclicalSGHMC:
    """v ← (1−α)v − ε ∇U/n + √(2εαT/n)·ξ;  θ ← θ + v, with ε on a cosine that begins again every cycle.

    Noise enters in the last `samples` epochs of a cycle, each of which ends with one sample; the newest `keep` stay.
    For U/n with curvature h and constant ε the stationary variance of θ is T/(nh) · (4−2α)/(4−2α−εh).
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 0.05  # ε at the start of a cycle, on the mean loss
    friction: float = 0.1  # α; momentum is 1 − α
    epochs: int = 50  # passes over the client's rows
    cycles: int = 5
    samples: int = 2  # a cycle
    keep: int = 6  # samples sent, the newest
    batch: int = 50  # rows a step
    temperature: float = 1.0  # 1: the posterior; 0: a snapshot ensemble

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        if self.epochs < self.cycles * self.samples:
            raise InputError(
                f"{self.cycles} cycles with {self.samples} samples need {self.cycles * self.samples} epochs."
            )
        whole = min(self.cycles, self.keep) > 0
        kept = [epoch for epoch in range(self.epochs) if self.sampling(epoch)][-self.keep :] if whole else []
        return sample(task, start, client, self, self.epochs, self.batch, kept)

    def sampling(self, epoch: int) -> bool:
        """Whether an epoch is among the last of its cycle."""
        return self.cycle(epoch).stop - 1 - epoch < self.samples

    def cycle(self, epoch: int) -> range:
        """The whole epochs of the cycle that an epoch is in."""
        i = (epoch * self.cycles) // self.epochs
        return range(-(-i * self.epochs // self.cycles), -(-(i + 1) * self.epochs // self.cycles))

    def init(self, vector: Tensor) -> Tree:
        return torch.zeros_like(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        own = self.cycle(at.epoch)
        rate = self.rate * cosine((at.progress * self.epochs - own.start) / len(own))
        velocity = torch.mul(state, 1 - self.friction, out=state if at.overwrite else None)
        velocity = descend(velocity, gradient, rate, at.overwrite)
        if self.temperature and self.sampling(at.epoch):
            scale = (2 * rate * self.friction * self.temperature / at.size).sqrt()
            velocity += at.noise(vector).mul_(scale)
        return torch.add(vector, velocity, out=vector if at.overwrite else None), velocity
