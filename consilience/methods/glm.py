"""Generalised linear models by summed gradients and Hessians.  Wu et al., JAMIA 2012 (GLORE)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.likelihood import LOG_NOISE, GaussianNoise, Softmax
from consilience.method import Method
from consilience.methods.exact import check_bounded, classes_of, warn_of_few_rows
from consilience.models.maps import feature_map, last_layer
from consilience.models.remembered import remember
from consilience.outcomes.cox import Cox
from consilience.outcomes.poisson import Poisson
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.pooling.derivatives import (
    NOTHING,
    Derivatives,
    Quadratic,
    Search,
    advance,
    begin,
    differentiate,
    doubt_derivatives,
    hessian,
    laplace,
    line_hessian,
    pack,
    regress,
    sum_up,
    unpack,
    with_gauge,
)
from consilience.pooling.event_sums import begin_search, differentiate_counts, differentiate_times
from consilience.pooling.noisy_derivatives import (
    as_weights,
    contrast_prior,
    contrasts,
    fit_curve,
    fit_line,
    gram_of,
    read_derivatives,
    scale_of,
    sum_derivatives,
)
from consilience.pooling.summands import Summation, Total
from consilience.pooling.sums import Sums, add, check_memory, doubt, in_parts, summarise
from consilience.posterior import Dense, Point, Posterior, Samples, centre, draw, members
from consilience.predictive import Distribution, Predictive
from consilience.prior import WIDE
from consilience.privacy.entropy import Source
from consilience.privacy.mechanisms import Privacy, Released, add_released
from consilience.settings import added
from consilience.task import Task
from consilience.tree import Params

PAIRS = 32  # of draws from a Gaussian, behind a prediction
PRIVATE_ROUNDS = 4
LAST = 0.7  # the share of μ² that the last round of a private run takes; the others share the rest
PRIVATE_WEIGHTS = 100  # that a private run learns at most: noise on their Hessian drowns more


class Last(NamedTuple):
    """What the last round of a private run asks about.

    Attributes:
        point: θ.
    """

    point: Point


class Located(NamedTuple):
    """How far a private run has come.

    Attributes:
        gram: Σ aaᵀ of the bounded features, as far as it is known [K, K].
        rounds: How many releases there were.
    """

    gram: Tensor
    rounds: Tensor


class GLMState(NamedTuple):
    """The state of a generalised linear model.

    Attributes:
        posterior: N(θ, H⁻¹) at the newest θ, or θ alone where H is too large; random weights before the first round.
        asked: θ, where derivatives are asked for; () before the first round, and once the search has converged.
        search: How θ was found; () before the first round, and for numbers, which one round of sums decides.
    """

    posterior: Posterior
    asked: Point | Last | tuple[()] = ()
    search: Search | Located | tuple[()] = ()


@dataclass(frozen=True)
class GLM(Method):
    """Logistic, linear, Poisson or Cox regression on fixed features: the mode of all rows, and its Laplace posterior.

        for each client k of K, in parallel, in the first round
    1       Sₖ ← Σ φφᵀ, Σ y φᵀ, Σ y² over its rows;  send Sₖ
    2   numbers: θ, H ← the mode of U for Σₖ Sₖ and the task's prior, and the Hessian there; done
    3   classes: θ ← 0 − H⁻¹∇U, both from Σₖ Sₖ;  counts and times to an event: in place of Sₖ, 4 at θ = 0
        for each client k of K, in parallel, in every other round until ‖∇U‖ is small
    4       send its loss and gradient at θ, and its Hessian; of many weights, Σ diag(p) − ppᵀ in its place
    5   U, the losses' sum and the prior's part, rose: θ ← half of the last step
    6   it fell: θ ← θ − H⁻¹∇U; of many weights, H ≈ Σ (diag(p) − ppᵀ)/n ⊗ Σ φφᵀ, refined by earlier gradients
    7   p(θ | D) ≈ N(θ, H⁻¹)

    With `privacy`, classes alone: four rounds of 4 on bounded rows, with noise; the posterior of the last one knows of
    it, and predictions are averaged over it: private.md.

    Attributes:
        largest: The most weights of which Hessians are sent.
        tolerance: Of ‖∇U‖ relative to that at 0, where the search ends; later rounds send nothing and change nothing.
        average: Average the classes' probabilities over the posterior, which is too wide where rows are few for their
            weights; False: the mode predicts.
        privacy: Differential privacy of all that is sent, on bounded features; None: none.
    """

    name: ClassVar[str] = "glm"
    sends: ClassVar[str] = "sums over its rows: a Gram matrix of the features, then gradients; of few weights, Hessians"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "counts", "survival")
    usual_rounds: ClassVar[int] = 8
    everyone: ClassVar[bool] = True
    sums: ClassVar[bool] = True
    heads: ClassVar[bool] = True
    explains: ClassVar[bool] = True
    carries: ClassVar[tuple[type, ...]] = (Sums, Derivatives, Search, Released, Last, Located)
    private: ClassVar[bool] = True
    private_rounds: ClassVar[int] = PRIVATE_ROUNDS

    largest: int = 1500
    tolerance: float = 1e-8
    average: bool = False
    privacy: Privacy | None = added(None)

    def init(self, task: Task, server: Server) -> GLMState:
        layer = last_layer(task.model)
        if not isinstance(task.likelihood, (Softmax, GaussianNoise, Poisson, Cox)):
            raise InputError("glm learns classes, or numbers with one noise for all rows: use heteroscedastic=False.")
        if task.outcome and not self.has_hessian(task):
            raise InputError(f"glm learns {task.outcome} with at most largest={self.largest} weights: use fewer.")
        check_memory(layer.in_features, classes_of(task) or 1, False)
        if self.privacy is not None:
            check_private_classes(task, self.privacy, server)
        return GLMState(task.init(server.key))

    def broadcast(self, state: GLMState) -> Point | Last | tuple[()]:
        return state.asked

    def local(self, task: Task, message: Point | Last | tuple[()], client: Client) -> Reply:
        data = client.data
        if self.privacy is not None:
            return release_derivatives(task, self.privacy, message, data)
        if isinstance(client.memory, tuple):
            return Reply(first_sums(task, data), data.size, keep=data.size)  # 1
        if not isinstance(message, Point):
            return Reply(NOTHING, data.size, client.memory)
        sent = differentiate_at(task, data, pack(message.params), self.has_hessian(task))  # 4
        return Reply(sent, data.size, client.memory)

    def spends(self, round: int) -> float:
        return part_of(round == PRIVATE_ROUNDS)

    def protect(self, reply: Reply, source: Source) -> Reply:
        if self.privacy is None:
            return reply
        part = part_of(reply.send.values.ndim == 2)
        return reply._replace(send=self.privacy.add_noise(reply.send, source, part))

    def aggregate(self, task: Task, state: GLMState, replies: Sequence[Received], server: Server) -> GLMState:
        prior, _ = priors_of(task)
        if self.privacy is not None:
            return aggregate_private(task, self.privacy, state, replies)
        if isinstance(replies[0].payload, Sums):
            warn_of_few_rows(replies)
            totals = add(payloads(replies))
            if classes_of(task) is None:
                return GLMState(number_posterior(task, totals, self.has_hessian(task)))  # 2
            search = begin(totals, prior)  # 3
        elif task.outcome and not isinstance(state.search, Search):
            search = begin_search(sum_up(payloads(replies)), prior, weights(replies).sum())  # 3
        elif isinstance(state.search, Search) and isinstance(state.asked, Point):
            search = advance(state.search, sum_up(payloads(replies)), prior)  # 5, 6
        else:
            return state
        posterior = class_posterior(task, search, self.has_hessian(task))  # 7
        if search.distance <= self.tolerance:
            return GLMState(posterior, (), search)
        return GLMState(posterior, Point(unpack(search.next, layer_of(task))), search)

    def fold(self, replies: Sequence[Received]) -> list[Received]:
        warn_of_few_rows(replies, whole=False)
        return super().fold(replies)

    def predictive(self, task: Task, state: GLMState) -> Predictive:
        if classes_of(task) is None or self.average or self.privacy is not None:
            return predict_on_features(task, state.posterior)
        return predict_on_features(task, centre(state.posterior, task.like))

    def diagnose(self, task: Task, state: GLMState, x: Tensor) -> dict[str, Any]:
        if self.privacy is not None:
            return {}
        distance = 0.0
        if isinstance(state.search, Search):
            distance = state.search.distance
        return {"relative_gradient": distance, "converged": distance <= self.tolerance}

    def doubt(self, task: Task, message: Point | Last | tuple[()], send: Any) -> str | None:
        if self.privacy is not None:
            return None  # noise may make sums what no rows have
        if isinstance(send, Sums):
            return doubt(send)
        return doubt_derivatives(send)

    def summation(self) -> Summation:
        return Total()

    def has_hessian(self, task: Task) -> bool:
        """Tell whether there are few enough weights for a matrix of all pairs."""
        return sum(leaf.numel() for leaf in layer_of(task).values()) <= self.largest


def first_sums(task: Task, data: Data) -> Sums | Derivatives:
    """Add up what a client sends in the first round.

    Args:
        task: A task whose model ends in a linear layer.
        data: The client's rows.

    Returns:
        Sums of products of features and targets; for counts and times to an event, derivatives.
    """
    features = feature_map(task.model)
    bias = last_layer(task.model).bias is not None
    if isinstance(task.likelihood, Poisson):
        return differentiate_counts(features, data, None, bias)
    if isinstance(task.likelihood, Cox):
        return differentiate_times(features, data, None)
    return summarise(features, data, classes_of(task))


def differentiate_at(task: Task, data: Data, weights: Tensor, hessian: bool) -> Derivatives:
    """Differentiate a client's log-likelihood.

    Args:
        task: A task whose model ends in a linear layer.
        data: The client's rows.
        weights: Where, B [C, K].
        hessian: Whether to send the whole Hessian.

    Returns:
        The sums over its rows.
    """
    features = feature_map(task.model)
    if isinstance(task.likelihood, Poisson):
        return differentiate_counts(features, data, weights)
    if isinstance(task.likelihood, Cox):
        return differentiate_times(features, data, weights)
    return differentiate(features, data, weights, hessian)


def check_private_classes(task: Task, privacy: Privacy, server: Server) -> None:
    """Refuse what has no private form.

    Args:
        task: The statistical problem.
        privacy: The setting.
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
        task: The statistical problem.
        privacy: The setting.
        message: The point; () for 0. The last one is answered in two dimensions, which tells its share of the budget.
        data: The client's rows.

    Returns:
        Sums without noise yet, which cannot be sent.
    """
    sums = sum_derivatives(feature_map(task.model), data, point_of(task, message), privacy)
    if isinstance(message, Last):
        sums = sums._replace(values=sums.values.unsqueeze(0))
    return Reply(sums, 0 * data.size)  # how many rows there are is not said without noise


def aggregate_private(task: Task, privacy: Privacy, state: GLMState, replies: Sequence[Received]) -> GLMState:
    """Fit a posterior to noisy derivatives, and go to its mean.

    Args:
        task: The statistical problem.
        privacy: The setting.
        state: The state before the round.
        replies: The clients' releases.

    Returns:
        The state after it.
    """
    total = add_released(payloads(replies))
    privacy.check_shares(total)
    prior, _ = priors_of(task)
    classes, width = prior.mean.shape
    scale = scale_of(width, width > last_layer(task.model).in_features, privacy)
    known = contrast_prior(prior, scale)
    point = (contrasts(classes).mT @ (point_of(task, state.asked) / scale)).flatten()
    last = isinstance(state.asked, Last)
    seen = read_derivatives(total, point, classes, privacy, part_of(last))
    if isinstance(state.search, Located):
        located = state.search._replace(rounds=state.search.rounds + 1)
    else:
        located = Located(gram_of(seen, classes), torch.ones(()))
    if last:
        fitted = fit_curve(seen, known, located.gram, classes, scale)
        return GLMState(laplace(*as_weights(fitted, prior, scale), layer_of(task)), (), located)
    mean, precision = as_weights(fit_line(seen, known), prior, scale)
    posterior = laplace(mean, precision, layer_of(task))
    asked = Point(unpack(mean, layer_of(task)))
    if int(located.rounds) == PRIVATE_ROUNDS - 1:
        return GLMState(posterior, Last(asked), located)
    return GLMState(posterior, asked, located)


def part_of(last: bool) -> float:
    """Tell which share of μ² a round of a private run takes.

    Args:
        last: Whether it is the last one.

    Returns:
        The share.
    """
    if last:
        return LAST
    return (1 - LAST) / (PRIVATE_ROUNDS - 1)


def point_of(task: Task, message: Point | Last | tuple[()]) -> Tensor:
    """Read the point that a round of a private run asks about.

    Args:
        task: The statistical problem.
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


def layer_of(task: Task) -> Params:
    """Name the weights of a task's linear layer.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        Its weight and bias.
    """
    return {name: task.like[name] for name in task.uncertain}


def priors_of(task: Task) -> tuple[Quadratic, Quadratic | None]:
    """Write a task's prior as quadratics.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        That over the layer's weights [C, K]; and that over the log-noise, None where the noise is known.
    """
    layer = layer_of(task)
    mean, var = task.prior.gaussian({name: leaf.double() for name, leaf in task.weights(task.like).items()})
    weights = Quadratic(pack({k: mean[k] for k in layer}), 1 / pack({k: var[k] for k in layer}))
    if LOG_NOISE not in mean:
        return weights, None
    return weights, Quadratic(mean[LOG_NOISE], 1 / var[LOG_NOISE])


def class_posterior(task: Task, search: Search, whole: bool) -> Posterior:
    """Approximate the posterior of a softmax by Laplace's method.

    Args:
        task: The statistical problem.
        search: Where the search for the mode stands.
        whole: Whether there is a Hessian.

    Returns:
        A Gaussian with the Hessian as its precision; the mode alone where there is none.
    """
    prior, _ = priors_of(task)
    if whole:
        return laplace(search.next, with_gauge(hessian(search, prior), prior), layer_of(task))
    return _as_point(task, search.next)


def number_posterior(task: Task, totals: Sums, whole: bool) -> Posterior:
    """Find the posterior of a linear regression; with a learned noise, Laplace's approximation of it.

    Args:
        task: The statistical problem.
        totals: The sums of all rows.
        whole: Whether there are few enough weights for a precision matrix.

    Returns:
        A Gaussian, or the mode alone.
    """
    prior, noise_prior = priors_of(task)
    assert isinstance(task.likelihood, GaussianNoise)
    fixed = torch.tensor(math.log(task.likelihood.noise or 1.0), dtype=torch.float64)
    line = regress(totals, prior, noise_prior or fixed)
    if whole:
        matrix = line_hessian(line, totals, prior, noise_prior)
        return laplace(line.weights, matrix, layer_of(task), line.log_noise)
    return _as_point(task, line.weights, line.log_noise)


def _as_point(task: Task, weights: Tensor, log_noise: Tensor | None = None) -> Point:
    """B [C, K] by the task's names, in its precision."""
    params = unpack(weights, layer_of(task))
    if LOG_NOISE in task.like and log_noise is not None:
        params[LOG_NOISE] = log_noise.reshape(1)
    return Point({name: params[name].to(leaf) for name, leaf in task.like.items()})


def predict_on_features(task: Task, posterior: Posterior) -> Predictive:
    """Average over a posterior of a linear layer, computing the features of a row once for all its members.

    Args:
        task: A task whose model ends in a linear layer.
        posterior: What is known about its weights; a Gaussian is drawn from in pairs, so that its mean is kept.

    Returns:
        A function from inputs to their predictive distribution.
    """
    features = feature_map(task.model)
    weights = _members_of(posterior, task)

    def outcome(x: Tensor) -> Distribution:
        phi = features(x)
        layers = [[params[name] for name in task.uncertain] for params in weights]
        return task.likelihood.outcome(torch.stack([linear(phi, *layer) for layer in layers]), weights)

    @torch.no_grad()
    def predict(x: Tensor) -> Distribution:
        whole: Distribution = tree.concatenate(outcome(part) for part in in_parts(x))
        return whole

    known = (predict_on_features, task.model, task.likelihood, *tree.leaves(posterior))
    return lambda x: remember(lambda: predict(x), *known, x)


def _members_of(posterior: Posterior, task: Task) -> list[Params]:
    """Sets of weights that stand for a posterior; draws from a Gaussian with their reflections at its mean."""
    if not isinstance(posterior, Dense):
        return members(posterior, Key(0), task.draws, task.like)
    drawn = draw(posterior, Key(0), PAIRS, task.like)
    mean = centre(posterior, task.like).params
    pairs = {name: torch.cat([leaf, 2 * mean[name] - leaf]) for name, leaf in drawn.params.items()}
    return members(Samples(pairs), Key(0), task.draws, task.like)
