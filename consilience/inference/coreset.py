"""Bayesian pseudocoresets.  Kim et al., NeurIPS 2022; d'Hondt et al. 2024, eq. 14 and Algorithm 2, signs corrected."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.parties import Client
from consilience.payload import Coreset
from consilience.privacy.exposure import Nearness, nearness
from consilience.privacy.exposure import exposure_warning as exposed
from consilience.progress import track
from consilience.task import Task, grad, label_counts
from consilience.training.gradient import check_exact
from consilience.training.optimisers import AdamSteps, Optimiser
from consilience.training.weight_sets import gradients_of, map_weights
from consilience.tree import Params

FAR = 10.0  # times the data's own extent: a pseudo-row further out has diverged
INITIALISING = threading.Lock()  # layers initialise themselves from torch's one global generator


class Learned(NamedTuple):
    coreset: Coreset
    halved: Tensor  # how often the step was halved because the coreset had left
    near: Nearness  # how closely its inputs resemble single rows


@dataclass(frozen=True)
class BPCfKL:
    """Move K pseudo-rows until their posterior resembles that of the client's rows: KL(p(θ|D) ‖ q(θ|C)) downhill.

    1   R trajectories of T steps on U/n, from starts that all clients share; weights are kept at intervals
    2   C ← inputs around the mean of the client's; labels by their frequency, or the mean target
        for each update
    3       draw M of the kept weights;  θ_D ← those L_D steps later on the same trajectory
    4       θ_C ← L_C steps on the coreset's own U/n, from the weights drawn
    5       g ← (1/MS) Σ ∇_C [−log p(ŷ | Z, θ_D + σε) + log p(ŷ | Z, θ_C + σε′)]
    6       C ← C − ψ g;  a coreset that leaves is put back and its ψ halved

    Each of the K rows stands for n/K: q can then be as sharp as p. The steps ψ are in units of one pseudo-row.
    """

    rows: int = 10  # K
    trajectories: int = 10  # R
    steps: int = 300  # T
    interval: int = 5  # steps between kept weights; wider where `memory` asks for it
    batch: int = 20  # rows a step of a trajectory
    updates: int = 100
    draws: int = 5  # M, sets of weights an update
    data_steps: int = 150  # L_D
    coreset_steps: int = 200  # L_C
    noises: int = 5  # S, perturbations of each set of weights
    noise: float = 1e-2  # σ, their deviation
    chain: Optimiser = AdamSteps(1e-2)  # how trajectories and short chains move
    rate_x: float = 0.01  # ψ of the inputs
    rate_y: float = 0.1  # ψ of the targets of a regression
    spread: float = 1.0  # deviation of the first inputs around the data's mean
    memory: float = 1e9  # bytes of kept weights a client may hold

    def __call__(self, task: Task, seed: Tensor, client: Client) -> Coreset:
        return self.learn(task, seed, client).coreset

    def learn(self, task: Task, seed: Tensor, client: Client) -> Learned:
        """The coreset; `seed` is the same at every client, so that all trajectories start at the same weights."""
        if self.rows < 1 or self.data_steps > self.steps:
            raise InputError("A coreset needs at least one row, and data_steps no longer than steps.")
        check_exact(task, "A coreset")
        like, data = task.like, client.data
        kept, apart = self.pretrained(task, seed, client)  # 1
        first = initial(task, data, self.rows, self.spread, client.key.fold(1))  # 2
        coreset, scale, halved = first, torch.ones_like(data.size), torch.zeros_like(data.size)
        later, gradients = round(self.data_steps / apart), gradients_of(task, like, data.size)
        for i in track(range(self.updates), "update"):
            key = client.key.fold(2).fold(i)
            chosen = key.fold(0).uniform(2 * self.draws, data.w)
            which = (chosen[: self.draws] * kept.shape[0]).long()
            start = (chosen[self.draws :] * (kept.shape[1] - later)).long()
            theta, theta_data = kept[which, start], kept[which, start + later]  # 3
            state, rows = self.chain.init(theta), Data(*coreset)
            for _ in range(self.coreset_steps):
                theta, state = self.chain.step(theta, gradients(theta, rows), state, self.chain.rate)  # 4
            sides = [self.perturbed(side, key.fold(j + 1)) for j, side in enumerate((theta_data, theta))]
            new = self.moved(coreset, contrast(task, like, coreset, *sides), scale)  # 5, 6
            left = departure(new, first, data)
            coreset = Coreset(*(torch.where(left, a, b) for a, b in zip(coreset, new, strict=True)))
            scale, halved = torch.where(left, 0.5 * scale, scale), halved + left.to(halved)
        return Learned(coreset, halved, nearness(coreset, data))

    def pretrained(self, task: Task, seed: Tensor, client: Client) -> tuple[Tensor, int]:
        """Weights along all trajectories [R, Q, P], and how many steps lie between two of them."""
        data, like = client.data, task.like
        theta = starts(task, seed, self.trajectories)
        apart = self.apart(theta)
        state, gradients, kept = self.chain.init(theta), gradients_of(task, like, data.size), [theta]
        for t in track(range(self.steps), "step"):
            order = client.key.fold(0).fold(t).order(data.w)[: self.batch]  # one batch for all trajectories
            rows = Data(*(leaf[order] for leaf in data))
            theta, state = self.chain.step(theta, gradients(theta, rows), state, self.chain.rate)
            if (t + 1) % apart == 0:
                kept.append(theta)
        return torch.stack(kept, dim=1), apart

    def apart(self, theta: Tensor) -> int:
        """Steps between kept weights: as asked, or as many as keep all of them within `memory`."""
        each_ = theta.numel() * theta.element_size()
        fits = max(int(self.memory // each_) - 1, 1)
        wanted = max(self.interval, math.ceil(self.steps / fits))
        divides = [d for d in range(1, self.data_steps + 1) if self.data_steps % d == 0 and d >= wanted]
        apart = divides[0] if divides else max(self.data_steps, 1)
        if wanted > self.interval:
            warnings.warn(
                f"Weights are kept every {apart} steps of a trajectory instead of every {self.interval}, to stay "
                f"within {self.memory:.3g} bytes a site (memory=…).",
                stacklevel=2,
            )
        return apart

    def perturbed(self, vectors: Tensor, key: Key) -> Tensor:
        """Each set of weights S times, with noise [M·S, P]."""
        if not self.noise:
            return vectors
        noise = key.normal((self.noises, *vectors.shape), vectors)
        return (vectors + self.noise * noise).flatten(0, 1)

    def moved(self, coreset: Coreset, gradient: Coreset, scale: Tensor) -> Coreset:
        """One step downhill, in units of one pseudo-row."""
        x = coreset.x - scale * self.rate_x * gradient.x / coreset.w.mean()
        if not coreset.y.is_floating_point():
            return coreset._replace(x=x)
        return coreset._replace(x=x, y=coreset.y - scale * self.rate_y * gradient.y / coreset.w.mean())


def caution(learned: Sequence[Learned], classes: int | None) -> None:
    """Say what a user must know about coresets: classes left out, steps halved, rows shown."""
    rows = [len(each_.coreset.x) for each_ in learned]
    if classes is not None and min(rows) < classes:
        warnings.warn(
            f"{min(rows)} pseudo-rows cannot show {classes} classes: each site shows its {min(rows)} most frequent "
            "ones; set learn.rows to at least the number of classes to show all.",
            stacklevel=3,
        )
    halved = {k: int(each_.halved) for k, each_ in enumerate(learned) if int(each_.halved)}
    if halved:
        most = max(halved.values())
        warnings.warn(
            f"The coresets of {len(halved)} of {len(learned)} sites ran away and their steps were halved, up to {most} "
            "times; smaller learn.rate_x and learn.rate_y would spare that.",
            stacklevel=3,
        )
    warnings.warn(exposed([each_.near for each_ in learned], rows), stacklevel=3)


def starts(task: Task, seed: Tensor, count: int) -> Tensor:
    """Fresh weights [R, P] that depend on the seed alone, whichever thread or vmap asks."""
    with INITIALISING, temporarily_clear_interpreter_stack():
        return torch.stack([tree.ravel(task.init(Key(seed).fold(r)).params) for r in range(count)])


def initial(task: Task, data: Data, rows: int, spread: float, key: Key) -> Coreset:
    """Inputs z ~ N(x̄, spread²); labels in turn, the most frequent first; for regression the mean target (§3.3)."""
    share = data.w / data.size
    mean = torch.einsum("n,n...->...", share.to(data.x), data.x)
    x = mean + spread * key.normal((rows, *data.x.shape[1:]), data.x)
    w = (data.size / rows).expand(rows)
    if data.y.is_floating_point():
        y = torch.einsum("n,n...->...", share.to(data.y), data.y).expand(rows, *data.y.shape[1:])
        return Coreset(x, y.clone(), w.clone())
    counts = label_counts(data, task.classes(data.x))
    order, present = counts.argsort(descending=True, stable=True), (counts > 0).sum()
    return Coreset(x, order[torch.arange(rows) % present], w.clone())


def contrast(task: Task, like: Params, coreset: Coreset, data_side: Tensor, coreset_side: Tensor) -> Coreset:
    """∇_C KL(p(θ|D) ‖ q(θ|C)) = E_{p(θ|D)} ∇_C Σ w·nll − E_{q(θ|C)} ∇_C Σ w·nll, over weights drawn from each [M, P].

    The gradient in the inputs and in the targets of a regression; labels and weights have none.
    """
    numbers = [leaf for leaf in (coreset.x, coreset.y) if leaf.is_floating_point()]
    flat = torch.cat([leaf.flatten() for leaf in numbers])

    def rebuilt(vector: Tensor) -> tuple[Tensor, Tensor]:
        x = vector[: coreset.x.numel()].reshape(coreset.x.shape)
        return x, vector[coreset.x.numel() :].reshape(coreset.y.shape) if len(numbers) > 1 else coreset.y

    def gradient(theta: Tensor) -> Tensor:
        params = tree.unravel(theta, like)

        def loss(vector: Tensor) -> Tensor:
            x, y = rebuilt(vector)
            return (coreset.w * task.likelihood.nll(task.outputs(params, x), y, params)).sum()

        return grad(loss, flat)

    x, y = rebuilt(map_weights(task, gradient, data_side).mean(0) - map_weights(task, gradient, coreset_side).mean(0))
    return Coreset(x, y if len(numbers) > 1 else torch.zeros_like(coreset.x[:, 0]), torch.zeros_like(coreset.w))


def departure(new: Coreset, first: Coreset, data: Data) -> Tensor:
    """Whether a coreset has left the finite numbers or the neighbourhood of the data and of its own beginning."""
    left = torch.zeros((), dtype=torch.bool, device=new.x.device)
    for moved, begun, rows in zip(new[:2], first[:2], data[:2], strict=True):
        if moved.is_floating_point():
            real = (data.w > 0).reshape(-1, *[1] * (rows.ndim - 1))
            extent = (torch.where(real, rows, torch.zeros_like(rows)).abs()).amax().clamp(min=1e-6)
            limit = FAR * torch.maximum(extent, begun.abs().amax())
            left = left | ~(moved.abs().amax() <= limit)  # not a number is not within the limit
    return left
