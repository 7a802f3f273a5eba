"""What every engine does around `local`: the client's view before, the check of its reply after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from consilience import tree
from consilience.data.sites import Data
from consilience.engines.participation import FAILED
from consilience.errors import Diverged
from consilience.key import Key
from consilience.method import Method
from consilience.parties import Client, Received, Reply
from consilience.task import Task
from consilience.tree import Tree


class Turn(NamedTuple):
    """When clients are asked, and what their random numbers come from.

    Attributes:
        round: The number of the round, from 0.
        key: Key of the run's learning.
        progress: The share of the rounds that is done.
    """

    round: int
    key: Key
    progress: float = 0.0


class Engine(Protocol):
    """Where `local` runs.

    Attributes:
        memories: What each client remembers; stays at the site.
        forgiving: Whether to go on without a client that fails; if not, what went wrong is raised.
        lost: Who of the last cohort did not reply, and why.
    """

    memories: dict[int, Tree]
    forgiving: bool
    lost: dict[int, str]

    @property
    def clients(self) -> Sequence[int]: ...

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Replies to a message, sorted by client."""


@contextmanager
def closing(engine: Any) -> Iterator[None]:
    """Whatever an engine started, such as workers, ends with the run."""
    try:
        yield
    finally:
        if hasattr(engine, "close"):
            engine.close()


@contextmanager
def excuse(engine: Engine, k: int) -> Iterator[None]:
    """Client k's share of the work: what goes wrong in it ends the run, unless the engine forgives."""
    try:
        yield
    except Diverged as error:
        if not engine.forgiving:
            raise
        engine.lost[k] = f"{FAILED}: {error}"


def client_view(method: Method, message: Tree, data: Data, memories: dict[int, Tree], k: int, turn: Turn) -> Client:
    """What client k sees; its key depends on run, round and client alone."""
    memory = memories[k] if k in memories else method.memory(message)
    moment = torch.tensor(turn.progress, dtype=torch.float64)
    return Client(data, memory, turn.key.fold(turn.round).fold(k).tensor, moment)


def alone(method: Method, task: Task, message: Tree, client: Client, k: int, round: int) -> Reply:
    """One client's reply, with its number in any complaint."""
    try:
        reply = method.local(task, message, client)
    except Diverged as error:
        raise Diverged(f"Site {k}, round {round + 1}: {error}") from error
    if not tree.all_finite(reply.send):
        raise not_finite(k, round)
    return reply


def not_finite(k: int, round: int) -> Diverged:
    return Diverged(f"Site {k}, round {round + 1} sent numbers that are not finite; try a smaller rate.")
