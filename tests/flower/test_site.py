"""What a site answers, what it refuses, and what it remembers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import tiny
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from messages import METHOD, TURN, problem, signed
from torch import Tensor

import consilience as co
from consilience.data import Data
from consilience.distributions.posterior import Natural, Point
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server
from consilience.methods import METHODS
from consilience.runs.engines import Turn
from consilience.serialisation.codec import kept_types_of, types_of
from consilience.study.flower import wire
from consilience.study.flower.client import Site, answer, recall, remember, reply_to
from consilience.study.flower.engine import Flower
from consilience.study.flower.site import read_kept, write_state
from consilience.study.validation.gate import Refused, Rules
from consilience.version import __version__


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
    class Sends(co.methods.FedAvg):
        def local(self, task: co.Task, message: Any, client: Client) -> Reply:
            return Reply({"weights": part(client.data)}, client.data.size)

    one, message, context = site(Sends())

    assert (
        answer(one, message, context, reply_to).error.reason
        == "The reply stays here: it holds rows of this site, which never leave it."
    )


STARTS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "not finite": (lambda w: w * torch.nan, "The message is not used: it holds numbers that are not finite"),
    "another shape": (lambda w: w[:1], "The message is not used: 'params.0.weight' has the shape"),
    "another type": (lambda w: w.double(), "of float32 is expected"),
    "weights of 3000": (lambda w: 0 * w + 3000, "The message is not used: it has a weight of 3e+03"),
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


def test_a_deployed_site_finds_what_it_kept(tmp_path: Path) -> None:
    """What a SuperNode's answer left in the site's file is what its own model is made of."""
    method = co.methods.Hierarchical()
    kept = Natural(torch.arange(3.0), torch.eye(3))
    arrays, outline = wire.pack(kept, kept_types_of(method))
    state = RecordDict({"memory 1": arrays, "outline 1": ConfigRecord({"outline": outline})})
    write_state(tmp_path / "memory-of-a-study.bin", state)

    again = read_kept(tmp_path / "memory-of-a-study.bin", method, 2)

    assert isinstance(again, Natural)
    assert torch.equal(again.linear, kept.linear) and torch.equal(again.precision, kept.precision)
    with pytest.raises(co.InputError, match="kept in round 1"):
        read_kept(tmp_path / "memory-of-a-study.bin", method, 1)


def test_a_site_refuses_rounds_whose_answers_show_one_row_together() -> None:
    """Each is answered alone; combined, all rows but the one far out cancel (tests/study/test_chosen_weights.py)."""
    x = torch.linspace(-1, 1.5, 240).unsqueeze(1)
    x[7] = 6.0
    y = (torch.arange(240) % 20 == 1).long()
    task = co.classification(torch.nn.Linear(1, 2))
    rows = [Data.of(x, y), Data.of(-x, y)]
    method = METHODS["glm"]()
    turns = [Turn(t, Key(3), t / 8) for t in range(8)]
    engine = loopback.flower(method, task, rows)
    engine.roster.nodes, engine.roster.study = {0: 100}, "s"
    one = Site(0, "a", method, task, rows[0], study="s", turns=turns, rules=Rules(10))

    def answers(chosen: list[float]) -> list[bool]:
        context = Context(1, 100, {}, RecordDict(), {})
        found = []
        for turn, at in zip(turns, [None, *chosen], strict=False):
            asked: Any = ()
            if at is not None:
                weight, bias = torch.tensor([[0.0], [0.5]]), torch.tensor([0.0, -0.5 * at])
                asked = Point({"weight": weight.double(), "bias": bias.double()})
            reply = answer(one, engine.requests(method, asked, [0], turn)[0], context, reply_to)
            found.append(reply.has_content())
        return found

    far = [-3.0, 0.0, 3.0, 5.0, 8.0, 11.0, 14.0]
    assert all(all(answers([at])) for at in far)
    assert not all(answers(far))
