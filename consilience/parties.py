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
    """What one client sees."""

    data: Data
    memory: Tree
    key: Key
    progress: Tensor = torch.zeros((), dtype=torch.float64)  # which part of the rounds is done, for schedules over them


class Server(NamedTuple):
    """What the server sees."""

    inputs: Tensor | None  # unlabelled
    calibration: Data | None  # few labelled rows
    key: Key
    clients: int  # how many clients there are in all


class Reply(NamedTuple):
    send: Tree  # leaves the site
    size: Tensor  # leaves the site: how many examples stand behind it; 0: withheld
    keep: Tree = ()  # stays at the site: the client's memory in the next round


class Received(NamedTuple):
    client: int
    size: Tensor
    payload: Tree


def payloads(replies: Sequence[Received]) -> tuple[Any, ...]:
    return tuple(r.payload for r in replies)


def weights(replies: Sequence[Received]) -> Tensor:
    """nₖ / n; equal where sizes are withheld."""
    sizes = torch.stack([torch.as_tensor(r.size, dtype=torch.float64) for r in replies])
    return torch.full_like(sizes, 1 / len(sizes)) if bool((sizes <= 0).any()) else sizes / sizes.sum()


def fold(replies: Sequence[Received]) -> list[Received]:
    """Replies of which only Σₖ (nₖ/n) payloadₖ matters, as one of n examples; as they are where sizes are withheld."""
    sizes = torch.tensor([float(r.size) for r in replies], dtype=torch.float64)
    if not replies or bool((sizes <= 0).any()):
        return list(replies)
    return [Received(replies[0].client, sizes.sum(), tree.mean(payloads(replies), weights(replies)))]
