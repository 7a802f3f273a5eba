"""Whether a pool predicts finite numbers; where it does not, whose replies are to blame."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Dense
from consilience.distributions.predictive import finite_rows
from consilience.errors import Diverged, InputError
from consilience.key import Key, Stream
from consilience.messages import Received
from consilience.method import Method
from consilience.method.which import has_common, own_states
from consilience.task import Task
from consilience.tree import Tree

Pool = Callable[[Sequence[Received]], Tree]

PROBES = 8  # rows that a model of a run is tried on
MOST = 32  # sites that are left out one by one: more would cost as many pools of as many replies
OPEN = (
    "Prior and rows leave some weights open, so that their posterior is no Gaussian: a flat or very wide prior with a "
    "column that is constant or depends on others, or that separates the outcomes, or with the logits of all classes, "
    "whose common level no row tells. Give a narrower prior (prior_var), or leave such columns out."
)
ROUNDING = 1e-4  # of a precision's largest eigenvalue, by which a smallest below 0 may be what its digits left out
FAR = 1e6  # times the others' median: a precision above that is no site's
UNSOUND = "the model pooled with its reply predicts numbers that are not finite."


class NotFinite(Diverged):
    """A pool predicts numbers that are not finite, whoever is left out of it."""


class Sifted(NamedTuple):
    """A pool that predicts finite numbers.

    Attributes:
        state: What the server made of the replies.
        replies: The replies behind it.
        left_out: The clients whose replies are not in it.
    """

    state: Tree
    replies: Sequence[Received]
    left_out: tuple[int, ...] = ()


def draw_probes(key: Key, rows: Tensor, count: int = PROBES) -> Tensor:
    """Draw rows to try a model on, where nobody has said what is plausible.

    Args:
        rows: Rows that give the shape and type of one; the values of token ids are used, others not looked at.

    Returns:
        Standard normals, or rows of token ids as they are, [count, …].
    """
    key = key.fold(Stream.PROBE)
    if rows.is_floating_point():
        return key.normal((count, *rows.shape[1:]), rows)
    return rows[key.permutation(len(rows)).to(rows.device)][:count]


@contextmanager
def quietly() -> Iterator[None]:
    """Try something out: without gradients, and without the warnings it gives."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def holds_finite(state: Tree) -> bool:
    """Say whether a state holds finite numbers only.

    Args:
        state: A tree of tensors and plain numbers.
    """
    return all(tree.finite(torch.as_tensor(leaf)) for leaf in tree.leaves(state) if isinstance(leaf, Tensor | float))


def predicts_finite(
    method: Method, task: Task, state: Tree, x: Tensor | None, memories: Mapping[int, Tree] | None = None
) -> bool:
    """Say whether a model holds and predicts finite numbers only.

    Args:
        x: The rows to try it on; None: its own numbers are all that is looked at.
        memories: What clients keep, by number, for models of their own; None where they keep it to themselves.

    Returns:
        Whether it can be used.
    """
    if not holds_finite(state):
        return False
    if x is None:
        return True
    with quietly():
        kept = {k: memory for k, memory in (memories or {}).items() if holds_finite(memory)}
        models = list((own_states(method, task, state, kept) or {}).values())
        models = [method.predictive(task, own) for own in models]
        if has_common(method):
            models.append(method.predictive(task, state))
        return all(bool(finite_rows(model(x)).all()) for model in models)


def sift(replies: Sequence[Received], pool: Pool, is_sound: Callable[[Tree], bool]) -> Sifted:
    """Pool replies; where the pool cannot be used, find the ones to blame and pool the others.

    To blame is whose reply cannot be pooled even alone, else the one without which the others can be pooled; nobody
    where prior and rows leave weights open.

    Args:
        pool: Makes a state of replies.
        is_sound: Tells whether a state can be used.

    Returns:
        A pool that can be used.

    Raises:
        NotFinite: There is none.
        InputError: The replies cannot be pooled, whoever is left out.
        RuntimeError: Likewise.
    """
    try:
        state = pool(replies)
    except (InputError, RuntimeError) as error:  # what a single reply holds can end a sum: no inverse, say
        open_weights = isinstance(error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
        if open_weights and _are_alike([reply.payload for reply in replies]):
            raise  # prior and rows are to blame, and no site: whose matrix has an inverse, rounding decides
        sifted = _leave_out(replies, pool, is_sound)
        if sifted is None:
            raise
        return sifted
    if is_sound(state):
        return Sifted(state, replies)
    sifted = _leave_out(replies, pool, is_sound)
    if sifted is None:
        raise NotFinite("The pooled model predicts numbers that are not finite, whichever site is left out.")
    return sifted


def _are_alike(payloads: Sequence[Tree]) -> bool:
    """Whether replies are Gaussians with precisions, but for rounding, none of which is far above the others."""
    largest = []
    for payload in payloads:
        if not isinstance(payload, Dense) or not holds_finite(payload):
            return False
        values = torch.linalg.eigvalsh(payload.precision.double())
        if values[0] < -ROUNDING * values[-1]:
            return False
        largest.append(float(values[-1]))
    return max(largest) <= FAR * statistics.median(largest)


def _leave_out(replies: Sequence[Received], pool: Pool, is_sound: Callable[[Tree], bool]) -> Sifted | None:
    """The pool without those to blame; None if nobody's absence helps."""
    alone = [reply for reply in replies if _try_pool([reply], pool, is_sound) is None]
    suspects = [alone]
    if len(replies) <= MOST:
        suspects += [[reply] for reply in replies]
    for blamed in suspects:
        left_out = tuple(reply.client for reply in blamed)
        rest = [reply for reply in replies if reply.client not in left_out]
        if not left_out or not rest:
            continue
        state = _try_pool(rest, pool, is_sound)
        if state is not None:
            return Sifted(state, rest, left_out)
    return None


def _try_pool(replies: Sequence[Received], pool: Pool, is_sound: Callable[[Tree], bool]) -> Tree | None:
    """A state that can be used; None where there is none."""
    try:
        with quietly():
            state = pool(replies)
        if is_sound(state):
            return state
    except (InputError, RuntimeError):
        return None
    return None
