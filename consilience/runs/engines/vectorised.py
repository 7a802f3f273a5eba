"""Many clients at once: `torch.func.vmap` over the whole of `local`, in groups of similar size that fit into memory."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.payload import nbytes
from consilience.errors import InputError
from consilience.inference.capabilities import Batched, Passes
from consilience.inference.fast.compiled import worthwhile
from consilience.messages import Client, Received, Reply
from consilience.method import Method
from consilience.method.declared import protect
from consilience.models.plain import perceptron
from consilience.progress import track
from consilience.runs.engines.client_turn import Turn, alone, client_view, excuse, explaining, source_of, used_of
from consilience.runs.engines.memory import keep_memory
from consilience.runs.engines.workers import Crew, cores, small
from consilience.task import Task
from consilience.tree import Params, Tree

BUDGET = 256 * 2**20  # bytes a group may need, roughly; larger groups are no faster
COPIES = 16  # of a client's weights that are alive at a time: chain, gradients, the optimiser's averages, samples
COMPANY = 16  # small networks side by side that share the overhead well enough; fewer are not cut for another core
FEW = 4  # the same for networks that are not small
WASTE = 1.5  # how much larger padding may make the work of a group
KEPT = 512 * 2**20  # bytes of stacked rows that stay for the next round


class Vectorised:
    """Clients of similar size side by side, padded to equal size.

    Args:
        data: The rows of each site.
        chunk: How many clients a group holds at most; None: as many as fit into memory.
    """

    def __init__(self, data: Sequence[Data], chunk: int | None = None) -> None:
        keep_memory()
        self.data = data
        self.chunk = chunk
        self.compiled = False
        self.everyone = False
        self.memories: dict[int, Tree] = {}
        self.forgiving = False
        self.lost: dict[int, str] = {}
        self.crew = Crew()
        self.stacks: dict[tuple[int, ...], Data] = {}  # rows of groups that come again in every round

    @property
    def clients(self) -> Sequence[int]:
        """The clients' numbers."""
        return range(len(self.data))

    @torch.no_grad()
    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Ask clients, as `Engine.gather` says."""
        received: list[Received] = []
        self.lost = {}
        task = dataclasses.replace(task, compiled=self.compiled, guarded=True)
        groups = self.groups(task, cohort)
        self.everyone = len(cohort) == len(self.data)
        views = {k: client_view(method, message, self.data[k], self.memories, k, turn) for k in cohort}
        pairs = self.group_replies(method, task, message, [{k: views[k] for k in group} for group in groups])
        for k, together in sorted(pairs, key=lambda pair: pair[0]):
            with excuse(self, k):
                if together is None:
                    reply = alone(method, task, message, views[k], k, turn.round)  # perhaps with smaller steps
                else:
                    reply = protect(method, together, source_of(views[k]))
                self.memories[k] = reply.keep
                received.append(Received(k, reply.size, reply.send))
        return received

    def group_replies(
        self, method: Method, task: Task, message: Tree, groups: Sequence[dict[int, Client]]
    ) -> Iterator[tuple[int, Reply | None]]:
        """Compute all groups' replies, on all cores where there are several groups.

        A compiled step stays on the core where it was made.

        Args:
            method: What the clients compute.
            message: What the server sends.
            groups: What the clients of each group see.

        Yields:
            Clients and their replies, None for one that is not finite; in any order.
        """
        if len(groups) < 2 or cores() < 2 or self.compiled:
            for group in track(groups, "group"):
                yield from self.replies(method, task, message, group)
            return

        def work(own: Task, group: dict[int, Client]) -> list[tuple[int, Reply | None]]:
            return self.replies(method, own, message, group)

        for _, pairs in zip(track(groups, "group"), self.crew.share(work, task, groups), strict=True):
            yield from pairs

    def steps(self, method: Method, task: Task) -> int:
        """Count the steps of groups that a round takes.

        Args:
            method: What the clients compute.

        Returns:
            The number of steps; 0 if the method's inference does not say.
        """
        inference = method.inference
        epochs = inference.epochs if isinstance(inference, Passes) else 0
        batch = inference.batch if isinstance(inference, Batched) else 1
        longest = [len(self.data[group[0]].w) for group in self.groups(task, self.clients)]
        return (epochs or 0) * sum(math.ceil(rows / batch) for rows in longest)

    def prepare(self, method: Method, task: Task, rounds: int, compiled: bool | None) -> bool:
        """Decide whether steps are compiled.

        Args:
            method: What will be run.
            compiled: Whether to compile; None: where it is worth it.

        Returns:
            Whether they are.
        """
        if compiled is None:
            compiled = self.worth_compiling(method, task, rounds)
        self.compiled = compiled
        return compiled

    def worth_compiling(self, method: Method, task: Task, rounds: int) -> bool:
        """Say whether enough steps lie ahead, on one core, of a network whose gradient is not written out already.

        A compiled step stays on the core where it was made; uncompiled groups on two cores are faster.

        Args:
            method: What the clients compute.

        Returns:
            Whether compiling would save time.
        """
        plain = perceptron(task.model) is not None
        return not plain and cores() == 1 and worthwhile(rounds * self.steps(method, task))

    def groups(self, task: Task, cohort: Sequence[int]) -> list[list[int]]:
        """Cut a cohort by size and memory, and where it is large, into one part for every core.

        Args:
            task: The statistical problem, for the size of its network.
        """
        sizes = {k: len(self.data[k].w) for k in cohort}
        fewest = FEW
        if small(task):
            fewest = COMPANY
        groups = []
        for group in even(sizes):
            per_client = COPIES * nbytes(task.like) + 2 * nbytes(self.data[group[0]])  # padded rows, and their stack
            share = max(fewest, math.ceil(len(group) / cores()))
            groups += cut_evenly(group, min(self.chunk or share, max(1, BUDGET // per_client)))
        return groups

    def replies(
        self, method: Method, task: Task, message: Tree, views: dict[int, Client]
    ) -> list[tuple[int, Reply | None]]:
        """Compute a group's replies, in halves where memory does not suffice.

        Args:
            method: What the clients compute.
            message: What the server sends.
            views: What the clients of the group see.

        Returns:
            Clients and their replies, None for one that is not finite.

        Raises:
            InputError: A single client does not fit into memory.
        """
        group = list(views)
        try:
            others = tree.stack([tuple(view)[1:] for view in views.values()])
            stacked = Client(self.rows(tuple(group)), *others)
            with explaining(method, "use engine='sequential'"):
                together: Reply = torch.func.vmap(lambda client: method.local(task, message, client))(stacked)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(group) == 1:
                raise InputError(f"Site {group[0]} alone does not fit into memory: use a smaller model.") from error
            self.chunk = len(group) // 2
            self.stacks.clear()
            warnings.warn(
                f"{len(group)} sites at a time do not fit into memory; continuing with {self.chunk}.", stacklevel=2
            )
            halves = [{k: views[k] for k in half} for half in cut_evenly(group, self.chunk)]
            return [pair for half in halves for pair in self.replies(method, task, message, half)]
        replies: dict[int, Reply | None] = dict(zip(group, tree.unstack(together, len(group)), strict=True))
        for k, good in zip(group, finite(used_of(method, together), len(group)), strict=True):
            if not good:
                replies[k] = None
        return list(replies.items())

    def rows(self, group: tuple[int, ...]) -> Data:
        """Pad and stack a group's rows; once, where everyone takes part in every round.

        Returns:
            Their rows, with a leading dimension for the client.
        """
        if group in self.stacks:
            return self.stacks[group]
        longest = max(len(self.data[k].w) for k in group)
        stacked: Data = tree.stack([pad_rows(self.data[k], longest) for k in group])
        if self.everyone and nbytes(tuple(self.stacks.values())) + nbytes(stacked) <= KEPT:
            self.stacks[group] = stacked
        return stacked


def even(sizes: dict[int, int]) -> list[list[int]]:
    """Group clients from large to small, anew wherever padding the next one would waste too much.

    Args:
        sizes: Rows of each client.

    Returns:
        The groups, the largest client of each first.
    """
    groups: list[list[int]] = []
    rows = 0
    for k in sorted(sizes, key=lambda k: (-sizes[k], k)):
        if not groups or (len(groups[-1]) + 1) * sizes[groups[-1][0]] > WASTE * (rows + sizes[k]):
            groups.append([])
            rows = 0
        groups[-1].append(k)
        rows += sizes[k]
    return groups


def cut_evenly(group: Sequence[int], most: int) -> list[list[int]]:
    """Cut a group into parts as equal as they can be.

    Args:
        most: How many a part may hold.
    """
    parts = -(-len(group) // most)
    ends = [len(group) * i // parts for i in range(parts + 1)]
    return [list(group[a:b]) for a, b in pairwise(ends)]


def pad_rows(data: Data, length: int) -> Data:
    """Append rows of zeros with weight 0."""
    extra = length - len(data.w)
    if not extra:
        return data
    return Data(*(pad(leaf, [0, 0] * (leaf.ndim - 1) + [0, extra]) for leaf in data))


def finite(stacked: Tree, count: int) -> list[bool]:
    """Say which of the stacked trees hold finite numbers only.

    Args:
        stacked: Trees, with a leading dimension for the tree.

    Returns:
        For each tree, whether all its numbers are finite.
    """
    fine = torch.ones(count, dtype=torch.bool)
    for leaf in tree.leaves(stacked):
        if not tree.finite(leaf):
            fine &= torch.isfinite(leaf).reshape(count, -1).all(1).to(fine.device)
    return fine.tolist()


def refusal(task: Task, rows: Data) -> str:
    """Try a step of two clients side by side, on one row.

    Args:
        rows: A client's rows, of which one is looked at.

    Returns:
        Why torch cannot take it; empty where it can.
    """
    if perceptron(task.model) is not None:
        return ""
    row, both = Data(*(leaf[:1] for leaf in rows)), tree.stack([task.like, task.like])
    rows = tree.stack([row, row])

    def loss(params: Params, row: Data) -> Tensor:
        return task.loss(params, row, torch.ones(()))

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.func.vmap(task.outputs)(both, rows.x)
            torch.func.vmap(torch.func.grad(loss))(both, rows)
    except RuntimeError as error:
        return str(error).splitlines()[0].rstrip(".")
    return ""


def out_of_memory(error: BaseException) -> bool:
    """Say whether torch could not get the memory it asked for, on a device or from the system.

    Args:
        error: What was raised.

    Returns:
        Whether it is about memory.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    message = str(error).lower()
    return "can't allocate memory" in message or "not enough memory" in message
