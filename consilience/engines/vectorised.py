"""All clients at once: `torch.func.vmap` over the whole of `local`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from consilience import tree
from consilience.data.data import Data
from consilience.engines.exchange import alone, client_view, excused
from consilience.errors import Diverged
from consilience.key import Key
from consilience.method import Method
from consilience.parties import Received, Reply
from consilience.progress import track
from consilience.task import Task
from consilience.tree import Tree


class Vectorised:
    """Clients are padded to equal size, `chunk` of them at a time (all by default)."""

    def __init__(self, data: Sequence[Data], chunk: int | None = None) -> None:
        self.data = data
        self.chunk = chunk
        self.memories: dict[int, Tree] = {}
        self.forgiving, self.lost = False, dict[int, str]()

    @property
    def clients(self) -> Sequence[int]:
        return range(len(self.data))

    @torch.no_grad()
    def gather(
        self,
        method: Method,
        task: Task,
        message: Tree,
        cohort: Sequence[int],
        round: int,
        key: Key,
        progress: float = 0.0,
    ) -> list[Received]:
        received: list[Received] = []
        self.lost = {}
        size = self.chunk or max(len(cohort), 1)
        for part in track([cohort[i : i + size] for i in range(0, len(cohort), size)], "group"):
            views = [client_view(method, message, self.data[k], self.memories, k, round, key, progress) for k in part]
            longest = max(len(view.data.w) for view in views)
            stacked = tree.stack([view._replace(data=padded(view.data, longest)) for view in views])
            replies: Reply = torch.func.vmap(lambda client: method.local(task, message, client))(stacked)
            for k, view, reply in zip(part, views, tree.unstack(replies, len(part)), strict=True):
                with excused(self, k):
                    if not tree.all_finite(reply.send):
                        alone(method, task, message, view, k, round)  # the same numbers again, to say where they left
                        raise Diverged(
                            f"Site {k}, round {round + 1} sent numbers that are not finite; try a smaller rate."
                        )
                    self.memories[k] = tree.map(torch.clone, reply.keep)
                    received.append(Received(k, reply.size.clone(), tree.map(torch.clone, reply.send)))
        return received


def padded(data: Data, length: int) -> Data:
    """Rows of zeros with weight 0 at the end."""
    extra = length - len(data.w)
    return Data(*(pad(leaf, [0, 0] * (leaf.ndim - 1) + [0, extra]) for leaf in data)) if extra else data
