"""An intercept for every site: what its rows say of the slopes once its own intercept is out of the way.

    fixed     max over a of  log p(y | B, a)                     the intercept is a free number of the site
    random    log ∫ p(y | B, τu) N(u; 0, 1) du                   it is drawn from N(0, τ²) around the common one

Both stay with the site. It sends value, gradient and Hessian of its line above, and the sums over sites are those of
the model with all intercepts in it, as `glm(y ~ x + site)` or `glmer(y ~ x + (1 | site))` have it.  The integral is
over one number, by `NODES` nodes about its mode (Pinheiro and Bates 1995); its derivatives are Louis' (1982).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.cox import Cox
from consilience.distributions.likelihood import GaussianNoise
from consilience.distributions.poisson import Poisson, read_counts
from consilience.distributions.posterior import Dense, Point
from consilience.distributions.softmax import log_softmax
from consilience.errors import InputError, unknown_name
from consilience.glm.derivatives import (
    FLAT,
    NOISE,
    Derivatives,
    Quadratic,
    laplace,
    triangle,
    unpack,
    with_gauge,
    with_one,
)
from consilience.glm.linear_model import classes_of, layer_of, priors_of
from consilience.glm.own_fit import is_on_columns
from consilience.glm.posteriors import differentiate_at
from consilience.glm.sums import in_chunks, square_matrix, targets
from consilience.models.maps import feature_map, last_layer
from consilience.task import Task

FIXED = "fixed"
RANDOM = "random"
NODES = 25  # of the quadrature over a site's intercept; `glmer` has 1 unless asked for more
TURNS = 30  # of the search for a site's own intercept
GONE = 60.0  # how far below the others the log-odds of a class are put that a site has no row of
NOTHING = 1e-12  # of the largest eigenvalue, below which a direction says nothing
SLACK = 1e-6  # below 0, that rounding may leave of an integral
FIRST_TAU = 0.5  # where the search for τ begins, in log-odds or log-rates


Looked = tuple[Tensor, Tensor, Tensor]  # losses of rows, their slopes and their curvatures


class Centred(NamedTuple):
    """What a site sends where it has an intercept of its own.

    Attributes:
        plain: What it says of the model with one intercept for all.
        own: What it says with its own one out of the way.
    """

    plain: Any
    own: Any


class Asked(NamedTuple):
    """Where derivatives are asked for.

    Attributes:
        plain: The weights of the model with one intercept; () where nothing is asked about it.
        own: B, one class after another, and τ where intercepts are random [P]; of numbers, √(τ²/σ²) alone.
    """

    plain: Any
    own: Tensor


class Given(NamedTuple):
    """The model in which every site has its own intercept.

    Attributes:
        posterior: Of the weights; that of the intercept is of the common one, where intercepts are random.
        information: The precision of the rows' likelihood [P, P], the sites' intercepts out of the way.
        tau: The SD of the sites' intercepts; () where they are free.
    """

    posterior: Dense
    information: Tensor
    tau: Tensor | tuple[()] = ()


class Climb(NamedTuple):
    """Where the search for the mode stands.

    Attributes:
        point: Where the target was lowest [P].
        value: The target there.
        gradient: Its gradient [P].
        curvature: The rows' Hessian, its upper triangle.
        step: To the point that is asked about next [P].
        first: The norm of a gradient that counts as long.
    """

    point: Tensor
    value: Tensor
    gradient: Tensor
    curvature: Tensor
    step: Tensor
    first: Tensor

    @property
    def next(self) -> Tensor:
        """The point that is asked about next [P]."""
        return self.point + self.step

    @property
    def distance(self) -> float:
        """The norm of the gradient relative to the first."""
        return float(self.gradient.norm() / self.first.clamp(min=1e-300))


def check_centre(task: Task, centre: str | None, has_hessian: bool, private: bool) -> None:
    """Refuse a kind of intercept that a task cannot have.

    Raises:
        InputError: It cannot; the message says what to do.
    """
    if centre is None:
        return
    if centre not in (FIXED, RANDOM):
        raise unknown_name("centre", centre, (FIXED, RANDOM, "none"))
    if isinstance(task.likelihood, Cox):  # whose sites have baseline hazards of their own
        return
    if private:
        raise InputError(f"centre={centre} is not private: with ε all sites share one intercept, use centre=none.")
    if not is_on_columns(task.model) or last_layer(task.model).bias is None or not has_hessian:
        raise InputError(
            f"centre={centre} needs a linear model of the columns with an intercept and few weights: use centre=none, "
            "or the model 'linear' without a feature map."
        )
    if centre == RANDOM and (classes_of(task) or 2) > 2:
        raise InputError("centre=random is for two classes, counts and numbers: use centre=fixed for more classes.")


def has_centres(task: Task, centre: str | None) -> bool:
    """Say whether sites get intercepts: the baseline hazards of times are theirs anyway."""
    return centre is not None and not isinstance(task.likelihood, Cox)


def learns_numbers(task: Task) -> bool:
    """Say whether outcomes are numbers, whose sums decide everything."""
    return isinstance(task.likelihood, GaussianNoise)


def own_derivatives(task: Task, data: Data, at: Tensor, centre: str) -> Derivatives:
    """Differentiate a site's likelihood with its own intercept out of the way.

    Args:
        task: A task of classes or counts, whose model is linear on the columns.
        data: The site's rows; padding has weight 0.
        at: Where, as `Asked.own` has it.
        centre: `fixed` or `random`.

    Returns:
        The sums over its rows, of B as one vector and of τ; 0 where its rows say nothing without an intercept.
    """
    if centre == RANDOM:
        return _marginal(task, data, at)
    return _profile(task, data, at)


def _profile(task: Task, data: Data, at: Tensor) -> Derivatives:
    """The likelihood at the intercept that is best for the site."""
    like = layer_of(task)
    outputs = next(leaf for leaf in like.values() if leaf.ndim > 1).shape[0]
    weights = at.reshape(outputs, -1)
    bias, told = _own_intercepts(task, data, weights)
    there = differentiate_at(task, data, torch.cat([bias.unsqueeze(1), weights[:, 1:]], 1), True)
    count = at.numel()
    matrix = square_matrix(there.curvature, count)
    places = torch.arange(0, count, count // outputs)
    across = matrix[:, places]
    inverse = torch.linalg.pinv(matrix[places][:, places], rtol=NOTHING, hermitian=True)
    matrix = matrix - across @ inverse @ across.mT
    slopes = torch.ones(count, dtype=torch.float64)
    slopes[places] = 0.0
    gradient = there.gradient.flatten() - across @ inverse @ there.gradient.flatten()[places]
    known = torch.where(told, slopes, torch.zeros_like(slopes))
    matrix = matrix * known.unsqueeze(1) * known
    return Derivatives(there.loss, gradient * known, triangle((matrix + matrix.mT) / 2))


def _own_intercepts(task: Task, data: Data, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The intercepts that are best for a site's rows, and whether they say anything of the slopes then."""
    phi = torch.cat([with_one(feature_map(task.model)(part.x), weights) for part in in_chunks(data)])
    w = data.w.double()
    others = phi[:, 1:] @ weights[:, 1:].mT
    if not isinstance(task.likelihood, Poisson):
        return _best_intercepts(others, targets(data.y, len(weights)), w)
    count, log_exposure = read_counts(data.y, w)
    seen = (w * count).sum()
    rate = (w * (others.squeeze(1) + log_exposure).exp()).sum()
    return (seen.clamp(min=1e-300) / rate).log().reshape(1), seen > 0


def _best_intercepts(others: Tensor, marks: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The intercepts under which every class is expected as often as it is there, and whether there are two classes."""
    seen = (w.unsqueeze(1) * marks).sum(0)
    present = seen > 0
    classes = len(seen)

    def look(bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_p = log_softmax(others + bias)
        p = log_p.exp()
        spread = w.unsqueeze(1) * p
        return -(w.unsqueeze(1) * marks * log_p).sum(), spread.sum(0) - seen, torch.diag(spread.sum(0)) - spread.mT @ p

    gone = torch.where(present, 0.0, -GONE - others.abs().amax())
    p = log_softmax(others + gone).exp()
    start = gone + torch.where(
        present, (seen.clamp(min=1e-300) / (w.unsqueeze(1) * p).sum(0).clamp(min=1e-300)).log(), 0
    )
    bias = start - (start * present).sum() / present.sum().clamp(min=1)
    bias = torch.where(present, bias, gone)
    value, gradient, matrix = look(bias)
    eye = torch.eye(classes, dtype=torch.float64)

    def newton(gradient: Tensor, matrix: Tensor) -> Tensor:
        both = (present.unsqueeze(1) & present).double()
        whole = matrix * both + matrix.diagonal().sum() * both / classes + eye * (1 - present.double())
        whole = whole + torch.finfo(whole.dtype).tiny * eye
        step, _ = torch.linalg.solve_ex(whole, (gradient * present).unsqueeze(1))
        moved: Tensor = -step.squeeze(1) * present
        return moved

    step = newton(gradient, matrix)
    for _ in range(TURNS):
        value_there, gradient_there, matrix_there = look(bias + step)
        lower = torch.isfinite(value_there) & (value_there <= value + NOISE * value.abs())
        bias = torch.where(lower, bias + step, bias)
        value = torch.where(lower, value_there, value)
        longer = newton(gradient_there, matrix_there)
        step = torch.where(lower, longer, step / 2)
        if not tree.under_vmap() and bool(lower) and float(longer.abs().max()) < 1e-13:
            break
    return bias, present.sum() > 1


def _marginal(task: Task, data: Data, at: Tensor) -> Derivatives:
    """The likelihood averaged over the intercepts that a site may have."""
    tau = at[-1]
    weights = at[:-1].reshape(1 if isinstance(task.likelihood, Poisson) else 2, -1)
    phi = torch.cat([with_one(feature_map(task.model)(part.x), weights) for part in in_chunks(data)])
    w = data.w.double().unsqueeze(1)
    if isinstance(task.likelihood, Poisson):
        count, log_exposure = read_counts(data.y, data.w.double())
        count, fixed = count.unsqueeze(1), (phi @ weights[0] + log_exposure).unsqueeze(1)
        look = partial(_look_at_counts, count)
    else:
        count, fixed = data.y.double().unsqueeze(1), (phi @ (weights[1] - weights[0])).unsqueeze(1)
        look = partial(_look_at_odds, count)
    nodes, logs = _nodes_about(lambda u: look(fixed + tau * u), w, tau)
    loss, slope, bend = look(fixed + tau * nodes)  # [N, Q]
    terms = logs - (w * loss).sum(0)
    value = torch.logsumexp(terms, 0)
    share = (terms - value).exp()  # what is known of the intercept
    pulls = (w * slope).mT @ phi  # a gradient for each node [Q, K]
    pulls = torch.cat([pulls, (nodes * (w * slope).sum(0)).unsqueeze(1)], 1)
    gradient = share @ pulls
    own = phi.mT @ ((w * bend) @ share).unsqueeze(1).mul(phi)
    mixed = phi.mT @ ((w * bend) @ (share * nodes))
    last = ((w * bend).sum(0) * nodes**2 * share).sum()
    matrix = torch.cat(
        [torch.cat([own, mixed.unsqueeze(1)], 1), torch.cat([mixed, last.reshape(1)]).unsqueeze(0)], 0
    )  # fmt: skip
    centred = pulls - gradient
    matrix = matrix - centred.mT @ (share.unsqueeze(1) * centred)
    if not isinstance(task.likelihood, Poisson):  # from log-odds to the logits of two classes
        width = phi.shape[1]
        change = torch.zeros(width + 1, 2 * width + 1, dtype=torch.float64)
        change[:width, :width] = -torch.eye(width, dtype=torch.float64)
        change[:width, width : 2 * width] = torch.eye(width, dtype=torch.float64)
        change[width, -1] = 1.0
        gradient, matrix = gradient @ change, change.mT @ matrix @ change
    return Derivatives(-value, gradient, triangle((matrix + matrix.mT) / 2))


def _look_at_counts(count: Tensor, log_rate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rate = log_rate.exp()
    return rate - count * log_rate + torch.lgamma(count + 1), rate - count, rate


def _look_at_odds(mark: Tensor, log_odds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    p = torch.sigmoid(log_odds)
    return torch.nn.functional.softplus(log_odds) - mark * log_odds, p - mark, p * (1 - p)


def _nodes_about(
    look: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], w: Tensor, tau: Tensor
) -> tuple[Tensor, Tensor]:
    """Nodes about the most probable u, and the logarithms of their weights with N(u; 0, 1) in them."""
    import numpy as np

    mode = torch.zeros((), dtype=torch.float64)
    for _ in range(TURNS):  # of a concave function: a step is shortened to what cannot overshoot by much
        _, slope, bend = look(mode.reshape(1))
        pull = tau * (w * slope).sum() + mode
        step = -pull / (tau * tau * (w * bend).sum() + 1)
        mode = mode + step.clamp(-1.0, 1.0)
    _, _, bend = look(mode.reshape(1))
    width = (tau * tau * (w * bend).sum() + 1).rsqrt()
    hermite: Any = np.polynomial.hermite
    places, weights = (torch.as_tensor(part, dtype=torch.float64) for part in hermite.hermgauss(NODES))
    nodes = mode + math.sqrt(2) * width * places
    logs = weights.log() + places**2 + (math.sqrt(2) * width).log() - 0.5 * nodes**2 - 0.5 * math.log(2 * math.pi)
    return nodes, logs


def first_point(weights: Tensor, centre: str) -> Tensor:
    """Write where the search begins: the weights of the model with one intercept, and a τ."""
    if centre == RANDOM:
        return torch.cat([weights.flatten(), torch.full((1,), FIRST_TAU, dtype=torch.float64)])
    return weights.flatten()


def own_prior(task: Task, centre: str) -> Quadratic:
    """Write the prior of a search's point: the task's over slopes, none over free intercepts and over τ."""
    prior, _ = priors_of(task)
    precision = prior.precision.clone()
    if centre == FIXED:
        precision[:, 0] = 0.0
    mean, flat = prior.mean.flatten(), precision.flatten()
    if centre == RANDOM:
        mean, flat = torch.cat([mean, mean.new_zeros(1)]), torch.cat([flat, flat.new_zeros(1)])
    return Quadratic(mean, flat)


def climb(task: Task, centre: str, before: Climb | None, totals: Derivatives, at: Tensor, first: Tensor) -> Climb:
    """Take the step if it lowered the target, and find the next one; halve it if it did not.

    Args:
        task: The statistical problem.
        centre: `fixed` or `random`.
        before: Where the search stood; None where it begins.
        totals: The derivatives of all rows at `at`.
        at: What was asked about.
        first: The norm of a gradient that counts as long.

    Returns:
        Where it stands now.
    """
    prior = own_prior(task, centre)
    value = totals.loss + prior.value(at)
    if before is not None and not bool(value <= before.value + NOISE * before.value.abs()):
        return before._replace(step=before.step / 2)
    gradient = totals.gradient + prior.gradient(at)
    matrix = square_matrix(totals.curvature, len(at)) + torch.diag(prior.precision)
    values, vectors = torch.linalg.eigh(matrix)
    told = values.abs() > NOTHING * values.abs().max()
    along = torch.where(told, (vectors.mT @ gradient) / torch.where(told, values.abs(), 1.0), 0.0)
    return Climb(at, value, gradient, totals.curvature, -(vectors @ along), first)


def given_of(task: Task, centre: str, search: Climb) -> Given:
    """Approximate the posterior of the weights where every site has its own intercept.

    τ is averaged over, as far as a Gaussian about the mode can: the weights' covariance is that of both together.
    """
    like = layer_of(task)
    prior = own_prior(task, centre)
    count = sum(leaf.numel() for leaf in like.values())
    outputs = next(leaf for leaf in like.values() if leaf.ndim > 1).shape[0]
    rows = square_matrix(search.curvature, len(search.point))
    tau: Tensor | tuple[()] = ()
    if centre == RANDOM:
        tau = search.next[-1].abs()
        if float(tau) > NOTHING:
            rows = rows[:count, :count] - _outer(rows[:count, -1], rows[-1, -1])
        else:
            rows = rows[:count, :count]
    shape = (outputs, count // outputs)
    quadratic = Quadratic(prior.mean[:count].reshape(shape), prior.precision[:count].reshape(shape))
    matrix = with_gauge(rows + torch.diag(prior.precision[:count]), quadratic)
    matrix = matrix + FLAT * matrix.diagonal().mean() * torch.eye(count, dtype=torch.float64)
    point = search.next[:count].reshape(shape)
    return Given(laplace(point, matrix, like), laplace(point, rows, like).precision, tau)


def _outer(across: Tensor, own: Tensor) -> Tensor:
    """What knowing τ no better than the rows tell it takes away; nothing where they do not curve in it."""
    if float(own) <= 0:
        return torch.zeros(len(across), len(across), dtype=across.dtype)
    return torch.outer(across, across) / own


def own_point(task: Task, data: Data, at: Tensor) -> Point:
    """Write the weights at which a site's rows count, with the intercept that is best for it."""
    like = layer_of(task)
    outputs = next(leaf for leaf in like.values() if leaf.ndim > 1).shape[0]
    count = sum(leaf.numel() for leaf in like.values())
    weights = at[:count].reshape(outputs, -1)
    bias, _ = _own_intercepts(task, data, weights)
    return Point(unpack(torch.cat([bias.unsqueeze(1), weights[:, 1:]], 1), like))


def plain_of(payload: Any) -> Any:
    """Take what is said of the model with one intercept for all."""
    if isinstance(payload, Centred):
        return payload.plain
    return payload


def sum_tree(parts: Sequence[Any]) -> Any:
    """Add trees of numbers up, leaf by leaf."""
    return tree.map(lambda *leaves: torch.stack(leaves).sum(0), *parts)


def doubt_own(send: Any) -> str | None:
    """Say why no rows can have sent this with their intercept out of the way, a sentence about the reply as "it"."""
    if not isinstance(send, Derivatives) or not isinstance(send.loss, Tensor):
        return None
    if float(send.loss) < -SLACK:
        return "it sums log-probabilities to more than 0."
    return None
