"""The loop all minibatch optimisers and samplers share.

Weights are one flat vector, so a step is a handful of operations whatever the network. Clients of unequal size may run
under one vmap: rows are padded, real rows come first in an order that depends on the key alone, and a client that has
finished its epoch is frozen until the others have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import Diverged, InputError
from consilience.key import Key
from consilience.parties import Client
from consilience.posterior import Posterior, Samples, centre
from consilience.progress import track
from consilience.task import Task
from consilience.training.augmentation import Augment
from consilience.training.gradient import pass_of, statistics_in
from consilience.training.optimisers import Optimiser
from consilience.tree import Tree

SMALL = 2**17  # numbers: half a megabyte


class Inference(Protocol):
    """Target, start, data → posterior. One whose `moves_statistics` is True trains batch normalisation as it should."""

    def __call__(self, task: Task, start: Posterior, client: Client) -> Posterior: ...


class At(NamedTuple):
    """Where a step stands."""

    epoch: int
    progress: float | Tensor  # of the whole chain, in [0, 1)
    size: Tensor  # n, the client's number of examples
    key: Key  # of the epoch
    step: int  # within the epoch
    overwrite: bool = False  # whether the step may write over vector and state, which nobody needs again

    def noise(self, vector: Tensor) -> Tensor:
        """This step's own standard normals."""
        return self.key.fold(self.step).normal_like(vector)


class Trace(NamedTuple):
    vector: Tensor  # the last
    samples: list[Tensor]
    state: Tree  # the kernel's, at the end


class Kernel(Protocol):
    def init(self, vector: Tensor) -> Tree: ...

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]: ...


@dataclass(frozen=True)
class Optimise:
    """An optimiser as a kernel; `schedule` maps progress to a factor of its rate, beside a constant one."""

    optimiser: Optimiser
    schedule: Callable[[float | Tensor], float | Tensor]
    factor: float | Tensor = 1.0

    def init(self, vector: Tensor) -> Tree:
        return self.optimiser.init(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        rate = self.optimiser.rate * self.factor * self.schedule(at.progress)
        rate = rate.to(vector) if isinstance(rate, Tensor) else rate
        return self.optimiser.step(vector, gradient, state, rate, at.overwrite)


@dataclass(frozen=True)
class Held:
    """An optimiser as a kernel whose memory stays as it was handed over."""

    optimiser: Optimiser
    memory: Tree

    def init(self, vector: Tensor) -> Tree:
        return ()

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        return self.optimiser.step(vector, gradient, self.memory, self.optimiser.rate)[0], ()


def chain(
    task: Task,
    start: Posterior,
    client: Client,
    kernel: Kernel,
    epochs: int,
    batch: int,
    kept: Collection[int] = (),
    own_epochs: Tensor | None = None,
    augment: Augment | None = None,
) -> Trace:
    """Run `epochs` passes over the client's rows, keeping the vectors at the end of the `kept` epochs.

    With `own_epochs` a client stops after so many of them; `augment` changes every batch's inputs. Running statistics
    follow the passes, not the kernel.
    """
    like = centre(start, task.like).params
    vector, data, several = tree.ravel(like), client.data, tree.under_vmap()
    state, samples = kernel.init(vector), []
    uneven = several and bool((tree.below(data.w) <= 0).any())  # some client of the group has fewer rows
    rows_in_all = len(data.w) if several else int((data.w > 0).sum())
    steps, size = math.ceil(rows_in_all / batch), data.size
    own_steps = torch.ceil((data.w > 0).sum() / batch).to(vector) if uneven else steps
    passes = epochs if own_epochs is None else own_epochs.to(vector) if several else int(own_epochs)
    learn, still = pass_of(task, like, size), statistics_in(task, like)
    overwrite = not several and still is None and vector.device.type == "cpu"
    own_key = client.key if several else client.key.plain
    for epoch in track(range(passes if isinstance(passes, int) else epochs), "epoch"):
        key = own_key.fold(epoch)
        order = key.order(data.w)
        for i, taken in enumerate(batches(data, order[: steps * batch], batch)):
            rows = taken if augment is None else taken._replace(x=augment(taken.x, key.fold(i).fold(-1)))
            at = At(epoch, (epoch + i / own_steps) / passes, size, key, i, overwrite)
            moved, gradient = learn(vector, rows, key, i)
            new = kernel.step(moved, gradient, state, at)
            if still is not None:
                new = torch.where(still, moved, new[0]), new[1]
            if uneven or (several and own_epochs is not None):
                works = (rows.w.sum() > 0) if own_epochs is None else (rows.w.sum() > 0) & (epoch < passes)
                new = tree.where(works, new, (vector, state))
            vector, state = new
        if epoch in kept:
            samples.append(vector.clone() if overwrite else vector)
        if not several and not tree.finite(vector):
            raise Diverged(
                f"{type(kernel).__name__} left the finite numbers by step {(epoch + 1) * steps}; "
                "try a smaller rate (--set inference.rate=…) or a stronger prior."
            )
    return Trace(vector, samples, state)


def batches(data: Data, order: Tensor, batch: int) -> Iterator[Data]:
    """So many rows at a time, in this order; small leaves are put in order at once, large ones batch by batch."""
    small = [leaf.index_select(0, order) if leaf.numel() <= SMALL else None for leaf in data]
    for i in range(0, len(order), batch):
        turn = order[i : i + batch]
        yield Data(
            *(
                whole[i : i + batch] if whole is not None else leaf.index_select(0, turn)
                for leaf, whole in zip(data, small, strict=True)
            )
        )


def sample(
    task: Task, start: Posterior, client: Client, kernel: Kernel, epochs: int, batch: int, kept: Collection[int]
) -> Samples:
    """The chain's vectors at the end of the `kept` epochs as a posterior; none of them is a mistake in the settings."""
    if not kept:
        raise InputError(
            f"{type(kernel).__name__} would keep no sample: burn less, or raise epochs, samples or how many to keep."
        )
    trace = chain(task, start, client, kernel, epochs, batch, kept)
    return Samples(tree.unravel(torch.stack(trace.samples), centre(start, task.like).params))


def keep_after_burn_in(epochs: int, burn: int, every: int) -> range:
    """The last epoch and every so many before it, as long as they are not burned."""
    if every < 1 or burn < 0:
        raise InputError(
            f"burn={burn} and every={every}: nothing can be kept; burn 0 epochs or more, keep every 1 or more."
        )
    return range(epochs - 1, burn - 1, -every)


def drawn_epochs(client: Client, fewest: int | None, most: int) -> Tensor | None:
    """How many passes this client makes this round, drawn evenly from fewest … most; None: always `most`."""
    if fewest is None:
        return None
    if not 1 <= fewest <= most:
        raise InputError(f"fewest={fewest}: a client makes at least one pass and at most epochs={most}.")
    span = most - fewest + 1
    return fewest + (client.key.fold(-1).uniform(1)[0] * span).floor().clamp(max=span - 1)
