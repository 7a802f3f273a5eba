"""Flower's messages in tests: a question, its replies, and replies that somebody changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import tiny
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import Tensor

import consilience as co
from consilience.distributions.posterior import Point
from consilience.key import Key
from consilience.runs.engines import Turn

METHOD = tiny.method("fedavg")
TURN = Turn(0, Key(3))


def problem() -> tuple[co.Task, co.Sites, Point]:
    task, sites = tiny.PROBLEMS["classification"]()
    return task, sites, task.init(Key(1))


def only_site_1(change: Callable[[Message], Iterable[Message]]) -> loopback.Spoil:
    return lambda k, reply: change(reply) if k == 1 else [reply]


def question(reply: Message) -> Message:
    """Something to reply to, with the numbers of what `reply` replied to."""
    asked = Message(RecordDict(), reply.metadata.src_node_id, "train", group_id=reply.metadata.group_id)
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


def array_changed(reply: Message, change: Callable[[Tensor], Tensor]) -> Message:
    """The same reply with another first array."""
    arrays = reply.content.array_records["arrays"]
    name = next(n for n in arrays if n.endswith("weight"))
    new = ArrayRecord({**arrays, name: Array(change(torch.from_numpy(arrays[name].numpy().copy())).numpy())})
    return Message(RecordDict({"arrays": new, "header": reply.content["header"]}), reply_to=question(reply))


def truncated(reply: Message) -> Message:
    arrays = reply.content.array_records["arrays"]
    name, array = next(iter(arrays.items()))
    cut = Array(dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, data=array.data[:-7])
    new = ArrayRecord({**arrays, name: cut})
    return Message(RecordDict({"arrays": new, "header": reply.content["header"]}), reply_to=question(reply))


def signed(site: int, purpose: str, message: bytes) -> str:
    """A signature only that site can make, as far as this test goes."""
    return f"{site} {purpose} {message.decode()}"
