"""What the server knows between rounds, and the steps that several methods take there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from consilience import tree
from consilience.aggregation.averages import Average
from consilience.distributions.posterior import Point, Posterior, average
from consilience.inference.optimisers import Optimiser
from consilience.messages import Received, payloads, weights
from consilience.task import Task
from consilience.tree import Tree


class State(NamedTuple):
    """What the server knows between rounds; every state has `.posterior` first.

    Attributes:
        posterior: The model, and the next round's start.
    """

    posterior: Posterior


class Pooled(NamedTuple):
    """The state of a method that keeps its clients' posteriors and pools their predictions.

    Attributes:
        posterior: What the round started from, or the student.
        posteriors: One for each client that replied.
        weights: nₖ / n.
    """

    posterior: Posterior
    posteriors: tuple[Posterior, ...]
    weights: Tensor


@runtime_checkable
class KeepsPosteriors(Protocol):
    """A state that keeps the clients' posteriors, as `Pooled` does.

    Attributes:
        posteriors: One for each client that replied; () where they are not released.
        weights: nₖ / n.
    """

    posteriors: tuple[Posterior, ...]
    weights: Tensor


def keeps_posteriors(state: Any) -> bool:
    """Say whether a state holds the clients' posteriors."""
    return isinstance(state, KeepsPosteriors) and bool(state.posteriors)


class Stepped(NamedTuple):
    """The state of a method whose server takes steps of an optimiser.

    Attributes:
        posterior: The weights θ.
        optimiser: What the optimiser remembers.
    """

    posterior: Point
    optimiser: Tree


def server_step(
    task: Task, state: Stepped, optimiser: Optimiser, replies: Sequence[Received], rule: Average = average
) -> Stepped:
    """Take one step of the server's optimiser along θ − Σₖ (nₖ/n) θₖ, the clients' average step as a gradient.

    Args:
        task: The task, for the running statistics of its network.
        state: The server's state before the step.
        optimiser: Whose step is taken.
        rule: What takes the place of the weighted mean.

    Returns:
        The state after the step.
    """
    before = state.posterior.params
    mean = rule(payloads(replies), weights(replies))
    theta = tree.ravel(before)
    theta, memory = optimiser.step(theta, theta - tree.ravel(mean.params), state.optimiser, optimiser.rate)
    return Stepped(with_statistics(task, Point(tree.unravel(theta, before)), mean), memory)


def with_statistics(task: Task, point: Point, mean: Point) -> Point:
    """Give a point the clients' mean running statistics: an optimiser's step could make a variance negative.

    Args:
        task: The task, which knows which parameters are statistics.
        point: The weights after a step.

    Returns:
        The weights of `point` with the statistics of `mean`.
    """
    statistics = {name: mean.params[name] for name in task.statistics}
    return Point({**point.params, **statistics})


def keep_fields(state: Any, fields: Sequence[str]) -> Tree:
    """Empty every field of a state but these.

    Args:
        fields: The names of the fields to keep; names that the state lacks are ignored.

    Returns:
        The state with () in the other fields.
    """
    return state._replace(**{name: () for name in state._fields if name not in fields})
