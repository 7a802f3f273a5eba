"""Who sees what. Every leaf of a Client, a message and a Reply is a tensor; () means nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.key import Key
from consilience.tree import Tree


class Client(NamedTuple):
    """What one client sees.

    Attributes:
        data: Its own rows.
        memory: What it kept from the round before; () in the first.
        key: Its randomness in this round.
        progress: Which part of the rounds is done, from 0 to 1, for schedules over them.
    """

    data: Data
    memory: Tree
    key: Key
    progress: Tensor = torch.zeros((), dtype=torch.float64)


class Server(NamedTuple):
    """What the server sees.

    Attributes:
        inputs: Unlabelled rows, if it has any.
        calibration: A few labelled rows, if it has any.
        key: Its randomness in this round.
        clients: How many clients there are in all.
    """

    inputs: Tensor | None
    calibration: Data | None
    key: Key
    clients: int


class Reply(NamedTuple):
    """What a client's work of one round gives.

    Attributes:
        send: Leaves the site.
        size: Leaves the site: how many examples stand behind `send`; 0 where that is withheld.
        keep: Stays at the site: the client's memory in the next round.
    """

    send: Tree
    size: Tensor
    keep: Tree = ()


class Received(NamedTuple):
    """A reply as the server sees it.

    Attributes:
        client: The client's number.
        size: How many examples stand behind the payload; 0 where that is withheld.
        payload: What the client sent.
    """

    client: int
    size: Tensor
    payload: Tree


def payloads(replies: Sequence[Received]) -> tuple[Any, ...]:
    """Take the payloads out of the replies.

    Args:
        replies: What the server received.

    Returns:
        The payloads, in the same order.
    """
    return tuple(r.payload for r in replies)


def weights(replies: Sequence[Received]) -> Tensor:
    """Weigh replies by their numbers of examples.

    Args:
        replies: What the server received.

    Returns:
        nₖ / n in double precision [K]; equal weights where a size is withheld.

    Example:
        >>> import torch
        >>> from consilience.messages import Received, weights
        >>> weights([Received(0, torch.tensor(30.0), ()), Received(1, torch.tensor(10.0), ())]).tolist()
        [0.75, 0.25]
    """
    sizes = torch.stack([torch.as_tensor(r.size, dtype=torch.float64) for r in replies])
    if bool((sizes <= 0).any()):
        return torch.full_like(sizes, 1 / len(sizes))
    return sizes / sizes.sum()


def fold(replies: Sequence[Received]) -> list[Received]:
    """Fold replies of which only Σₖ (nₖ/n) payloadₖ matters into one of n examples.

    Args:
        replies: What the server received.

    Returns:
        One reply with the weighted mean of the payloads; the replies as they are where a size is withheld.
    """
    sizes = torch.tensor([float(r.size) for r in replies], dtype=torch.float64)
    if not replies or bool((sizes <= 0).any()):
        return list(replies)
    return [Received(replies[0].client, sizes.sum(), tree.mean(payloads(replies), weights(replies)))]
