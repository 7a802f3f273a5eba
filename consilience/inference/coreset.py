"""Bayesian pseudocoresets.  Kim et al., NeurIPS 2022; d'Hondt et al. 2024, eq. 14 and Algorithm 2, signs corrected."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.payload import Coreset
from consilience.errors import InputError
from consilience.inference.fast.weight_sets import gradients_of, map_weights
from consilience.inference.gradient import check_exact
from consilience.inference.optimisers import AdamSteps, Optimiser
from consilience.inference.pseudo_rows import drawn, initial, starts
from consilience.key import Key
from consilience.messages import Client
from consilience.privacy.disclosure.exposure import Nearness, exposure_warning, nearness
from consilience.progress import track
from consilience.task import Task, grad
from consilience.tree import Params

FAR = 10.0  # times the data's own extent: a pseudo-row further out has diverged


class Learned(NamedTuple):
    """What a client's learning came to.

    Attributes:
        coreset: the pseudo-rows
        halved: how often the step was halved because the coreset had diverged
        near: how closely its inputs resemble single rows
    """

    coreset: Coreset
    halved: Tensor
    near: Nearness


@dataclass(frozen=True)
class BPCfKL:
    """Move K pseudo-rows until their posterior resembles that of the client's rows: KL(p(θ|D) ‖ q(θ|C)) downhill.

    1   R trajectories of T steps on U/n, from starts that all clients share; weights are kept at intervals
    2   C ← inputs around the mean of the client's; labels by their frequency, or the mean target (or rows of its own)
        for each update
    3       draw M of the kept weights;  θ_D ← those L_D steps later on the same trajectory
    4       θ_C ← L_C steps on the coreset's own U/n, from the weights drawn
    5       g ← (1/MS) Σ ∇_C [−log p(ŷ | Z, θ_D + σε) + log p(ŷ | Z, θ_C + σε′)]
    6       v ← m v + g/n;  C ← C − ψ v;  a coreset that leaves is put back and its ψ halved

    Each of the K rows stands for n/K: q can then be as sharp as p, and g/n is that of the mean over the K rows, along
    which the reference steps.

    Attributes:
        rows: K, the number of pseudo-rows
        trajectories: R, the number of trajectories
        steps: T, steps of a trajectory
        interval: steps between kept weights; wider where `memory` asks for it
        batch: rows a step of a trajectory
        updates: updates of the coreset
        draws: M, sets of weights an update
        data_steps: L_D, steps along a trajectory from θ to θ_D
        coreset_steps: L_C, steps on the coreset from θ to θ_C
        noises: S, perturbations of each set of weights
        noise: σ, their deviation
        chain: how trajectories and short chains move
        rate_x: ψ of the inputs, as in Table 2
        rate_y: ψ of the targets of a regression
        spread: deviation of the first inputs around the data's mean
        memory: bytes of kept weights a client may hold
        momentum: m, the share of the last step that goes on; 0.5 in the reference
        mean: whether steps are along the mean over the K rows; False: along their sum, K times as far, as runs made
            before had it
        own: whether line 2 begins at rows of the client's own, as Algorithm 2 may be read and the reference does by
            default; what is sent may then show them
    """

    rows: int = 10
    trajectories: int = 10
    steps: int = 300
    interval: int = 5
    batch: int = 20
    updates: int = 100
    draws: int = 5
    data_steps: int = 150
    coreset_steps: int = 200
    noises: int = 5
    noise: float = 1e-2
    chain: Optimiser = AdamSteps(1e-2)
    rate_x: float = 0.05
    rate_y: float = 0.5
    spread: float = 1.0
    memory: float = 1e9
    momentum: float = dataclasses.field(default=0.5, metadata={"added": True, "before": 0.0})
    mean: bool = dataclasses.field(default=True, metadata={"added": True, "before": False})
    own: bool = dataclasses.field(default=False, metadata={"added": True})

    def abridge(self) -> BPCfKL:
        """Take one step everywhere; see `consilience.method.settings.abridge`."""
        short = dataclasses.replace(self, trajectories=1, steps=1, interval=1, updates=1, draws=1)
        return dataclasses.replace(short, data_steps=1, coreset_steps=1, noises=1)

    def __call__(self, task: Task, seed: Tensor, client: Client) -> Coreset:
        """Learn a coreset.

        Args:
            seed: the same at every client, so that all trajectories start at the same weights

        Returns:
            The pseudo-rows.

        Raises:
            InputError: if the settings are impossible, or the network draws in training.
        """
        return self.learn(task, seed, client).coreset

    def learn(self, task: Task, seed: Tensor, client: Client) -> Learned:
        """Learn a coreset, and say how that went.

        Args:
            seed: the same at every client, so that all trajectories start at the same weights

        Returns:
            The pseudo-rows, how often their step was halved, and how near they are to single rows.

        Raises:
            InputError: if the settings are impossible, or the network draws in training.
        """
        if self.rows < 1 or self.data_steps > self.steps:
            raise InputError("A coreset needs at least one row, and data_steps no longer than steps.")
        check_exact(task, "A coreset")
        data = client.data
        weights, spacing = self.pretrain(task, seed, client)  # 1
        first = self.begin(task, data, client.key.fold(1))  # 2
        coreset = first
        velocity = still(first)
        scale = torch.ones_like(data.size)
        halved = torch.zeros_like(data.size)
        gradients = gradients_of(task, task.like, data.size)
        lag = round(self.data_steps / spacing)
        for i in track(range(self.updates), "update"):
            key = client.key.fold(2).fold(i)
            uniform = key.fold(0).uniform(2 * self.draws, data.w)
            trajectory = (uniform[: self.draws] * weights.shape[0]).long()
            start = (uniform[self.draws :] * (weights.shape[1] - lag)).long()
            theta_data = weights[trajectory, start + lag]  # 3
            theta = weights[trajectory, start]
            state = self.chain.init(theta)
            pseudo_rows = Data(*coreset)
            for _ in range(self.coreset_steps):
                theta, state = self.chain.step(theta, gradients(theta, pseudo_rows), state, self.chain.rate)  # 4
            data_side = self.perturb(theta_data, key.fold(1))
            coreset_side = self.perturb(theta, key.fold(2))
            gradient = contrast(task, task.like, coreset, data_side, coreset_side)  # 5
            new, velocity = self.update(coreset, velocity, gradient, scale)  # 6
            away = departure(new, first, data)
            coreset = Coreset(*(torch.where(away, a, b) for a, b in zip(coreset, new, strict=True)))
            velocity = Coreset(*(torch.where(away, torch.zeros_like(v), v) for v in velocity))
            scale = torch.where(away, 0.5 * scale, scale)
            halved = halved + away.to(halved)
        return Learned(coreset, halved, nearness(coreset, data))

    def begin(self, task: Task, data: Data, key: Key) -> Coreset:
        """Return the first pseudo-rows.

        Args:
            task: which says how many classes there are
            key: for what is drawn
        """
        if self.own:
            return drawn(data, self.rows, key)
        return initial(task, data, self.rows, self.spread, key)

    def pretrain(self, task: Task, seed: Tensor, client: Client) -> tuple[Tensor, int]:
        """Train on the client's rows from R starts and keep weights along the way.

        Args:
            seed: the same at every client, so that all trajectories start at the same weights

        Returns:
            Weights along all trajectories [R, Q, P], and how many steps lie between two of them.
        """
        data = client.data
        theta = starts(task, seed, self.trajectories)
        spacing = self.spacing(theta)
        state = self.chain.init(theta)
        gradients = gradients_of(task, task.like, data.size)
        weights = [theta]
        for t in track(range(self.steps), "step"):
            order = client.key.fold(0).fold(t).order(data.w)[: self.batch]  # one batch for all trajectories
            rows = Data(*(leaf[order] for leaf in data))
            theta, state = self.chain.step(theta, gradients(theta, rows), state, self.chain.rate)
            if (t + 1) % spacing == 0:
                weights.append(theta)
        return torch.stack(weights, dim=1), spacing

    def spacing(self, theta: Tensor) -> int:
        """Steps between kept weights: as asked, or as many as keep all of them within `memory`.

        Args:
            theta: the weights of all trajectories at one step [R, P]

        Returns:
            The number of steps, which divides `data_steps`.
        """
        bytes_a_step = theta.numel() * theta.element_size()
        fits = max(int(self.memory // bytes_a_step) - 1, 1)
        smallest = max(self.interval, math.ceil(self.steps / fits))
        divisors = (d for d in range(max(smallest, 1), self.data_steps + 1) if self.data_steps % d == 0)
        spacing = next(divisors, max(self.data_steps, 1))
        if smallest > self.interval:
            warnings.warn(
                f"memory={self.memory:.3g}: to stay within so many bytes a site, weights are kept every {spacing} "
                f"steps of a trajectory instead of every {self.interval}.",
                stacklevel=2,
            )
        return spacing

    def perturb(self, vectors: Tensor, key: Key) -> Tensor:
        """Repeat each set of weights S times, with noise.

        Args:
            vectors: the sets of weights [M, P]

        Returns:
            The perturbed sets [M·S, P]; the given ones where `noise` is 0.
        """
        if not self.noise:
            return vectors
        noise = key.normal((self.noises, *vectors.shape), vectors)
        return (vectors + self.noise * noise).flatten(0, 1)

    def update(self, coreset: Coreset, velocity: Coreset, gradient: Coreset, scale: Tensor) -> tuple[Coreset, Coreset]:
        """Take one step downhill, along the mean over the pseudo-rows.

        Args:
            velocity: of the step before, in their inputs and targets; see `still`
            gradient: of the divergence, in their inputs and targets
            scale: factor of the steps ψ

        Returns:
            The pseudo-rows moved, labels and weights as they were; and the velocity.
        """
        unit = coreset.w.sum()
        if not self.mean:
            unit = coreset.w.mean()
        moved = velocity._replace(
            x=self.momentum * velocity.x + gradient.x / unit, y=self.momentum * velocity.y + gradient.y / unit
        )
        x = coreset.x - scale * self.rate_x * moved.x
        if not coreset.y.is_floating_point():
            return coreset._replace(x=x), moved
        return coreset._replace(x=x, y=coreset.y - scale * self.rate_y * moved.y), moved


def still(coreset: Coreset) -> Coreset:
    """The velocity of pseudo-rows before their first step.

    Returns:
        Zeros, shaped as the gradient that `contrast` gives.
    """
    y = torch.zeros_like(coreset.y)
    if not coreset.y.is_floating_point():
        y = torch.zeros_like(coreset.x[:, 0])
    return Coreset(torch.zeros_like(coreset.x), y, torch.zeros_like(coreset.w))


def caution(learned: Sequence[Learned], classes: int | None) -> None:
    """Warn of what a user must know about coresets: classes left out, steps halved, rows exposed.

    Args:
        learned: what each site's learning came to
        classes: how many there are; None: a regression
    """
    rows = [len(site.coreset.x) for site in learned]
    if classes is not None and min(rows) < classes:
        warnings.warn(
            f"{min(rows)} pseudo-rows cannot show {classes} classes: each site shows its {min(rows)} most frequent "
            "ones; set learn.rows to at least the number of classes to show all.",
            stacklevel=3,
        )
    halved = [int(site.halved) for site in learned if int(site.halved)]
    if halved:
        warnings.warn(
            f"The coresets of {len(halved)} of {len(learned)} sites diverged and their steps were halved, up to "
            f"{max(halved)} times; a smaller learn.rate_x and learn.rate_y would avoid that.",
            stacklevel=3,
        )
    warnings.warn(exposure_warning([site.near for site in learned], rows), stacklevel=3)


def contrast(task: Task, like: Params, coreset: Coreset, data_side: Tensor, coreset_side: Tensor) -> Coreset:
    """∇_C KL(p(θ|D) ‖ q(θ|C)) = E_{p(θ|D)} ∇_C Σ w·nll − E_{q(θ|C)} ∇_C Σ w·nll, over weights drawn from each.

    Args:
        task: the network and the likelihood
        data_side: weights drawn from p(θ|D) [M, P]
        coreset_side: weights drawn from q(θ|C) [M, P]

    Returns:
        The gradient in the inputs and in the targets of a regression; labels and weights have none.
    """
    has_targets = coreset.y.is_floating_point()
    cut = coreset.x.numel()
    flat = coreset.x.flatten()
    if has_targets:
        flat = torch.cat([flat, coreset.y.flatten()])

    def rebuild(vector: Tensor) -> tuple[Tensor, Tensor]:
        x = vector[:cut].reshape(coreset.x.shape)
        if not has_targets:
            return x, coreset.y
        return x, vector[cut:].reshape(coreset.y.shape)

    def gradient(theta: Tensor) -> Tensor:
        params = tree.unravel(theta, like)

        def loss(vector: Tensor) -> Tensor:
            x, y = rebuild(vector)
            return (coreset.w * task.likelihood.nll(task.outputs(params, x), y, params)).sum()

        return grad(loss, flat)

    difference = map_weights(task, gradient, data_side).mean(0) - map_weights(task, gradient, coreset_side).mean(0)
    x, y = rebuild(difference)
    if not has_targets:
        y = torch.zeros_like(coreset.x[:, 0])
    return Coreset(x, y, torch.zeros_like(coreset.w))


def departure(new: Coreset, first: Coreset, data: Data) -> Tensor:
    """Whether a coreset has diverged: it is not finite, or far from the data and from where it began.

    Args:
        new: the coreset after an update

    Returns:
        A boolean scalar.
    """
    away = torch.zeros((), dtype=torch.bool, device=new.x.device)
    for leaf, origin, rows in zip(new[:2], first[:2], data[:2], strict=True):
        if leaf.is_floating_point():
            real = (data.w > 0).reshape(-1, *[1] * (rows.ndim - 1))
            extent = (torch.where(real, rows, torch.zeros_like(rows)).abs()).amax().clamp(min=1e-6)
            limit = FAR * torch.maximum(extent, origin.abs().amax())
            away = away | ~(leaf.abs().amax() <= limit)  # not a number is not within the limit
    return away
