"""A study with differential privacy: what is agreed, what leaves, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from places import Place
from rounds import replies, server_key
from tiny import Invoke
from uncharged import fit

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.glm.noisy import shorten
from consilience.glm.noisy_posterior import Effort
from consilience.key import Key
from consilience.messages import Client
from consilience.privacy.dp.accountant import epsilon_of
from consilience.study.budget import UNBOUNDED, read_budget
from consilience.study.coordinator import pool
from consilience.study.model import read_model
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.promise import describe_promise
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import agreement_text
from consilience.study.rows import Parts, parts, rows_of, training_rows
from consilience.study.spending import Leaving, charge, cost_of_round

BRIEF = Effort(1, 2, 8)  # draws whose moments are not looked at
PRIVATE: dict[str, Any] = {"method": "exact", "settings": (), "epsilon": 3.0, "delta": 1e-3}


def site(folder: Path, made: Study, name: str = "north") -> Parts:
    data, _ = rows_of(made.agreement, studies.table(folder / f"{name}.csv", studies.rows(0)))
    return parts(made.agreement, made.member(name).number, data)


def replied(agreed: Agreement, data: Data, round: int) -> Leaving:
    return Leaving("reply", data, round=round, cost=cost_of_round(agreed, round))


def test_the_agreement_states_the_promise_and_others_are_as_before(tmp_path: Path) -> None:
    private = studies.agreement(tmp_path, **PRIVATE)
    text = agreement_text(private, "sums")
    assert "[privacy]" in text and "epsilon = 3.0" in text and "delta = 0.001" in text
    assert "# For each row; neighbours: add or remove one; every site adds all of the noise." in text
    assert "# Not covered: how many rows a site commits to" in text
    assert any("under noise" in rule.says for rule in private.disclosure.listed() if rule.name == "rare values")
    plain = studies.agreement(tmp_path, method="exact", settings=())
    assert "epsilon" not in plain.fields and "[privacy]" not in agreement_text(plain, "sums")
    assert describe_promise(private)["privacy"]["simulated"] is False


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"method": "mixture"}, "no private form"), ({"epsilon": -1.0}, "epsilon"), ({"delta": 0.0}, "delta"),
     ({"scaling": "sums"}, "without noise"), ({"noise_added": "once", "honest_sites": 3}, "secure sums"),
     ({"epsilon": 0.0}, "belongs to epsilon"),
     ({"patient": "id"}, "keep together"), ({"method": "exact_tuned", "rounds": 3}, "rounds=2")],
)  # fmt: skip
def test_refuses_promises_that_cannot_be_kept(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    good = studies.agreement(tmp_path, **PRIVATE)
    with pytest.raises(InputError, match=word):
        dataclasses.replace(good, **changes).check()


@pytest.mark.parametrize("cell", ["inf", "-1e400", "1e9", "500"])
def test_a_cell_out_of_range_stops_no_release_under_noise(cell: str, tmp_path: Path) -> None:
    """A site that sends nothing for one row's sake tells of that row."""
    records = studies.rows(0)
    records[5]["age"] = cell
    made = studies.study(tmp_path, **PRIVATE)
    table = studies.table(tmp_path / "north.csv", records)

    data, _ = rows_of(made.agreement, table)
    own = parts(made.agreement, 0, data)
    sent = fit(made, made.member("north"), read_key(tmp_path / "north.key"), own).send

    end = (100.0 - 50) / 15
    if cell.startswith("-"):
        end = (18.0 - 50) / 15
    assert float(data.x[5, 0]) == pytest.approx(end) and bool(sent.values.isfinite().all())
    with pytest.raises(InputError, match=r"lie outside|are not numbers"):
        rows_of(studies.agreement(tmp_path, method="exact", settings=()), table)  # without a promise it is a mistake
    records[5]["age"] = "old"
    with pytest.raises(InputError, match="are not numbers"):
        rows_of(made.agreement, studies.table(tmp_path / "text.csv", records))


def test_a_row_that_is_no_number_is_clipped_before_it_is_summed() -> None:
    rows = shorten(torch.tensor([[torch.inf, 1.0], [torch.nan, 0.5], [-torch.inf, torch.inf], [3.0, 4.0]]))
    assert rows.isfinite().all() and float(rows.norm(dim=1).max()) <= 1 + 1e-12
    assert rows[0].tolist() == [1.0, 1e-100] and rows[1].tolist() == [0.0, 0.5]


def test_a_product_of_gaussians_learns_numbers_under_noise_and_refuses_classes(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    product = ("--method", "gaussian_product", "--epsilon", "300", "--delta", "1e-3")
    number = 'name = "died"\nunit = "points"\nrange = [-20, 20]\ncentre = 0\nspread = 2'
    for k, name in enumerate(studies.NAMES):
        studies.table(tmp_path / name / "data.csv", studies.rows(k, 120, number=True))

    place.begun(*product, target=number)
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)

    account = json.loads((tmp_path / "server" / "sepsis.json").read_text())
    assert account["privacy"]["epsilon"] == 300.0
    for words, sentence in (
        (("--set", "inference.mode.rate=0.2"), "leave inference and cap out"),
        ((), "gaussian_product has a private form for numbers"),
    ):
        columns = ("--columns", "columns.toml") if words else ()  # the invented example has classes
        code, _, err = place.tried("server", "study", "new", "other", *product, *columns, *words)
        assert code == 2 and sentence in " ".join(err.split())


def test_the_reply_is_drawn_from_entropy_and_repeated_not_redrawn(tmp_path: Path) -> None:
    made = studies.study(tmp_path, **PRIVATE)
    rows, member = site(tmp_path, made), made.member("north")
    key = read_key(tmp_path / "north.key")
    memory = tmp_path / "north.memory"

    first = fit(made, member, key, rows, memory=memory)
    memory.write_bytes(first.memory)
    again = fit(made, member, key, rows, memory=memory)
    redrawn = fit(made, member, key, rows)

    assert again.repeated and not first.repeated
    assert torch.equal(first.send.values, again.send.values) and first.reply == again.reply
    assert not torch.equal(first.send.values, redrawn.send.values)  # nobody can compute the noise from the seed
    (tmp_path / "north.reply").write_bytes(first.reply)
    assert float(open_envelope(tmp_path / "north.reply").tensors["tree.size"]) == 0  # nor is the number of rows said


def test_without_entropy_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = studies.study(tmp_path, **PRIVATE)
    rows = site(tmp_path, made)
    key = read_key(tmp_path / "north.key")

    def fail(count: int) -> bytes:
        raise OSError("no entropy")

    monkeypatch.setattr("os.urandom", fail)
    with pytest.raises(InputError, match="nothing is sent"):
        fit(made, made.member("north"), key, rows)


def test_a_study_by_glm_spends_its_budget_in_four_rounds_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round is paid for; with little noise the model is nearly that of the study without: rows are clipped."""
    monkeypatch.setattr("consilience.glm.noisy_posterior.LAST", BRIEF)
    monkeypatch.setattr("consilience.glm.private.SEARCH", BRIEF)
    words = {"method": "glm", "settings": (), "model": "linear"}
    predictions = []
    for name, more in (("plain", {"rounds": 8}), ("private", {"rounds": 4, "epsilon": 300.0, "delta": 1e-3})):
        folder = tmp_path / name
        folder.mkdir()
        made = studies.study(folder, **words, **more)
        message = after = None
        for round in range(1, made.agreement.rounds + 1):
            pooled = pool(made, replies(made, folder, message), server_key(folder), after=after)
            if made.agreement.epsilon:
                spent = cost_of_round(made.agreement, round)
                key = read_key(folder / "north.key")
                leaving = Leaving("reply", site(folder, made).train, round=round, cost=spent)
                charge(folder / "n.ledger", made.agreement, key, leaving)
            if pooled.message and pooled.state:
                message, after = folder / "message", folder / "state"
                message.write_bytes(pooled.message)
                after.write_bytes(pooled.state)
        (folder / "model").write_bytes(pooled.model)
        everybody, _ = rows_of(made.agreement, folder / "north.csv")
        predictions.append(read_model(folder / "model", made)(everybody.x)[0].exp())
    stated = open_envelope(tmp_path / "private" / "model").header.about["privacy"]
    assert (stated["epsilon"], stated["delta"], stated["unit"], stated["noise"]) == (300.0, 1e-3, "row", "site")
    assert stated["adjacency"] == "add or remove" and stated["not_covered"] and not stated["simulated"]
    budget = read_budget(tmp_path / "private" / "n.ledger")
    assert [release.round for release in budget.releases] == [1, 2, 3, 4]
    assert budget.spent().epsilon(1e-3) == pytest.approx(300.0, rel=1e-6)
    assert pooled.account["privacy"]["epsilon"] == 300.0 and pooled.account["privacy"]["adjacency"] == "add or remove"
    assert float((predictions[0] - predictions[1]).abs().mean()) < 0.1
    with pytest.raises(InputError, match="rounds=4"):
        dataclasses.replace(made.agreement, rounds=3).check()


def test_two_answers_with_other_noise_are_refused_by_the_coordinator(tmp_path: Path) -> None:
    made = studies.study(tmp_path, **{**PRIVATE, "fewest_sites": 2})
    files = replies(made, tmp_path)
    again = fit(made, made.member("west"), read_key(tmp_path / "west.key"), site(tmp_path, made, "west"))
    (tmp_path / "west-2.reply").write_bytes(again.reply)
    pooled = pool(made, [*files, tmp_path / "west-2.reply"], server_key(tmp_path))
    assert pooled.facts.sites == ("north", "south")
    assert any("2 different answers" in sentence for sentence in pooled.refused)


def test_a_clock_that_goes_back_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = studies.agreement(tmp_path, **{**PRIVATE, "method": "exact_tuned", "rounds": 2})
    key = studies.new_key(tmp_path / "x.key")
    data, _ = rows_of(agreed, studies.table(tmp_path / "x.csv", studies.rows(1)))
    words = (tmp_path / "x.ledger", agreed, key)
    charge(*words, replied(agreed, data, 1))
    before = (tmp_path / "x.ledger").read_bytes()
    monkeypatch.setattr("consilience.study.spending.today", lambda: "1999-12-31")
    with pytest.raises(InputError, match="Nothing is sent: the clock says 1999-12-31"):
        charge(*words, replied(agreed, data, 2))
    assert (tmp_path / "x.ledger").read_bytes() == before
    charge(*words, replied(agreed, data, 1)._replace(repeated=True))  # the same again has its date already


def test_delta_is_below_one_over_the_rows_of_all(tmp_path: Path) -> None:
    made = studies.study(tmp_path, committed=400, **PRIVATE)
    with pytest.raises(InputError, match="1,200 rows"):
        fit(made, made.member("north"), read_key(tmp_path / "north.key"), site(tmp_path, made))


def test_one_row_more_changes_no_other_rows_role_or_features(tmp_path: Path) -> None:
    """Roles drawn by counts, and rare values merged by counts, would move many rows at once."""
    agreed = studies.agreement(tmp_path, **PRIVATE)
    data, _ = rows_of(agreed, studies.table(tmp_path / "all.csv", studies.rows(0)))
    fewer = Data(*(leaf[1:] for leaf in data))
    whole, less = parts(agreed, 0, data), parts(agreed, 0, fewer)
    moved = sum(len(a.y) - len(b.y) for a, b in zip(whole, less, strict=True))
    assert moved == 1 and max(abs(len(a.y) - len(b.y)) for a, b in zip(whole, less, strict=True)) == 1
    assert training_rows(agreed, whole.train).data is whole.train


def test_the_ledger_takes_the_agreed_budget_and_refuses_a_second_study(tmp_path: Path) -> None:
    agreed = studies.agreement(tmp_path, **PRIVATE)
    key = studies.new_key(tmp_path / "x.key")
    data, _ = rows_of(agreed, studies.table(tmp_path / "x.csv", studies.rows(1)))
    path = tmp_path / "x.ledger"
    charge(path, agreed, key, replied(agreed, data, 1))
    assert read_budget(path).spent().epsilon(1e-3) == pytest.approx(3.0, rel=1e-6)
    other = studies.agreement(tmp_path, **{**PRIVATE, "seed": 7})
    with pytest.raises(InputError, match="budget is 3"):
        charge(path, other, key, replied(other, data, 1))
    plain = studies.agreement(tmp_path, method="exact", settings=())
    assert cost_of_round(plain, 1) == UNBOUNDED


def test_private_training_is_charged_by_its_steps(tmp_path: Path, invoke: Any) -> None:
    """DP-SGD of ε = 2 in two rounds: it brings the budget, both rounds fit into it, and a second study does not."""
    settings = ("inference=DPSGD", "inference.epsilon=2", "inference.delta=1e-3", "inference.steps=5")
    agreed = studies.agreement(tmp_path, method="fedavg", settings=settings, rounds=2)
    key, path = studies.new_key(tmp_path / "x.key"), tmp_path / "x.ledger"
    data, _ = rows_of(agreed, studies.table(tmp_path / "x.csv", studies.rows(1)))
    for round in (1, 2):
        charge(path, agreed, key, replied(agreed, data, round))
    budget = read_budget(path)
    assert (budget.epsilon, budget.delta) == (2.0, 1e-3)
    assert 1.9 < budget.spent().epsilon(1e-3) <= 2.0
    assert [release.cost.steps[0].number for release in budget.releases] == [5, 5]
    with pytest.raises(InputError, match="ε would become 2"):
        charge(path, agreed, key, replied(agreed, data, 2)._replace(round=3))
    shown = invoke("site", "ledger", str(path))[1]
    assert "no bound" not in shown and "ε = 2 at δ = 0.001" in shown


def test_two_rounds_share_one_budget(tmp_path: Path) -> None:
    agreed = studies.agreement(tmp_path, **{**PRIVATE, "method": "exact_tuned", "rounds": 2})
    spent = [cost_of_round(agreed, r).mu for r in (1, 2)]
    assert epsilon_of(1e-3, math.hypot(*spent)) == pytest.approx(3.0, rel=1e-6)


def test_no_patient_moves_the_release_by_more_than_1(tmp_path: Path) -> None:
    """Brute force over patients with one to five rows each, as extreme as agreed ranges allow."""
    agreed = studies.agreement(tmp_path, **PRIVATE, patient="id", choose=0.0, test=0.0)
    records = [{**row, "id": str(int(math.sqrt(i)))} for i, row in enumerate(studies.rows(3, 36))]
    for row in records[:9]:
        row |= {"age": "100", "lactate": "29", "ward": "a", "died": "yes"}
    method, task = agreed.build_method(), agreed.build_task()

    def released(rows: list[dict[str, str]]) -> torch.Tensor:
        data, _ = rows_of(agreed, studies.table(tmp_path / "p.csv", rows))
        values: torch.Tensor = method.local(task, (), Client(data, (), Key(0).tensor)).send.values
        return values

    whole = released(records)
    moved = [float((whole - released([r for r in records if r["id"] != str(p)])).norm()) for p in range(6)]
    assert max(moved) <= 1 + 1e-6 and min(moved) > 0.2
    with pytest.raises(InputError, match="says whose a row is"):
        rows_of(agreed, studies.table(tmp_path / "q.csv", studies.rows(3)))
    records[4]["id"] = ""
    with pytest.raises(InputError, match="is empty in row 5"):
        rows_of(agreed, studies.table(tmp_path / "p.csv", records))
