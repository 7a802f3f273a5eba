"""A few rounds of noisy derivatives in place of a search for the mode: docs/private.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Point
from consilience.distributions.prior import WIDE
from consilience.errors import InputError
from consilience.glm.derivatives import laplace, pack, unpack
from consilience.glm.linear_model import check_bounded, classes_of, layer_of, priors_of
from consilience.glm.noisy_derivatives import (
    NoisyDerivatives,
    as_weights,
    contrast_prior,
    contrasts,
    join_rounds,
    read_derivatives,
    scale_of,
    sum_derivatives,
)
from consilience.glm.noisy_posterior import SEARCH, fit_curve, gram_of
from consilience.messages import Received, Reply, Server, payloads
from consilience.models.maps import feature_map, last_layer
from consilience.privacy.dp.mechanisms import Privacy, add_released
from consilience.task import Task

PRIVATE_ROUNDS = 4
LAST = 0.7  # the share of μ² that the last round of a private run takes; the others share the rest
PRIVATE_WEIGHTS = 100  # that a private run learns at most: noise on their Hessian drowns more


class Last(NamedTuple):
    """What the last round of a private run asks about.

    Attributes:
        point: θ.
    """

    point: Point


def check_private_classes(task: Task, privacy: Privacy, server: Server) -> None:
    """Refuse what has no private form.

    Args:
        server: What the server sees.

    Raises:
        InputError: Rows have no bound, or noise would leave nothing of so many weights.
    """
    privacy.check(server.clients)
    check_bounded(task)
    classes = classes_of(task)
    if classes is None and task.outcome:
        raise InputError(
            f"glm has no private form for {task.outcome}: nothing bounds what one row changes, as a rate has no "
            "largest value. Cut the outcome into classes, or study it without epsilon."
        )
    if classes is None:
        raise InputError("Under noise, numbers are learned by `exact`: its one message holds all that glm would ask.")
    prior, _ = priors_of(task)
    count = (classes - 1) * prior.mean.shape[1]
    if count > PRIVATE_WEIGHTS:
        raise InputError(
            f"glm learns at most {PRIVATE_WEIGHTS} weights under noise, and these are {count}: use fewer columns "
            "(features=identity), or exact_tuned, whose sums do not grow with the square of the classes."
        )
    if float(prior.precision.min()) <= 1 / WIDE:
        raise InputError("Under noise a flat prior leaves weights that nothing is known about: take a Gaussian one.")


def release_derivatives(task: Task, privacy: Privacy, message: Point | Last | tuple[()], data: Data) -> Reply:
    """Add up a client's bounded rows at the point that is asked about.

    Args:
        message: The point; () for 0. The last one is answered in two dimensions, which tells its share of the budget.

    Returns:
        Sums without noise yet, which cannot be sent.
    """
    sums = sum_derivatives(feature_map(task.model), data, point_of(task, message), privacy)
    if isinstance(message, Last):
        sums = sums._replace(values=sums.values.unsqueeze(0))
    return Reply(sums, 0 * data.size)  # how many rows there are is not said without noise


def aggregate_private(
    task: Task,
    privacy: Privacy,
    asked: Point | Last | tuple[()],
    before: NoisyDerivatives | None,
    replies: Sequence[Received],
) -> tuple[Dense, Point | Last | tuple[()], NoisyDerivatives]:
    """Fit a posterior to noisy derivatives, and go to its mean.

    Args:
        asked: The point that the clients answered; () for 0.
        before: Releases of earlier rounds; None before the first.

    Returns:
        The posterior, what the next round asks about, () after the last one, and all releases so far.
    """
    total = add_released(payloads(replies))
    privacy.check_shares(total)
    prior, _ = priors_of(task)
    classes, width = prior.mean.shape
    scale = scale_of(width, width > last_layer(task.model).in_features, privacy)
    known = contrast_prior(prior, scale)
    point = (contrasts(classes).mT @ (point_of(task, asked) / scale)).flatten()
    last = isinstance(asked, Last)
    seen = read_derivatives(total, point, classes, privacy, part_of(last))
    rounds = join_rounds(before, seen)
    gram = gram_of(NoisyDerivatives(*(leaf[0] for leaf in rounds)), classes)
    if last:
        fitted = fit_curve(rounds, known, gram, classes, scale)
        return laplace(*as_weights(fitted, prior, scale), layer_of(task)), (), rounds
    mean, precision = as_weights(fit_curve(rounds, known, gram, classes, scale, SEARCH), prior, scale)
    posterior = laplace(mean, precision, layer_of(task))
    following = Point(unpack(mean, layer_of(task)))
    if len(rounds.point) == PRIVATE_ROUNDS - 1:
        return posterior, Last(following), rounds
    return posterior, following, rounds


def part_of(last: bool) -> float:
    """Say which share of μ² a round of a private run takes.

    Args:
        last: Whether it is the last one.
    """
    if last:
        return LAST
    return (1 - LAST) / (PRIVATE_ROUNDS - 1)


def point_of(task: Task, message: Point | Last | tuple[()]) -> Tensor:
    """Read the point that a round of a private run asks about.

    Args:
        message: What the server sent.

    Returns:
        θ [C, K]; 0 in the first round.
    """
    if isinstance(message, Last):
        message = message.point
    if isinstance(message, Point):
        return pack(message.params)
    prior, _ = priors_of(task)
    return torch.zeros_like(prior.mean)
