"""Where a prediction's uncertainty comes from: the observation, the weights, or the sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Distribution, Normal, mixture
from consilience.distributions.survival import Survival
from consilience.errors import InputError

ROUNDING = 1e-6  # of all uncertainty: what is smaller is the rounding of its parts


class Uncertainty(NamedTuple):
    """For every input: entropies in nats for classes, variances (summed over outputs) for numbers.

    Attributes:
        total: All of it [N].
        aleatoric: What remains when the weights are known [N].
        epistemic: total − aleatoric: what more data would take away [N].
        disagreement: The part of the epistemic that lies between the sites [N].
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    disagreement: Tensor


def decompose(members: Sequence[Sequence[Distribution]], weights: Tensor) -> Uncertainty:
    """Split the uncertainty of the weighted mixture of sites, each a list of its posterior's members.

    Disagreement is the mutual information between label and site, H(Σ wₖ p̄ₖ) − Σ wₖ H(p̄ₖ), or for numbers the variance
    of the sites' means.

    Args:
        members: For each site, the distributions of its posterior's members at the same inputs.
        weights: One number a site [K]; normalised here.

    Returns:
        The parts, for every input.

    Raises:
        InputError: If a site has no weight or no member.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> one, other = (Categorical(torch.tensor([row]).log()) for row in ([0.9, 0.1], [0.1, 0.9]))
        >>> found = co.metrics.decompose([[one], [other]], torch.tensor([0.5, 0.5]))
        >>> bool(found.disagreement > found.aleatoric)
        True
    """
    if len(members) != len(weights) or not all(members):
        raise InputError(
            f"There are {len(members)} sites and {len(weights)} weights; "
            "give each site one weight and at least one member."
        )
    if isinstance(members[0][0], Categorical):
        return _entropies(cast(Sequence[Sequence[Categorical]], members), weights)
    return _variances([[as_normal(p) for p in site] for site in members], weights)


def belonging_to(p: Distribution, split: Uncertainty, shown: Distribution | None = None) -> Uncertainty:
    """Let the parts belong to the prediction that they stand beside: together they are its uncertainty.

    Only a mixture has the uncertainty of its members. A product is surer than they are, a student or a mode another
    model, and a closed form has no draws: what the prediction says of itself is all of it. Of that is aleatoric what
    its members say, at most all of it; for numbers the prediction's own noise, where it has one. The rest is epistemic.

    Args:
        p: What the model predicts for the inputs.
        split: The parts for its members, in the same unit.
        shown: What is shown in place of `p`, at a temperature: it scales all parts alike. None: `p`.

    Returns:
        The parts of what is shown.
    """
    total = _total(p)
    aleatoric = split.aleatoric.to(total)
    if not isinstance(p, Categorical):
        normal = as_normal(p)
        noise = _per_row(normal.noise.expand_as(normal.mean))
        aleatoric = torch.where(noise > 0, noise, aleatoric)
    aleatoric = torch.minimum(aleatoric, total)
    epistemic = total - aleatoric
    epistemic = torch.where(epistemic > ROUNDING * total, epistemic, 0)
    parts = Uncertainty(total, total - epistemic, epistemic, torch.minimum(split.disagreement.to(total), epistemic))
    if shown is None:
        return parts
    scale = torch.where(total > 0, _total(shown).to(total) / total, 1)
    return Uncertainty(*(scale * part for part in parts))


def _total(p: Distribution) -> Tensor:
    """The entropy of every row's classes, or the variance of its observation, in double precision."""
    if isinstance(p, Categorical):
        return _entropy(Categorical(p.log_probs.double()))
    return _per_row(as_normal(p).total.double())


def as_normal(p: Distribution) -> Normal:
    """Write what is known of a number as mean, variance and noise.

    Args:
        p: A distribution of numbers; of times to an event, that of the log-hazard, which has no noise.

    Returns:
        A Normal with these moments.
    """
    if isinstance(p, Counts):
        return Normal(p.mean, p.var, p.mean)
    if isinstance(p, Survival):
        return Normal(p.risk, p.var, torch.zeros_like(p.var))
    assert isinstance(p, Normal)
    return p


def _entropies(members: Sequence[Sequence[Categorical]], weights: Tensor) -> Uncertainty:
    sites = [cast(Categorical, mixture(site, torch.ones(len(site)))) for site in members]
    total = _entropy(cast(Categorical, mixture(sites, weights)))
    within = _mean([_entropy(site) for site in sites], weights)
    aleatoric = _mean([torch.stack([_entropy(p) for p in site]).mean(0) for site in members], weights)
    epistemic = (total - aleatoric).clamp(min=0)  # below 0 only by rounding, here and in the next line
    return Uncertainty(total, aleatoric, epistemic, torch.minimum((total - within).clamp(min=0), epistemic))


def _variances(members: Sequence[Sequence[Normal]], weights: Tensor) -> Uncertainty:
    sites = [cast(Normal, mixture(site, torch.ones(len(site)))) for site in members]
    pooled = cast(Normal, mixture(sites, weights))
    between = _mean([(site.mean - pooled.mean) ** 2 for site in sites], weights)
    total = _per_row(pooled.total)
    noise = _per_row(pooled.noise.expand_as(pooled.mean))
    return Uncertainty(total, noise, total - noise, torch.minimum(_per_row(between), total - noise))


def _entropy(p: Categorical) -> Tensor:
    entropies: Tensor = torch.special.entr(p.probs)
    return entropies.sum(-1)


def _mean(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    stacked = torch.stack(list(values))
    return torch.einsum("k,k...->...", (weights / weights.sum()).to(stacked), stacked)


def _per_row(values: Tensor) -> Tensor:
    """The sum over a row's outputs [N]."""
    return values.reshape(len(values), -1).sum(1)
