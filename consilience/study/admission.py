"""What is let in. A rehearsal on invented rows shows what a reply looks like; anything else is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.method import Method
from consilience.parties import Client, Received, Reply, Server
from consilience.payload import nbytes
from consilience.posterior import Dense, Gaussian
from consilience.study.agreement import Agreement
from consilience.task import Task
from consilience.tree import Tree

PRETENDED = 32  # invented rows
LARGEST_SITE = 1e9  # rows nobody has


def server_of(agreement: Agreement, clients: int, inputs: Tensor | None = None) -> Server:
    """The coordinator's view before the first round, with the keys of `run`."""
    return Server(inputs, None, agreement.key.fold(Stream.INIT), clients)


def draw_rows(count: int, features: Sequence[int], classes: int) -> Data:
    """Rows made up from their shape alone; `classes` is 0 where numbers are predicted."""
    y = torch.arange(count) % classes if classes else Key(1).normal((count,))
    return Data.of(Key(0).normal((count, *features)), y)


def invent_rows(agreement: Agreement) -> Data:
    """Rows drawn from nothing but the agreement's columns."""
    return draw_rows(PRETENDED, (len(agreement.feature_names),), len(agreement.target.classes))


@torch.no_grad()
def rehearse(agreement: Agreement, message: Tree = None, round: int = 1, inputs: Tensor | None = None) -> Reply:
    """A reply to the message as an invented site would give it; its shapes are everybody's.

    Without a message the study's own first one is used. Later rounds are reached by pretending the first.
    """
    method, task = agreement.build_method(), agreement.build_task()
    rows, server = invent_rows(agreement), server_of(agreement, 1, inputs)
    server = server if inputs is not None else server._replace(inputs=rows.x)
    state = method.init(task, server)
    sent = method.broadcast(state)
    memory = method.memory(sent)
    if round > 1:
        first = _reply(method, task, sent, rows, memory)
        state = method.aggregate(task, state, [Received(0, first.size, first.send)], server)
        sent, memory = method.broadcast(state), first.keep
    return _reply(method, task, sent if message is None else message, rows, memory)


def _reply(method: Method, task: Task, message: Tree, rows: Data, memory: Tree) -> Reply:
    return method.local(task, message, Client(rows, memory, Key(2)))


def leaves_of(value: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its path, such as posterior.params.0.weight."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from leaves_of(child, f"{path}.{key}" if path else key)
    elif isinstance(value, tuple):
        for key, child in zip(getattr(value, "_fields", range(len(value))), value, strict=True):
            yield from leaves_of(child, f"{path}.{key}" if path else str(key))


def kinds_of(value: Tree) -> tuple[str, ...]:
    """The types of value inside, by name: what a study lists under `leaves`."""
    found = set()

    def walk(node: Any) -> None:
        if isinstance(node, Tensor):
            return
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            found.add(type(node).__name__)
        for child in node.values() if isinstance(node, dict) else node:
            walk(child)

    walk(value)
    return tuple(sorted(found)) or ("numbers",)


def would_leave(agreement: Agreement) -> tuple[tuple[str, ...], int]:
    """The kinds of value that a site sends in any round, and the bytes of the largest reply's numbers."""
    sent = [rehearse(agreement, round=t).send for t in range(1, min(agreement.rounds, 2) + 1)]
    return tuple(sorted({kind for send in sent for kind in kinds_of(send)})), max(map(nbytes, sent))


def admit(value: Tree, expected: Tree, where: str) -> None:
    """Refuse a value whose structure, names, shapes or types differ from the expected, or that is not sound."""
    if type(value) is not type(expected):
        raise InputError(f"{where} is a {type(value).__name__}; a {type(expected).__name__} is expected: not used.")
    if isinstance(expected, Tensor):
        _admit_tensor(value, expected, where)
    elif isinstance(expected, dict):
        if list(value) != list(expected):
            strange = sorted(set(value) ^ set(expected)) or ["their order"]
            raise InputError(f"{where} has other names than the study's model ('{strange[0]}'): not used.")
        for name, child in expected.items():
            admit(value[name], child, f"{where}, {name}")
    elif isinstance(expected, tuple):
        if len(value) != len(expected):
            raise InputError(f"{where} has {len(value)} parts; {len(expected)} are expected: not used.")
        for name, own, child in zip(getattr(expected, "_fields", range(len(expected))), value, expected, strict=True):
            admit(own, child, f"{where}, {name}")
        admit_gaussian(value, where)
    elif value != expected:
        raise InputError(f"{where} is {value!r}; {expected!r} is expected: not used.")


def _admit_tensor(value: Tensor, expected: Tensor, where: str) -> None:
    if value.shape != expected.shape or value.dtype != expected.dtype:
        theirs, ours = (f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (value, expected))
        raise InputError(f"{where} has the shape {theirs}; {ours} is expected: not used.")
    if not bool(torch.isfinite(value).all()):
        raise InputError(f"{where} holds numbers that are not finite: not used.")


def admit_gaussian(value: Tree, where: str) -> None:
    """Refuse a variance that is not positive and a precision that is not positive definite."""
    if isinstance(value, Gaussian) and any(bool((v <= 0).any()) for v in value.var.values()):
        raise InputError(f"{where} has a variance that is not positive: not used.")
    if isinstance(value, Dense):
        skew = float((value.precision - value.precision.mT).abs().max())
        _, failed = torch.linalg.cholesky_ex(value.precision.double())
        if skew > 1e-4 * float(value.precision.abs().max()) or bool(failed):
            raise InputError(f"{where} has a precision matrix that is not positive definite: not used.")


def admit_size(size: Tensor, smallest: int, where: str) -> None:
    """How many rows stand behind a reply: withheld (0), or a plausible count."""
    count = float(size) if size.numel() == 1 else math.nan
    if not (count == 0 or smallest <= count <= LARGEST_SITE) or count != round(count):
        raise InputError(f"{where} claims {count:g} rows; 0 (withheld) or a count from {smallest} on can be: not used.")
