"""The same call over Flower messages: simulation and deployment both hand a `Grid` to the server.

We use Flower's messages and none of its strategies: a reply counts once it has passed the gate, and a round ends with
the last reply or at the deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, Message, MessageType
from flwr.serverapp import Grid

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.messages import Received
from consilience.method import Method
from consilience.method.declared import doubt, implied
from consilience.runs.engines.client_turn import Turn
from consilience.serialisation.codec import types_of
from consilience.study.flower.asking import Asking
from consilience.study.flower.client import method_json
from consilience.study.flower.roster import Roster, Verify
from consilience.study.flower.wire import digest, open_record, pack, record, signature_in, signed_text, unpack, weight
from consilience.study.protocol.rehearsal import Rehearsal
from consilience.study.validation.gate import Arrival, Gate, Refused, Rules, refuse_errors
from consilience.study.validation.rules import group_answers
from consilience.task import Task
from consilience.tree import Tree
from consilience.version import __version__

LEFT_OUT = "it was not asked: the sum goes on without it, and what it sends for it is refused."
TTL = 60.0  # seconds a message outlives its deadline, so that we say first that it has passed


class Flower:
    """Sites behind a `Grid`.

    Attributes:
        roster: Which node is which site.
        memories: What simulated sites remember; those of a deployment keep it to themselves.
        forgiving: Whether a round goes on without a site that fails.
        fewest: How many replies such a round needs all the same.
        lost: Who of the last cohort did not reply, and why.
        wire: Bytes of arrays and headers that crossed, before Flower's framing.
        said: What the last reply of each site says of itself.
    """

    def __init__(
        self,
        grid: Grid,
        sites: Sequence[str],
        row: Data,
        *,
        study: str = "",
        numbers: Sequence[int] | None = None,
        verify: Verify | None = None,
        sign: Callable[[str, bytes], str] | None = None,
        wait: float = 60.0,
        deadline: float = 3600.0,
        rules: Rules = Rules(),
        rows: Sequence[int] = (),
        pause: float = 0.05,
        simulated: bool = False,
        adapt: Callable[[Gate, Tree], Gate] | None = None,
        without: Callable[[int], Collection[int]] = lambda round: (),
    ) -> None:
        """Prepare to ask sites.

        Args:
            grid: Flower's way to the nodes.
            row: Rows that show the shape of a site's, and none of their values.
            study: The study's hash; empty in a simulation.
            numbers: What the sites' random numbers come from; 0, 1, … by default.
            verify: Tells whether a site signed something for a purpose, so that no site can speak for another; None, as
                in a simulation, where a site is taken by its word.
            sign: Signs a message for a purpose as the coordinator, so that nobody else can ask.
            wait: Seconds until the sites asked must be there.
            deadline: Seconds a round may take; a crash shows after 70.
            rules: What may leave a site.
            rows: The most rows that each site committed to; none where nobody did.
            pause: Seconds between two looks for replies.
            simulated: Whether memories are handed over, so that the run can be resumed.
            adapt: Makes the gate for masked replies to a message of that for replies in the open; None if they are.
            without: Says who is not asked in a round, from 1 on, because its sum goes on without them.
        """
        if numbers is None:
            numbers = range(len(sites))
        self.roster = Roster(grid, sites, numbers, study, verify, wait, pause)
        self.grid = grid
        self.sign = sign
        self.deadline = deadline
        self.rules = rules
        self.rows = tuple(rows) or (0,) * len(sites)
        self.pause = pause
        self.simulated = simulated
        self.adapt = adapt
        self.without = without
        self.rehearsal = Rehearsal(row)
        self.memories: dict[int, Tree] = {}
        self.forgiving = False
        self.fewest = 0
        self.lost: dict[int, str] = {}
        self.wire = {"up_bytes": 0, "down_bytes": 0}
        self.said: dict[int, dict[str, Any]] = {}
        self._questions: dict[int, str] = {}  # site → the digest of its last question
        self._addressees: dict[int, int] = {}  # site → the node that it went to
        self._met: set[int] = set()  # sites that have answered, and so remember by themselves

    @property
    def clients(self) -> Sequence[int]:
        """All sites by their place on the roster."""
        return range(len(self.roster.names))

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        """Ask sites, and let in what passes the gate.

        Args:
            task: The problem they run it on.
            message: What the method broadcasts.
            cohort: The sites that are asked.

        Returns:
            Replies, sorted by site.

        Raises:
            InputError: A site failed, and the engine does not forgive.
        """
        self.lost = {}
        gone = {k: LEFT_OUT for k in cohort if k in self.without(turn.round + 1)}
        cohort = [k for k in cohort if k not in gone]
        needed = len(cohort)
        if self.forgiving:
            needed = self.fewest
        self.roster.meet(cohort, needed)
        absent = [k for k in cohort if k not in self.roster.nodes]
        self.lost = dict.fromkeys(absent, self.roster.absence())
        present = [k for k in cohort if k in self.roster.nodes]
        self.roster.watch.begin(turn.round + 1, present)
        answers = self.replies(present, partial(self.requests, method, message, turn=turn), needed)
        round = turn.round + 1
        form = self.rehearsal.form(method, task, message, round)
        doubts, behind = partial(doubt, method, task, message), partial(implied, method, task, message)
        gate = Gate(self.rules, form, round, doubt=doubts, implied=behind).answering(message)
        if self.adapt is not None:
            gate = self.adapt(gate, message)
        received = []
        for k, replies in answers:
            try:
                received.append(self.admit(gate, method, k, replies))
            except Refused as error:
                self.lost[k] = str(error)
        self.roster.watch.end([reply.client for reply in received], self.lost)
        if self.lost and not self.forgiving:
            first = min(self.lost)
            name = self.roster.names[first]
            instead = "with min_replies (--min-replies N) to do without"
            if self.adapt is not None:
                word = f'without=["{name}"] (--without {name})'
                instead = f"with {word}, here and at the other sites, once {name} said that it sent nothing"
            raise InputError(
                f"Site {name}, round {round}: {self.lost[first]} What was saved before is whole: go on with "
                f"resume=True (--resume) when this is put right, or {instead}."
            )
        self.lost |= gone
        return sorted(received, key=lambda reply: reply.client)

    def requests(self, method: Method, message: Tree, cohort: Sequence[int], turn: Turn) -> dict[int, Message]:
        """Write one message a site; the arrays are shared between them, so they are sent and held once.

        Args:
            message: What the method broadcasts.
            cohort: The sites that are asked; all of them are there.

        Returns:
            Messages by site.
        """
        types = types_of(method)
        common = pack({"message": message}, types)
        about = {
            "study": self.roster.study,
            "consilience": __version__,
            "method": method_json(method),
            "round": turn.round,
            "seed": int(torch.as_tensor(turn.key.seed)),
            "progress": turn.progress,
        }
        requests = {}
        for k in cohort:
            packed = common
            if self.simulated and k not in self._met and self.memories.get(k, ()) != ():
                packed = pack({"message": message, "memory": self.memories[k]}, types)
            requests[k] = self._request(k, packed, about, turn.round)
        return requests

    def _request(self, k: int, packed: tuple[ArrayRecord, str], about: Mapping[str, Any], t: int) -> Message:
        """One site's message, signed; its digest is remembered, as the answer is signed together with it."""
        content = record(*packed, {**about, "site": self.roster.numbers[k]})
        self._questions[k] = ""
        if not self.simulated:
            self._questions[k] = digest(content)
        if self.sign is not None:
            signature = self.sign("request", signed_text(self.roster.study, self._questions[k]))
            content.config_records["header"]["signature"] = signature
        self.wire["down_bytes"] += weight(content)
        node = self.roster.nodes[k]
        self._addressees[k] = node
        return Message(content, node, MessageType.TRAIN, group_id=str(t + 1), ttl=self.deadline + TTL)

    def replies(
        self, cohort: Sequence[int], write: Callable[[Sequence[int]], Mapping[int, Message]], needed: int
    ) -> list[tuple[int, list[Message]]]:
        """Send, then look for replies until all are there or the deadline has passed.

        Args:
            cohort: The sites that are asked; all of them are there.
            write: Writes messages to sites.
            needed: How many of them must reply.

        Returns:
            All that each site answered; one that did not is lost.
        """
        if self.simulated:
            needed = 0  # who dies in a simulation does not come back
        asking = Asking(self.roster, write, self.deadline, needed, self.pause)
        asking(cohort)
        self.lost |= asking.lost
        return [(k, replies) for k, replies in asking.answers.items() if k not in self.lost]

    def admit(self, gate: Gate, method: Method, k: int, replies: Sequence[Message]) -> Received:
        """Let a site's reply in.

        Args:
            gate: What a reply of this round must be.
            replies: All that it answered.

        Returns:
            What the server uses.

        Raises:
            Refused: The reply breaks a rule.
        """
        gate = gate._replace(message=self._questions[k])
        answers = []
        problems = []
        for reply in replies:
            try:
                with refuse_errors():
                    answers.append((self._arrival(k, reply), digest(reply.content), reply))
            except Refused as error:
                problems.append(error)
        for arrival, different in group_answers(answers):
            memory: list[Tree] = []
            try:
                received = gate.admit(k, arrival, partial(self._read, method, different[0], memory))
            except Refused as error:
                problems.append(error)
                continue
            self._met.add(k)
            self.said[k] = open_record(different[0].content, self.rules.most_bytes)[2]
            if self.simulated:
                self.memories[k] = next(iter(memory), ())
            return received
        raise problems[0]

    def _arrival(self, k: int, reply: Message) -> Arrival:
        """How a site's reply came."""
        _, _, about = open_record(reply.content, self.rules.most_bytes)
        nbytes = weight(reply.content)
        self.wire["up_bytes"] += nbytes
        sender = None  # a node that was not asked
        if reply.metadata.src_node_id == self._addressees[k]:
            sender = self.roster.numbers[k]
        signed = True
        if self.roster.verify is not None:
            text = signed_text(self.roster.study, self._questions[k], digest(reply.content))
            signed = self.roster.verify(k, "reply", text, signature_in(reply.content))
        claimed = _whole(about.get("site"))
        round = _whole(about.get("round")) + 1
        message = str(about.get("message", ""))
        return Arrival(sender, claimed, round, signed, nbytes, message=message, rows=self.rows[k])

    def _read(self, method: Method, reply: Message, memory: list[Tree]) -> Tree:
        """A reply's value; a simulated site's memory is kept."""
        arrays, outline, _ = open_record(reply.content, self.rules.most_bytes)
        value = unpack(arrays, outline, types_of(method))
        if self.simulated and isinstance(value, dict) and "memory" in value:
            memory.append(value.pop("memory"))
        return value


def _whole(value: Any) -> int:
    """A stranger's number, or one that nobody has."""
    if isinstance(value, int):
        return value
    return -1
