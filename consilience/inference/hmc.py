"""Hamiltonian Monte Carlo.  Duane et al., Phys. Lett. B 1987; Neal, Handbook of MCMC 2011, §5.3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.key import Key
from consilience.parties import Client
from consilience.posterior import Posterior, Samples, centre
from consilience.progress import track
from consilience.task import Task
from consilience.training.chain import Inference
from consilience.training.gradient import check_exact
from consilience.training.weight_sets import gradients_of, map_weights
from consilience.tree import Params

LOW = 0.2  # an acceptance below this wastes most of the work


class Sampled(NamedTuple):
    samples: Samples
    accepted: Tensor  # share of the proposals, over all chains, after burning
    rate: Tensor  # ε of every chain at the end


@dataclass(frozen=True)
class HMC:
    """Move along L leapfrog steps of θ̇ = M⁻¹p, ṗ = −∇U(θ), and accept with probability min(1, exp(−ΔH)).

    Samples exp(−U), on all rows at once. Chains run side by side; fresh weights, shuffled, are as fresh, so that each
    begins at a function of its own. While burning, each chain's step is tuned to the acceptance `aim` (log ε moves by
    (a − aim)/√t); then it stays.
    """

    rate: float = 1e-2  # ε, a leapfrog step
    inverse_mass: float = 1.0  # M⁻¹, the same for every weight
    leapfrogs: int = 20  # L, steps a proposal
    burn: int = 100  # proposals thrown away
    samples: int = 5  # kept of each chain
    every: int = 5  # proposals between samples
    chains: int = 4
    shuffle: bool = True  # start each chain at the given weights, shuffled within every layer; False: around them
    spread: float = 0.0  # deviation added to every start
    jitter: float = 0.2  # share by which ε varies from proposal to proposal, against periodic paths (Neal, §5.4.2.2)
    aim: float = 0.8  # acceptance that ε is tuned to while burning; 0: ε stays as given

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        found = self.sample(task, start, client)
        complain(found, self)
        return found.samples

    def sample(self, task: Task, start: Posterior, client: Client) -> Sampled:
        """The samples, chain after chain, with what the accept step saw."""
        if min(self.leapfrogs, self.samples, self.every, self.chains) < 1 or self.burn < 0:
            raise InputError("HMC needs at least one leapfrog step, chain, sample and proposal between samples.")
        check_exact(task, "HMC")
        like, data = centre(start, task.like).params, client.data
        vector, size = tree.ravel(like), data.size
        gradients = gradients_of(task, like, size)

        def energy(vectors: Tensor) -> Tensor:
            return map_weights(task, lambda v: task.potential(tree.unravel(v, like), data, size), vectors)

        theta = self.starts(like, client.key.fold(0))
        log_rate = torch.zeros_like(theta[:, 0])
        kept, accepted, proposals = [], [], self.burn + self.samples * self.every
        before = energy(theta)
        for t in track(range(proposals), "proposal"):
            key = client.key.fold(1).fold(t)
            varied = 1 + self.jitter * (2 * key.fold(2).uniform(self.chains, vector) - 1)
            rate = self.rate * log_rate.exp() * varied
            momentum = key.fold(0).normal_like(theta) / self.inverse_mass**0.5
            new, p = self.leap(theta, momentum, rate, lambda v: size * gradients(v, data))
            after = energy(new)
            change = after - before + 0.5 * self.inverse_mass * ((p**2).sum(-1) - (momentum**2).sum(-1))
            chance = torch.nan_to_num(torch.exp(-change.clamp(min=0)), nan=0.0)
            yes = key.fold(1).uniform(self.chains, change) < chance
            theta, before = torch.where(yes.unsqueeze(-1), new, theta), torch.where(yes, after, before)
            if t < self.burn:
                log_rate = log_rate + (chance - self.aim) / (t + 1) ** 0.5 if self.aim else log_rate
                continue
            accepted.append(yes.to(theta))
            if (t - self.burn) % self.every == self.every - 1:
                kept.append(theta)
        samples = torch.stack(kept, dim=1).flatten(0, 1)
        return Sampled(Samples(tree.unravel(samples, like)), torch.stack(accepted).mean(), self.rate * log_rate.exp())

    def starts(self, like: Params, key: Key) -> Tensor:
        """Where the chains begin [chains, P]."""
        vector = tree.ravel(like)
        theta = vector.expand(self.chains, -1)
        if self.shuffle:
            random = key.fold(0).uniform(self.chains * vector.numel(), vector).reshape(self.chains, -1)
            sizes = [leaf.numel() for leaf in like.values()]
            pairs = zip(theta.split(sizes, -1), random.split(sizes, -1), strict=True)
            theta = torch.cat([part.gather(-1, order.argsort(-1)) for part, order in pairs], -1)
        return theta + self.spread * key.fold(1).normal((self.chains, vector.numel()), vector)

    def leap(
        self, theta: Tensor, p: Tensor, rate: Tensor, gradient: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """L leapfrog steps for every chain; half steps of the momentum at both ends."""
        step = rate.unsqueeze(-1)
        p = p - 0.5 * step * gradient(theta)
        for i in range(self.leapfrogs):
            theta = theta + step * self.inverse_mass * p
            p = p - (step if i < self.leapfrogs - 1 else 0.5 * step) * gradient(theta)
        return theta, p


def complain(found: Sampled, settings: HMC) -> None:
    """Say what to change where most proposals were thrown away, for every client that a vmap runs."""
    looked_at = (tree.below(found.accepted), tree.below(found.rate.mean()))
    for share, rate in torch.stack(torch.broadcast_tensors(*looked_at)).reshape(2, -1).T.tolist():
        if share < LOW:
            warnings.warn(
                f"HMC accepted {share:.0%} of its proposals, too few to trust its samples: set rate={rate / 4:.1g} or "
                f"a larger burn than {settings.burn}, with aim=0.8.",
                stacklevel=3,
            )


def infer(inference: Inference, task: Task, start: Posterior, client: Client) -> tuple[Posterior, Tensor]:
    """A posterior, and the share of proposals accepted on the way: 1 where nothing is ever rejected."""
    if not isinstance(inference, HMC):
        return inference(task, start, client), torch.ones(())
    found = inference.sample(task, start, client)
    complain(found, inference)
    return found.samples, found.accepted
