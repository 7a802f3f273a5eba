"""Hamiltonian Monte Carlo.  Duane et al., Phys. Lett. B 1987; Neal, Handbook of MCMC 2011, §5.3."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Posterior, Samples, centre
from consilience.errors import InputError
from consilience.inference.chain import Inference
from consilience.inference.fast.weight_sets import gradients_of, map_weights
from consilience.inference.gradient import check_exact
from consilience.key import Key
from consilience.messages import Client
from consilience.progress import track
from consilience.task import Task
from consilience.tree import Params

LOW = 0.2  # an acceptance below this wastes most of the work


class Draws(NamedTuple):
    """What the chains drew.

    Attributes:
        samples: of all chains, one chain after another
        accepted: share of the proposals accepted after burning, over all chains
        rate: ε of every chain at the end [chains]
    """

    samples: Samples
    accepted: Tensor
    rate: Tensor


@dataclass(frozen=True)
class HMC:
    """Move along L leapfrog steps of θ̇ = M⁻¹p, ṗ = −∇U(θ), and accept with probability min(1, exp(−ΔH)).

    Samples exp(−U), on all rows at once. Chains run side by side; fresh weights, shuffled, are as fresh, so that each
    begins at a function of its own. While burning, each chain's step is tuned to the acceptance `aim` (log ε moves by
    (a − aim)/√t); then it stays.

    Attributes:
        rate: ε, a leapfrog step
        inverse_mass: M⁻¹, the same for every weight
        leapfrogs: L, steps a proposal
        burn: proposals thrown away
        samples: samples kept of each chain
        every: proposals between samples
        chains: how many run side by side
        shuffle: start each chain at the given weights, shuffled within every layer; False: around them
        spread: deviation added to every start
        jitter: share by which ε varies from proposal to proposal, against periodic paths (Neal, §5.4.2.2)
        aim: acceptance that ε is tuned to while burning; 0: ε stays as given

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(100), sites=2, split="iid", model="linear")
        >>> inference = co.HMC(burn=10, samples=3, every=1, leapfrogs=3, chains=2)
        >>> result = co.run(co.methods.Mixture(inference=inference), problem)
        >>> len(result.replies[0].payload.params["0.bias"])
        6
    """

    rate: float = 1e-2
    inverse_mass: float = 1.0
    leapfrogs: int = 20
    burn: int = 100
    samples: int = 5
    every: int = 5
    chains: int = 4
    shuffle: bool = True
    spread: float = 0.0
    jitter: float = 0.2
    aim: float = 0.8

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        """Sample exp(−U), with a warning where most proposals were rejected.

        Returns:
            The samples, chain after chain.

        Raises:
            InputError: if a setting leaves nothing to sample, or the network draws in training.
        """
        draws = self.sample(task, start, client)
        warn_low_acceptance(draws, self)
        return draws.samples

    def sample(self, task: Task, start: Posterior, client: Client) -> Draws:
        """Sample exp(−U).

        Returns:
            The samples, with what the accept step saw.

        Raises:
            InputError: if a setting leaves nothing to sample, or the network draws in training.
        """
        if min(self.leapfrogs, self.samples, self.every, self.chains) < 1 or self.burn < 0:
            raise InputError("HMC needs at least one leapfrog step, chain, sample and proposal between samples.")
        check_exact(task, "HMC")
        like = centre(start, task.like).params
        data = client.data
        size = data.size
        gradients = gradients_of(task, like, size)

        def energy(vectors: Tensor) -> Tensor:
            return map_weights(task, lambda v: task.potential(tree.unravel(v, like), data, size), vectors)

        theta = self.starts(like, client.key.fold(0))
        log_rate = torch.zeros_like(theta[:, 0])
        before = energy(theta)
        samples: list[Tensor] = []
        accepted: list[Tensor] = []
        for t in track(range(self.burn + self.samples * self.every), "proposal"):
            key = client.key.fold(1).fold(t)
            variation = 1 + self.jitter * (2 * key.fold(2).uniform(self.chains, theta) - 1)
            rate = self.rate * log_rate.exp() * variation
            momentum = key.fold(0).normal_like(theta) / self.inverse_mass**0.5
            new, p = self.leap(theta, momentum, rate, lambda v: size * gradients(v, data))
            after = energy(new)
            change = after - before + 0.5 * self.inverse_mass * ((p**2).sum(-1) - (momentum**2).sum(-1))
            chance = torch.nan_to_num(torch.exp(-change.clamp(min=0)), nan=0.0)
            accept = key.fold(1).uniform(self.chains, change) < chance
            theta = torch.where(accept.unsqueeze(-1), new, theta)
            before = torch.where(accept, after, before)
            if t < self.burn:
                if self.aim:
                    log_rate = log_rate + (chance - self.aim) / (t + 1) ** 0.5
                continue
            accepted.append(accept.to(theta))
            if (t - self.burn) % self.every == self.every - 1:
                samples.append(theta)
        vectors = torch.stack(samples, dim=1).flatten(0, 1)
        return Draws(Samples(tree.unravel(vectors, like)), torch.stack(accepted).mean(), self.rate * log_rate.exp())

    def starts(self, like: Params, key: Key) -> Tensor:
        """Where the chains begin.

        Args:
            like: the weights to begin at
            key: for the shuffle and the spread

        Returns:
            A set of weights for each chain [chains, P].
        """
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
        """L leapfrog steps for every chain; half steps of the momentum at both ends.

        Args:
            theta: the weights [chains, P]
            p: the momenta [chains, P]
            rate: ε of every chain [chains]
            gradient: ∇U of every chain

        Returns:
            The new weights and momenta.
        """
        step = rate.unsqueeze(-1)
        p = p - 0.5 * step * gradient(theta)
        for _ in range(self.leapfrogs - 1):
            theta = theta + step * self.inverse_mass * p
            p = p - step * gradient(theta)
        theta = theta + step * self.inverse_mass * p
        p = p - 0.5 * step * gradient(theta)
        return theta, p


def warn_low_acceptance(draws: Draws, settings: HMC) -> None:
    """Say what to change where most proposals were rejected, for every client that a vmap runs.

    Args:
        draws: what the chains drew
        settings: with which they ran
    """
    values = torch.broadcast_tensors(tree.below(draws.accepted), tree.below(draws.rate.mean()))
    for share, rate in torch.stack(values).reshape(2, -1).T.tolist():
        if share < LOW:
            warnings.warn(
                f"HMC accepted {share:.0%} of its proposals, too few to trust its samples: set rate={rate / 4:.1g} or "
                f"a burn of more than {settings.burn}, with aim=0.8.",
                stacklevel=3,
            )


def infer(inference: Inference, task: Task, start: Posterior, client: Client) -> tuple[Posterior, Tensor]:
    """A posterior, and the share of proposals accepted on the way: 1 where nothing is ever rejected.

    Args:
        inference: HMC or any other
    """
    if not isinstance(inference, HMC):
        return inference(task, start, client), torch.ones(())
    draws = inference.sample(task, start, client)
    warn_low_acceptance(draws, inference)
    return draws.samples, draws.accepted
