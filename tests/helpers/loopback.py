"""A Flower grid without Ray or sockets: it calls the ClientApp directly, and can spoil what comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import studies
from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import consilience as co
from consilience.data import Data
from consilience.study.flower.client import Site, client_app
from consilience.study.flower.engine import Flower
from consilience.study.flower.site import site_of
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import Broadcasts
from consilience.study.protocol.signature import read_key

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # private: a message asks for them

Spoil = Callable[[int, Message], Iterable[Message]]  # site and its reply → what arrives instead


class Loopback(Grid):
    def __init__(self, sites: Sequence[Site], spoil: Spoil | None = None) -> None:
        self.sites, self.spoil = {100 + s.number: s for s in sites}, spoil or (lambda k, reply: [reply])
        self.contexts = {n: Context(1, n, {}, RecordDict(), {}) for n in self.sites}
        self.app = client_app(lambda context: self.sites[context.node_id])
        self.waiting: list[Message] = []
        self.count = 0

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = f"message {self.count}"
            node = message.metadata.dst_node_id
            reply = self.app(message, self.contexts[node])
            train = message.metadata.message_type == "train"
            self.waiting += self.spoil(self.sites[node].number, reply) if train else [reply]
            numbers.append(f"message {self.count}")
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = set(message_ids)
        found = [m for m in self.waiting if m.metadata.reply_to_message_id in wanted]
        self.waiting = [m for m in self.waiting if m not in found]
        return found

    def get_node_ids(self) -> list[int]:
        return list(self.sites)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))

    def create_message(self, *words: object, **named: object) -> Message:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError


def sites_of(method: co.Method, task: co.Task, data: Sequence[Data], **named: object) -> list[Site]:
    """Sites that try the method's messages out once for all."""
    broadcasts = Broadcasts(method, task, data[0])
    sites = [Site(k, f"site {k}", method, task, d, **named) for k, d in enumerate(data)]  # type: ignore[arg-type]
    for site in sites:
        site.__dict__["broadcasts"] = broadcasts
    return sites


def flower(
    method: co.Method, task: co.Task, data: Sequence[Data], spoil: Spoil | None = None, **named: object
) -> Flower:
    grid = Loopback(sites_of(method, task, data, simulated=bool(named.get("simulated"))), spoil)
    settings = {"deadline": 60.0, "wait": 60.0, "pause": 0.01, **named}
    return Flower(grid, [s.name for s in grid.sites.values()], data[0], **settings)  # type: ignore[arg-type]


def study_sites(study: Study, folder: Path, without: tuple[str, ...] = ()) -> list[Site]:
    """The connected sites of a study whose keys lie in a folder; their tables are written there."""
    made = []
    for member in study.active:
        records = studies.rows(member.number, number=not study.agreement.target.classes)
        table = studies.table(folder / f"{member.name}.csv", records)
        key = read_key(folder / f"{member.name}.key")
        made.append(site_of(study, member, key, table, folder / f"{member.name}.site", without=without))
    return made
