"""What every engine does around `local`: the client's view before, the check of its reply after."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import Diverged, Exploded, InputError, SiteWarning
from consilience.key import Key
from consilience.messages import Client, Received, Reply
from consilience.method import Method, is_personal, name
from consilience.method.declared import protect
from consilience.method.settings import slow_down
from consilience.privacy.entropy import Source, noise_source
from consilience.runs.engines.participation import FAILED
from consilience.runs.engines.soundness import OPEN
from consilience.task import Task
from consilience.tree import Tree

PACES = (1.0, 1 / 4, 1 / 16, 1 / 64)  # of the default rate, in turn, until training does not diverge
SLOWED = "training diverged at the default rate and was repeated with smaller steps; set a rate to choose them."
NOISE = 0x6E6F697365  # what a client's key is folded by for simulated noise, unlike any count of steps
EXPLODED = "training diverged: its loss ends far above the start; set a smaller rate."


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


@runtime_checkable
class Prepares(Protocol):
    """An engine that gets ready for what lies ahead."""

    def prepare(self, method: Method, task: Task, rounds: int, compiled: bool | None) -> bool:
        """Get ready; whether steps are compiled."""


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
    def clients(self) -> Sequence[int]:
        """The clients' numbers."""

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Ask clients.

        Args:
            message: What the server sends.
            turn: When, and with which key.

        Returns:
            The replies, sorted by client.

        Raises:
            Diverged: A client's numbers are not finite, and the engine is not forgiving.
        """


@contextmanager
def closing(engine: Any) -> Iterator[None]:
    """End whatever an engine started, such as workers, with the block.

    Args:
        engine: Any engine; one without `close` has nothing to end.
    """
    try:
        yield
    finally:
        if hasattr(engine, "close"):
            engine.close()


@contextmanager
def excuse(engine: Engine, k: int) -> Iterator[None]:
    """Let what goes wrong in client k's share of the work end the run, unless the engine forgives.

    Args:
        engine: Whose client it is; its `lost` says why a forgiven client is missing.

    Raises:
        Diverged: The client's numbers are not finite, and the engine is not forgiving.
    """
    try:
        yield
    except Diverged as error:
        if not engine.forgiving:
            raise
        engine.lost[k] = f"{FAILED}: {error}"


def client_view(method: Method, message: Tree, data: Data, memories: dict[int, Tree], k: int, turn: Turn) -> Client:
    """Make what client k sees; its key depends on run, round and client alone.

    Args:
        method: What it will compute, for what it remembers before its first round.
        message: What the server sends.
        memories: What the clients remember, by number.
        turn: When it is asked.
    """
    if k in memories:
        memory = memories[k]
    else:
        memory = method.memory(message)
    progress = torch.tensor(turn.progress, dtype=torch.float64)
    return Client(data, memory, turn.key.fold(turn.round).fold(k).tensor, progress)


def source_of(client: Client) -> Source:
    """Make a source of noise that can be repeated, for simulations; at a real site, one that nobody can repeat.

    Args:
        client: The client, whose key it comes from.
    """
    return noise_source(client.key.fold(NOISE))


def alone(method: Method, task: Task, message: Tree, client: Client, k: int, round: int) -> Reply:
    """Compute one client's reply; if training diverges at a rate that nobody chose, again with smaller steps.

    Args:
        message: What the server sent.
        client: What the client sees.
        k: Its number, for error messages.
        round: The number of the round, from 0.

    Raises:
        Diverged: Its numbers are not finite.
    """
    source = source_of(client)
    guarded = dataclasses.replace(task, guarded=True)
    paced = method
    failure: Diverged | None = None
    for pace in PACES:
        if failure is not None:
            paced = slow_down(method, pace)
        if failure is not None and paced is method:
            break
        try:
            reply = _reply(paced, guarded, message, client, k, round)
        except Diverged as error:
            failure = error
            continue
        if paced is not method:
            warnings.warn(SiteWarning(k, SLOWED), stacklevel=2)
        return protect(method, reply, source)
    assert failure is not None
    if not isinstance(failure, Exploded):
        raise failure
    warnings.warn(SiteWarning(k, EXPLODED), stacklevel=2)
    return protect(method, _reply(paced, dataclasses.replace(task, guarded=False), message, client, k, round), source)


def _reply(method: Method, task: Task, message: Tree, client: Client, k: int, round: int) -> Reply:
    """One client's reply, whose numbers must be finite."""
    try:
        with explaining(method, "choose a method whose sites send weights alone"):
            reply = method.local(task, message, client)
    except Diverged as error:
        raise type(error)(f"Site {k}, round {round + 1}: {error}") from error
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged(f"Site {k}, round {round + 1}: {OPEN}") from error
    if not tree.all_finite(used_of(method, reply)):
        raise not_finite(k, round)
    return reply


@contextmanager
def explaining(method: Method, remedy: str) -> Iterator[None]:
    """Say in one sentence what to do where torch cannot batch over a layer of a network.

    Args:
        method: What is computed in the block.

    Raises:
        InputError: A layer has no rule for many rows or many clients at once.
    """
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        if "Batching rule" not in reason and not reason.startswith("vmap:"):
            raise
        raise InputError(f"{name(method)} needs what torch cannot do for this network ({reason}): {remedy}.") from error


def used_of(method: Method, reply: Reply) -> Tree:
    """Take what must be finite of a reply: what is sent, and what is kept where the site's own model is made of it.

    Args:
        reply: The reply, or a stack of them.

    Returns:
        A tree of tensors.
    """
    if is_personal(method):
        return (reply.send, reply.keep)
    return reply.send


def not_finite(k: int, round: int) -> Diverged:
    """Make the error of a client whose numbers are not finite.

    Args:
        round: The number of the round, from 0.

    Returns:
        The error, to be raised.
    """
    return Diverged(f"Site {k}, round {round + 1} sent numbers that are not finite; try a smaller rate.")
