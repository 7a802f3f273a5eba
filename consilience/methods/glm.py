"""Generalised linear models by summed gradients and Hessians.  Wu et al., JAMIA 2012 (GLORE)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from consilience.aggregation.summands import Summation, Total
from consilience.data.sites import Data
from consilience.distributions.cox import Cox
from consilience.distributions.likelihood import GaussianNoise, Softmax
from consilience.distributions.poisson import Poisson
from consilience.distributions.posterior import Dense, Point, Posterior, centre
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.glm.centre_rounds import TYPES, doubt_centred, learn_own, plain_replies, tell_asked, weigh_asked
from consilience.glm.centres import FIXED, RANDOM, Asked, Climb, Given, check_centre, has_centres
from consilience.glm.centres_of_numbers import Ratio
from consilience.glm.derivatives import NOTHING, Derivatives, Search, advance, begin, pack, sum_up, unpack
from consilience.glm.event_sums import begin_search
from consilience.glm.linear_model import classes_of, layer_of, priors_of, warn_of_few_rows
from consilience.glm.noisy_derivatives import NoisyDerivatives
from consilience.glm.own_fit import OwnFit, Told, take_own_fits, take_summands, tell_first, without_own
from consilience.glm.posteriors import Weighing, class_posterior, differentiate_at, number_posterior, weigh_rows
from consilience.glm.predictions import predict_numbers, predict_on_features
from consilience.glm.private import (
    PRIVATE_ROUNDS,
    Last,
    aggregate_private,
    check_private_classes,
    part_of,
    release_derivatives,
)
from consilience.glm.sums import Sums, add, check_memory
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import (
    About,
    Diagnosed,
    Method,
    OnFeatures,
    Private,
    Releasable,
    ReplyKind,
    Rounds,
    Streaming,
    Summable,
    Validated,
    keep_fields,
)
from consilience.method.settings import added
from consilience.models.maps import last_layer
from consilience.privacy.dp.mechanisms import Privacy, Released
from consilience.privacy.entropy import Source
from consilience.task import Task
from consilience.tree import Tree

FOR_TAU = Rounds(20)  # in 29 simulations the search for the deviation of intercepts ended within 16


class GLMState(NamedTuple):
    """The state of a generalised linear model.

    Attributes:
        posterior: N(θ, H⁻¹) at the newest θ, or θ alone where H is too large; random weights before the first round.
        asked: θ, where derivatives are asked for; () before the first round, and once the search has converged.
        search: How θ was found, or all releases of a private run so far; () before the first round, and for numbers,
            which one round of sums decides.
        alone: Each site's own fit, by its number; the coordinator alone has them. () where sites have none.
    """

    posterior: Posterior
    asked: Point | Last | tuple[()] = ()
    search: Search | NoisyDerivatives | tuple[()] = ()
    alone: dict[str, OwnFit | Sums] | tuple[()] = ()


class CentredState(NamedTuple):
    """The same where every site has its own intercept; all is of the model with one for all but what follows.

    Attributes:
        posterior: As in `GLMState`, and so is the rest.
        asked: Where derivatives of both are asked for.
        search: See `GLMState`.
        alone: See `GLMState`.
        climb: How the model with an intercept for every site was found; () before.
        given: That model, which the table of effects is of; () before.
    """

    posterior: Posterior
    asked: Asked | tuple[()] = ()
    search: Search | tuple[()] = ()
    alone: dict[str, Any] | tuple[()] = ()
    climb: Climb | Ratio | tuple[()] = ()
    given: Given | tuple[()] = ()


@dataclass(frozen=True)
class GLM(OnFeatures, Summable, Private, Validated, Releasable, Diagnosed, Streaming, Method):
    """Logistic, linear, Poisson or Cox regression on fixed features: the mode of all rows, and its Laplace posterior.

        for each client k of K, in parallel, in the first round
    1       Sₖ ← Σ φφᵀ, Σ y φᵀ, Σ y² over its rows;  send Sₖ; on plain columns also its own θₖ, and its Hessian there
    2   numbers: θ, H ← the mode of U for Σₖ Sₖ and the task's prior, and the Hessian there; done
    3   classes: θ ← 0 − H⁻¹∇U, both from Σₖ Sₖ;  counts and times to an event: in place of Sₖ, 4 at θ = 0
        for each client k of K, in parallel, in every other round until ‖∇U‖ is small
    4       send its loss and gradient at θ, and its Hessian; of many weights, Σ diag(p) − ppᵀ in its place
    5   U, the losses' sum and the prior's part, rose: θ ← half of the last step
    6   it fell: θ ← θ − H⁻¹∇U; of many weights, H ≈ Σ (diag(p) − ppᵀ)/n ⊗ Σ φφᵀ, refined by earlier gradients
    7   p(θ | D) ≈ N(θ, H⁻¹)

    Where sites have intercepts of their own, beside it and for the table of effects alone:
    8       U of a site's rows with its intercept out of the way, `fixed` at its best or `random` and averaged over,
            with gradient and Hessian; their sums are searched as in 5 and 6

    With `privacy`, classes alone: four rounds of 4 on bounded rows, with noise; the posterior of all four knows of it,
    and predictions are averaged over it: private.md.

    Attributes:
        largest: The most weights of which Hessians are sent.
        tolerance: Of ‖∇U‖ relative to that at 0, where the search ends; later rounds send nothing and change nothing.
        average: Average the classes' probabilities over the posterior, which is too wide where rows are few for their
            weights; False: the mode predicts.
        privacy: Differential privacy of all that is sent, on bounded features; None: none.
        compare: Whether sites send their own fits, by which the table of effects says how much sites differ.
        centre: Intercepts of the effects: None, one for all; `fixed`, a free one a site; `random`, normal about the
            common one. Predictions are by one for all, as a new site's own is not known.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=3, model="linear")
        >>> [effect.column for effect in co.run(co.methods.GLM(), problem).effects().rows]
        ['(Intercept)', 'x1', 'x2']
    """

    about = About(
        name="glm",
        sends="sums: a Gram matrix, then gradients; of few weights Hessians, of plain columns its own fit",
        tasks=("classification", "regression", "counts", "survival"),
        rounds=Rounds(8),
        everyone=True,
        reply=ReplyKind.SUM,
        types=(Sums, Derivatives, Search, Told, OwnFit, Released, Last, NoisyDerivatives, *TYPES),
    )
    private_rounds = PRIVATE_ROUNDS
    in_studies = (f"centre={FIXED}",)

    largest: int = 1500
    tolerance: float = 1e-8
    average: bool = False
    privacy: Privacy | None = added(None)
    compare: bool = added(True, before=False)
    centre: str | None = added(None)

    def __post_init__(self) -> None:
        if self.centre == "none":  # as a study's settings and the command line write it
            object.__setattr__(self, "centre", None)
        elif self.centre == RANDOM:
            object.__setattr__(self, "about", replace(self.about, rounds=FOR_TAU))

    def init(self, task: Task, server: Server) -> GLMState | CentredState:
        layer = last_layer(task.model)
        if not isinstance(task.likelihood, (Softmax, GaussianNoise, Poisson, Cox)):
            raise InputError("glm learns classes, or numbers with one noise for all rows: use heteroscedastic=False.")
        if task.outcome and not self.has_hessian(task):
            raise InputError(f"glm learns {task.outcome} with at most largest={self.largest} weights: use fewer.")
        check_memory(layer.in_features, classes_of(task) or 1, False)
        if self.privacy is not None:
            check_private_classes(task, self.privacy, server)
        check_centre(task, self.centre, self.has_hessian(task), self.privacy is not None)
        return (CentredState if has_centres(task, self.centre) else GLMState)(task.init(server.key))

    def broadcast(self, state: GLMState | CentredState) -> Point | Last | Asked | tuple[()]:
        return state.asked

    def local(self, task: Task, message: Point | Last | Asked | tuple[()], client: Client) -> Reply:
        data = client.data
        if has_centres(task, self.centre):
            return tell_asked(task, message, client, self.centre, self.compare)  # 1, 4, 8
        if self.privacy is not None:
            assert not isinstance(message, Asked)
            return release_derivatives(task, self.privacy, message, data)
        if isinstance(client.memory, tuple):
            return Reply(tell_first(task, data, self.compare), data.size, keep=data.size)  # 1
        sent: Any = NOTHING
        if isinstance(message, Point):
            sent = differentiate_at(task, data, pack(message.params), self.has_hessian(task))  # 4
        return Reply(sent, data.size, client.memory)

    def weighs(self, task: Task, message: Point | Last | Asked | tuple[()], data: Data) -> Weighing | None:
        if isinstance(message, Asked):
            return weigh_asked(task, data, message)
        return None if self.privacy else weigh_rows(task, data, message, self.has_hessian(task))

    def spends(self, round: int) -> float:
        return part_of(round == PRIVATE_ROUNDS)

    def protect(self, reply: Reply, source: Source) -> Reply:
        if self.privacy is None:
            return reply
        part = part_of(reply.send.values.ndim == 2)
        return reply._replace(send=self.privacy.add_noise(reply.send, source, part))

    def aggregate(
        self, task: Task, state: GLMState | CentredState, replies: Sequence[Received], server: Server
    ) -> GLMState | CentredState:
        if self.privacy is not None:
            before = state.search if isinstance(state.search, NoisyDerivatives) else None
            assert not isinstance(state, CentredState)
            return GLMState(*aggregate_private(task, self.privacy, state.asked, before, replies))
        found = learn(task, state, plain_replies(replies), self.has_hessian(task), self.tolerance)
        if not isinstance(state, CentredState):
            return found
        own = learn_own(task, self.centre, state, found, replies, self.tolerance)
        return CentredState(**{**found._asdict(), **own})

    @property
    def folds(self) -> bool:
        return True

    def fold(self, replies: Sequence[Received]) -> list[Received]:
        sums = without_own(replies)
        warn_of_few_rows(sums, whole=False)
        return super().fold(sums)

    def predictive(self, task: Task, state: GLMState | CentredState) -> Predictive:
        if isinstance(task.likelihood, GaussianNoise) and isinstance(state.posterior, Dense):
            return predict_numbers(task, state.posterior)
        if classes_of(task) is None or self.average or self.privacy is not None:
            return predict_on_features(task, state.posterior)
        return predict_on_features(task, centre(state.posterior, task.like))

    def diagnose(self, task: Task, state: GLMState | CentredState, x: Tensor) -> dict[str, Any]:
        if self.privacy is not None:
            return {}
        distance = max([part.distance for part in state if isinstance(part, (Search, Climb, Ratio))], default=0.0)
        return {"relative_gradient": distance, "converged": distance <= self.tolerance}

    def hand_out(self, state: GLMState | CentredState, ensemble: bool) -> Tree:
        return keep_fields(state, ("posterior", "given"))

    def doubt(self, task: Task, message: Point | Last | Asked | tuple[()], send: Any) -> str | None:
        if self.privacy is not None:
            return None  # noise may make sums what no rows have
        return doubt_centred(send)

    def summation(self) -> Summation:
        return Total(take_summands)  # a site's own fit is no summand: where replies are masked, it stays there

    def has_hessian(self, task: Task) -> bool:
        """Say whether there are few enough weights for a matrix of all pairs."""
        return sum(leaf.numel() for leaf in layer_of(task).values()) <= self.largest


def learn(
    task: Task, state: GLMState | CentredState, replies: Sequence[Received], whole: bool, tolerance: float
) -> GLMState:
    """Learn the model with one intercept for all sites from a round's replies.

    Args:
        replies: What the sites say of this model.
        whole: Whether they send Hessians.
        tolerance: Of the gradient relative to the first, where the search ends.
    """
    prior, _ = priors_of(task)
    alone = take_own_fits(task, replies) or state.alone
    replies = without_own(replies)
    if isinstance(replies[0].payload, Sums):
        warn_of_few_rows(replies)
        totals = add(payloads(replies))
        if classes_of(task) is None:
            return GLMState(number_posterior(task, totals, whole), alone=alone)  # 2
        search = begin(totals, prior)  # 3
    elif task.outcome and not isinstance(state.search, Search):
        search = begin_search(sum_up(payloads(replies)), prior, weights(replies).sum())  # 3
    elif isinstance(state.search, Search) and isinstance(state.asked, (Point, Asked)):
        search = advance(state.search, sum_up(payloads(replies)), prior)  # 5, 6
    else:
        return state if isinstance(state, GLMState) else GLMState(state.posterior, (), state.search, state.alone)
    posterior = class_posterior(task, search, whole)  # 7
    if search.distance <= tolerance:
        return GLMState(posterior, (), search, alone)
    return GLMState(posterior, Point(unpack(search.next, layer_of(task))), search, alone)
