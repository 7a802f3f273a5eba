"""Honest sites of a study, whatever its method: their replies round by round, and the gate that must let them in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import studies
import torch

from consilience.data.sites import Data
from consilience.key import Key, Stream
from consilience.messages import Received, Server
from consilience.method import Method
from consilience.runs.engines import Sequential, Turn
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.rehearsal import would_leave
from consilience.study.protocol.target import Target
from consilience.study.rows import rows_of
from consilience.study.validation.gate import Arrival, Gate
from consilience.study.validation.rules import gate_of
from consilience.task import Task

NUMBER = Target("died", (), "", (-20.0, 20.0), 0.0, 2.0)
QUICK: dict[str, tuple[str, ...]] = {  # settings of methods that take long
    "coreset": ("learn.updates=5", "learn.steps=20", "learn.data_steps=10", "learn.coreset_steps=5"),
    "dosfl": ("learn.updates=3", "learn.steps=2"),
}


class Round(NamedTuple):
    """One round of honest sites."""

    gate: Gate
    replies: list[Received]
    rows: int  # that each site committed to
    method: Method
    task: Task
    state: Any
    server: Server

    def admit(self, reply: Received, **change: Any) -> Received:
        """Let one reply in, with parts of it changed."""
        value = {"send": reply.payload, "size": reply.size, **change}
        arrival = Arrival(reply.client, reply.client, self.gate.round, message=self.gate.message, rows=self.rows)
        return self.gate.admit(reply.client, arrival, lambda: value)


def agreement_of(folder: Path, **changes: Any) -> Agreement:
    """An agreement whose list of what leaves is what the method sends."""
    method = changes["method"]
    settings = changes.pop("settings", QUICK.get(method, ()))
    draft = studies.agreement(folder, settings=settings, leaves=("none",), most_bytes=10**9, **changes)
    return dataclasses.replace(draft, leaves=would_leave(draft)[0])


def tables(agreement: Agreement, folder: Path, count: int) -> list[Data]:
    """Three sites' rows."""
    number = not agreement.target.classes
    paths = [studies.table(folder / f"{k}.csv", studies.rows(k, count, number)) for k in range(3)]
    return [rows_of(agreement, path, one_class=True)[0] for path in paths]


@torch.no_grad()
def honest_rounds(agreement: Agreement, data: Sequence[Data], rounds: int = 2) -> Iterator[Round]:
    """What the sites answer, round after round."""
    method = agreement.build_method()
    task = agreement.build_task()
    inputs = torch.cat([each.x[:5] for each in data])
    server = Server(inputs, None, Key(3), len(data))
    state = method.init(task, server)
    engine = Sequential(data)
    if method.about.one_shot:
        rounds = 1
    for t in range(rounds):
        message = method.broadcast(state)
        turn = Turn(t, agreement.key.fold(Stream.LOCAL), t / rounds)
        replies = engine.gather(method, task, message, range(len(data)), turn)
        gate = gate_of(agreement, message, t + 1, inputs)
        yield Round(gate, replies, max(len(each.y) for each in data), method, task, state, server)
        state = method.aggregate(task, state, replies, server)
