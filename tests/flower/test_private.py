"""A private study over Flower's messages: noise that nobody can repeat, drawn once, and paid for before it leaves."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import studies
import torch
import uncharged
from flwr.app import Message
from rounds import server_key
from tiny import Invoke

from consilience import tree
from consilience.errors import InputError
from consilience.glm.noisy_posterior import Effort
from consilience.messages import Reply
from consilience.privacy.dp.accountant import epsilon_of
from consilience.privacy.dp.mechanisms import Released
from consilience.privacy.secure_aggregation.masks import Masked
from consilience.study.budget import UNBOUNDED, read_budget
from consilience.study.flower.server import Deployed, rounds
from consilience.study.flower.site import site_of
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text
from consilience.study.reply import Asked
from consilience.study.spending import with_limit

BRIEF = Effort(1, 2, 8)  # draws whose moments are not looked at
PRIVATE: dict[str, Any] = {"method": "exact", "settings": (), "epsilon": 3.0, "delta": 1e-3}
TRAINED = ("inference=DPSGD", "inference.steps=2", "inference.epsilon=3", "inference.delta=1e-3")


def serve(study: Study, folder: Path, out: str) -> Deployed:
    grid = loopback.Loopback(loopback.study_sites(study, folder))
    return rounds(study, server_key(folder), grid, folder / out, wait=0.2, deadline=5.0)


def test_rounds_are_private_paid_for_and_repeated_not_redrawn(tmp_path: Path) -> None:
    """Two runs of one study: the second is asked the same, and gets the same bytes at no further cost."""
    study = studies.study(tmp_path, **PRIVATE)

    first = serve(study, tmp_path, "first")
    ledger = tmp_path / "north.site" / "north.ledger"
    budget = read_budget(ledger)
    second = serve(study, tmp_path, "second")

    assert all(isinstance(reply.payload, Released) and float(reply.size) == 0 for reply in first.replies)
    assert budget.spent().epsilon(1e-3) == pytest.approx(3.0, rel=1e-6)
    for a, b in zip(first.replies, second.replies, strict=True):
        assert torch.equal(a.payload.values, b.payload.values)
    assert len(read_budget(ledger).releases) == len(budget.releases) == 1


def test_masks_and_noise_together(tmp_path: Path) -> None:
    """Noise is added once, in shares, and nobody sees a share: replies are masked, and their total has all of it."""
    promise = {"epsilon": 8.0, "delta": 1e-4, "noise_added": "once", "honest_sites": 3}
    masked = {"secure": True, "fewest_sites": 3, "smallest": 1}
    study = studies.study(tmp_path, method="exact", settings=(), **promise, **masked)

    first = serve(study, tmp_path, "first")
    second = serve(study, tmp_path, "second")

    assert all(isinstance(reply.payload, Masked) for reply in first.replies)
    for a, b in zip(first.replies, second.replies, strict=True):
        assert torch.equal(a.payload.values, b.payload.values)  # a retry is masked and noisy as before
    budget = read_budget(tmp_path / "north.site" / "north.ledger")
    assert budget.spent().epsilon(1e-4) == pytest.approx(8.0, rel=1e-6) and len(budget.releases) == 1
    assert bool(torch.isfinite(first.state.fit.mean).all())


def test_without_entropy_nothing_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = studies.study(tmp_path, **PRIVATE)

    def fail(count: int) -> bytes:
        raise OSError("no entropy")

    monkeypatch.setattr("consilience.privacy.entropy.os.urandom", fail)
    with pytest.raises(InputError, match=r"Site north, round 1: it reports: .*no random numbers.*nothing is sent"):
        serve(study, tmp_path, "run")
    assert not (tmp_path / "north.site" / "north.ledger").exists()
    assert not (tmp_path / "north.site" / "north.sent").exists()


def test_a_site_without_a_ledger_sends_nothing(tmp_path: Path) -> None:
    """Nobody would know what it has spent."""
    study = studies.study(tmp_path, **PRIVATE)
    sites = [dataclasses.replace(site, release=None) for site in loopback.study_sites(study, tmp_path)]

    with pytest.raises(InputError, match="this site keeps no ledger"):
        rounds(study, server_key(tmp_path), loopback.Loopback(sites), tmp_path / "run", wait=0.2, deadline=5.0)


def test_noise_is_secret(tmp_path: Path) -> None:
    """Two sites' folders of one study, rows and seed: nobody can compute the noise from them."""
    values = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        values.append(serve(studies.study(folder, **PRIVATE), folder, "run").replies[0].payload.values)
    assert not torch.equal(values[0], values[1])


def test_another_question_and_a_lost_reply_are_refused(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **PRIVATE)
    member = study.member("north")
    site = loopback.study_sites(study, tmp_path)[member.number]
    kept, ledger = tmp_path / "n.sent", tmp_path / "n.ledger"
    own = uncharged.site_of(study, member, read_key(tmp_path / "north.key"), site.data, ledger=ledger)
    drawn: list[float] = []

    def make() -> Reply:
        drawn.append(0.0)
        return Reply(Released(torch.zeros(3), torch.ones(())), torch.zeros(()))

    own.answer(Asked(study, 1, "question", "rows", kept, make))
    own.answer(Asked(study, 1, "question", "rows", kept, make))
    assert len(drawn) == 1
    with pytest.raises(InputError, match="other noise would cost twice"):
        own.answer(Asked(study, 1, "another", "rows", kept, make))
    kept.unlink()
    with pytest.raises(InputError, match="Nothing is sent"):
        own.answer(Asked(study, 1, "question", "rows", kept, make))


def test_what_the_budget_does_not_allow_does_not_leave_but_is_paid_for_if_kept(tmp_path: Path) -> None:
    """Killed between keeping and entering, the ledger is charged when the same is asked again."""
    study = studies.study(tmp_path, **PRIVATE)
    member = study.member("north")
    site = loopback.study_sites(study, tmp_path)[member.number]
    kept, ledger = tmp_path / "n.sent", tmp_path / "n.ledger"
    own = uncharged.site_of(study, member, read_key(tmp_path / "north.key"), site.data, ledger=ledger)

    def make() -> Reply:
        return Reply(Released(torch.zeros(3), torch.ones(())), torch.zeros(()))

    own.answer(Asked(study, 1, "question", "rows", kept, make))
    ledger.unlink()  # as if it had been killed before it was written
    own.answer(Asked(study, 1, "question", "rows", kept, make))
    assert len(read_budget(ledger).releases) == 1


def test_a_study_without_noise_is_entered_too(tmp_path: Path) -> None:
    """A later promise about the same rows would be empty."""
    study = studies.study(tmp_path, method="exact", settings=())
    serve(study, tmp_path, "run")
    ledger = read_budget(tmp_path / "north.site" / "north.ledger")
    assert [release.cost for release in ledger.releases] == [UNBOUNDED]


def test_delta_above_one_over_the_rows_is_refused_before_a_site_waits(tmp_path: Path) -> None:
    study = studies.study(tmp_path, committed=400, **PRIVATE)
    with pytest.raises(InputError, match="1,200 rows"):
        loopback.study_sites(study, tmp_path)


def test_glm_spends_its_budget_in_four_rounds_of_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round is paid for before it leaves, the last with seven tenths; together they are what was agreed."""
    monkeypatch.setattr("consilience.glm.noisy_posterior.LAST", BRIEF)
    monkeypatch.setattr("consilience.glm.private.SEARCH", BRIEF)
    study = studies.study(tmp_path, **{**PRIVATE, "method": "glm", "model": "linear", "rounds": 4})

    result = serve(study, tmp_path, "run")

    assert all(isinstance(reply.payload, Released) and float(reply.size) == 0 for reply in result.replies)
    releases = read_budget(tmp_path / "north.site" / "north.ledger").releases
    assert [release.round for release in releases] == [1, 2, 3, 4]
    squares = [release.cost.mu**2 for release in releases]
    assert squares == pytest.approx([0.1 * sum(squares)] * 3 + [0.7 * sum(squares)])
    assert epsilon_of(1e-3, sum(squares) ** 0.5) == pytest.approx(3.0, rel=1e-6)


def test_a_second_study_of_the_same_rows_is_refused_by_their_ledger(tmp_path: Path) -> None:
    """Over messages, too, all studies of a site have one budget."""

    def run_study(seed: int) -> None:
        study = studies.study(tmp_path, seed=seed, **PRIVATE)
        sites = loopback.study_sites(study, tmp_path)
        folder, key = tmp_path / f"north {seed}", read_key(tmp_path / "north.key")
        north = study.member("north")
        sites[0] = site_of(study, north, key, tmp_path / "north.csv", folder, ledger=tmp_path / "north.ledger")
        rounds(study, server_key(tmp_path), loopback.Loopback(sites), tmp_path / f"run {seed}", wait=0.2, deadline=5.0)

    run_study(1)
    for name in studies.NAMES:
        shutil.rmtree(tmp_path / f"{name}.site")  # of the first study; north's ledger stays
    with pytest.raises(InputError, match=r"Site north, round 1: it reports: .*budget is 3"):
        run_study(2)
    assert len(read_budget(tmp_path / "north.ledger").releases) == 1


@pytest.mark.parametrize("method", ["exact", "fedavg"])
def test_a_served_model_states_the_promise(
    method: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed: dict[str, Any] = PRIVATE
    if method == "fedavg":
        agreed = {"method": "fedavg", "settings": TRAINED}
    study = studies.study(tmp_path, **agreed)
    (tmp_path / "study.toml").write_text(study_text(study))

    @contextmanager
    def connected(*place: Any) -> Iterator[loopback.Loopback]:
        yield loopback.Loopback(loopback.study_sites(study, tmp_path))

    monkeypatch.setattr("consilience.study.flower.server.connect", connected)
    monkeypatch.chdir(tmp_path)
    code, said, _ = invoke("study", "serve", "study.toml", "--key", "server.key", "--insecure", "--deadline", "5")

    assert code == 0, said
    told = json.loads((tmp_path / "study.run" / "study.json").read_text())["privacy"]
    stated = open_envelope(tmp_path / "study.run" / "study.model").header.about["privacy"]
    for promise in (told, stated):
        assert promise["epsilon"] == pytest.approx(3.0) and promise["delta"] == 1e-3 and promise["unit"] == "row"
        assert promise["adjacency"] == "add or remove" and promise["not_covered"] and not promise["simulated"]


def test_private_training_draws_in_secret_and_answers_a_round_once(tmp_path: Path) -> None:
    """DP-SGD: the same study, rows and seed give other weights each time, and no site answers a round twice."""
    sent = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        study = studies.study(folder, method="fedavg", settings=TRAINED, rounds=2)
        result = serve(study, folder, "run")
        sent.append(tree.leaves(result.replies[0].payload)[0])
    assert not torch.equal(sent[0], sent[1])
    ledger = folder / "north.site" / "north.ledger"
    budget = read_budget(ledger)
    assert [release.round for release in budget.releases] == [1, 2]
    assert budget.epsilon == 3.0 and 2.9 < budget.spent().epsilon(budget.delta) <= 3.0
    with pytest.raises(InputError, match="Nothing is sent: ε would become"):
        serve(study, folder, "second")
    for site in studies.NAMES:
        with_limit(folder / f"{site}.site" / f"{site}.ledger", 9.0, None)
    grid = loopback.Loopback(loopback.study_sites(study, folder))
    asked = grid.app
    refusals: list[str] = []

    def twice(message: Message, context: Any) -> Message:
        reply = asked(message, context)
        if message.metadata.message_type == "train":
            again = asked(message, context)
            refusals.append(again.error.reason)
        return reply

    grid.app = twice
    rounds(study, server_key(folder), grid, folder / "more", wait=0.2, deadline=5.0)
    assert len(refusals) == 6 and all("other noise would cost twice" in reason for reason in refusals)


def test_files_and_messages_are_charged_to_the_same_people(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What left by a file counts over Flower, also in a study that encodes the rows otherwise."""
    monkeypatch.chdir(tmp_path)
    first = studies.study(tmp_path, **PRIVATE)
    second = studies.study(tmp_path, **PRIVATE, columns=studies.COLUMNS[:-1])
    (tmp_path / "a.toml").write_text(study_text(first))
    table = studies.table(tmp_path / "data.csv", studies.rows(0))
    assert invoke("site", "fit", "a.toml", "data.csv", "--key", "north.key")[0] == 0
    key, ledger = read_key(tmp_path / "north.key"), tmp_path / "north.ledger"
    site = site_of(second, second.member("north"), key, table, tmp_path / "north.site", ledger=ledger)

    def make() -> Reply:
        return Reply(Released(torch.zeros(3), torch.ones(())), torch.zeros(()))

    assert site.release is not None
    with pytest.raises(InputError, match="Nothing is sent: ε would become"):
        site.release(1, "question", make)
    assert not list((tmp_path / "north.site").glob("*.sent")) and len(read_budget(ledger).releases) == 1
