"""Flower without Ray or sockets: what may cross, what is refused, and how a run goes on without a site."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import numpy
import tiny
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from torch import Tensor

import consilience as co
from consilience.admission.gate import Arrival, Gate, Refused, Rules
from consilience.agreement.rehearsal import Rehearsal
from consilience.data import Data
from consilience.engines import Sequential, Turn
from consilience.engines import engine as engine_of
from consilience.errors import InputError
from consilience.flower import simulation, wire
from consilience.flower.client import Site, answer, recall, remember, reply_to
from consilience.flower.engine import Flower
from consilience.flower.site import read_kept, write_state
from consilience.formats.codec import kept_types_of, types_of
from consilience.key import Key
from consilience.methods import METHODS
from consilience.parties import Client, Received, Reply, Server
from consilience.posterior import Natural, Point
from consilience.version import __version__

METHOD = tiny.method("fedavg")
TURN = Turn(0, Key(3))


def problem() -> tuple[co.Task, co.Sites, Point]:
    task, sites = tiny.PROBLEMS["classification"]()
    return task, sites, task.init(Key(1))


def asked(spoil: loopback.Spoil | None = None, forgiving: bool = True, **named: Any) -> tuple[Flower, list[int]]:
    """One round with site 1's reply spoilt → the engine, and who was heard."""
    task, sites, start = problem()
    engine = loopback.flower(METHOD, task, sites.train, spoil, **named)
    engine.forgiving = forgiving
    received = engine.gather(METHOD, task, start, range(len(sites)), TURN)
    return engine, [r.client for r in received]


def only_site_1(change: Callable[[Message], Iterable[Message]]) -> loopback.Spoil:
    return lambda k, reply: change(reply) if k == 1 else [reply]


def array_changed(reply: Message, change: Callable[[Tensor], Tensor]) -> Message:
    """The same reply with another first array."""
    arrays = reply.content.array_records["arrays"]
    name = next(n for n in arrays if n.endswith("weight"))
    new = ArrayRecord({**arrays, name: Array(change(torch.from_numpy(arrays[name].numpy().copy())).numpy())})
    return Message(RecordDict({"arrays": new, "header": reply.content["header"]}), reply_to=_question(reply))


def header_changed(reply: Message, **changes: Any) -> Message:
    header = reply.content.config_records["header"]
    about = {**json.loads(str(header["about"])), **changes}
    new = ConfigRecord({"outline": header["outline"], "about": json.dumps(about)})
    return Message(RecordDict({"arrays": reply.content["arrays"], "header": new}), reply_to=_question(reply))


def _question(reply: Message) -> Message:
    """Something to reply to, with the numbers of what `reply` replied to."""
    question = Message(RecordDict(), reply.metadata.src_node_id, "train", group_id=reply.metadata.group_id)
    question.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return question


def truncated(reply: Message) -> Message:
    arrays = reply.content.array_records["arrays"]
    name, array = next(iter(arrays.items()))
    cut = Array(dtype=array.dtype, shape=tuple(array.shape), stype=array.stype, data=array.data[:-7])
    new = ArrayRecord({**arrays, name: cut})
    return Message(RecordDict({"arrays": new, "header": reply.content["header"]}), reply_to=_question(reply))


def archive() -> bytes:
    """What numpy.savez writes: read as a collection and not as an array."""
    made = io.BytesIO()
    numpy.savez(made, a=numpy.zeros(2))
    return made.getvalue()


def first_changed(reply: Message, to: bytes | Any, end: str = "weight") -> Message:
    """The same reply with other bytes for the first array that is called so."""
    arrays = reply.content.array_records["arrays"]
    name = next(n for n in arrays if n.endswith(end))
    new = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=to) if isinstance(to, bytes) else Array(to)
    content = RecordDict({"arrays": ArrayRecord({**arrays, name: new}), "header": reply.content["header"]})
    return Message(content, reply_to=_question(reply))


def renamed(reply: Message) -> Message:
    arrays, header = dict(reply.content.array_records["arrays"]), reply.content.config_records["header"]
    outline = str(header["outline"]).replace("0.weight", "9.weight")
    new = ArrayRecord({n.replace("0.weight", "9.weight"): a for n, a in arrays.items()})
    content = RecordDict({"arrays": new, "header": ConfigRecord({"outline": outline, "about": header["about"]})})
    return Message(content, reply_to=_question(reply))


def with_more(reply: Message, more: ConfigRecord | ArrayRecord) -> Message:
    return Message(RecordDict({**reply.content, "more": more}), reply_to=_question(reply))


FAULTS: dict[str, tuple[Callable[[Message], Iterable[Message]], str]] = {
    "not finite": (lambda r: [array_changed(r, lambda t: t * float("nan"))], "not finite"),
    "one row of a weight": (lambda r: [array_changed(r, lambda t: t[:1])], "shape"),
    "double precision": (lambda r: [array_changed(r, lambda t: t.double())], "float64"),
    "other names": (lambda r: [renamed(r)], "names are wrong"),
    "truncated": (lambda r: [truncated(r)], "cannot be read"),
    "ten times the size": (lambda r: [array_changed(r, lambda t: t.repeat(400, 1))], "more than the 10,000 agreed"),
    "an archive": (lambda r: [first_changed(r, archive())], "the bytes cannot be read. The header of the array"),
    "a complex size": (lambda r: [first_changed(r, numpy.ones((), "complex64"), "size")], "claims nan rows"),
    "another round": (lambda r: [header_changed(r, round=5)], "another round than round 1"),
    "another site": (lambda r: [header_changed(r, site=0)], "another site's name"),
    "a second header": (lambda r: [with_more(r, ConfigRecord({"about": "{}"}))], "not one of consilience"),
    "more arrays": (lambda r: [with_more(r, r.content.array_records["arrays"])], "not one of consilience"),
    "an empty message": (lambda r: [Message(RecordDict(), reply_to=_question(r))], "not one of consilience"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_spoilt_reply_is_left_out_and_named(fault: str) -> None:
    spoil, why = FAULTS[fault]

    engine, heard = asked(only_site_1(spoil), rules=Rules(most_bytes=10_000))

    assert heard == [0, 2, 3]
    assert list(engine.lost) == [1] and why in engine.lost[1]


def test_a_site_that_never_answers_is_left_out_at_the_deadline() -> None:
    """The others' replies are there when it passes, however long they took to make here."""
    engine, heard = asked(only_site_1(lambda reply: []), deadline=1e-3)

    assert heard == [0, 2, 3] and engine.lost == {1: "no reply within 0.001 seconds."}


def test_without_min_replies_one_sentence_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"Site site 1, round 1: .*not finite.*resume=True.*min_replies"):
        asked(only_site_1(FAULTS["not finite"][0]), forgiving=False)


def test_a_second_answer_and_one_for_an_old_question_change_nothing() -> None:
    late: list[Message] = []

    def twice(k: int, reply: Message) -> list[Message]:
        late.append(reply)
        return [reply, reply, *late]

    engine, heard = asked(twice)

    assert heard == [0, 1, 2, 3] and engine.lost == {}


def test_a_late_answer_does_not_count_in_the_next_round() -> None:
    """Site 1's first answer arrives with its second, which alone counts."""
    task, sites, start = problem()
    held: list[Message] = []

    def delay(reply: Message) -> list[Message]:
        held.append(reply)
        return held if len(held) > 1 else []

    engine = loopback.flower(METHOD, task, sites.train, only_site_1(delay), deadline=1e-3)
    engine.forgiving = True

    first = engine.gather(METHOD, task, start, range(4), TURN)
    second = engine.gather(METHOD, task, start, range(4), Turn(1, Key(3)))

    expected = Sequential(sites.train).gather(METHOD, task, start, range(4), Turn(1, Key(3)))
    assert [r.client for r in first] == [0, 2, 3] and [r.client for r in second] == [0, 1, 2, 3]
    for name, value in expected[1].payload.params.items():
        assert torch.equal(second[1].payload.params[name], value)


class Leaky(NamedTuple):
    rows: Data


@dataclass(frozen=True)
class SendsRows(co.Method):
    """A method whose file knows `Data` and whose clients send a changed copy of their rows under that name."""

    def local(self, task: Any, message: Any, client: Client) -> Reply:
        return Reply(Data(client.data.x**3, client.data.y * 0, client.data.w + 1), client.data.size)

    def aggregate(self, task: Any, state: Any, replies: Any, server: Any) -> Any:
        return state


def site(method: co.Method = METHOD, **named: Any) -> tuple[Site, Message, Context]:
    """A site, a question it should answer, and its context."""
    task, sites, start = problem()
    one = Site(1, "b", method, task, sites.train[1], **named)
    engine = loopback.flower(method, task, sites.train)
    engine.roster.nodes, engine.roster.study = {1: 101}, str(named.get("study", ""))
    message = engine.requests(method, start, [1], TURN)[1]
    return one, message, Context(1, 101, {}, RecordDict(), {})


def changed(message: Message, **about: Any) -> Message:
    header = message.content.config_records["header"]
    text = json.dumps({**json.loads(str(header["about"])), **about})
    content = RecordDict(
        {"arrays": message.content["arrays"], "header": ConfigRecord({"outline": header["outline"], "about": text})}
    )
    return Message(content, 101, "train", group_id="1")


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "another study": ({"study": "x"}, "another study"),
    "another site": ({"site": 2}, "this is site 1"),
    "another version": ({"consilience": "9.9"}, f"server runs consilience 9.9, this site {__version__}"),
    "another method": ({"method": {"type": "Centralised"}}, "another method"),
    "no round": ({"round": "soon"}, "does not say what it is for"),
    "a round without end": ({"round": float("inf")}, "does not say what it is for"),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_a_site_refuses_what_it_did_not_agree_to(what: str) -> None:
    about, why = REQUESTS[what]
    one, message, context = site()

    reply = answer(one, changed(message, **about), context, reply_to)

    assert reply.has_error() and why in reply.error.reason


TURNS = [Turn(t, Key(3), t / 2) for t in range(2)]
OUTSIDE: dict[str, dict[str, Any]] = {
    "a round after the last": {"round": 2, "progress": 1.0},
    "a round before the first": {"round": -1, "progress": -0.5},
    "another seed": {"seed": 4},
    "another progress": {"progress": 0.5},
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_a_site_answers_the_rounds_of_its_study_only(what: str) -> None:
    one, message, context = site(turns=TURNS)

    reply = answer(one, changed(message, **OUTSIDE[what]), context, reply_to)

    assert reply.has_error() and "no round of the study" in reply.error.reason
    assert answer(one, message, context, reply_to).has_content()


def test_a_site_answers_a_round_once_or_the_same_question_again() -> None:
    one, message, context = site(turns=TURNS)
    task, _, _ = problem()
    engine = loopback.flower(METHOD, task, [one.data] * 2)
    engine.roster.nodes = {1: 101}
    other = engine.requests(METHOD, task.init(Key(8)), [1], TURN)[1]
    later = engine.requests(METHOD, task.init(Key(8)), [1], TURNS[1])[1]

    first, again = (answer(one, message, context, reply_to) for _ in range(2))
    assert wire.digest(first.content) == wire.digest(again.content)
    assert "start the site with another folder for a second run" in answer(one, other, context, reply_to).error.reason
    assert answer(one, later, context, reply_to).has_content()
    assert "has answered round 2" in answer(one, message, context, reply_to).error.reason


def test_a_site_refuses_kinds_and_sizes_outside_its_study() -> None:
    one, message, context = site(rules=Rules(leaves=("Samples",)))
    assert "holds a 'Point', which the study does not let leave" in answer(one, message, context, reply_to).error.reason

    one, message, context = site(rules=Rules(most_bytes=100))
    assert "more than the 100 agreed" in answer(one, message, context, reply_to).error.reason


def test_a_site_logs_both_ways_with_size_and_hash() -> None:
    lines: list[dict[str, Any]] = []
    one, message, context = site(log=lines.append)

    reply = answer(one, message, context, reply_to)

    assert [line["way"] for line in lines] == ["in", "out"]
    assert [line["bytes"] for line in lines] == [wire.weight(m.content) for m in (message, reply)]
    assert [line["sha256"] for line in lines] == [wire.digest(m.content) for m in (message, reply)]
    answer(one, changed(message, study="x"), context, reply_to)
    assert "another study" in lines[-1]["refused"]


def test_a_site_logs_who_asked_it_for_its_name() -> None:
    task, sites, _ = problem()
    lines: list[dict[str, Any]] = []
    grid = loopback.Loopback(loopback.sites_of(METHOD, task, sites.train[:1], log=lines.append))

    Flower(grid, ["a"], sites.train[0], wait=0.1, pause=0.01).roster.meet([0])

    assert [(line["way"], line["round"], len(line["sha256"])) for line in lines] == [("in", "0", 64), ("out", "0", 64)]


def test_an_unexpected_error_at_a_site_is_answered_without_its_text() -> None:
    one, message, context = site()
    broken = one.data._replace(x=one.data.x[:, :1])  # torch's complaint would name shapes, and might name values

    reply = answer(Site(1, "b", METHOD, one.task, broken), message, context, reply_to)

    assert reply.error.reason == "RuntimeError; the site's own log says more."


def test_what_a_methods_file_imports_does_not_cross() -> None:
    """This file, a method's own, imports or uses rows and parties; only what it defines may cross."""
    sending, keeping = types_of(SendsRows()), kept_types_of(SendsRows())

    assert sending["Leaky"] is Leaky
    assert not {"Data", "Client", "Server", "Reply", "Received", "Site"} & set(sending)
    assert set(keeping) - set(sending) == {"Data"}
    for kind in METHODS.values():
        assert not set(types_of(kind()).values()) & {
            Data,
            Client,
            Reply,
            Server,
            Received,
        }, kind


def test_a_method_that_replies_with_rows_is_refused_at_the_site() -> None:
    one, message, context = site(SendsRows())

    reply = answer(one, message, context, reply_to)

    assert reply.error.reason == "a 'Data' may not leave a site."


def test_the_type_of_rows_cannot_be_packed_or_rebuilt() -> None:
    _, sites, _ = problem()
    types = types_of(METHOD)

    with pytest.raises(Refused, match="'Data' may not leave"):
        wire.pack(sites.train[0], types)
    with pytest.raises(Refused, match="'Data' may not leave"):
        wire.pack({"payload": (sites.train[0],)}, {**types, "Leaky": Leaky})
    packed = wire.pack(sites.train[0], {"Data": Data})  # what a tampered site might send
    with pytest.raises(Refused, match="'Data'"):
        wire.unpack(*packed, types)


@pytest.mark.parametrize("part", [lambda d: d.x, lambda d: d.x[:2], lambda d: d.x.clone(), lambda d: d.y])
def test_a_method_that_sends_rows_is_stopped_at_the_site(part: Callable[[Data], Tensor]) -> None:
    class Sends(co.FedAvg):
        def local(self, task: co.Task, message: Any, client: Client) -> Reply:
            return Reply({"weights": part(client.data)}, client.data.size)

    one, message, context = site(Sends())

    assert (
        answer(one, message, context, reply_to).error.reason
        == "the reply holds rows of this site, which never leave it."
    )


STARTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "not finite": (lambda w: w * torch.nan, "the message is not used: it holds numbers that are not finite"),
    "another shape": (lambda w: w[:1], "the message is not used: 'params.0.weight' has the shape"),
    "another type": (lambda w: w.double(), "of float32 is expected"),
    "weights of 3000": (lambda w: 0 * w + 3000, "the message is not used: it has a weight of 3e+03"),
    "a chosen start": (lambda w: w + 0.1, "it is not what this study begins with"),
}


@pytest.mark.parametrize("what", STARTS)
def test_a_site_starts_from_no_message_that_the_method_does_not_send(what: str) -> None:
    change, sentence = STARTS[what]
    task, sites, start = problem()
    one = Site(1, "b", METHOD, task, sites.train[1], first=start)
    engine = loopback.flower(METHOD, task, sites.train)
    engine.roster.nodes = {1: 101}
    chosen = Point({**start.params, "0.weight": change(start.params["0.weight"])})
    good, bad = (engine.requests(METHOD, message, [1], TURN)[1] for message in (start, chosen))
    context = Context(1, 101, {}, RecordDict(), {})

    assert sentence in answer(one, bad, context, reply_to).error.reason
    assert answer(one, good, context, reply_to).has_content()


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool], ids=str
)
def test_every_type_and_shape_survives_the_wire(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (3, 1, 2)):
        value = {"a": torch.ones(shape, dtype=dtype), "b": (torch.zeros(2), ())}
        back = wire.unpack(*wire.pack(value, {}), {})
        assert back["a"].dtype == dtype and torch.equal(back["a"], value["a"]) and back["b"][1] == ()


@pytest.mark.parametrize("shape", [(10**9,), (2,), (4, 1)])
def test_an_array_whose_header_lies_is_refused_without_memory(shape: tuple[int, ...]) -> None:
    """128 bytes that claim 4 GB, or another shape than the message says."""
    _, outline = wire.pack({"a": torch.zeros(4)}, {})
    file = io.BytesIO()
    numpy.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    data = file.getvalue() + bytes(16)
    lie = Array(dtype="float32", shape=shape[:1], stype="numpy.ndarray", data=data)
    tracemalloc.start()

    with pytest.raises(Refused):
        wire.unpack(ArrayRecord({"tree.a": lie}), outline, {})

    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_a_dimension_that_depends_on_rows_is_free_and_others_are_not() -> None:
    """The rehearsal's two made-up sites have 8 and 9 rows."""

    class PerRow(co.FedAvg):
        def local(self, task: co.Task, message: Any, client: Client) -> Reply:
            return Reply((2 * client.data.x, torch.zeros(3)), client.data.size)

    task, sites, start = problem()
    gate = Gate(Rules(), Rehearsal(sites.train[0]).form(PerRow(), task, start), 1)

    def admit(*send: Tensor) -> None:
        gate.admit(0, Arrival(0, 0, 1), lambda: {"send": send, "size": torch.tensor(77.0)})

    assert gate.form is not None
    assert sorted(leaf.shape for leaf in gate.form.leaves.values()) == [(-1, 2), (3,)]
    admit(torch.zeros(77, 2), torch.zeros(3))
    with pytest.raises(Refused, match=r"'1' has the shape \(4\) of float32; \(3\) of float32 is expected"):
        admit(torch.zeros(77, 2), torch.zeros(4))


def test_a_repeated_question_has_the_same_answer_though_the_site_remembers() -> None:
    """SCAFFOLD's control variate after round 1 must not leak into round 1 asked again (the server was restarted)."""
    task, sites, _ = problem()
    method = tiny.method("scaffold")
    engine = loopback.flower(method, task, sites.train)
    state = method.init(task, Server(None, None, Key(2), 4))
    message = method.broadcast(state)

    first = engine.gather(method, task, message, range(4), TURN)
    second = engine.gather(method, task, message, range(4), Turn(1, Key(3)))
    again = [engine.gather(method, task, message, range(4), Turn(t, Key(3))) for t in (0, 1)]

    for before, after in zip((first, second), again, strict=True):
        for a, b in zip(before, after, strict=True):
            assert all(torch.equal(a.payload[0].params[n], v) for n, v in b.payload[0].params.items())
    assert not torch.equal(first[0].payload[1]["0.weight"], second[0].payload[1]["0.weight"])


def test_a_second_run_in_the_same_folder_remembers_its_own_rounds() -> None:
    task, sites, _ = problem()
    one = Site(1, "b", tiny.method("scaffold"), task, sites.train[1])
    context = Context(1, 101, {}, RecordDict(), {})
    found = []
    for run in (0, 1):
        for t in range(6):
            found.append(recall(one, context, t))
            remember(one, context, t, torch.tensor(float(10 * run + t)))

    before = [float(kept[1]) if kept else None for kept in found]
    assert before == [None, 0, 1, 2, 3, 4, None, 10, 11, 12, 13, 14]  # each round's is what the round before left


def test_a_site_that_is_not_there_is_named_within_the_time_given() -> None:
    task, sites, start = problem()
    grid = loopback.Loopback(loopback.sites_of(METHOD, task, sites.train[:3]))
    engine = Flower(grid, ["a", "b", "c", "d"], sites.train[0], wait=0.1, pause=0.01)

    with pytest.raises(InputError, match="Site d, round 1: it is not connected"):
        engine.gather(METHOD, task, start, range(4), TURN)


def test_two_nodes_cannot_be_one_site_and_strangers_are_not_asked() -> None:
    task, sites, start = problem()
    known = loopback.sites_of(METHOD, task, sites.train[:2])
    grid = loopback.Loopback(known)
    twin, other = Site(1, "b", METHOD, task, sites.train[1]), Site(0, "a", METHOD, task, sites.train[0], study="x")
    for node, who in ((200, twin), (201, other)):
        grid.sites[node], grid.contexts[node] = who, Context(1, node, {}, RecordDict(), {})
    engine = Flower(grid, ["a", "b"], sites.train[0], wait=0.2, pause=0.01)

    received = engine.gather(METHOD, task, start, range(2), TURN)

    assert [r.client for r in received] == [0, 1] and engine.roster.nodes == {0: 100, 1: 101}
    assert engine.roster.strangers == {200: "b is there already.", 201: "it agreed to another study."}


def test_a_node_that_answered_with_an_error_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites, _ = problem()
    grid = loopback.Loopback(loopback.sites_of(METHOD, task, sites.train[:1]))
    engine = Flower(grid, ["a"], sites.train[0], wait=0.1, pause=0.01)
    with monkeypatch.context() as ill:
        ill.setattr(grid, "app", lambda message, context: Message(Error(5, "Node unavailable"), reply_to=message))
        engine.roster.meet([0])
    first = dict(engine.roster.strangers)

    engine.roster.meet([0])

    assert first == {100: "Node unavailable"}
    assert engine.roster.nodes == {0: 100} and engine.roster.strangers == {}


@pytest.mark.parametrize("about", ['{"site": Infinity}', "[" * 100_000, "[]", "who"])
def test_a_node_that_says_nonsense_is_a_stranger(about: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites, _ = problem()
    grid = loopback.Loopback(loopback.sites_of(METHOD, task, sites.train[:1]))
    engine = Flower(grid, ["a"], sites.train[0], wait=0.1, pause=0.01)
    said = RecordDict({"header": ConfigRecord({"about": about})})
    monkeypatch.setattr(grid, "app", lambda message, context: Message(said, reply_to=message))

    engine.roster.meet([0])

    assert engine.roster.strangers == {100: "it did not say who it is."}


@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_restarted_node_takes_its_place_when_the_old_one_is_gone(meanwhile: bool) -> None:
    """Gone between two rounds, or while the server waits for another site."""
    task, sites, _ = problem()
    grid = loopback.Loopback(loopback.sites_of(METHOD, task, sites.train[:1]))
    engine = Flower(grid, ["a", "b"], sites.train[0], wait=0.2, pause=0.01)
    engine.roster.meet([0])
    grid.sites[200], grid.contexts[200] = grid.sites[100], Context(1, 200, {}, RecordDict(), {})
    listed = [[100, 200], [200]] if meanwhile else [[200]]
    if not meanwhile:
        engine.roster.meet([0])
        assert engine.roster.nodes == {0: 100} and engine.roster.strangers == {200: "a is there already."}

    grid.get_node_ids = lambda: listed.pop(0) if len(listed) > 1 else listed[0]  # type: ignore[method-assign]
    engine.roster.meet([0, 1])

    assert engine.roster.nodes == {0: 200} and engine.roster.strangers == {}


def signed(site: int, purpose: str, message: bytes) -> str:
    """A signature only that site can make, as far as this test goes."""
    return f"{site} {purpose} {message.decode()}"


@pytest.mark.parametrize("forged", [False, True])
def test_a_reply_counts_only_with_its_own_sites_signature(forged: bool) -> None:
    """Numbers of sites are those of a study: never given twice, so not without gaps."""
    task, sites, start = problem()
    own = [
        Site(n, name, METHOD, task, d, sign=lambda p, m, n=n: signed(0 if forged and n == 7 else n, p, m))
        for n, name, d in zip((2, 7), "ab", sites.train[:2], strict=True)
    ]
    engine = Flower(
        loopback.Loopback(own), ["a", "b"], sites.train[0], numbers=[2, 7], wait=0.1, pause=0.01,
        verify=lambda k, purpose, message, signature: signature == signed([2, 7][k], purpose, message),
    )  # fmt: skip
    engine.forgiving = True

    received = engine.gather(METHOD, task, start, range(2), TURN)

    assert [r.client for r in received] == ([0] if forged else [0, 1])
    refused = "it is not connected. Others were not let in: it signs with another key than that of b."
    assert engine.lost == ({1: refused} if forged else {})
    assert list(engine.roster.strangers.values()) == (["it signs with another key than that of b."] if forged else [])
    expected = Sequential([sites.train[0]] * 8).gather(METHOD, task, start, [2], TURN)  # keys go by number
    assert torch.equal(expected[0].payload.params["0.weight"], received[0].payload.params["0.weight"])


def test_a_reply_changed_on_its_way_is_refused() -> None:
    task, sites, start = problem()
    own = [Site(0, "a", METHOD, task, sites.train[0], sign=lambda p, m: signed(0, p, m))]

    def change(k: int, reply: Message) -> list[Message]:
        return [array_changed(reply, lambda t: t + 1)]

    engine = Flower(
        loopback.Loopback(own, change), ["a"], sites.train[0], wait=0.1, pause=0.01,
        verify=lambda k, purpose, message, signature: signature == signed(k, purpose, message),
    )  # fmt: skip
    with pytest.raises(InputError, match="signature"):
        engine.gather(METHOD, task, start, [0], TURN)


@pytest.mark.parametrize("replayed", ["", "another study", "another question", "another round behind the header"])
def test_a_signed_reply_serves_for_one_study_and_one_question(replayed: str) -> None:
    """The same site, the same key: what it signed elsewhere arrives in place of its reply."""
    task, sites, start = problem()
    key, held = {"sign": lambda p, m: signed(0, p, m)}, list[Message]()

    def asked(study: str, turn: Turn, spoil: loopback.Spoil) -> list[int]:
        own = [Site(0, "a", METHOD, task, sites.train[0], study=study, **key)]
        engine = Flower(
            loopback.Loopback(own, spoil), ["a"], sites.train[0], study=study, wait=0.1, pause=0.01,
            verify=lambda k, purpose, message, signature: signature == signed(k, purpose, message),
        )  # fmt: skip
        engine.forgiving = True
        heard = [r.client for r in engine.gather(METHOD, task, start, [0], turn)]
        assert heard or "what was signed has been changed" in engine.lost[0] or "not one of" in engine.lost[0]
        return heard

    def instead(k: int, reply: Message) -> list[Message]:
        content = held[0].content
        if replayed.startswith("another round"):
            mine, old = reply.content.config_records["header"], content.config_records["header"]
            header = ConfigRecord({**old, "about": mine["about"]})
            content = RecordDict({"arrays": content["arrays"], "header": header, "z": old})
        return [Message(content, reply_to=_question(reply))]

    before = Turn(0, Key(4)) if replayed == "another question" else TURN._replace(round=int("round" in replayed))
    asked("x" if replayed == "another study" else "s", before, lambda k, reply: held.append(reply) or [reply])

    assert asked("s", TURN, instead) == ([] if replayed else [0])


@pytest.mark.parametrize("what", ["as signed", "no signature", "for another study", "changed on its way"])
def test_a_request_is_answered_only_as_the_coordinator_signed_it(what: str) -> None:
    task, sites, start = problem()
    one = Site(
        0, "a", METHOD, task, sites.train[0], study="s",
        verify=lambda purpose, message, signature: signature == signed(9, purpose, message),
    )  # fmt: skip
    engine = loopback.flower(METHOD, task, sites.train[:1], sign=lambda p, m: signed(9, p, m))
    engine.roster.study = "t" if what == "for another study" else "s"
    engine.roster.nodes = {0: 100}
    content = engine.requests(METHOD, start, [0], TURN)[0].content
    header = content.config_records["header"]
    if what == "no signature":
        del header["signature"]
    elif what == "for another study":
        header["about"] = str(header["about"]).replace('"study": "t"', '"study": "s"')
    elif what == "changed on its way":
        content["arrays"] = wire.pack({"message": task.init(Key(8))}, types_of(METHOD))[0]

    reply = answer(one, Message(content, 100, "train", group_id="1"), Context(1, 100, {}, RecordDict(), {}), reply_to)

    assert reply.has_content() if what == "as signed" else "not signed by" in reply.error.reason


def test_contents_that_read_alike_have_different_digests() -> None:
    one, two = ConfigRecord({"about": "1 outline 2"}), ConfigRecord({"about": "1", "outline": "2"})
    signature = ConfigRecord({"signature": "s"})
    contents = [{"header": one}, {"header": two}, {"more": two}, {"header": two, "z": signature}, {}]

    assert len({wire.digest(RecordDict(c)) for c in contents}) == len(contents)


def test_a_run_goes_on_without_a_site_and_says_so(tmp_path: Path) -> None:
    task, sites, _ = problem()

    def engine(data: Any) -> Flower:
        return loopback.flower(METHOD, task, data, only_site_1(FAULTS["truncated"][0]))

    some = co.run(METHOD, task, sites, rounds=2, engine=engine, participation=co.Participation(min_replies=3))
    with pytest.raises(InputError, match="round 1: the bytes cannot be read"):
        co.run(METHOD, task, sites, rounds=2, engine=engine, out=tmp_path / "run")

    assert [(f["site"], f["round"]) for f in some.report["failures"]] == [(sites.names[1], 1), (sites.names[1], 2)]
    written = json.loads((tmp_path / "run" / "run.json").read_text())
    assert not written["finished"] and "cannot be read" in written["failures"][0]["why"]


def test_two_versions_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites, start = problem()
    engine = loopback.flower(METHOD, task, sites.train)
    monkeypatch.setattr("consilience.flower.client.__version__", "0.0.9")

    with pytest.raises(InputError, match=f"Site site 0 runs consilience 0.0.9, the server {__version__}"):
        engine.gather(METHOD, task, start, range(4), TURN)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sites, _ = problem()
    monkeypatch.setitem(sys.modules, "consilience.flower.simulation", None)
    with pytest.raises(InputError, match=r"pip install 'consilience\[flower\]'"):
        engine_of("flower", sites.train)


def test_that_ray_does_not_start_in_time_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class BusyRay:
        stopped = False

        def is_initialized(self) -> bool:
            return False

        def init(self, **settings: Any) -> None:
            raise Exception("The current node timed out during startup.")  # as Ray's node.py says it

        def shutdown(self) -> None:
            self.stopped = True

    ray = BusyRay()
    monkeypatch.setattr(simulation, "_import_ray", lambda: (ray, None))
    task, sites, _ = problem()

    with pytest.raises(InputError, match=r"Ray did not start: .* less busy"):
        simulation.FlowerSimulation(sites.train).start(METHOD, task)
    assert ray.stopped


def test_a_simulation_that_is_resumed_gives_the_sites_their_memories_back(tmp_path: Path) -> None:
    """SCAFFOLD; the second engine's sites are new and remember nothing by themselves."""
    task, sites, _ = problem()
    method = tiny.method("scaffold")

    def run(rounds: int, resume: bool) -> co.Result:
        def engine(data: Any) -> Flower:
            return loopback.flower(method, task, data, simulated=True)

        return co.run(method, task, sites, rounds=rounds, engine=engine, out=tmp_path / "run", resume=resume)

    run(2, resume=False)
    parts = run(4, resume=True)

    whole = co.run(method, task, sites, rounds=4, engine="sequential")
    for name, value in whole.state.control.items():
        assert torch.equal(parts.state.control[name], value)


def test_a_deployed_site_finds_what_it_kept(tmp_path: Path) -> None:
    """What a SuperNode's answer left in the site's file is what its own model is made of."""
    method = co.Hierarchical()
    kept = Natural(torch.arange(3.0), torch.eye(3))
    arrays, outline = wire.pack(kept, kept_types_of(method))
    state = RecordDict({"memory 1": arrays, "outline 1": ConfigRecord({"outline": outline})})
    write_state(tmp_path / "memory-of-a-study.bin", state)

    again = read_kept(tmp_path / "memory-of-a-study.bin", method, 2)

    assert isinstance(again, Natural)
    assert torch.equal(again.linear, kept.linear) and torch.equal(again.precision, kept.precision)
    with pytest.raises(co.InputError, match="kept in round 1"):
        read_kept(tmp_path / "memory-of-a-study.bin", method, 1)
