"""The same call over Flower messages: simulation and deployment both hand a `Grid` to the server.

We use Flower's messages and none of its strategies: a reply counts once it has been checked, and a round ends with the
last reply or at the deadline.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from consilience.data.sites import Data
from consilience.engines.exchange import Turn
from consilience.errors import InputError
from consilience.flower.client import method_json
from consilience.flower.rehearsal import Rehearsal, check
from consilience.flower.wire import (
    LARGEST,
    Refused,
    digest,
    open_record,
    pack,
    record,
    refuse_errors,
    signed_text,
    unpack,
    weight,
)
from consilience.formats.codec import types_of
from consilience.method import Method
from consilience.parties import Received
from consilience.task import Task
from consilience.tree import Tree
from consilience.version import __version__

TTL = 60.0  # seconds a message outlives its deadline, so that we say first that it has passed
WHY = {
    3: "its message was lost.",
    4: "its reply was lost.",
    5: "it stopped answering: its machine or its program died.",
}
WHY[8] = "its program crashed."


def _why(error: Error) -> str:
    """Flower's codes in words; what a site itself reports as it says it."""
    return WHY.get(error.code, f"it reports: {error.reason or f'error {error.code}'}")


class Flower:
    """Sites behind a `Grid`.

    `row` shows the shape of a site's rows and none of their values. `numbers` are what the sites' random numbers come
    from, 0, 1, … by default. `verify` says whether a site signed something, so that no site can speak for another;
    without it, as in a simulation, a site says who it is. `sign` is the coordinator's, so that nobody else can ask.
    """

    def __init__(
        self,
        grid: Grid,
        sites: Sequence[str],
        row: Data,
        *,
        study: str = "",
        numbers: Sequence[int] | None = None,
        verify: Callable[[int, str, bytes, str], bool] | None = None,  # site, purpose, message, signature
        sign: Callable[[str, bytes], str] | None = None,  # purpose, message → signature
        wait: float = 60.0,  # seconds until the sites asked must be there
        deadline: float = 3600.0,  # seconds a round may take; a crash shows after 70
        largest: int = LARGEST,  # bytes of one reply
        pause: float = 0.05,  # seconds between two looks for replies
        simulated: bool = False,  # memories are handed over, so that the run can be resumed
    ) -> None:
        self.grid, self.sites, self.study, self.verify, self.sign = grid, list(sites), study, verify, sign
        self.numbers = list(numbers) if numbers is not None else list(range(len(sites)))
        self.wait, self.deadline, self.largest, self.pause, self.simulated = wait, deadline, largest, pause, simulated
        self.rehearsal = Rehearsal(row)
        self.nodes: dict[int, int] = {}  # site → node
        self.strangers: dict[int, str] = {}  # node → why it is not asked
        self.passing: set[int] = set()  # strangers who may be well or wanted later
        self.memories: dict[int, Tree] = {}
        self.asked: dict[int, str] = {}  # site → the digest of its last question
        self.met: set[int] = set()  # sites that have answered, and so remember by themselves
        self.forgiving, self.lost = False, dict[int, str]()
        self.wire = {"up_bytes": 0, "down_bytes": 0}  # arrays and headers that crossed, before Flower's framing

    @property
    def clients(self) -> Sequence[int]:
        return range(len(self.sites))

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        self.lost = {}
        self.meet(cohort)
        received = []
        for k, reply in self.replies(self.requests(method, message, cohort, turn)):
            try:
                received.append(self.admitted(method, task, message, reply, k, turn.round))
            except Refused as error:
                self.lost[k] = str(error)
        if self.lost and not self.forgiving:
            first = min(self.lost)
            raise InputError(
                f"Site {self.sites[first]}, round {turn.round + 1}: {self.lost[first]} What was saved before is whole: "
                "go on with --resume when this is put right, or with --min-replies to do without."
            )
        return sorted(received, key=lambda r: r.client)

    def requests(self, method: Method, message: Tree, cohort: Sequence[int], turn: Turn) -> dict[int, Message]:
        """One message a site; the arrays are shared between them, so they are sent and held once."""
        types = types_of(method)
        common = pack({"message": message}, types)
        about = {
            **{"study": self.study, "consilience": __version__, "method": method_json(method)},
            **{"round": turn.round, "seed": int(torch.as_tensor(turn.key.seed)), "progress": turn.progress},
        }
        found = {}
        for k in cohort:
            if k not in self.nodes:
                refused = "; ".join(sorted(set(self.strangers.values())))
                self.lost[k] = "it is not connected." + (f" Others were not let in: {refused}" if refused else "")
                continue
            own = common
            if self.simulated and k not in self.met and self.memories.get(k, ()) != ():
                own = pack({"message": message, "memory": self.memories[k]}, types)
            content = record(*own, {**about, "site": self.numbers[k]})
            self.asked[k] = "" if self.simulated else digest(content)
            if self.sign is not None:
                content.config_records["header"]["signature"] = self.sign(
                    "request", signed_text(self.study, self.asked[k])
                )
            self.wire["down_bytes"] += weight(content)
            found[k] = Message(
                content, self.nodes[k], MessageType.TRAIN, group_id=str(turn.round + 1), ttl=self.deadline + TTL
            )
        return found

    def replies(self, requests: Mapping[int, Message]) -> list[tuple[int, Message]]:
        """Send, then look for replies until all are there or the deadline has passed."""
        waiting = self.pushed(requests)
        found, end = [], time.monotonic() + self.deadline
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                k = waiting.pop(reply.metadata.reply_to_message_id, None)
                if k is None:
                    continue  # nobody asked: late, or a second answer
                if reply.has_error():
                    self.lost[k] = _why(reply.error)
                else:
                    found.append((k, reply))
            if waiting:
                time.sleep(self.pause)
        for k in waiting.values():
            self.lost[k] = f"no reply within {self.deadline:g} seconds."
        return found

    def pushed(self, requests: Mapping[int, Message]) -> dict[str, int]:
        """Send all → whose reply each message's number stands for."""
        numbers = list(self.grid.push_messages(list(requests.values())))
        if len(numbers) != len(requests):
            raise InputError("Flower did not take all messages; see its log.")
        waiting = {}
        for k, number in zip(requests, numbers, strict=True):
            if number:
                waiting[number] = k
            else:
                self.lost[k] = "Flower did not take the message for it."
        return waiting

    def admitted(self, method: Method, task: Task, message: Tree, reply: Message, k: int, round: int) -> Received:
        """A reply that is what it should be."""
        if reply.metadata.src_node_id != self.nodes[k]:
            raise Refused("the reply came from another node.")
        arrays, outline, about = open_record(reply.content, self.largest)
        self.wire["up_bytes"] += weight(reply.content)
        if about.get("round") != round:
            raise Refused(f"it answered for another round than {round + 1}.")
        if about.get("site") != self.numbers[k]:
            raise Refused("it answered in another site's name.")
        signature = str(reply.content.config_records["header"].get("signature", ""))
        signed = b"" if self.verify is None else signed_text(self.study, self.asked[k], digest(reply.content))
        if self.verify is not None and not self.verify(k, "reply", signed, signature):
            raise Refused("its signature is not that site's, or what was signed has been changed.")
        value = unpack(arrays, outline, types_of(method))
        if not isinstance(value, dict) or not {"payload", "size"} <= set(value) <= {"payload", "size", "memory"}:
            raise Refused("the reply is not put together as ours are.")
        size, form = value["size"], self.rehearsal(method, task, message)
        with refuse_errors():
            real = isinstance(size, torch.Tensor) and size.numel() == 1 and not size.is_complex()
            if not real or not 0 <= float(size) < 1e15:
                raise Refused("its number of examples is not a number of examples.")
            check(value["payload"], form)
        self.met.add(k)
        if self.simulated:
            self.memories[k] = value.get("memory", ())
        return Received(k, size.reshape(()), value["payload"])

    def meet(self, cohort: Sequence[int]) -> None:
        """Wait for the sites asked, and learn which node is which; a stranger is not asked."""
        end = time.monotonic() + self.wait
        self.reconsider()
        while True:
            there = set(self.grid.get_node_ids())
            if not there.issuperset(self.nodes.values()):
                self.nodes = {k: node for k, node in self.nodes.items() if node in there}
                self.reconsider()
            self.introduce(sorted(there - set(self.nodes.values()) - set(self.strangers)))
            if all(k in self.nodes for k in cohort) or time.monotonic() >= end:
                return
            time.sleep(self.pause)

    def reconsider(self) -> None:
        """Ask those again who answered with an error, or whose place was taken."""
        for node in self.passing:
            del self.strangers[node]
        self.passing = set()

    def introduce(self, nodes: Sequence[int]) -> None:
        """Ask new nodes who they are."""
        if not nodes:
            return
        ask = RecordDict({"header": ConfigRecord({"about": "who"})})
        requests = {n: Message(ask, n, MessageType.QUERY, group_id="0", ttl=self.wait) for n in nodes}
        waiting, end = self.pushed(requests), time.monotonic() + self.wait
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    self.placed(node, reply)
            time.sleep(self.pause if waiting else 0)
        self.lost = {}

    def placed(self, node: int, reply: Message) -> None:
        """Put a node in its site's place, or say why not."""
        try:
            about: dict[str, Any] = {} if reply.has_error() else json.loads(str(reply.content["header"]["about"]))
            number, study, version = int(about["site"]), str(about["study"]), str(about["consilience"])
            signature = str(about["signature"])
        except Exception:  # whatever a stranger says
            why = reply.error.reason if reply.has_error() else ""
            self.strangers[node] = why or "it did not say who it is."
            if reply.has_error():
                self.passing.add(node)
            return
        if study != self.study:
            self.strangers[node] = "it agreed to another study."
        elif number not in self.numbers:
            self.strangers[node] = f"there is no site {number} in this study."
        else:
            k = self.numbers.index(number)
            known = self.verify is None or self.verify(k, "node", f"{study} {node}".encode(), signature)
            if not known:
                self.strangers[node] = f"it signs with another key than that of {self.sites[k]}."
            elif version != __version__:
                raise InputError(
                    f"Site {self.sites[k]} runs consilience {version}, the server {__version__}: install the same."
                )
            elif k in self.nodes:
                self.strangers[node] = f"{self.sites[k]} is there already."
                self.passing.add(node)
            else:
                self.nodes[k] = node
