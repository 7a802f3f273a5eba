"""Which node is which site, whose signature counts, and what is said where Flower cannot start."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import tiny
import torch
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from messages import METHOD, TURN, array_changed, problem, question, signed

import consilience as co
from consilience.errors import InputError
from consilience.key import Key
from consilience.runs.engines import Sequential, Turn
from consilience.runs.engines import engine as engine_of
from consilience.study.flower import simulation
from consilience.study.flower.client import Site
from consilience.study.flower.engine import Flower
from consilience.version import __version__


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
        return [Message(content, reply_to=question(reply))]

    before = Turn(0, Key(4)) if replayed == "another question" else TURN._replace(round=int("round" in replayed))
    asked("x" if replayed == "another study" else "s", before, lambda k, reply: held.append(reply) or [reply])

    assert asked("s", TURN, instead) == ([] if replayed else [0])


def test_two_versions_are_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites, start = problem()
    engine = loopback.flower(METHOD, task, sites.train)
    monkeypatch.setattr("consilience.study.flower.client.__version__", "0.0.9")

    with pytest.raises(InputError, match=f"Site site 0 runs consilience 0.0.9, the server {__version__}"):
        engine.gather(METHOD, task, start, range(4), TURN)


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _, sites, _ = problem()
    monkeypatch.setitem(sys.modules, "consilience.study.flower.simulation", None)
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
