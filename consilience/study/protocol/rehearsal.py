"""What a reply will look like: the method is tried out on invented rows, before anybody's rows are touched."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.payload import nbytes
from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.messages import Client, Received, Reply, Server
from consilience.method import Method
from consilience.method.declared import protect
from consilience.method.settings import abridge
from consilience.methods.claims import promised_privacy
from consilience.privacy.entropy import Simulated
from consilience.runs.engines.round import server_view
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.validation.form import Form, counts_of, form_of, kinds_of, merge_forms
from consilience.study.validation.message import Broadcast, broadcast_of
from consilience.task import Task
from consilience.tree import Tree

INVENTED = 32  # rows that show a person what would leave
MANY_WEIGHTS = 5000  # of a network, from where on a matrix of all pairs is not made in a rehearsal
PROBES = 64  # rows that a pooled model is tried on


def server_of(agreement: Agreement, clients: int, inputs: Tensor | None = None) -> Server:
    """Give the coordinator's view before the first round, with the keys of `run`.

    Args:
        clients: How many sites there are.
        inputs: The coordinator's own rows without labels, [N, D].
    """
    return server_view(agreement.key, clients, inputs)


def draw_rows(count: int, features: Sequence[int], classes: int, outcome: str = "", paired: bool = False) -> Data:
    """Invent rows from their shape alone.

    Args:
        features: The shape of one row's features.
        classes: How many classes there are; 0 where numbers are predicted.
        outcome: `counts` or `survival`, where that is what is predicted.
        paired: Whether counts have an exposure beside them.
    """
    y = Key(1).normal((count,))
    if classes:
        y = torch.arange(count) % classes
    number = torch.arange(count, dtype=torch.float32)
    if outcome == "counts":
        y = number % 5
        if paired:
            y = torch.stack([y, 1 + number % 3], 1)
    if outcome == "survival":
        y = torch.stack([1 + number % 11, (number % 3 > 0).float()], 1)
    return Data.of(Key(0).normal((count, *features)), y)


def invent_rows(agreement: Agreement) -> Data:
    """Invent rows from nothing but an agreement's columns."""
    target = agreement.target
    outcome = target.kind * target.counts_events
    features = (len(agreement.feature_names),)
    return draw_rows(INVENTED, features, len(target.classes), outcome, bool(target.exposure))


def probe_rows(agreement: Agreement) -> Tensor:
    """Draw rows that are plausible by the agreement, to try a model on before anybody uses it.

    Every column is drawn for itself: numbers over their range, a sixth of them at either end; levels and missing values
    all equally often. The first row has every number at its lowest, the second at its highest.

    Returns:
        Features as the network sees them, [PROBES, D].
    """
    key = agreement.key.fold(Stream.PROBE)
    return torch.cat([_probe_column(column, key.fold(i)) for i, column in enumerate(agreement.columns)], 1)


def _probe_column(column: Column, key: Key) -> Tensor:
    """One column's features, [PROBES, features]."""
    if column.type == "category":
        codes = key.permutation(PROBES) % (len(column.levels) + 1)  # one beyond the last is missing
        return torch.nn.functional.one_hot(codes, len(column.levels) + 1)[:, :-1].float()
    low, high = column.range
    place = (1.5 * key.fold(0).uniform(PROBES) - 0.25).clamp(0, 1)
    place[0] = 0
    place[1] = 1
    values = low + place.double() * (high - low)
    if not column.is_marked:
        return ((values - column.centre) / column.spread).float().unsqueeze(1)
    gaps = key.fold(1).permutation(PROBES) % 4 == 3
    gaps[:2] = False
    values[gaps] = column.filling
    scaled = (values - column.centre) / column.spread
    return torch.stack([scaled.float(), gaps.float()], 1)


class Rehearsal:
    """A reply to the same message on a few invented rows of the same kind; its form is everybody's.

    Made with 8 and with 9 rows: a dimension in which the two differ depends on a site's rows and is free. Repeated only
    for a message of a new form. The invented sites keep their memory, as real ones do.

    Attributes:
        memories: What the invented site with this many rows remembers.
    """

    ROWS = ((8, 9), (32, 33))  # the second pair for methods that need more rows

    def __init__(self, row: Data, inputs: Tensor | None = None, key: Key = Key(0)) -> None:
        """Prepare a rehearsal.

        Args:
            row: Rows for the shapes and types of `x` and `y` alone.
            inputs: The server's rows without labels; invented ones where there are none.
            key: What the server's first state is drawn from.
        """
        self.row = row
        self.inputs = inputs
        self.key = key
        self.memories: dict[int, Tree] = {}
        self._forms: dict[str, Form | None] = {}

    @torch.no_grad()
    def form(self, method: Method, task: Task, message: Tree, round: int = 1) -> Form | None:
        """Find what a reply to a message looks like.

        Args:
            task: The problem they run it on.
            message: What the server sends; None for what it would send in this round.
            round: The round, from 1 on; later ones need what the first left behind.

        Returns:
            The form, or None where invented rows do not do.
        """
        asked = f"round {round}"
        if message is not None:
            asked = f"{round > 1} {form_of(message)!r}"  # what a site remembers may decide its reply
        if asked not in self._forms:
            self._forms[asked] = self._rehearse(method, task, message, round)
        return self._forms[asked]

    def _rehearse(self, method: Method, task: Task, message: Tree, round: int) -> Form | None:
        """Compare the replies of two invented sites."""
        for counts in self.ROWS:
            try:
                first, second = (_form_of(self.reply(method, task, message, round, count)) for count in counts)
            except (RuntimeError, ValueError, TypeError, AssertionError, IndexError):
                continue
            return merge_forms(first, second)
        return None

    @torch.no_grad()
    def reply(self, method: Method, task: Task, message: Tree, round: int, count: int) -> Reply:
        """Let an invented site answer.

        Args:
            task: The problem they run it on.
            message: What the server sends; None for what it would send in this round.
            round: The round, from 1 on.
            count: How many rows the site has.
        """
        method = abridge(method)
        rows = self.invent(task, count)
        if message is None or (round > 1 and count not in self.memories):
            pretended, self.memories[count] = self._pretend(method, task, rows, round)
            if message is None:
                message = pretended
        if count not in self.memories:
            self.memories[count] = method.memory(message)
        reply = _answer(method, task, message, rows, self.memories[count])
        self.memories[count] = reply.keep
        return reply

    @torch.no_grad()
    def outline(self, method: Method, task: Task, round: int, count: int) -> Reply:
        """Find the names, types and shapes of an invented site's answer, without its numbers where that saves much.

        Args:
            task: The problem they run it on.
            round: The round, from 1 on.
            count: How many rows the site has.

        Returns:
            A reply whose tensors may hold no numbers.
        """
        if sum(leaf.numel() for leaf in task.like.values()) < MANY_WEIGHTS:
            return self.reply(method, task, None, round, count)
        from torch._subclasses.fake_tensor import FakeTensorMode  # here, because it takes a second to import

        short = abridge(method)
        rows = self.invent(task, count)
        message, memory = self._pretend(short, task, rows, round)
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return _answer(short, task, message, rows, memory)
        except Exception:  # most methods look at numbers, and may fail in any way where there are none
            return _answer(short, task, message, rows, memory)

    def _pretend(self, method: Method, task: Task, rows: Data, round: int) -> tuple[Tree, Tree]:
        """Message and memory at the beginning of a round; before a later one, the first is pretended."""
        inputs = self.inputs
        if inputs is None:
            inputs = rows.x
        server = Server(inputs, None, self.key, _pretended_clients(method))
        state = method.init(task, server)
        message = method.broadcast(state)
        memory = method.memory(message)
        if round == 1:
            return message, memory
        first = _answer(method, task, message, rows, memory)
        state = method.aggregate(task, state, [Received(0, first.size, first.send)], server)
        return method.broadcast(state), first.keep

    def invent(self, task: Task, count: int) -> Data:
        """Invent rows like the one shown."""
        classes = 0
        if not self.row.y.is_floating_point() and not task.outcome:
            classes = task.classes(self.row.x)
        rows = draw_rows(count, self.row.x.shape[1:], classes, task.outcome, self.row.y.ndim > 1)
        return Data(*(leaf.to(like) for leaf, like in zip(rows, self.row, strict=True)))


def _answer(method: Method, task: Task, message: Tree, rows: Data, memory: Tree) -> Reply:
    return protect(method, method.local(task, message, Client(rows, memory, Key(2).tensor)), Simulated(Key(2)))


def _form_of(reply: Reply) -> Form:
    """The form of what is sent, and whether class counts are those of all rows."""
    everyone = all(float(counts.sum()) == float(reply.size) for counts in counts_of(reply.send))
    return form_of(reply.send)._replace(counts_everyone=everyone)


class Broadcasts:
    """What a method's messages look like in the rounds up to one, tried out on invented rows as far as asked.

    The round is played by one site and by two, with 8 and 9 rows at the server: what differs between them is free.
    """

    MOST = 4  # rounds that are tried out: messages of later ones look like these

    def __init__(self, method: Method, task: Task, row: Data) -> None:
        """Prepare.

        Args:
            task: The problem they run it on.
            row: Rows for the shapes and types of `x` and `y` alone.
        """
        self.known: list[Broadcast | None] = []
        self._next = _play_invented(abridge(method), task, Rehearsal(row))

    def until(self, round: int) -> Iterator[Broadcast | None]:
        """Look at the rounds one by one.

        Args:
            round: The last one, from 1 on.

        Yields:
            What a message of the first round, the second and so on looks like; None where invented rows do not do.
        """
        for r in range(min(round, self.MOST)):
            if r == len(self.known):
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # they are about invented rows
                    self.known.append(next(self._next, None))
            yield self.known[r]


def _play_invented(method: Method, task: Task, rehearsal: Rehearsal) -> Iterator[Broadcast | None]:
    """The looks of one message after another."""
    rows = rehearsal.invent(task, INVENTED)
    one = Server(rows.x[:8], None, rehearsal.key, _pretended_clients(method))
    servers = [one, one._replace(inputs=rows.x[:9], clients=one.clients + 1)]
    try:
        states = [method.init(task, server) for server in servers]
        memory = method.memory(method.broadcast(states[0]))
        while True:
            messages = [method.broadcast(state) for state in states]
            yield broadcast_of(*messages)
            reply = _answer(method, task, messages[0], rows, memory)
            memory = reply.keep
            replies = [Received(k, reply.size, reply.send) for k in (0, 1)]
            states = [
                method.aggregate(task, state, replies[: server.clients], server)
                for state, server in zip(states, servers, strict=True)
            ]
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError, InputError):
        return


def rehearse(agreement: Agreement, message: Tree = None, round: int = 1, inputs: Tensor | None = None) -> Reply:
    """Let an invented site of a study answer.

    Args:
        message: The coordinator's message; None for the study's own one of this round.
        round: The round, from 1 on; later ones are reached by pretending the first.
        inputs: The coordinator's own rows without labels, [N, D].

    Returns:
        The reply; its names and types are every site's.
    """
    rehearsal = rehearsal_of(agreement, inputs)
    return rehearsal.reply(agreement.build_method(), agreement.build_task(), message, round, INVENTED)


def rehearsal_of(agreement: Agreement, inputs: Tensor | None = None) -> Rehearsal:
    """Prepare a rehearsal of a study from its agreement alone.

    Args:
        inputs: The coordinator's own rows without labels, [N, D].
    """
    return Rehearsal(invent_rows(agreement), inputs, agreement.key.fold(Stream.INIT))


def would_leave(agreement: Agreement) -> tuple[tuple[str, ...], int]:
    """Find what a site would send in any round.

    Returns:
        The kinds of value, and the bytes of the largest reply's numbers.
    """
    method = agreement.build_method()
    task = agreement.build_task()
    rounds = range(1, min(agreement.rounds, 2) + 1)
    sent = [rehearsal_of(agreement).outline(method, task, t, INVENTED).send for t in rounds]
    kinds = {kind for send in sent for kind in kinds_of(send)}
    return tuple(sorted(kinds)), max(map(nbytes, sent))


def _pretended_clients(method: Method) -> int:
    """One client, but as many as noise that is added once may rely on."""
    if promised_privacy(method) is None:
        return 1
    return 1000
