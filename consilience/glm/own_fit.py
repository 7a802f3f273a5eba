"""A site's own fit of a linear model: maximum likelihood on its rows, by which effects are compared between sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.likelihood import GaussianNoise
from consilience.distributions.poisson import Poisson
from consilience.glm.derivatives import NOISE, RIDGE, Derivatives, doubt_derivatives, pack, triangle
from consilience.glm.linear_model import layer_of
from consilience.glm.posteriors import differentiate_at, first_sums
from consilience.glm.sums import Sums, doubt, square_matrix
from consilience.messages import Received
from consilience.models.maps import flatten
from consilience.task import Task

MOST = 400  # weights of which a site finds its own
STEPS = 40  # of Newton's method, those that were halved among them
STILL = 1e-16  # what another step promises to take off the loss, where no further one is taken
ARRIVED = 1e-8  # the same, where the search counts as ended: a ten-thousandth of a standard error
KNOWN = 1e-6  # of the curvature at 0, below which rows say nothing: an odds ratio of e¹⁴ at least


class OwnFit(NamedTuple):
    """What a site's rows alone say about the weights.

    Attributes:
        mode: B where they are most likely, with the site's own intercept and no prior [C, K].
        there: The loss and its curvature at the mode, without the directions in which the rows say nothing: columns
            that depend on each other, and outcomes that a column separates. The gradient is 0.
    """

    mode: Tensor
    there: Derivatives


class Told(NamedTuple):
    """What a site says in a first round.

    Attributes:
        sums: What is added up over sites.
        own: Its own fit, which is not.
    """

    sums: Any
    own: OwnFit


def is_on_columns(model: nn.Module) -> bool:
    """Say whether a model is one linear layer on the columns themselves, so that its weights are effects."""
    layers = flatten(model)
    return isinstance(layers[-1], nn.Linear) and all(isinstance(layer, nn.Flatten) for layer in layers[:-1])


def fits_alone(task: Task) -> bool:
    """Say whether a site finds a fit of its own: numbers have it in their sums.

    Args:
        task: A task whose model ends in a linear layer.
    """
    count = sum(leaf.numel() for leaf in layer_of(task).values())
    return not isinstance(task.likelihood, GaussianNoise) and is_on_columns(task.model) and count <= MOST


def tell_first(task: Task, data: Data, own: bool) -> Any:
    """Say what a site says in a first round.

    Args:
        task: A task whose model ends in a linear layer.
        own: Whether to say its own fit as well, where it has one.

    Returns:
        Sums, with the fit or without.
    """
    sums = first_sums(task, data)
    if own and fits_alone(task):
        return Told(sums, fit_alone(task, data))
    return sums


def take_summands(send: Any) -> Any:
    """Take what is added up out of a reply.

    Args:
        send: As it was sent.

    Returns:
        The sums; the same value where there is nothing else.
    """
    if isinstance(send, Told):
        return send.sums
    return send


def doubt_told(send: Any) -> str | None:
    """Say why no rows can have sent this.

    Args:
        send: Sums or derivatives, with the site's own fit or without.

    Returns:
        A sentence about the reply, as "it"; None where there is nothing to say.
    """
    if isinstance(send, Told):
        return doubt_derivatives(send.own.there) or doubt_told(send.sums)
    if isinstance(send, Sums):
        return doubt(send)
    return doubt_derivatives(send)


def without_own(replies: Sequence[Received]) -> list[Received]:
    """Take what is added up out of replies.

    Args:
        replies: What the server received.

    Returns:
        The same with sums alone.
    """
    return [reply._replace(payload=take_summands(reply.payload)) for reply in replies]


def take_own_fits(task: Task, replies: Sequence[Received]) -> dict[str, OwnFit | Sums]:
    """Take the sites' own fits out of a first round's replies: of numbers they are in the sums.

    Args:
        task: A task whose model ends in a linear layer.
        replies: What the server received; one that stands for all sites says nothing of any.

    Returns:
        The fits by the sites' numbers; none where replies hold none.
    """
    count = sum(leaf.numel() for leaf in layer_of(task).values())
    numbers = isinstance(task.likelihood, GaussianNoise) and is_on_columns(task.model) and count <= MOST
    found: dict[str, OwnFit | Sums] = {}
    for reply in replies:
        if isinstance(reply.payload, Told):
            found[str(reply.client)] = reply.payload.own
        elif numbers and len(replies) > 1 and isinstance(reply.payload, Sums):
            found[str(reply.client)] = reply.payload
    return found


@torch.no_grad()
def fit_alone(task: Task, data: Data) -> OwnFit:
    """Find the maximum of a site's likelihood by Newton's method; a step that raises the loss is halved.

    Args:
        task: A task of classes, counts or times to an event, whose model ends in a linear layer.

    Returns:
        The fit. Where a column separates the outcomes, the mode is as far out as the search went, and the curvature
        there says so.
    """
    point = torch.zeros_like(pack(layer_of(task)))
    start = differentiate_at(task, data, point, True)
    value = start.loss
    first = start
    if isinstance(task.likelihood, Poisson):  # from 0, a step would overshoot by far
        told = first_sums(task, data)
        assert isinstance(told, Derivatives)
        first = told
    curvature = first.curvature
    step, decrement = _newton(first)
    for _ in range(STEPS):
        new = differentiate_at(task, data, point + step, True)
        lower = torch.isfinite(new.loss) & (new.loss <= value + NOISE * value.abs())
        longer, promised = _newton(new)
        point = torch.where(lower, point + step, point)
        value = torch.where(lower, new.loss, value)
        curvature = torch.where(lower, new.curvature, curvature)
        decrement = torch.where(lower, promised, decrement)
        step = torch.where(lower, longer, step / 2)
        if not tree.under_vmap() and float(decrement) < STILL:
            break
    informed = _informed(square_matrix(curvature, point.numel()), square_matrix(first.curvature, point.numel()))
    informed = torch.where(decrement < ARRIVED, informed, torch.zeros_like(informed))
    return OwnFit(point, Derivatives(value, torch.zeros_like(point), triangle(informed)))


def _newton(at: Derivatives) -> tuple[Tensor, Tensor]:
    """Newton's step, and twice what it promises to take off the loss: the squared length of it in standard errors."""
    gradient = at.gradient.reshape(-1, 1)
    matrix = square_matrix(at.curvature, len(gradient))
    ridge = RIDGE * matrix.diagonal().mean() + torch.finfo(matrix.dtype).tiny
    step, _ = torch.linalg.solve_ex(matrix + ridge * torch.eye(len(matrix), dtype=matrix.dtype), gradient)
    return -step.reshape(at.gradient.shape), (gradient * step).sum()


def _informed(matrix: Tensor, first: Tensor) -> Tensor:
    """The curvature without directions in which it has all but vanished on the way from the start."""
    values, vectors = torch.linalg.eigh(matrix)
    most = torch.linalg.eigvalsh(first)[-1]
    kept = torch.where(values > KNOWN * most, values, 0.0)
    informed: Tensor = vectors * kept @ vectors.mT
    return informed
