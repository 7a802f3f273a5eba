"""One round, the same wherever it is played: a simulation, a study by files, a deployment, or replies pooled again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.errors import Diverged
from consilience.key import Key, Stream
from consilience.messages import Received, Server
from consilience.method import Method
from consilience.runs.engines.soundness import OPEN, sift
from consilience.task import Task
from consilience.tree import Tree

Gather = Callable[[Tree], Sequence[Received]]


class Round(NamedTuple):
    """What a round was.

    Attributes:
        message: What was sent to the clients.
        replies: What was admitted of what they replied, and pooled.
        state: What the server made of it.
        left_out: The clients whose replies were admitted, and would have made a model that cannot be used.
    """

    message: Tree
    replies: Sequence[Received]
    state: Tree
    left_out: tuple[int, ...] = ()


def server_view(key: Key, clients: int, inputs: Tensor | None = None, calibration: Data | None = None) -> Server:
    """Make what the server sees before the first round.

    Args:
        inputs: The server's unlabelled rows.
        calibration: The server's labelled rows.

    Returns:
        The server's rows, with the key that the first state is drawn from.
    """
    return Server(inputs, calibration, key.fold(Stream.INIT), clients)


def server_in_round(server: Server, key: Key, round: int) -> Server:
    """Give the server the key of a round.

    Args:
        server: What the server sees before the first round.
        round: The number of the round, from 0.

    Returns:
        The same rows, with the key that the round's aggregate draws from.
    """
    return server._replace(key=key.fold(Stream.AGGREGATE).fold(round))


def play_round(
    method: Method,
    task: Task,
    state: Tree,
    server: Server,
    key: Key,
    round: int,
    gather: Gather,
    is_sound: Callable[[Tree], bool] | None = None,
) -> Round:
    """Broadcast, gather what is admitted, aggregate.

    Args:
        state: The server's state before the round.
        round: The number of the round, from 0.
        gather: Asks the clients, and returns the replies that were admitted.
        is_sound: Tells whether a state can be used; those to blame for one that cannot are left out. None: any can.

    Raises:
        NotFinite: No state can be used, whoever is left out.
        Diverged: Prior and rows leave some weights open, or numbers are too large to invert.
    """
    try:
        return _play_round(method, task, state, server, key, round, gather, is_sound)
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        raise Diverged(OPEN) from error


def _play_round(
    method: Method,
    task: Task,
    state: Tree,
    server: Server,
    key: Key,
    round: int,
    gather: Gather,
    is_sound: Callable[[Tree], bool] | None,
) -> Round:
    message = method.broadcast(state)
    replies = gather(message)
    drawing = server_in_round(server, key, round)

    def pool(received: Sequence[Received]) -> Tree:
        return method.aggregate(task, state, received, drawing)

    if is_sound is None:
        return Round(message, replies, pool(replies))
    sifted = sift(replies, pool, is_sound)
    return Round(message, sifted.replies, sifted.state, sifted.left_out)
