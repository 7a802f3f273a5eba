"""The loop all minibatch optimisers and samplers share.

Weights are one flat vector, so a step is a handful of operations whatever the network. Clients of unequal size may run
under one vmap: rows are padded, real rows come first in an order that depends on the key alone, and a client that has
finished its epoch is frozen until the others have.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Posterior, Samples, centre
from consilience.errors import Diverged, Exploded, InputError
from consilience.inference.augmentation import Augment
from consilience.inference.explosion import find_explosion
from consilience.inference.fast.shared import once
from consilience.inference.fast.stacked import take_rows
from consilience.inference.gradient import pass_of, statistics_in
from consilience.inference.kernels import At, Kernel
from consilience.key import Key
from consilience.messages import Client
from consilience.progress import track
from consilience.task import Task
from consilience.tree import Tree

SMALL = 2**17  # numbers: half a megabyte


class Inference(Protocol):
    """Target, start, data → posterior. One whose `moves_statistics` is True trains batch normalisation as it should."""

    def __call__(self, task: Task, start: Posterior, client: Client) -> Posterior:
        """Infer the weights from one client's rows.

        Args:
            task: the target: network, likelihood, prior and tilts

        Returns:
            The posterior, or what stands for it.
        """


class Trace(NamedTuple):
    """What a chain leaves behind.

    Attributes:
        vector: the last weights, flat
        samples: the weights at the ends of the epochs asked for, flat
        state: the kernel's, at the end
    """

    vector: Tensor
    samples: list[Tensor]
    state: Tree


class Pace(NamedTuple):
    """How many steps a chain takes, for one client or for the clients of one vmap.

    Attributes:
        epochs: passes of the loop
        steps: steps of a pass of the loop
        client_epochs: passes of this client, at most `epochs`
        client_steps: steps of a pass of this client, at most `steps`
        uneven: whether clients of the vmap differ, so that some are frozen while others work
    """

    epochs: int
    steps: int
    client_epochs: int | Tensor
    client_steps: int | Tensor
    uneven: bool


@once
def chain(
    task: Task,
    start: Posterior,
    client: Client,
    kernel: Kernel,
    epochs: int,
    batch: int,
    sample_at: Collection[int] = (),
    client_epochs: Tensor | None = None,
    augment: Augment | None = None,
    shuffle: bool = True,
) -> Trace:
    """Run passes over the client's rows. Running statistics follow the passes, not the kernel.

    Args:
        start: where the chain begins
        epochs: passes over the rows
        sample_at: the epochs at whose ends the weights are kept
        client_epochs: after how many of the epochs this client stops; None: after all
        augment: changes every batch's inputs
        shuffle: whether every pass has an order of its own; otherwise all have that of the rows

    Returns:
        The last weights, those kept and the kernel's state.

    Raises:
        Diverged: if the weights of a client that runs alone are not finite at the end of an epoch.
        Exploded: if the task is guarded and its loss ends far above the start; under vmap the weights are NaN then.
    """
    like = centre(start, task.like).params
    vector = tree.ravel(like)
    first = vector
    if task.guarded:
        first = vector.clone()  # steps may write over it
    data = client.data
    size = data.size
    loop_epochs, steps, passes, client_steps, uneven = _pace(data, vector, epochs, batch, client_epochs)
    learn = pass_of(task, like, size)
    is_statistic = statistics_in(task, like)
    several = tree.under_vmap()
    overwrite = not several and is_statistic is None and vector.device.type == "cpu"
    chain_key = client.key
    if not several:
        chain_key = chain_key.plain
    state = kernel.init(vector)
    samples: list[Tensor] = []
    for epoch in track(range(loop_epochs), "epoch"):
        key = chain_key.fold(epoch)
        order = order_of(data.w, key, shuffle)[: steps * batch]
        for i, plain in enumerate(batches(data, order, batch)):
            rows = plain
            if augment is not None:
                rows = plain._replace(x=augment(plain.x, key.fold(i).fold(-1)))
            at = At(epoch, (epoch + i / client_steps) / passes, size, key, i, overwrite)
            current, gradient = learn(vector, rows, key, i)
            new = kernel.step(current, gradient, state, at)
            if is_statistic is not None:
                new = torch.where(is_statistic, current, new[0]), new[1]
            if uneven:
                works = rows.w.sum() > 0
                if client_epochs is not None:
                    works = works & (epoch < passes)
                new = tree.where(works, new, (vector, state))
            vector, state = new
        if epoch in sample_at:
            samples.append(vector.clone())  # the next step may write over it
        if not several and not tree.finite(vector):
            raise Diverged(
                f"Training diverged: the weights are not finite after step {(epoch + 1) * steps}; try a smaller rate "
                "or a stronger prior."
            )
    if task.guarded:
        exploded = find_explosion(task, like, first, samples or [vector], data)
        if exploded is not None:
            vector, samples = _refuse(exploded, vector, samples)
    return Trace(vector, samples, state)


def _refuse(exploded: Tensor, vector: Tensor, samples: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Refuse weights that exploded; under vmap, where a single client cannot raise, by making them NaN."""
    if tree.under_vmap():
        nan = torch.full_like(vector, torch.nan)
        return torch.where(exploded, nan, vector), [torch.where(exploded, nan, sample) for sample in samples]
    if exploded:
        raise Exploded("Training diverged: the loss is far above the one it began with; try a smaller rate.")
    return vector, samples


def _pace(data: Data, vector: Tensor, epochs: int, batch: int, client_epochs: Tensor | None) -> Pace:
    """How many steps the loop takes, and how many of them this client's weights move in."""
    if not tree.under_vmap():
        steps = math.ceil(int((data.w > 0).sum()) / batch)
        if client_epochs is not None:
            epochs = int(client_epochs)
        return Pace(epochs, steps, epochs, steps, uneven=False)
    steps = math.ceil(len(data.w) / batch)
    passes: int | Tensor = epochs
    client_steps: int | Tensor = steps
    if client_epochs is not None:
        passes = client_epochs.to(vector)
    padded = bool((tree.below(data.w) <= 0).any())  # some client of the group has fewer rows
    if padded:
        client_steps = torch.ceil((data.w > 0).sum() / batch).to(vector)
    return Pace(epochs, steps, passes, client_steps, uneven=padded or client_epochs is not None)


def order_of(w: Tensor, key: Key, shuffle: bool) -> Tensor:
    """The order of a pass: the rows, followed by the padding.

    Args:
        w: the rows' weights [N]
        shuffle: whether the key decides; otherwise the rows stay as they are

    Returns:
        Row numbers [N].
    """
    if shuffle:
        return key.order(w)
    return torch.sort((w <= 0).to(torch.uint8), stable=True).indices


def batches(data: Data, order: Tensor, batch: int) -> Iterator[Data]:
    """So many rows at a time; small leaves are put in order at once, large ones batch by batch.

    Args:
        order: their numbers, in the order in which they come
        batch: rows at a time

    Yields:
        The batches; the last may be smaller.
    """
    if not len(order):
        return
    parts: list[Iterable[Tensor]] = []
    for leaf in data:
        if leaf.numel() <= SMALL:
            parts.append(take_rows(leaf, order).split(batch))
        else:
            parts.append(map(take_rows, repeat(leaf), order.split(batch)))
    for leaves in zip(*parts, strict=True):
        yield Data(*leaves)


def sample(
    task: Task,
    start: Posterior,
    client: Client,
    kernel: Kernel,
    epochs: int,
    batch: int,
    sample_at: Collection[int],
    shuffle: bool = True,
) -> Samples:
    """Run a chain and keep its weights at the ends of some epochs as a posterior.

    Args:
        start: where the chain begins
        epochs: passes over the rows
        sample_at: the epochs at whose ends the weights are kept
        shuffle: whether every pass has an order of its own

    Returns:
        The samples, in the order of the epochs.

    Raises:
        InputError: if no epoch is kept.
        Diverged: if the weights are not finite.
    """
    if not sample_at:
        raise InputError(
            f"{type(kernel).__name__} would keep no sample: lower burn, or raise epochs, samples, cycles or keep."
        )
    trace = chain(task, start, client, kernel, epochs, batch, sample_at, shuffle=shuffle)
    return Samples(tree.unravel(torch.stack(trace.samples), centre(start, task.like).params))


def keep_after_burn_in(epochs: int, burn: int, every: int) -> range:
    """The last epoch and every so many before it, as long as they are not burned.

    Args:
        burn: passes before the first that may be kept
        every: passes from one kept to the next

    Returns:
        The epochs to keep, the last first.

    Raises:
        InputError: if `burn` is negative or `every` is not positive.
    """
    if every < 1 or burn < 0:
        raise InputError(f"burn={burn}, every={every}: burn must be at least 0 and every at least 1.")
    return range(epochs - 1, burn - 1, -every)


def draw_epochs(client: Client, fewest: int | None, most: int) -> Tensor | None:
    """Draw how many passes this client makes this round, evenly from fewest … most.

    Args:
        fewest: the smallest number of passes; None: always `most`

    Returns:
        The number of passes; None: always `most`.

    Raises:
        InputError: if `fewest` is not within 1 … `most`.
    """
    if fewest is None:
        return None
    if not 1 <= fewest <= most:
        raise InputError(f"fewest={fewest}: a client makes at least one pass and at most epochs={most}.")
    span = most - fewest + 1
    return fewest + (client.key.fold(-1).uniform(1)[0] * span).floor().clamp(max=span - 1)
