"""A masked study over Flower's messages: the same sums as by files, and no round without a site."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import studies
import torch
from flwr.app import Message
from rounds import replies, server_key

from consilience import tree
from consilience.errors import InputError
from consilience.privacy.secure_aggregation.masks import Masked
from consilience.study.coordinator import pool
from consilience.study.flower.server import Deployed, rounds
from consilience.study.model import read_model
from consilience.study.protocol.members import Study

EXACT: dict[str, Any] = {"method": "exact", "settings": (), "fewest_sites": 3, "smallest": 1}
FEDAVG: dict[str, Any] = {"method": "fedavg", "settings": ("inference.epochs=1",), "fewest_sites": 3, "rounds": 2}


def served(
    study: Study,
    folder: Path,
    out: str,
    spoil: Callable[[int, Message], Iterable[Message]] | None = None,
    agreed: tuple[str, ...] = (),
    **more: Any,
) -> Deployed:
    grid = loopback.Loopback(loopback.study_sites(study, folder, agreed), spoil)
    return rounds(study, server_key(folder), grid, folder / out, wait=0.2, deadline=5.0, **more)


@pytest.mark.parametrize("agreed", [EXACT, FEDAVG], ids=lambda agreed: agreed["method"])
def test_masked_rounds_give_the_plain_rounds_model(tmp_path: Path, agreed: dict[str, Any]) -> None:
    results = []
    for secure in (False, True):
        folder = tmp_path / str(secure)
        folder.mkdir()
        results.append(served(studies.study(folder, secure=secure, **agreed), folder, "run"))

    plain, masked = results
    for a, b in zip(tree.leaves(plain.state), tree.leaves(masked.state), strict=True):
        torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a), rtol=1e-5, atol=1e-6)
    assert all(isinstance(reply.payload, Masked) and float(reply.size) == 0 for reply in masked.replies)
    assert masked.rows == sum(int(reply.size) for reply in plain.replies)
    assert "influence" not in masked.report
    up = masked.report["ledger"]["up_bytes"] / agreed.get("rounds", 1)
    assert up == sum(8 * (len(r.payload.values) + len(r.payload.sites)) + 32 for r in masked.replies)


def test_files_and_messages_have_the_same_sums(tmp_path: Path) -> None:
    study = studies.study(tmp_path, secure=True, **EXACT)

    by_messages = served(study, tmp_path, "run")
    pooled = pool(study, replies(study, tmp_path), server_key(tmp_path))

    (tmp_path / "model").write_bytes(pooled.model)
    by_files = read_model(tmp_path / "model", study).state
    assert torch.equal(by_messages.state.fit.mean, by_files.fit.mean)


def test_a_round_without_a_site_is_refused_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    """Its masks would not vanish; asked again, every site sends what it sent before."""
    study = studies.study(tmp_path, secure=True, **EXACT)
    sent: dict[int, list[bytes]] = {}

    def lose(k: int, reply: Message) -> list[Message]:
        sent.setdefault(k, []).append(reply.content["arrays"]["tree.send.values"].data)
        return [] if k == 2 and len(sent[2]) == 1 else [reply]

    with pytest.raises(InputError, match="leave min_replies out"):
        served(study, tmp_path, "run", min_replies=3)
    with pytest.raises(InputError, match="Site west, round 1"):
        served(study, tmp_path, "run", lose)
    result = served(study, tmp_path, "run", lose, resume=True)

    assert {len(set(copies)) for copies in sent.values()} == {1} and len(sent[2]) == 2
    assert result.rows > 100


FOUR = ("north", "south", "west", "east")


def lose_east(k: int, reply: Message) -> list[Message]:
    return [reply] if k < 3 else []


@pytest.mark.parametrize("agreed", [EXACT, FEDAVG], ids=lambda agreed: agreed["method"])
def test_sums_go_on_without_a_lost_site_when_people_agreed(tmp_path: Path, agreed: dict[str, Any]) -> None:
    """The model of the three that are left; in later rounds too."""
    study = studies.study(tmp_path, FOUR, secure=True, **agreed)

    with pytest.raises(InputError, match=r'Site east, round 1.*without=\["east"\]'):
        served(study, tmp_path, "run", lose_east)
    with pytest.raises(InputError, match=r"north: .*nobody here has agreed.*--without east"):
        served(study, tmp_path, "run", resume=True, without=["east"])
    result = served(study, tmp_path, "run", agreed=("east",), resume=True, without=["east"])

    (tmp_path / "three").mkdir()
    plain = served(studies.study(tmp_path / "three", FOUR[:3], **agreed), tmp_path / "three", "run")
    for a, b in zip(tree.leaves(plain.state), tree.leaves(result.state), strict=True):
        torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a), rtol=1e-5, atol=1e-5)
    assert len(result.replies) == 3
    assert {(failure["site"], failure["round"]) for failure in result.report["failures"]} == {
        ("east", round) for round in range(1, agreed.get("rounds", 1) + 1)
    }


def test_a_site_that_is_called_missing_hears_of_it_and_sends_nothing_any_more(tmp_path: Path) -> None:
    """It is connected but was not asked: the server's request reaches it before the others tell its masks."""
    study = studies.study(tmp_path, FOUR, secure=True, **EXACT)

    served(study, tmp_path, "run", agreed=("east",), without=["east"])

    with pytest.raises(InputError, match=r"Site east, round 1.*went on without this site"):
        served(study, tmp_path, "another")


def test_whom_a_sum_goes_on_without_is_written_before_anybody_is_asked(tmp_path: Path) -> None:
    """A server that dies, or another site that is lost, does not change it: two sums would show the difference."""
    study = studies.study(tmp_path, (*FOUR, "mid"), secure=True, **EXACT)

    with pytest.raises(InputError, match="nobody here has agreed"):
        served(study, tmp_path, "run", without=["east"])
    with pytest.raises(InputError, match="goes on without east: leaving others out as well"):
        served(study, tmp_path, "run", agreed=("east", "mid"), resume=True, without=["mid"])
    late = served(study, tmp_path, "run", agreed=("east",), resume=True)  # east is there again, and not asked

    assert [reply.client for reply in late.replies] == [0, 1, 2, 4]


@pytest.mark.parametrize(
    ("names", "agreed", "without", "sentence"),
    [
        (FOUR[:3], {"secure": True, **EXACT}, ["west"], "2 sites would be left"),
        (FOUR, {"secure": False, **EXACT}, ["west"], "does not mask: go on without sites by min_replies"),
        (FOUR, {"secure": True, **EXACT, "method": "glm", "rounds": 3}, ["west"], "glm needs every site"),
        (FOUR, {"secure": True, **EXACT}, ["nowhere"], "nowhere"),
    ],
)
def test_whom_a_sum_cannot_go_on_without(
    tmp_path: Path, names: tuple[str, ...], agreed: dict[str, Any], without: list[str], sentence: str
) -> None:
    study = studies.study(tmp_path, names, **agreed)
    with pytest.raises(InputError, match=sentence):
        rounds(study, server_key(tmp_path), loopback.Loopback([]), tmp_path / "run", without=without)


def test_a_changed_number_is_noticed_in_the_sum(tmp_path: Path) -> None:
    """The gate cannot see it, the sum can: it does not count as many sites."""
    study = studies.study(tmp_path, secure=True, **EXACT)
    sites = loopback.study_sites(study, tmp_path)
    release = sites[0].release
    assert release is not None

    def lie(round: int, question: str, run: Any) -> Any:
        honest = release(round, question, run)
        return honest._replace(send=honest.send._replace(values=honest.send.values + 1))

    object.__setattr__(sites[0], "release", lie)
    with pytest.raises(InputError, match="masks do not cancel"):
        rounds(study, server_key(tmp_path), loopback.Loopback(sites), tmp_path / "run", wait=0.2, deadline=5.0)


def test_a_masked_answer_counts_once_and_in_its_own_round(tmp_path: Path) -> None:
    """Twice the same reply is one; that of the first round, sent again in the second, is refused by name."""
    for name in ("plain", "twice", "old"):
        (tmp_path / name).mkdir()
    held: dict[int, Message] = {}

    def repeat(k: int, reply: Message) -> list[Message]:
        return [reply, reply]

    def replay(k: int, reply: Message) -> list[Message]:
        before = held.setdefault(k, reply)
        return [Message(before.content, reply_to=questions[k])] if k == 1 and before is not reply else [reply]

    honest = served(studies.study(tmp_path / "plain", secure=True, **FEDAVG), tmp_path / "plain", "run")
    twice = served(studies.study(tmp_path / "twice", secure=True, **FEDAVG), tmp_path / "twice", "run", repeat)
    for a, b in zip(tree.leaves(honest.state), tree.leaves(twice.state), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    study = studies.study(tmp_path / "old", secure=True, **FEDAVG)
    grid = loopback.Loopback(loopback.study_sites(study, tmp_path / "old"), replay)
    questions: dict[int, Message] = {}
    asked = grid.app

    def listen(message: Message, context: Any) -> Message:
        questions[grid.sites[context.node_id].number] = message
        return asked(message, context)

    grid.app = listen
    with pytest.raises(InputError, match="Site south, round 2: its signature is not"):
        rounds(study, server_key(tmp_path / "old"), grid, tmp_path / "old" / "run", wait=0.2, deadline=5.0)
