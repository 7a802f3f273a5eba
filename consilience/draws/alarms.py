"""What speaks against a pool: of the sites' chains, of their posteriors beside each other, and of the pool itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.distributions.posterior import Dense, natural
from consilience.draws.convergence import effective, r_hat
from consilience.draws.importance import DOUBTFUL
from consilience.draws.pooling_rules import Factors, Made, least_share
from consilience.draws.priors import Prior
from consilience.draws.space import Space
from consilience.draws.transforms import Interval, Simplex

MIXED = 1.05  # R̂ above which chains should run longer, and twice as far from 1: may not be pooled
WORTH, ENOUGH = 100.0, 400.0  # effective draws: fewer may not be pooled; fewer are warned of
DIFFERENT = 1e-3  # how probable a difference between sites is by chance, below which they are not alike
NOISE, TOO_NOISY = 0.15, 0.4  # Monte Carlo error of a pooled SD, relative
BENT, TOO_BENT = 0.5, 2.0  # skewness of a site's draws in unconstrained space
VALLEY, LESSER = 0.6, 0.05  # between two modes against the lower of them, and the share of draws there
PULL = 1.0  # pooled SDs by which the prior moves the pool
APART = 0.5  # pooled SDs between two rules' means; or the log of the ratio of their SDs
ERROR, TOO_LARGE = 0.1, 0.5  # Monte Carlo error of a pooled mean, in pooled SDs
WIDER = 3.0  # times the prior's SD that a posterior may be wide
ALONE = 0.95  # of what is known in some direction, by one site
FAR = 1.0  # SDs beyond √d that a pool is from a site's draws
GRID = 128  # places at which a density is looked at
ROUGH = 0.5  # deviation of a log-prior from a quadratic, times how often it is taken out
SHUFFLED = 4  # components beyond which permutations are not gone through
SWITCHED = 0.2  # distance after the best permutation against the distance before


class Alarm(NamedTuple):
    """One thing that speaks against a pool.

    Attributes:
        kind: What was looked at.
        stops: Whether the pool should not be used.
        sentence: What was seen, and what to do.
        value: The number that was compared.
    """

    kind: str
    stops: bool
    sentence: str
    value: float


def chain_alarms(names: Sequence[str], chains: Sequence[Tensor], labels: Sequence[str]) -> Iterator[Alarm]:
    """Look whether each site's chains have mixed.

    Args:
        chains: Their draws [C, S, d].
        labels: What each number is called.
    """
    for name, x in zip(names, chains, strict=True):
        apart, worth = r_hat(x), effective(x)
        j = int(apart.argmax())
        value = float(apart[j])
        if value > MIXED or math.isnan(value):
            stops = not value < 1 + 2 * (MIXED - 1)
            yield Alarm(
                "chains",
                stops,
                f"{name}'s chains do not agree on {labels[j]} (R-hat {value:.2f}): run them longer.",
                value,
            )
        j = int(worth.argmin())
        value = float(worth[j])
        if value < ENOUGH:
            sentence = (
                f"{name}'s draws of {labels[j]} are worth {value:.0f} independent ones: send {ENOUGH:.0f} or more."
            )
            yield Alarm("effective draws", value < WORTH, sentence, value)


def difference(factors: Factors) -> tuple[float, int, float]:
    """Compare the sites' posteriors.

    The prior is in all of them and draws them together, so that chance is not overstated where they know little else.

    Returns:
        How probable it is that they differ so much by chance; the site that is farthest from the others; and how
        probable that is, of so many sites.
    """
    from scipy.special import chdtrc

    own = [natural(g) for g in factors.gaussians]
    precision = torch.stack([n.precision for n in own])
    linear = torch.stack([n.linear for n in own])
    whole, sums = precision.sum(0), linear.sum(0)
    centre = torch.linalg.solve(whole, sums)
    means = torch.linalg.solve(precision, linear)
    away = means - centre
    q = float(torch.einsum("kp,kpq,kq->", away, precision, away))
    count, d = means.shape
    chance = float(chdtrc((count - 1) * d, q))
    alone = []
    for k in range(count):
        rest = whole - precision[k]
        gap = means[k] - torch.linalg.solve(rest, sums - linear[k])
        spread = torch.linalg.inv(precision[k]) + torch.linalg.inv(rest)
        alone.append(float(chdtrc(d, float(gap @ torch.linalg.solve(spread, gap)))))
    farthest = min(range(count), key=alone.__getitem__)
    return chance, farthest, min(1.0, count * alone[farthest])


def overlap_alarms(factors: Factors, multiplies: bool) -> Iterator[Alarm]:
    """Look whether the sites' posteriors can be of one parameter, and whether one site is all that is known.

    Args:
        factors: What the sites sent.
        multiplies: Whether the rule takes them to be of one parameter.
    """
    chance, farthest, alone = difference(factors)
    value = min(chance, alone)
    if value < DIFFERENT:
        name = factors.names[farthest]
        advice = "look at its data, or let sites differ with the rule hierarchical."
        if not multiplies:
            advice = "each parameter is its mean over sites, not one that all have; look at that site's data."
        sentence = f"The sites differ more than chance allows ({_p(value)}), {name} most: {advice}"
        yield Alarm("overlap", multiplies, sentence, value)


def _p(value: float) -> str:
    if value < 1e-16:
        return "p < 1e-16"
    return f"p = {value:.1g}"


def site_alarms(factors: Factors, labels: Sequence[str], multiplies: bool) -> Iterator[Alarm]:
    """Look at each site beside the prior and beside the others: had its model this prior, and is it all that counts?

    Args:
        factors: What the sites sent.
        labels: What each number is called.
        multiplies: Whether the rule takes the sites to be of one parameter.
    """
    whole = torch.stack([g.precision for g in factors.gaussians]).sum(0)
    for name, g in zip(factors.names, factors.gaussians, strict=True):
        j, times = beside_prior(factors.prior, g)
        if times > WIDER and factors.prior.proper:
            sentence = (
                f"{name}'s posterior of {labels[j]} is {times:.1f} times as wide as the prior: look whether its model "
                "has this prior."
            )
            yield Alarm("prior", True, sentence, times)
        others, direction = least_share(whole - g.precision, whole)
        if multiplies and 1 - others > ALONE:
            label = labels[int(direction.abs().argmax())]
            sentence = (
                f"{name} has {100 * (1 - others):.3g} % of what is known of {label}: the pool is nearly its posterior "
                "alone; look whether it has so many more rows."
            )
            yield Alarm("influence", False, sentence, 1 - others)


def beside_prior(prior: Prior, g: Dense) -> tuple[int, float]:
    """Find the number whose posterior is widest beside the prior.

    Returns:
        Its place, and how many times as wide it is.
    """
    known = prior.natural(g.mean).precision.diagonal().clamp(min=0)
    times = (known * torch.linalg.inv(g.precision).diagonal()).sqrt()
    j = int(times.argmax())
    return j, float(times[j])


def sum_alarms(spread: float, freedom: int) -> Iterator[Alarm]:
    """Look whether posteriors of which only sums are known can be of one parameter.

    Args:
        spread: Σ (μₖ − μ)ᵀ Λₖ (μₖ − μ): no larger than χ² where sites agree, as the prior is in all of them.
        freedom: Its degrees of freedom.
    """
    from scipy.special import chdtrc

    value = float(chdtrc(freedom, max(0.0, spread)))
    if value < DIFFERENT:
        sentence = f"The sites differ more than chance allows ({_p(value)}): let each look at its data."
        yield Alarm("overlap", True, sentence, value)


def knowledge_alarms(factors: Factors, labels: Sequence[str], worth: float) -> Iterator[Alarm]:
    """Look whether the sites know enough beyond the prior that is taken out.

    Args:
        factors: What the sites sent.
        labels: What each number is called.
        worth: Effective draws of the site that has fewest.
    """
    whole = torch.stack([g.precision for g in factors.gaussians]).sum(0)
    share, direction = least_share(factors.raw.precision, whole)
    error = math.sqrt(0.5 / max(worth, 1.0) / len(factors.names)) / max(share, 1e-9)
    label = labels[int(direction.abs().argmax())]
    if error > NOISE:
        sentence = (
            f"The sites know little of {label} beyond their prior, which is taken out {factors.spare:.0f} times: its "
            f"pooled SD has a Monte Carlo error of {min(error, 9.99):.0%}; send more draws, or sample with the prior "
            "to the power 1/K and give the prior 'fractional'."
        )
        yield Alarm("prior", error > TOO_NOISY, sentence, error)
    residual = math.sqrt(max(0.0, 1 - factors.prior.fit))
    if factors.prior.fit < 1 and any(x is not None for x in factors.draws):
        spread = torch.cat([factors.prior.density(x) for x in factors.draws if x is not None]).std()
        value = factors.spare * residual * float(spread)
        if value > ROUGH:
            sentence = (
                f"The log-prior is not quadratic where the draws are (off by {value:.1f}): give densities by name."
            )
            yield Alarm("prior", value > 4 * ROUGH, sentence, value)


def shape_alarms(factors: Factors, labels: Sequence[str], bends: bool) -> Iterator[Alarm]:
    """Look for skewness and for several modes in each site's draws.

    Args:
        factors: What the sites sent.
        labels: What each number is called.
        bends: Whether the rule follows skewness.
    """
    for name, x in zip(factors.names, factors.draws, strict=True):
        if x is None:
            continue
        bent = skewness(x)
        j = int(bent.abs().argmax())
        value = float(bent[j].abs())
        if value > TOO_BENT or (value > BENT and not bends):
            sentence = (
                f"{name}'s draws of {labels[j]} are skewed ({value:.1f}): write the model in other parameters, "
                "or choose the rule reweighted."
            )
            yield Alarm("skewness", value > TOO_BENT, sentence, value)
        for label, column in zip(labels, x.unbind(1), strict=True):
            valley = second_mode(column)
            if valley is not None:
                sentence = (
                    f"{name}'s draws of {label} have two modes: see whether labels switch, or order the components."
                )
                yield Alarm("modes", True, sentence, valley)
                break


def skewness(x: Tensor) -> Tensor:
    """The third standardised moment of each column of [S, d]."""
    z = (x - x.mean(0)) / x.std(0)
    cubes: Tensor = (z**3).mean(0)
    return cubes


def second_mode(x: Tensor) -> float | None:
    """Find a second mode of numbers [S].

    Returns:
        How deep the valley before it is, against the lower of the two modes; None where there is none.
    """
    x = x[:: max(1, len(x) // 2000)]
    quarters = torch.quantile(x, torch.tensor([0.25, 0.75], dtype=x.dtype))
    width = 1.1 * float(torch.minimum(x.std(), (quarters[1] - quarters[0]) / 1.34).clamp(min=1e-300)) * len(x) ** -0.2
    width = max(width, float(x.max() - x.min()) / GRID)
    grid = torch.linspace(float(x.min()) - width, float(x.max()) + width, GRID, dtype=x.dtype)
    height = torch.exp(-0.5 * ((grid.unsqueeze(1) - x) / width) ** 2).sum(1)
    top = int(height.argmax())
    share = height.cumsum(0) / height.sum()
    best: float | None = None
    for side in (range(top, -1, -1), range(top, GRID)):
        places = list(side)
        if len(places) < 3:
            continue
        heights = height[places]
        lowest = torch.cummin(heights, 0).values
        ratio = lowest / heights
        at = int(ratio.argmin())
        valley = places[int(heights[: at + 1].argmin())]
        mass = float(share[valley])
        if places[-1] != 0:
            mass = 1 - mass
        if float(ratio[at]) < VALLEY and mass > LESSER and (best is None or float(ratio[at]) < best):
            best = float(ratio[at])
    return best


def label_alarms(space: Space, names: Sequence[str], chains: Sequence[Tensor]) -> Iterator[Alarm]:
    """Look whether sites, or the chains of one, number the same components differently.

    Args:
        chains: Their draws [C, S, d].
    """
    sizes: dict[int, list[str]] = {}
    for p in space.parameters:
        plain = isinstance(p.transform, (Interval, Simplex))
        if plain and len(p.shape) == 1 and 2 <= p.shape[0] <= SHUFFLED and all(isinstance(c, int) for c in p.coords[0]):
            sizes.setdefault(p.shape[0], []).append(p.name)
    for size, parameters in sizes.items():
        if not names:
            return
        means, deviations, owners = [], [], []
        for name, x in zip(names, chains, strict=True):
            for chain in x:
                values = space.constrain(chain)
                means.append(torch.stack([values[p].mean(0) for p in parameters]))
                deviations.append(torch.stack([values[p].std(0) for p in parameters]))
                owners.append(name)
        width = torch.stack(deviations).mean((0, 2)).clamp(min=1e-12).unsqueeze(1)
        first = means[0]
        for owner, mean in zip(owners[1:], means[1:], strict=True):
            as_is = float((((mean - first) / width) ** 2).sum())
            others = (mean[:, list(order)] for order in itertools.permutations(range(size)))
            best = min(float((((other - first) / width) ** 2).sum()) for other in others)
            if as_is > 9 * size and best < SWITCHED * as_is:
                listed = ", ".join(parameters)
                sentence = (
                    f"{owner} and {owners[0]} number the components of {listed} differently: order them in the model, "
                    f"and declare {parameters[0]}=ordered."
                )
                yield Alarm("labels", True, sentence, as_is)
                break


def error_alarms(made: Made, names: Sequence[str], labels: Sequence[str]) -> Iterator[Alarm]:
    """Look whether the sites' draws are enough, and lie where the pool is.

    Args:
        made: The pool's draws, with what its rule measured.
        names: The sites.
        labels: What each number is called.
    """
    if made.error is not None:
        j = int(made.error.argmax())
        value = float(made.error[j])
        if value > ERROR:
            sentence = (
                f"The pooled mean of {labels[j]} has a Monte Carlo error of {value:.2f} SDs: send more draws, or "
                "correct the pool by a further round."
            )
            yield Alarm("Monte Carlo error", value > TOO_LARGE, sentence, value)
    if made.away is not None:
        k = max(range(len(names)), key=made.away.__getitem__)
        value = made.away[k]
        if value > len(labels) ** 0.5 + FAR:
            sentence = (
                f"The pool lies {value:.1f} SDs from what {names[k]} sent, where its draws say little: correct the "
                "pool by a further round."
            )
            yield Alarm("support", False, sentence, value)


def pool_alarms(factors: Factors, pooled: Dense, labels: Sequence[str], k: float | None) -> Iterator[Alarm]:
    """Look at the pool: whether weights can be believed, and whether the prior contradicts it.

    Args:
        factors: What the sites sent.
        labels: What each number is called.
        k: k̂ of its importance weights.
    """
    if k is not None and not k <= 0.5:
        sentence = f"Few draws carry the weights of the pool (Pareto k-hat {k:.2f}): correct it by a further round."
        yield Alarm("weights", not k <= DOUBTFUL, sentence, k)
    if factors.prior.proper:
        known = factors.prior.natural(pooled.mean)
        slope = known.linear - known.precision @ pooled.mean
        var = torch.linalg.inv(pooled.precision)
        pull = (var @ slope) / var.diagonal().sqrt()
        j = int(pull.abs().argmax())
        value = float(pull[j].abs())
        if value > PULL:
            sentence = (
                f"The prior moves {labels[j]} by {value:.1f} SDs of the pool, against what the sites' rows say: "
                "reconsider it."
            )
            yield Alarm("conflict", False, sentence, value)


def apart(first: Dense, second: Dense) -> Tensor:
    """How far two rules are from each other in each number: in means, in SDs, or in the log of SDs' ratio."""
    one = torch.linalg.inv(first.precision).diagonal().sqrt()
    other = torch.linalg.inv(second.precision).diagonal().sqrt()
    gap = (first.mean - second.mean).abs() / torch.minimum(one, other)
    return torch.maximum(gap, (one / other).log().abs())
