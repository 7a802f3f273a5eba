"""Where pseudo-rows begin, and the weights that are trained on them: for coresets and for distillation."""

from __future__ import annotations

import threading

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.payload import Coreset
from consilience.key import Key
from consilience.task import Task, label_counts

INITIALISING = threading.Lock()  # layers initialise themselves from torch's one global generator


def starts(task: Task, seed: Tensor, count: int) -> Tensor:
    """Fresh weights that depend on the seed alone, whichever thread or vmap asks.

    Args:
        task: whose network is initialised
        seed: of the first key
        count: R, how many sets of weights

    Returns:
        The weights [R, P].
    """
    with INITIALISING, temporarily_clear_interpreter_stack():
        return torch.stack([tree.ravel(task.init(Key(seed).fold(r)).params) for r in range(count)])


def drawn(data: Data, rows: int, key: Key) -> Coreset:
    """A client's own rows, drawn without replacement, labels and all; drawn rows again where there are too few.

    Args:
        rows: K, how many rows

    Returns:
        The first coreset; each of its rows counts n/K.
    """
    order = key.order(data.w)  # rows that only fill up come last
    chosen = order[torch.arange(rows, device=order.device) % (data.w > 0).sum()]
    return Coreset(data.x[chosen], data.y[chosen].clone(), (data.size / rows).expand(rows).clone())


def initial(task: Task, data: Data, rows: int, spread: float, key: Key) -> Coreset:
    """Inputs z ~ N(x̄, spread²); labels in turn, the most frequent first; for regression the mean target (§3.3).

    Args:
        task: which says how many classes there are
        rows: K, how many pseudo-rows
        spread: deviation of the inputs

    Returns:
        The first coreset; each of its rows counts n/K.
    """
    share = data.w / data.size
    mean = torch.einsum("n,n...->...", share.to(data.x), data.x)
    x = mean + spread * key.normal((rows, *data.x.shape[1:]), data.x)
    w = (data.size / rows).expand(rows).clone()
    if data.y.is_floating_point():
        y = torch.einsum("n,n...->...", share.to(data.y), data.y).expand(rows, *data.y.shape[1:])
        return Coreset(x, y.clone(), w)
    counts = label_counts(data, task.classes(data.x))
    order = counts.argsort(descending=True, stable=True)
    present = (counts > 0).sum()
    return Coreset(x, order[torch.arange(rows) % present], w)
