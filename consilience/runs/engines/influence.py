"""How much of a pooled model is one site's.

Compare the pool with two others: without the site, and of the site alone. How far the pool moves to the first, as a
share of both ways, is the site's influence:

    influence(k) = d(pool, pool without k) / (d(pool, pool without k) + d(pool, pool of k alone))

Where predictions or weights are averaged this is the site's weight, nₖ/n, whatever the sites think; K alike have 1/K
each. It is 1 where a site decides: without it everything changes, and alone it would have given the same. Above ½ the
pool is nearer to this one site than to all others together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from consilience.distributions.predictive import Categorical, Distribution
from consilience.errors import InputError
from consilience.messages import Received, Server
from consilience.method import Method, Needs, needs
from consilience.metrics.uncertainty import as_normal
from consilience.runs.engines.soundness import MOST, Pool, quietly
from consilience.task import Task
from consilience.tree import Tree

TINY = 1e-5  # predictions that differ by less are the same, but for rounding


class Influence(NamedTuple):
    """How much of a pooled model is each site's.

    Attributes:
        shares: From 0 to 1, by client; of the `MOST` nearest to the pool where there are more.
        unknown: Why it is not known; empty where it is.
    """

    shares: dict[int, float]
    unknown: str = ""


def measure_influence(
    method: Method, task: Task, state: Tree, server: Server, replies: Sequence[Received], x: Tensor
) -> Influence:
    """Measure each site's influence on the pool of a round.

    A student is not trained for it: the pool it would learn from is measured.

    Args:
        state: The server's state before the round.
        server: The server's rows, with the key of this round's aggregate.
        replies: The replies that were pooled.
        x: The rows on which models are compared.
    """
    if method.distil:
        method = dataclasses.replace(method, distil=None)  # type: ignore[type-var]
    if Needs.INPUTS in needs(method):
        return Influence({}, "the pool is trained at the coordinator, which would have to be done again for each site.")
    if method.about.everyone:
        return Influence({}, "the method cannot pool without one of the sites.")

    def pool(received: Sequence[Received]) -> Tree:
        return method.aggregate(task, state, received, server)

    try:
        with quietly():
            return Influence(_shares(method, task, pool, replies, x))
    except (InputError, RuntimeError):
        return Influence({}, "the sites' replies cannot be pooled one by one.")


def _shares(method: Method, task: Task, pool: Pool, replies: Sequence[Received], x: Tensor) -> dict[int, float]:
    if len(replies) == 1:
        return {replies[0].client: 1.0}

    def predict(received: Sequence[Received]) -> Distribution:
        return method.predictive(task, pool(received))(x)

    everyone = predict(replies)
    to_alone = {reply.client: distance(everyone, predict([reply])) for reply in replies}
    nearest = sorted(to_alone, key=lambda k: to_alone[k])[:MOST]  # who decides is near: the others need no look
    shares = {}
    for k in sorted(nearest):
        to_others = distance(everyone, predict([reply for reply in replies if reply.client != k]))
        shares[k] = 1 / len(replies)
        if to_others + to_alone[k] > TINY:
            shares[k] = to_others / (to_others + to_alone[k])
    return shares


def distance(p: Distribution, q: Distribution) -> float:
    """Measure how far two models' predictions are apart.

    Args:
        q: Another's for the same rows.

    Returns:
        For classes, the mean total variation distance; for numbers, the mean change of mean and deviation together.
    """
    if isinstance(p, Categorical):
        assert isinstance(q, Categorical)
        return float(0.5 * (p.probs - q.probs).abs().sum(-1).double().mean())
    one = as_normal(p)
    other = as_normal(q)
    means = (one.mean - other.mean).abs().double().mean()
    deviations = (one.total.sqrt() - other.total.sqrt()).abs().double().mean()
    return float(means + deviations)
