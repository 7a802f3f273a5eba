"""A further round: each site says how probable its rows are at proposals, and the sum corrects the pool.

The weights are then p(u) Πₖ p(Dₖ | u) / g(u), those of the posterior given all rows, whatever the first pool was;
Pareto k̂ says whether the proposals g reach it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from consilience.draws.alarms import Alarm
from consilience.draws.importance import DOUBTFUL, resample, smooth
from consilience.draws.pooling import CHAINS, Pooled
from consilience.draws.pooling_rules import Factors, moments_of, propose
from consilience.draws.priors import Given, Prior, evaluate, make_prior, read_prior
from consilience.draws.reading import CHAIN, DRAW, Draws
from consilience.draws.space import Space
from consilience.errors import InputError
from consilience.key import Key

if TYPE_CHECKING:
    import xarray

ROUNDS = 3  # of proposals where functions are at hand
KEPT = ("chains", "labels", "modes")  # alarms that log-likelihoods at proposals do not settle


def ask(pooled: Pooled, draws: int = 2000, seed: int = 0) -> xarray.Dataset:
    """Make proposals at which each site shall say how probable its rows are.

    Returns:
        Parameters as the sites have them, with the log-density of the proposals as the variable `log_density`.

    Example:
        >>> import consilience as co
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> sites = [co.draws.read({"beta": rng.normal(m, 1.0, (4, 250))}, f"site {m}") for m in (0, 1)]
        >>> pooled = co.draws.pool(sites, prior={"beta": "normal(0, 10)"}, draws=100)
        >>> co.draws.ask(pooled, draws=50)["beta"].size
        50
    """
    u, density = propose(pooled.moments, draws, Key(seed))
    asked = pooled.space.dataset(u)
    asked["log_density"] = ((CHAIN, DRAW), density.numpy().reshape(1, -1))
    return asked.assign_attrs(pooled.notes())


def answer(asked: xarray.Dataset, log_likelihood: Callable[[dict[str, Any]], float]) -> xarray.Dataset:
    """Say at each proposal how probable a site's rows are; what leaves is one number a proposal.

    Args:
        log_likelihood: log p(D | θ) of parameters by name, of all rows of the site, local parameters integrated out.
    """
    space = Space.from_json(asked.attrs["space"])
    u = space.free(asked, "The question").flatten(0, 1)
    return asked[["log_density"]].assign(
        log_lik=((CHAIN, DRAW), evaluate(log_likelihood, space, u).numpy().reshape(1, -1))
    )


def correct(asked: Draws, answers: Sequence[Draws], prior: Given, draws: int = 4000, seed: int = 0) -> Pooled:
    """Weight the proposals by what all sites answered.

    Args:
        asked: The proposals, as `ask` made them.
        answers: One of each site, in the order of the proposals.
        prior: The prior: densities by name, draws, a function or `flat`.
        draws: How many to make.

    Raises:
        InputError: An answer is missing, or is to another question.
    """
    notes = asked.posterior.attrs
    if "space" not in notes:
        raise InputError("The question was not made by `consilience draws ask`: make it again.")
    space = Space.from_json(notes["space"])
    sites = json.loads(notes["sites"])
    if len(answers) != len(sites):
        raise InputError(f"{len(sites)} sites were pooled and {len(answers)} answered: give one answer of each.")
    if "log_density" not in asked.posterior:
        raise InputError("The question has lost its log_density: make it again with `consilience draws ask`.")
    u = space.free(asked.posterior, "The question").flatten(0, 1)
    density = torch.from_numpy(asked.posterior["log_density"].values.reshape(-1).copy())
    total = torch.zeros(len(u), dtype=torch.float64)
    for each in answers:
        if each.log_likelihood is None:
            raise InputError(f"{each.name} has no log_lik: let its model write log p(D | θ) at every proposal.")
        values = torch.from_numpy(each.log_likelihood.values.reshape(-1).copy()).double()
        if len(values) != len(u):
            raise InputError(
                f"{each.name} answered {len(values)} of {len(u)} proposals: give one number for each, in order."
            )
        if bool(torch.isnan(values).any()):
            raise InputError(f"{each.name} answered with numbers that are none: let log_lik be finite.")
        total = total + values
    if isinstance(prior, str) and prior == "fractional":
        raise InputError("A further round needs the whole prior: give its densities, its draws, or flat.")
    known = make_prior(read_prior(prior), [], space, [u])
    return _weighted(u, total + known.density(u) - density, space, tuple(sites), known, (), draws, Key(seed))


def correct_here(
    pooled: Pooled,
    factors: Factors,
    log_likelihoods: Sequence[Callable[[dict[str, Any]], float]],
    draws: int,
    key: Key,
) -> Pooled:
    """Do the same with functions at hand, a few times, until the proposals reach the posterior.

    Args:
        factors: What it was made from.
        log_likelihoods: One of each site.
        draws: How many to make.
    """
    if len(log_likelihoods) != len(factors.names):
        raise InputError(
            f"There are {len(factors.names)} sites and {len(log_likelihoods)} log-likelihoods: give one a site."
        )
    about = pooled.moments
    kept = tuple(alarm for alarm in pooled.alarms if alarm.kind in KEPT)
    for turn in range(ROUNDS):
        u, density = propose(about, max(2000, draws), key.fold(turn))
        total = torch.stack([evaluate(f, pooled.space, u) for f in log_likelihoods]).sum(0)
        logs = total + factors.prior.density(u) - density
        weights = smooth(logs)
        if weights.k < 0.5 or turn == ROUNDS - 1:
            break
        about = moments_of(u, weights.logs)
    return _weighted(u, logs, pooled.space, factors.names, factors.prior, kept, draws, key.fold(-1))


def _weighted(
    u: Tensor,
    logs: Tensor,
    space: Space,
    sites: tuple[str, ...],
    prior: Prior,
    kept: tuple[Alarm, ...],
    draws: int,
    key: Key,
) -> Pooled:
    """The corrected pool."""
    weights = smooth(logs.nan_to_num(-1e300, neginf=-1e300))
    rows = u[resample(weights.logs, draws - draws % CHAINS, key)]
    alarms = list(kept)
    if not weights.k <= 0.5:
        sentence = (
            f"The proposals miss part of the posterior (Pareto k-hat {weights.k:.2f}): ask once more, about this pool."
        )
        alarms.append(Alarm("weights", not weights.k <= DOUBTFUL, sentence, weights.k))
    if weights.effective < 100:
        sentence = f"The weights of the proposals are worth {weights.effective:.0f} equal ones: ask at more proposals."
        alarms.append(Alarm("effective draws", weights.effective < 20, sentence, weights.effective))
    why = "every site said how probable its rows are at the same proposals"
    posterior = space.dataset(rows, CHAINS)
    return Pooled(posterior, "corrected", why, tuple(alarms), space, sites, prior.said, rows, weights.k)
