"""One round, the same wherever it is played: a simulation, a study by files, a deployment, or replies pooled again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from consilience.data.sites import Data
from consilience.key import Key, Stream
from consilience.method import Method
from consilience.parties import Received, Server
from consilience.task import Task
from consilience.tree import Tree

Gather = Callable[[Tree], Sequence[Received]]


class Round(NamedTuple):
    """What a round was.

    Attributes:
        message: What was sent to the clients.
        replies: What was admitted of what they replied.
        state: What the server made of it.
    """

    message: Tree
    replies: Sequence[Received]
    state: Tree


def server_view(key: Key, clients: int, inputs: Tensor | None = None, calibration: Data | None = None) -> Server:
    """Make what the server sees before the first round.

    Args:
        key: The run's key.
        clients: How many clients there are in all.
        inputs: The server's unlabelled rows.
        calibration: The server's labelled rows.

    Returns:
        The server's rows, with the key that the first state is drawn from.
    """
    return Server(inputs, calibration, key.fold(Stream.INIT), clients)


def play_round(method: Method, task: Task, state: Tree, server: Server, key: Key, round: int, gather: Gather) -> Round:
    """Broadcast, gather what is admitted, aggregate.

    Args:
        method: The method.
        task: The statistical problem.
        state: The server's state before the round.
        server: The server's rows.
        key: The run's key.
        round: The number of the round, from 0.
        gather: Asks the clients, and returns the replies that were admitted.

    Returns:
        The round.
    """
    message = method.broadcast(state)
    replies = gather(message)
    drawing = server._replace(key=key.fold(Stream.AGGREGATE).fold(round))
    return Round(message, replies, method.aggregate(task, state, replies, drawing))
