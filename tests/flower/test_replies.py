"""What may be in a reply, and how a round goes on without one."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import numpy
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from messages import METHOD, TURN, array_changed, only_site_1, problem, question, truncated
from torch import Tensor

import consilience as co
from consilience.errors import InputError
from consilience.key import Key
from consilience.messages import Client, Reply
from consilience.runs.engines import Sequential, Turn
from consilience.study.flower import wire
from consilience.study.flower.engine import Flower
from consilience.study.protocol.rehearsal import Rehearsal
from consilience.study.validation.gate import Arrival, Gate, Refused, Rules


def asked(spoil: loopback.Spoil | None = None, forgiving: bool = True, **named: Any) -> tuple[Flower, list[int]]:
    """One round with site 1's reply spoilt → the engine, and who was heard."""
    task, sites, start = problem()
    engine = loopback.flower(METHOD, task, sites.train, spoil, **named)
    engine.forgiving = forgiving
    received = engine.gather(METHOD, task, start, range(len(sites)), TURN)
    return engine, [r.client for r in received]


def header_changed(reply: Message, **changes: Any) -> Message:
    header = reply.content.config_records["header"]
    about = {**json.loads(str(header["about"])), **changes}
    new = ConfigRecord({"outline": header["outline"], "about": json.dumps(about)})
    return Message(RecordDict({"arrays": reply.content["arrays"], "header": new}), reply_to=question(reply))


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
    return Message(content, reply_to=question(reply))


def renamed(reply: Message) -> Message:
    arrays, header = dict(reply.content.array_records["arrays"]), reply.content.config_records["header"]
    outline = str(header["outline"]).replace("0.weight", "9.weight")
    new = ArrayRecord({n.replace("0.weight", "9.weight"): a for n, a in arrays.items()})
    content = RecordDict({"arrays": new, "header": ConfigRecord({"outline": outline, "about": header["about"]})})
    return Message(content, reply_to=question(reply))


def with_more(reply: Message, more: ConfigRecord | ArrayRecord) -> Message:
    return Message(RecordDict({**reply.content, "more": more}), reply_to=question(reply))


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
    "an empty message": (lambda r: [Message(RecordDict(), reply_to=question(r))], "not one of consilience"),
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

    class PerRow(co.methods.FedAvg):
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


def test_contents_that_read_alike_have_different_digests() -> None:
    one, two = ConfigRecord({"about": "1 outline 2"}), ConfigRecord({"about": "1", "outline": "2"})
    signature = ConfigRecord({"signature": "s"})
    contents = [{"header": one}, {"header": two}, {"more": two}, {"header": two, "z": signature}, {}]

    assert len({wire.digest(RecordDict(c)) for c in contents}) == len(contents)
