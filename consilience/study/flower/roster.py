"""Which node is which site: nodes say who they are before anybody is asked for anything."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from consilience.disk.watch import Watch
from consilience.errors import InputError
from consilience.version import __version__

Verify = Callable[[int, str, bytes, str], bool]  # site, purpose, message, signature


class Introduction(NamedTuple):
    """What a node says about itself.

    Attributes:
        number: The number of the site it claims to be.
        study: The hash of the study it agreed to.
        version: Its version of consilience.
        signature: Its signature of the study and its node.
    """

    number: int
    study: str
    version: str
    signature: str


class Roster:
    """The sites behind a `Grid`; a stranger is not asked.

    Attributes:
        names: The sites' names, for people.
        numbers: What the sites' random numbers come from; never given twice, so not without gaps.
        nodes: Site → node.
        strangers: Node → why it is not asked.
        passing: Strangers who may be well or wanted later.
        missing: Sites that did not come or went away; they are not waited for again until they are back.
        watch: Is told at every look who is there.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        numbers: Sequence[int],
        study: str = "",
        verify: Verify | None = None,
        wait: float = 60.0,
        pause: float = 0.05,
    ) -> None:
        """Begin without knowing anybody.

        Args:
            grid: Flower's way to the nodes.
            numbers: The sites' numbers in the study.
            study: The study's hash; empty in a simulation.
            verify: Tells whether a site signed something; None where a site is taken by its word.
            wait: Seconds until the sites asked must be there.
            pause: Seconds between two looks.
        """
        self.grid = grid
        self.names = list(names)
        self.numbers = list(numbers)
        self.study = study
        self.verify = verify
        self.wait = wait
        self.pause = pause
        self.watch = Watch(names)
        self.nodes: dict[int, int] = {}
        self.strangers: dict[int, str] = {}
        self.passing: set[int] = set()
        self.missing: set[int] = set()
        self._since: dict[int, str] = {}  # node → since when it is connected; those that were asked who they are
        self._asked: dict[str, int] = {}  # question → the node that has not said yet who it is

    def meet(self, cohort: Sequence[int], needed: int | None = None) -> None:
        """Wait for sites, and learn which node is which.

        Args:
            cohort: The sites that will be asked.
            needed: How many of them must be there, so that even a missing one is waited for; all by default.
        """
        if needed is None:
            needed = len(cohort)
        end = time.monotonic() + self.wait
        self._reconsider()
        while True:
            self.look()
            absent = {k for k in cohort if k not in self.nodes}
            if absent <= self.missing and len(cohort) - len(absent) >= needed:
                break
            if time.monotonic() >= end:
                break
            time.sleep(self.pause)
        self.missing = self.missing - set(cohort) | absent

    def look(self) -> None:
        """Look once who is there, and ask who is new; nobody is waited for."""
        present = _presence(self.grid)
        self._since = {node: since for node, since in self._since.items() if present.get(node) == since}
        self._asked = {number: node for number, node in self._asked.items() if node in self._since}
        here = {k: node for k, node in self.nodes.items() if node in self._since}
        if len(here) < len(self.nodes):
            self.nodes = here
            self._reconsider()
        self._introduce({node: since for node, since in sorted(present.items()) if node not in self._since})
        self._listen()
        self.watch.look(self.nodes.keys())

    def connection(self, k: int) -> tuple[int, str] | None:
        """Name a site's connection; another one does not know what the site was asked before."""
        if k not in self.nodes:
            return None
        return self.nodes[k], self._since.get(self.nodes[k], "")

    def absence(self) -> str:
        """Say that a site is not there, and who came instead."""
        if not self.strangers:
            return "it is not connected."
        reasons = "; ".join(sorted(set(self.strangers.values())))
        return f"it is not connected. Others were not let in: {reasons}"

    def _reconsider(self) -> None:
        """Ask those again who answered with an error, or whose place was taken."""
        for node in self.passing:
            del self.strangers[node]
            self._since.pop(node, None)
        self.passing = set()

    def _introduce(self, nodes: Mapping[int, str]) -> None:
        """Ask new nodes who they are."""
        if not nodes:
            return
        for node in nodes:
            self.strangers.pop(node, None)
            self.passing.discard(node)
        question = RecordDict({"header": ConfigRecord({"about": "who"})})
        requests = {n: Message(question, n, MessageType.QUERY, group_id="0", ttl=self.wait) for n in nodes}
        waiting, refused = push(self.grid, requests)
        self._asked |= waiting
        self._since |= {node: since for node, since in nodes.items() if node not in refused}

    def _listen(self) -> None:
        """Hear who nodes are."""
        if not self._asked:
            return
        for reply in self.grid.pull_messages(list(self._asked)):
            node = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if node is not None:
                self._place(node, reply)

    def _place(self, node: int, reply: Message) -> None:
        """Put a node in its site's place, or write down why not."""
        if reply.has_error():
            self.strangers[node] = reply.error.reason or "it did not say who it is."
            self.passing.add(node)
            return
        try:
            about = _read_introduction(reply)
        except Exception:  # whatever a stranger says
            self.strangers[node] = "it did not say who it is."
            return
        if about.study != self.study:
            self.strangers[node] = "it agreed to another study."
        elif about.number not in self.numbers:
            self.strangers[node] = f"there is no site {about.number} in this study."
        else:
            self._seat(self.numbers.index(about.number), node, about)

    def _seat(self, k: int, node: int, about: Introduction) -> None:
        """Let a node be site k, if its signature is that site's and nobody else is there."""
        text = f"{about.study} {node}".encode()
        if self.verify is not None and not self.verify(k, "node", text, about.signature):
            self.strangers[node] = f"it signs with another key than that of {self.names[k]}."
        elif about.version != __version__:
            raise InputError(
                f"Site {self.names[k]} runs consilience {about.version}, the server {__version__}: install the same."
            )
        elif k in self.nodes:
            self.strangers[node] = f"{self.names[k]} is there already."
            self.passing.add(node)
        else:
            self.nodes[k] = node
            self.missing.discard(k)


def _presence(grid: Grid) -> dict[int, str]:
    """The nodes that are connected, and since when, where the grid knows."""
    if isinstance(grid, HttpGrid):
        return {node.node_id: node.last_activated_at for node in grid.get_nodes()}
    return dict.fromkeys(grid.get_node_ids(), "")


def push(grid: Grid, requests: Mapping[int, Message]) -> tuple[dict[str, int], list[int]]:
    """Send messages.

    Args:
        grid: Flower's way to the nodes.
        requests: Messages by whom they are for.

    Returns:
        Whose reply each message's number stands for, and whose message was not taken.

    Raises:
        InputError: Flower did not say what became of the messages.
    """
    numbers = list(grid.push_messages(list(requests.values())))
    if len(numbers) != len(requests):
        raise InputError("Flower did not take all messages; see its log.")
    waiting = {number: k for k, number in zip(requests, numbers, strict=True) if number}
    return waiting, [k for k, number in zip(requests, numbers, strict=True) if not number]


def _read_introduction(reply: Message) -> Introduction:
    about = json.loads(str(reply.content["header"]["about"]))
    return Introduction(int(about["site"]), str(about["study"]), str(about["consilience"]), str(about["signature"]))
