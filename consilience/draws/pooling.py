"""From the sites' draws to the pooled posterior, with what speaks against it."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from consilience.distributions.posterior import Dense, Samples, dense_moments
from consilience.draws.alarms import (
    APART,
    BENT,
    DIFFERENT,
    Alarm,
    apart,
    chain_alarms,
    difference,
    error_alarms,
    knowledge_alarms,
    label_alarms,
    overlap_alarms,
    pool_alarms,
    shape_alarms,
    site_alarms,
    skewness,
    sum_alarms,
)
from consilience.draws.convergence import effective
from consilience.draws.moments import Moments
from consilience.draws.pooling_rules import BY_MOMENTS, RULES, Factors, Made, hierarchical, rows_of
from consilience.draws.priors import Given, Prior, make_prior, prior_draws, read_prior, supports
from consilience.draws.reading import EXTRA, UNNAMED, Draws, load_xarray, read
from consilience.draws.space import Space, shared_space
from consilience.draws.transforms import Transform
from consilience.draws.warped import few_enough
from consilience.errors import InputError, RunWarning, unknown_name
from consilience.key import Key

if TYPE_CHECKING:
    import xarray

AUTO = "auto"
CHAINS = 4  # that pooled draws are dealt into, so that tools which compare chains have some
SAME = 1e-9  # SDs between the means of two sites' draws: nearer, they are the same draws
UNSEEN = 1000.0  # effective draws that moments are taken to be of
UNUSABLE = "Do not use this pool"


class Choice(NamedTuple):
    """A rule, and why.

    Attributes:
        rule: Its name.
        why: In a sentence.
    """

    rule: str
    why: str


@dataclass(frozen=True, eq=False)
class Pooled:
    """A pooled posterior.

    Attributes:
        posterior: Draws by name, with the sites' dimensions and coordinates.
        rule: What made it.
        why: Why this rule.
        alarms: What speaks against it.
        space: The parameters with their transforms.
        sites: Who sent draws.
        prior: What the prior was taken from.
        unconstrained: The same draws as vectors [S, d].
        k: k̂ of importance weights, where the rule has some.
        left: What is not pooled, as not all sites have it with the same labels.
    """

    posterior: xarray.Dataset
    rule: str
    why: str
    alarms: tuple[Alarm, ...]
    space: Space
    sites: tuple[str, ...]
    prior: str
    unconstrained: Tensor
    k: float | None = None
    left: tuple[str, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether nothing forbids its use."""
        return not any(alarm.stops for alarm in self.alarms)

    @property
    def verdict(self) -> str:
        """In a sentence, whether to use it."""
        if not self.usable:
            return f"{UNUSABLE}: {next(alarm.sentence for alarm in self.alarms if alarm.stops)}"
        if self.alarms:
            return "The pool can be used, with the cautions above."
        return "Nothing speaks against this pool."

    @property
    def moments(self) -> Dense:
        """Its mean and precision in unconstrained space."""
        return dense_moments(Samples({"u": self.unconstrained}))

    def to_arviz(self) -> Any:
        """Make InferenceData of it, or a DataTree where this version of ArviZ has that.

        Raises:
            InputError: ArviZ is not installed.
        """
        try:
            import arviz
        except ImportError:
            raise InputError(EXTRA) from None
        noted = self.posterior.assign_attrs(self.notes())
        made = getattr(arviz, "InferenceData", None)
        if made is not None and not issubclass(made, load_xarray().DataTree):
            return made(posterior=noted)
        return load_xarray().DataTree.from_dict({"/posterior": noted})

    def notes(self) -> dict[str, Any]:
        """Write how it was made, for the attributes of a file."""
        return {
            "created_by": "consilience",
            "rule": self.rule,
            "why": self.why,
            "prior": self.prior,
            "sites": json.dumps(self.sites),
            "space": self.space.to_json(),
            "usable": int(self.usable),
            "alarms": json.dumps([alarm.sentence for alarm in self.alarms], ensure_ascii=False),
        }


def pool(
    sites: Sequence[Any],
    prior: Given | str = None,
    rule: str = AUTO,
    *,
    params: Collection[str] | None = None,
    transforms: Mapping[str, str | Transform] | None = None,
    draws: int = 4000,
    seed: int = 0,
    tau: float | None = None,
    log_likelihoods: Sequence[Callable[[dict[str, Any]], float]] | None = None,
) -> Pooled:
    """Pool the draws of several sites, each from its own rows and the same prior, into one posterior.

        north = co.draws.read("north.nc")
        pooled = co.draws.pool([north, "south.nc", mcmc], prior={"beta": "normal(0, 2.5)", "sigma": "exponential(1)"})
        pooled.verdict, pooled.alarms
        az.summary(pooled.to_arviz())

    Args:
        sites: Draws, moments, or what `read` reads.
        prior: What all sites used, and what shall count once: draws, densities by name, a function of the parameters,
            `flat`, or `fractional` where each site used p(θ)^(1/K); by default what the files carry.
        rule: One of `RULES`, or `auto`.
        params: What to pool; by default what all sites have with the same labels.
        transforms: real, positive, unit, interval(LOW,HIGH), simplex, ordered, correlation or cholesky, by name; those
            that are not declared are inferred.
        draws: How many to make.
        tau: For `hierarchical`: the scale of each τ's half-normal prior, in unconstrained space.
        log_likelihoods: One a site: log p(Dₖ | θ) of parameters by name, for a further round that corrects the pool.

    Returns:
        The pool, with all alarms.

    Raises:
        InputError: The draws cannot be pooled.

    Example:
        >>> import consilience as co
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> sites = [co.draws.read({"beta": rng.normal(m, 1.0, (4, 250))}, f"site {m}") for m in (0, 1)]
        >>> pooled = co.draws.pool(sites, prior={"beta": "normal(0, 10)"}, draws=100)
        >>> pooled.sites, pooled.posterior["beta"].size
        (('site 0', 'site 1'), 100)
    """
    read_in = [site if isinstance(site, Moments) else read(site) for site in sites]
    heard = _named(read_in)
    if len(heard) < 2:
        raise InputError(f"There is {len(heard)} site: give the draws of two or more.")
    if rule not in (AUTO, *RULES):
        raise unknown_name("rule", rule, (AUTO, *RULES))
    if draws < CHAINS * 10:
        raise InputError(f"{draws} draws are too few to describe a posterior: make {CHAINS * 10} or more.")
    if tau is not None and not tau > 0:
        raise InputError(f"tau={tau:g} is no scale: give a number above 0.")
    if tau is not None and rule not in (AUTO, "hierarchical"):
        raise InputError(f"The rule {rule} has no tau: leave it out, or choose hierarchical.")
    key = Key(seed)
    space, chains, factors = gather(heard, prior, params, transforms)
    if rule not in (AUTO, *BY_MOMENTS) and any(x is None for x in chains):
        raise InputError(f"Moments are not draws, which the rule {rule} needs: choose {' or '.join(BY_MOMENTS)}.")
    chosen = Choice(rule, "it was asked for")
    if rule == AUTO:
        chosen = choose(factors)
    apply: Any = RULES[chosen.rule]
    if chosen.rule == "hierarchical":
        apply = partial(hierarchical, tau=tau)
    made: Made = apply(factors, draws - draws % CHAINS, key.fold(0))
    alarms = list(_look(space, chains, factors, chosen, made, key.fold(1)))
    pooled = _finish(space, factors, chosen, made, alarms)
    if params is None:
        every = [str(name) for site in heard if isinstance(site, Draws) for name in site.posterior.data_vars]
        pooled = replace(pooled, left=tuple(dict.fromkeys(name for name in every if name not in pooled.posterior)))
    if log_likelihoods is not None:
        from consilience.draws.correcting import correct_here

        return correct_here(pooled, factors, log_likelihoods, draws - draws % CHAINS, key.fold(2))
    return pooled


def gather(
    heard: Sequence[Draws | Moments],
    prior: Given | str,
    params: Collection[str] | None,
    transforms: Mapping[str, str | Transform] | None,
) -> tuple[Space, list[Tensor | None], Factors]:
    """Write what all sites sent by unconstrained numbers.

    Returns:
        The space; the chains of each site [C, S, d], None for one that sent moments; and what is multiplied.

    Raises:
        InputError: Sites have nothing in common, or the prior is not known.
    """
    drawn = [site for site in heard if isinstance(site, Draws)]
    known: Any = read_prior(prior)
    short = [site for site in heard if isinstance(site, Moments)]
    if short:
        space = short[0].space
        if any(site.space != space for site in short) or params is not None or transforms:
            raise InputError(
                "Moments are of the parameters and transforms they name: give all sites the same, and no other."
            )
    else:
        space = shared_space(drawn, params, transforms, prior_draws(known, drawn), supports(known))
    chains: list[Tensor | None] = []
    gaussians = []
    for site in heard:
        if isinstance(site, Moments):
            chains.append(None)
            gaussians.append(site.gaussian)
            continue
        x = space.free(site.posterior, site.name)
        chains.append(x)
        gaussians.append(check_moments(site.name, x.flatten(0, 1), space))
    _refuse_copies(heard, gaussians)
    flat = [None if x is None else x.flatten(0, 1) for x in chains]
    made = make_prior(known, drawn, space, [x for x in flat if x is not None])
    return space, chains, Factors(tuple(s.name for s in heard), tuple(flat), tuple(gaussians), made, len(heard) - 1)


def choose(factors: Factors) -> Choice:
    """Choose a rule by what the sites sent, as the measured table of docs/posteriors.md has it.

    Args:
        factors: What the sites sent.
    """
    chance, farthest, alone = difference(factors)
    if min(chance, alone) < DIFFERENT and len(factors.names) > 2:
        return Choice("hierarchical", f"the sites differ more than chance allows, {factors.names[farthest]} most")
    if any(x is None for x in factors.draws):
        return Choice("gaussian", "a site sent moments, of which only Gaussians can be made")
    if few_enough(factors.width, rows_of(factors.draws)):
        return Choice("reweighted", "it follows skewness, which moves means the more, the more sites are multiplied")
    bent = max(float(skewness(x).abs().max()) for x in factors.draws if x is not None)
    if bent > BENT:
        return Choice("reweighted", f"draws are skewed ({bent:.1f}), which a Gaussian does not follow")
    return Choice("gaussian", f"{factors.width} numbers are too many for third cumulants of so few draws")


def _named(sites: Sequence[Any]) -> list[Any]:
    """Sites whose names differ; those without a name have their number."""
    names = [site.name for site in sites]
    found = []
    for number, site in enumerate(sites):
        name = site.name
        if name == UNNAMED or names.count(name) > 1:
            name = f"{name} {number + 1}"
        found.append(replace(site, name=name))
    return found


def _refuse_copies(heard: Sequence[Draws | Moments], gaussians: Sequence[Dense]) -> None:
    """Refuse draws that came twice: multiplied, they would count twice."""
    for (one, first), (other, second) in itertools.combinations(zip(heard, gaussians, strict=True), 2):
        gap = (first.mean - second.mean).abs() * first.precision.diagonal().sqrt()
        if float(gap.max()) < SAME and bool(torch.allclose(first.precision, second.precision, rtol=SAME)):
            raise InputError(f"{one.name} and {other.name} sent the same draws: give each site's own, once.")


def check_moments(name: str, x: Tensor, space: Space) -> Dense:
    """Take a site's mean and precision of vectors [S, d].

    Raises:
        InputError: They are too few, do not vary, or follow from each other.
    """
    if len(x) <= 2 * space.width:
        raise InputError(f"{name} sent {len(x)} draws of {space.width} numbers: send {10 * space.width} or more.")
    spread = x.std(0)
    for label, width, size in zip(space.labels, spread.tolist(), x.abs().amax(0).tolist(), strict=True):
        if width <= 1e-10 * max(size, 1e-300):
            raise InputError(f"{name}'s draws of {label} are all the same: leave it out of the parameters to pool.")
    values, vectors = torch.linalg.eigh(x.mT.corrcoef().reshape(space.width, space.width))
    if float(values[0]) < 1e-9:
        worst = vectors[:, 0].abs().topk(min(2, space.width)).indices.tolist()
        first, second = (space.labels[j] for j in (*worst, worst[0])[:2])
        raise InputError(f"{name}'s draws of {first} and {second} follow from each other: name the parameters to pool.")
    return dense_moments(Samples({"u": x}))


def pool_sum(
    total: Dense, own: float, names: Sequence[str], space: Space, prior: Prior, draws: int = 4000, seed: int = 0
) -> Pooled:
    """Pool posteriors of which only the sum of precisions is known, as under masks: by the Gaussian rule.

    Args:
        total: Σ Λₖ, with the mean that Σ Λₖ μₖ gives.
        own: Σ μₖᵀ Λₖ μₖ, which says whether the sites' posteriors can be of one parameter.
        names: The sites.
        space: Of the pooled parameters.
        prior: What each site's posterior has in it.
        draws: How many to make.
        seed: Of the randomness.

    Returns:
        The pool; how each site's own posterior looks, nobody has seen.
    """
    count, key = len(names), Key(seed)
    share = Dense(total.mean, total.precision / count)
    factors = Factors(tuple(names), (None,) * count, (share,) * count, prior, count - 1)
    chosen = Choice("gaussian", "precisions add up, and nothing else was sent")
    made = RULES[chosen.rule](factors, draws - draws % CHAINS, key.fold(0))
    found = dense_moments(Samples({"u": made.draws}))
    spread = own - float(total.mean @ total.precision @ total.mean)
    alarms = [
        *sum_alarms(spread, (count - 1) * space.width),
        *knowledge_alarms(factors, space.labels, UNSEEN),
        *pool_alarms(factors, found, space.labels, None),
    ]
    return _finish(space, factors, chosen, made, alarms)


def _look(space: Space, chains: Sequence[Tensor | None], factors: Factors, chosen: Choice, made: Made, key: Key) -> Any:
    """All alarms of a pool."""
    labels = space.labels
    drawn = [(name, x) for name, x in zip(factors.names, chains, strict=True) if x is not None]
    names = [name for name, _ in drawn]
    values = [x for _, x in drawn]
    multiplies = chosen.rule not in ("mixture", "hierarchical")
    yield from chain_alarms(names, values, labels)
    yield from label_alarms(space, names, values)
    if chosen.rule != "mixture":
        yield from overlap_alarms(factors, multiplies)
    yield from site_alarms(factors, labels, multiplies)
    if multiplies:
        worth = min((float(effective(x).min()) for x in values), default=UNSEEN)
        yield from knowledge_alarms(factors, labels, worth)
    yield from shape_alarms(factors, labels, chosen.rule not in BY_MOMENTS)
    found = dense_moments(Samples({"u": made.draws}))
    yield from pool_alarms(factors, found, labels, made.k)
    yield from error_alarms(made, names, labels)
    if multiplies and values and len(values) == len(chains):
        yield from _compare(factors, chosen, found, labels, key)


def _compare(factors: Factors, chosen: Choice, found: Dense, labels: Sequence[str], key: Key) -> Any:
    """Warn where another rule says something else."""
    other = "reweighted"
    if chosen.rule == "reweighted":
        other = "gaussian"
    made = RULES[other](factors, 1000, key)
    gap = apart(found, dense_moments(Samples({"u": made.draws})))
    j = int(gap.argmax())
    if float(gap[j]) > APART:
        sentence = (
            f"The rules {chosen.rule} and {other} differ by {float(gap[j]):.1f} SDs in {labels[j]}: correct the pool "
            "by a further round."
        )
        yield Alarm("rules", float(gap[j]) > 2 * APART, sentence, float(gap[j]))


def _finish(space: Space, factors: Factors, chosen: Choice, made: Made, alarms: Sequence[Alarm]) -> Pooled:
    posterior = space.dataset(made.draws, CHAINS)
    if made.newcomer is not None and made.tau is not None:
        posterior = posterior.merge(space.dataset(made.newcomer, CHAINS, "new_"))
        variables = {}
        for p, part in zip(space.parameters, made.tau.split([p.width for p in space.parameters], 1), strict=True):
            array = part.numpy().reshape(CHAINS, -1, p.width)
            if p.width == math.prod(p.shape):  # a number of the parameter's own each
                variables[f"tau_{p.name}"] = (("chain", "draw", *p.dims), array.reshape(*array.shape[:2], *p.shape))
            else:
                variables[f"tau_{p.name}"] = (("chain", "draw", f"tau_{p.name}_dim"), array)
        posterior = posterior.assign(variables)
    return Pooled(
        posterior, chosen.rule, chosen.why, tuple(alarms), space, factors.names, factors.prior.said, made.draws, made.k
    )


def warn_of_alarms(pooled: Pooled) -> None:
    """Emit each alarm as a warning, for who does not look at them."""
    for alarm in pooled.alarms:
        warnings.warn(alarm.sentence, RunWarning, stacklevel=3)
