"""What follows from what a method says about itself, with these settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, ones

from consilience.aggregation.summands import Mean, Summation
from consilience.data.sites import Data
from consilience.distributions.posterior import SMALLEST, Posterior
from consilience.distributions.predictive import Distribution, Predictive
from consilience.errors import InputError
from consilience.inference.capabilities import MovesStatistics, Narrowest
from consilience.messages import Received, Reply
from consilience.method.about import Needs, ReplyKind
from consilience.method.capabilities import (
    BatchNormed,
    Diagnosed,
    Imputable,
    Knob,
    OnColumns,
    OnFeatures,
    Personal,
    Pooling,
    Private,
    Releasable,
    Reusable,
    ShowsInputs,
    Summable,
    Tunable,
    Validated,
)
from consilience.method.contract import Bound, Method
from consilience.method.states import KeepsPosteriors, keep_fields
from consilience.privacy.entropy import Source
from consilience.task import Task
from consilience.tree import Tree


def kind_of(method: Method | type[Method]) -> type[Method]:
    """Return a method's class."""
    if isinstance(method, type):
        return method
    return type(method)


def name(method: Method | type[Method]) -> str:
    """Name a method as the command line does.

    Example:
        >>> import consilience as co
        >>> co.method.name(co.methods.BetaPredictiveBayes)
        'beta'
    """
    kind = kind_of(method)
    return kind.about.name or kind.__name__.lower()


def needs(method: Method) -> set[Needs]:
    """List all that a method wants at the server, with these settings: for itself, its inner method, its student.

    Example:
        >>> import consilience as co
        >>> sorted(need.value for need in co.method.needs(co.methods.FedBE()))
        ['inputs', 'nothing']
    """
    wanted = {method.about.needs}
    if shows_inputs(method) or method.distil:
        wanted.add(Needs.INPUTS)
    if method.inner is not None:
        wanted |= needs(method.inner)
    return wanted


def group(method: Method) -> str:
    """Name what tables group a method by: `bound`, or the most that it wants at the server."""
    if isinstance(method, Bound):
        return "bound"
    return max(needs(method), key=list(Needs).index).value


def pools_rows(method: Method | type[Method]) -> bool:
    """Say whether a method is a bound that runs on all sites' rows in one place."""
    kind = kind_of(method)
    return issubclass(kind, Bound) and kind.pooled


def usual_rounds(method: Method | type[Method], private: bool = False) -> int:
    """Say how many rounds a method runs for unless asked otherwise.

    Args:
        method: The method, or its class.
        private: Whether its private form is meant; a method with the setting `privacy` has it in any case.

    Example:
        >>> import consilience as co
        >>> co.method.usual_rounds(co.methods.FedAvg), co.method.usual_rounds(co.methods.ExactPooling)
        (10, 1)
    """
    private = private or method.privacy is not None
    if private and private_rounds(method):
        return private_rounds(method)
    return method.about.rounds.usual


def private_rounds(method: Method | type[Method]) -> int:
    """Say how many rounds a method's private form has, no more and no less; 0: as many as usual, or fewer."""
    kind = kind_of(method)
    if issubclass(kind, Private):
        return kind.private_rounds
    return 0


def on_linear(method: Method | type[Method]) -> tuple[str, ...]:
    """List a method's usual settings on a linear model of the columns, `field=value` each."""
    kind = kind_of(method)
    if issubclass(kind, OnColumns):
        return kind.on_linear
    return ()


def in_studies(method: Method | type[Method], chosen: Iterable[str] = ()) -> tuple[str, ...]:
    """List a method's usual settings in a study whose columns have effects, but for fields that somebody chose."""
    kind = kind_of(method)
    fields = {text.partition("=")[0] for text in chosen}
    if not issubclass(kind, OnFeatures):
        return ()
    return tuple(setting for setting in kind.in_studies if setting.partition("=")[0] not in fields)


def shows_inputs(method: Method) -> bool:
    """Say whether the first message holds the server's inputs, so that a site cannot make it for itself."""
    if isinstance(method, ShowsInputs):
        return method.shows_inputs
    return method.about.needs is Needs.INPUTS


def moves_statistics(method: Method) -> bool:
    """Say whether a method, with its inferences' settings, can train batch normalisation."""
    inferences: list[Any] = [method.inference]
    if method.distil:
        inferences.append(method.distil.inference)
    return (
        isinstance(method, BatchNormed)
        and all(isinstance(i, MovesStatistics) and i.moves_statistics for i in inferences if i is not None)
        and (method.inner is None or moves_statistics(method.inner))
    )


def knows_sites(method: Method | type[Method]) -> bool:
    """Say whether the pool must know whose posterior is whose, so that it is no mixture of samples without names."""
    kind = kind_of(method)
    return issubclass(kind, Pooling) and kind.by_site


def is_sum(method: Method | type[Method]) -> bool:
    """Say whether the model is made of a sum, so that two models less one another show who is in one alone."""
    return issubclass(kind_of(method), Summable) and method.about.reply is not ReplyKind.OTHER


def shares_replies(method: Method | type[Method]) -> bool:
    """Say whether a first reply is the inference's posterior on the untouched task, which other methods can pool."""
    return method.about.reply is ReplyKind.POSTERIOR


def sends_inference(method: Method | type[Method]) -> bool:
    """Say whether all that a client sends is what its inference returns: a private inference makes it private."""
    return method.about.reply in (ReplyKind.POSTERIOR, ReplyKind.WEIGHTS)


def reply_settings(method: Method) -> Any:
    """List what decides a first reply: methods of equal lists can use each other's; None where no other can use it."""
    if isinstance(method, Reusable):
        return method.reply_settings()
    if shares_replies(method):
        return method.inference
    return None


def summation(method: Method) -> Summation | None:
    """Say how replies are added up; None where the method, with these settings, is no sum."""
    if isinstance(method, Summable):
        return method.summation()
    return None


def averages(method: Method) -> bool:
    """Say whether `aggregate` uses the mean of the replies, weighted by rows, alone."""
    return summation(method) == Mean()


def folds(method: Method) -> bool:
    """Say whether replies may become one as they arrive, so that a round of many clients needs little memory."""
    return isinstance(method, Summable) and method.folds


def narrowest(method: Method) -> float | None:
    """Find the smallest variance of a client's Gaussian that its rows need not explain.

    None where every precision is the prior's plus the rows' curvature, as Laplace's approximation computes it.
    """
    if isinstance(method.inference, Narrowest):
        return method.inference.narrowest
    return SMALLEST


def protect(method: Method, reply: Reply, source: Source) -> Reply:
    """Add the noise that a method promises to a reply, at the site, before anything else is done with it."""
    if isinstance(method, Private):
        return method.protect(reply, source)
    return reply


def spends(method: Method, round: int) -> float:
    """Say which share of a budget's μ² a client's reply of a round takes, from 1 on."""
    if isinstance(method, Private):
        return method.spends(round)
    return 1 / usual_rounds(method)


def fold_replies(method: Method, replies: Sequence[Received]) -> list[Received]:
    """Fold some of a round's replies, with what earlier ones were folded into, where the method `folds`."""
    assert isinstance(method, Summable)
    return method.fold(replies)


def sums_by_class(method: Method, task: Task) -> bool:
    """Say whether a client sums products of features over each class by itself: few rows of one then stand out."""
    return isinstance(method, OnFeatures) and method.sums_by_class(task)


def weighs(method: Method, task: Task, message: Any, data: Data) -> tuple[Tensor, Tensor] | None:
    """Say how much each row counts in sums over them, where a message may make few rows count alone."""
    if isinstance(method, OnFeatures):
        return method.weighs(task, message, data)
    return None


def combines(method: Method) -> bool:
    """Tell whether messages choose how much each row counts in sums over them, so that answers can be combined."""
    return isinstance(method, OnFeatures) and type(method).weighs is not OnFeatures.weighs


def doubt(method: Method, task: Task, message: Any, send: Any) -> str | None:
    """Say why no client can have sent this, beyond what holds for all methods; the server then does not use it.

    Args:
        message: What the client answers.
        send: What it sent, which has the form of this method's replies and finite numbers.

    Returns:
        A sentence about the reply, as "it"; None where there is nothing to say.
    """
    if isinstance(method, Validated):
        return method.doubt(task, message, send)
    return None


def implied(method: Method, task: Task, message: Any, send: Any) -> Any:
    """Work out the posterior that a client found, where it sends something made from it: its weights have bounds.

    Args:
        message: What the client answers.
        send: What it sent, which has the form of this method's replies and finite numbers.

    Returns:
        The posterior; () where what was sent says all.
    """
    if isinstance(method, Validated):
        return method.implied(task, message, send)
    return ()


def fewest(method: Method, reply: Reply) -> Tensor:
    """Count the rows behind the smallest part of what a client sends."""
    if isinstance(method, Validated):
        return method.fewest(reply)
    return reply.size


def list_members(method: Method, state: Any) -> tuple[tuple[Posterior, ...], Tensor]:
    """List the posteriors whose disagreement is uncertainty, and their weights."""
    if isinstance(method, Personal):
        return method.members(state)
    if isinstance(state, KeepsPosteriors):
        return state.posteriors, state.weights
    return (state.posterior,), ones(1)


def diagnose(method: Method, task: Task, state: Any, x: Tensor) -> dict[str, Any]:
    """Say what a method can say about itself, at the inputs `x`, for the report."""
    if isinstance(method, Diagnosed):
        return method.diagnose(task, state, x)
    return {}


def monitored(method: Method, task: Task, state: Any) -> dict[str, Predictive]:
    """Make further models whose scores belong in the history of the rounds, by name."""
    if isinstance(method, Diagnosed):
        return method.monitored(task, state)
    return {}


def knob(method: Method, state: Any) -> Knob | None:
    """Name the setting of the pool that sites can choose by summed log-scores; None where there is none."""
    if isinstance(method, Tunable):
        return method.knob(state)
    return None


def turn(method: Method, state: Any, value: float) -> tuple[Method, Any]:
    """Make the method and the state with the knob at one of its values; the same where there is none."""
    if isinstance(method, Tunable):
        return method.turn(state, value)
    return method, state


def sweep(method: Method, task: Task, state: Any, x: Tensor) -> list[Distribution]:
    """Predict with the knob at each of its values; once where there is none."""
    if isinstance(method, Tunable):
        return method.sweep(task, state, x)
    return [method.predictive(task, state)(x)]


def hand_out(method: Method, state: Any, ensemble: bool) -> Tree:
    """Strip a state to what predicting needs: anything else stays with the coordinator.

    Args:
        ensemble: Whether the sites' posteriors are released, and not one posterior or student alone.

    Returns:
        The state with () in the other fields.
    """
    if isinstance(method, Releasable):
        return method.hand_out(state, ensemble)
    if ensemble:
        return keep_fields(state, ("posterior", "posteriors", "weights"))
    return keep_fields(state, ("posterior",))


def without_names(method: Method) -> Method | None:
    """Name the method that predicts when nobody knows whose posterior is whose; None where the pool cannot do so."""
    if isinstance(method, Pooling):
        return method.without_names()
    return None


def remarks(method: Method, state: Any, hand_out: str, labelled: bool) -> list[str]:
    """Say what somebody who is handed the model should know of its settings."""
    if isinstance(method, Pooling):
        return method.remarks(state, hand_out, labelled)
    return []


def tempers(method: Method) -> bool:
    """Say whether calibration rows may choose a temperature: not where they were trained on."""
    return not isinstance(method, Bound) or method.tempers


def sends_nothing(method: Method) -> bool:
    """Say whether a method sends nothing outside a simulation."""
    return isinstance(method, Bound) and method.silent


def impute(method: Method, marks: str, tables: int) -> Method:
    """Fill missing values several times at the client, and add the spread between the fits to what it sends.

    Args:
        marks: Which feature holds a column and which one is its missing-value indicator, as `1:2,4:5`.

    Returns:
        The method that does so; bounds take a filled value for a number.

    Raises:
        InputError: It sends no Gaussian, which Rubin's rules combine.
    """
    if isinstance(method, Imputable):
        return method.imputed(marks, tables)
    if isinstance(method, Bound):
        return method
    raise InputError(
        f"{name(method)} sends no Gaussian posterior, and multiple imputation combines Gaussians: choose a method "
        "that does, or let missing values be filled by means."
    )
