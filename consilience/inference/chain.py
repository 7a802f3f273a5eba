"""The loop all minibatch optimisers and samplers share.

Weights are one flat vector, so a step is a handful of operations whatever the network. Clients of unequal size may run
under one vmap: rows are padded, real rows come first in an order that depends on the key alone, and a client that has
finished its epoch is frozen until the others have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.data.data import Data
from consilience.errors import Diverged
from consilience.key import Key
from consilience.optim import Optimiser
from consilience.parties import Client
from consilience.posterior import Posterior, centre
from consilience.progress import track
from consilience.slope import slope_of
from consilience.task import Task
from consilience.tree import Tree


class Inference(Protocol):
    """Target, start, data → posterior."""

    def __call__(self, task: Task, start: Posterior, client: Client) -> Posterior: ...


class At(NamedTuple):
    """Where a step stands."""

    epoch: int
    progress: float | Tensor  # of the whole chain, in [0, 1)
    size: Tensor  # n, the client's number of examples
    key: Key  # of the epoch
    step: int  # within the epoch

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
    """An optimiser as a kernel; `schedule` maps progress to a factor of its rate."""

    optimiser: Optimiser
    schedule: Callable[[float | Tensor], float | Tensor]

    def init(self, vector: Tensor) -> Tree:
        return self.optimiser.init(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        return self.optimiser.step(vector, gradient, state, self.optimiser.rate * self.schedule(at.progress))


def chain(
    task: Task, start: Posterior, client: Client, kernel: Kernel, epochs: int, batch: int, kept: Collection[int] = ()
) -> Trace:
    """Run `epochs` passes over the client's rows, keeping the vectors at the end of the `kept` epochs."""
    like = centre(start, task.like).params
    vector, data, several = tree.ravel(like), client.data, tree.vectorised()
    state, samples = kernel.init(vector), []
    rows_in_all = len(data.w) if several else int((data.w > 0).sum())
    steps, size = math.ceil(rows_in_all / batch), data.size
    own_steps = torch.ceil((data.w > 0).sum() / batch).to(vector) if several else steps
    slope = slope_of(task, like, size)
    for epoch in track(range(epochs), "epoch"):
        key = client.key.fold(epoch)
        order = key.order(data.w)
        for i in range(steps):
            rows = Data(*(leaf[order[i * batch : (i + 1) * batch]] for leaf in data))
            at = At(epoch, (epoch + i / own_steps) / epochs, size, key, i)
            new = kernel.step(vector, slope(vector, rows), state, at)
            vector, state = tree.where(rows.w.sum() > 0, new, (vector, state)) if several else new
        if epoch in kept:
            samples.append(vector)
        if not several and not bool(torch.isfinite(vector).all()):
            raise Diverged(
                f"{type(kernel).__name__} left the finite numbers by step {(epoch + 1) * steps}; "
                "try a smaller rate (--set inference.rate=…) or a stronger prior."
            )
    return Trace(vector, samples, state)
