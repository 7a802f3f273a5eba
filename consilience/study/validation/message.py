"""What a site starts from: a message of the agreed form, with finite numbers and weights of a plausible size.

A coordinator chooses every message but the first, and so could choose weights that make a reply speak of few rows. The
limit below keeps such weights out where they are absurd; what can be read with plausible ones is in docs/privacy.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Gaussian, Natural, Point, Samples
from consilience.messages import Reply
from consilience.method import Method
from consilience.method.declared import weighs
from consilience.models.maps import feature_map
from consilience.privacy.disclosure.rules import RARE_VALUES, by_rule
from consilience.privacy.disclosure.sparse import find_sparse
from consilience.study.validation.form import Form, form_of, merge_forms, nodes_of
from consilience.study.validation.gate import (
    Gate,
    Refused,
    Rules,
    check_finite,
    check_form,
    check_gaussians,
    refuse_errors,
)
from consilience.task import Task
from consilience.tree import Tree

# A weight k SDs from 0 costs k²/2 nats under the prior, and a row can repay at most log C of them: a posterior
# that puts a weight a thousand SDs away has at least 500 000 / log C rows that all speak for it.
MOST_DEVIATIONS = 1000
NEAR = 1e-5  # what two machines may round differently in the same first message


class Broadcast(NamedTuple):
    """What a method's message of one round looks like.

    Attributes:
        form: Its form, by a rehearsal.
        short: Whether it holds a list with an entry for each site; the form is then that of a list of one.
    """

    form: Form
    short: bool = False


def broadcast_of(first: Tree, second: Tree) -> Broadcast | None:
    """Find what two messages of the same round have in common, from different numbers of sites and of inputs.

    Returns:
        What such messages look like, or None where they are put together differently.
    """
    form = merge_forms(form_of(first), form_of(second))
    if form is not None:
        return Broadcast(form)
    form = merge_forms(form_of(_shorten(first)), form_of(_shorten(second)))
    if form is None:
        return None
    return Broadcast(form, short=True)


def check_message(message: Tree, broadcasts: Iterable[Broadcast | None], task: Task) -> None:
    """Refuse a message that the method does not send, that is not finite, or whose weights are absurd.

    Args:
        broadcasts: What the method sends, round by round; None where a rehearsal does not say.
        task: The problem, which says how large weights are.

    Raises:
        Refused: The site does not start from it.
    """
    _check_form(message, broadcasts)
    with refuse_errors():
        for check in (check_finite, check_gaussians):
            check(Reply(message, torch.zeros(())), Gate(Rules(), None, 0))
        limit_weights(message, task)
        for node in nodes_of(message):
            if isinstance(node, Natural):
                _limit(_means_of(node), task)


def limit_weights(value: Tree, task: Task) -> None:
    """Refuse weights so large that no rows could have led there.

    Args:
        value: What was received, or would be sent.
        task: The problem: its prior, and the weights that its network begins with.

    Raises:
        Refused: A weight is larger than `largest_weight`.
    """
    for node in nodes_of(value):
        if isinstance(node, (Point, Samples)):
            _limit(list(task.weights(node.params).values()), task)
        elif isinstance(node, Gaussian):
            _limit(list(task.weights(node.mean).values()), task)
        elif isinstance(node, Dense):
            _limit([node.mean], task)


def check_asked(method: Method, task: Task, messages: Sequence[Tree], data: Data, smallest: int) -> None:
    """Refuse a message at which few rows alone would count in what is asked for, beside what was sent before.

    Σ p (1 − p) φφᵀ is one patient's where p is 0 or 1 in all other rows, and so is Σ (p − y) φ less Σ φ y. A message
    may ask so without any absurd weight: where few have the outcome, hardly anybody is predicted worse. Nor need one
    message do it: sums at several weights can be combined until all rows but one have cancelled.

    Args:
        messages: All that were answered, and last the one that would be.
        data: The rows that would be summed over.
        smallest: The fewest rows that may be shown.

    Raises:
        Refused: The site does not answer it.
    """
    weighings = [weighing for message in messages if (weighing := weighs(method, task, message, data)) is not None]
    if not weighings or len(data.y) < smallest:
        return
    products, lines = (torch.cat(each, 1) for each in zip(*weighings, strict=True))
    features = feature_map(task.model)
    with torch.no_grad():
        few = any(find_sparse(own.__getitem__, len(own), smallest) for own in (products, lines) if own.shape[1])
        for weights in weighings[-1][0].T:
            few = few or bool(find_sparse(lambda own: features(data.x[own]), len(weights), smallest, weights))
    if few:
        sentence = f"fewer than {smallest} rows would count in what it asks for, and the reply would show them."
        raise Refused(by_rule(RARE_VALUES, sentence))


def largest_weight(task: Task) -> float:
    """Give the largest weight that a site starts from, or sends.

    Returns:
        `MOST_DEVIATIONS` times the prior's SD, or times the largest fresh weight where that is more.
    """
    like = task.weights(task.like)
    variance = max(float(var.max()) for var in task.prior.gaussian(like).var.values())
    fresh = max(float(weight.abs().max()) for weight in like.values())
    return MOST_DEVIATIONS * max(math.sqrt(variance), fresh)


def check_first(message: Tree, own: Tree) -> None:
    """Refuse a first message other than the one that a site computes for itself.

    A lone number that is not whole is not compared: a damping may depend on how many sites there are by now.

    Args:
        own: What the study begins with.

    Raises:
        Refused: They differ by more than rounding.
    """
    leaves = tree.leaves(message)
    expected = tree.leaves(own)
    same = [leaf.shape for leaf in leaves] == [leaf.shape for leaf in expected]
    for leaf, other in zip(leaves, expected, strict=False):
        if same and (leaf.ndim or not leaf.is_floating_point()):
            same = torch.allclose(leaf.double(), other.double(), rtol=NEAR, atol=NEAR)
    if not same:
        raise Refused("it is not what this study begins with, which every site computes for itself.")


def _check_form(message: Tree, broadcasts: Iterable[Broadcast | None]) -> None:
    """Refuse what looks like no message of the rounds so far; where nothing is known, nothing is refused."""
    problem: Refused | None = None
    for broadcast in broadcasts:
        if broadcast is None:
            return
        value = message
        if broadcast.short:
            value = _shorten(message)
        try:
            check_form(Reply(value, torch.zeros(())), Gate(Rules(), broadcast.form, 0))
        except Refused as error:
            problem = problem or error
        else:
            return
    if problem is not None:
        raise problem


def _shorten(value: Tree) -> Tree:
    """The same with lists of things that look alike cut to their first."""
    if isinstance(value, dict):
        return {name: _shorten(child) for name, child in value.items()}
    if not isinstance(value, tuple):
        return value
    children = [_shorten(child) for child in value]
    if hasattr(value, "_fields"):
        return type(value)(*children)
    if children and all(form_of(child) == form_of(children[0]) for child in children):
        return (children[0],)
    return tuple(children)


def _means_of(node: Natural) -> list[Tensor]:
    """The means of a Gaussian by its natural parameters, where it has any."""
    if isinstance(node.precision, Tensor):
        return [torch.linalg.solve_ex(node.precision.double(), node.linear.double())[0]]
    return [node.linear[name][p > 0] / p[p > 0] for name, p in node.precision.items()]


def _limit(weights: Iterable[Tensor], task: Task) -> None:
    limit = largest_weight(task)
    for weight in _floating(weights):
        size = float(weight.abs().max())
        if not size <= limit:
            raise Refused(
                f"it has a weight of {size:.3g}, and none is larger than {limit:.3g} ({MOST_DEVIATIONS} SDs of "
                "the prior or of fresh weights): ask how it came about, or try a smaller rate."
            )


def _floating(weights: Iterable[Tensor]) -> Iterator[Tensor]:
    return (weight for weight in weights if weight.is_floating_point() and weight.numel())
