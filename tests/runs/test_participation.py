"""Who takes part: drawn from the key alone, losses recorded, too few replies stop a run without losing any of it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience import tree
from consilience.distributions.payload import nbytes
from consilience.key import Key
from consilience.methods import METHODS
from consilience.report.run_page import run_page
from consilience.runs.engines.participation import FAILED, Participation, cohort, durations, losses, shortfall

ENGINES = ("sequential", "vectorised", "parallel")
LOSSY = Participation(clients=3, dropout=0.3, deadline=1.5)


@pytest.mark.parametrize(("given", "count"), [(None, 10), (3, 3), (0.25, 2), (0.5, 5), (0.01, 1), (10, 10)])
def test_a_number_or_a_fraction_is_asked(given: float | None, count: int) -> None:
    drawn = [cohort(Participation(given), range(10), t, Key(0)) for t in range(200)]

    assert all(len(set(c)) == count and c == sorted(c) for c in drawn)
    if count < 10:
        assert set().union(*drawn) == set(range(10)), "everyone's turn comes"
        assert len({tuple(c) for c in drawn}) > 5


def test_drawn_from_run_round_and_client_alone() -> None:
    assert cohort(LOSSY, range(10), 3, Key(1)) == cohort(LOSSY, range(10), 3, Key(1))
    everyone, some = losses(LOSSY, range(50), [7] * 50, 3, Key(1)), losses(LOSSY, [4, 9, 11], [7] * 50, 3, Key(1))
    assert some == {k: why for k, why in everyone.items() if k in (4, 9, 11)}, "who else is asked does not matter"


def test_as_many_drop_out_as_said() -> None:
    lost = losses(Participation(dropout=0.2), range(10_000), [1] * 10_000, 0, Key(5))
    # Binomial(10 000, 0.2) has standard deviation √(10 000 · 0.2 · 0.8) = 40; five of them.
    assert abs(len(lost) - 2000) < 200


def test_durations_are_log_normal_around_a_client_s_share_of_rows() -> None:
    sizes = [10] * 5000 + [30] * 5000  # mean 20, so medians 0.5 and 1.5
    taken = torch.tensor(durations(sizes, 0, Key(2)))
    # The median of n log-normals has a relative error of about 1.25 · 0.5 / √5000 = 0.9 %; five of them.
    assert taken[:5000].median().item() == pytest.approx(0.5, rel=0.045)
    assert taken[5000:].median().item() == pytest.approx(1.5, rel=0.045)
    assert taken[:5000].log().std().item() == pytest.approx(0.5, rel=0.05)  # SPREAD
    late = losses(Participation(deadline=0.5), range(5000), sizes, 0, Key(2))
    assert 0.45 < len(late) / 5000 < 0.55  # the deadline is their median


def test_the_same_on_every_engine_and_after_a_resume(tmp_path: Path) -> None:
    task, sites = tiny.classification(torch.float64)
    method = tiny.method("scaffold")
    whole = [co.run(method, task, sites, rounds=4, engine=e, participation=LOSSY) for e in ENGINES]
    co.run(method, task, sites, rounds=2, engine="vectorised", participation=LOSSY, out=tmp_path / "r")
    parts = co.run(
        method, task, sites, rounds=4, engine="vectorised", participation=LOSSY, out=tmp_path / "r", resume=True
    )

    assert whole[0].report["failures"], "with these numbers somebody is lost"
    for other in [*whole[1:], parts]:
        assert other.report["failures"] == whole[0].report["failures"]
        assert other.report["ledger"] == whole[0].report["ledger"]
        for a, b in zip(tree.leaves(other.state), tree.leaves(whole[0].state), strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
    loaded = co.load(tmp_path / "r", method, task, sites)
    assert loaded.report["participation"]["clients"] == 3


def test_losses_are_recorded_and_what_they_were_sent_is_counted() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=6, participation=Participation(dropout=0.4))

    failures, message = result.report["failures"], nbytes(task.init(Key(0)))
    assert failures and all(f["site"] in sites.names and 1 <= f["round"] <= 6 for f in failures)
    assert {f["why"] for f in failures} == {"dropped out"}
    assert result.report["ledger"]["down_bytes"] == 6 * 4 * message
    assert result.report["ledger"]["up_bytes"] == (6 * 4 - len(failures)) * message
    assert len(result.replies) == 4 - sum(f["round"] == 6 for f in failures)


@pytest.mark.parametrize("taking", [Participation(3), Participation(dropout=0.5)])
def test_a_diagnosis_names_the_sites_that_replied(taking: Participation) -> None:
    def named(report: dict[str, Any]) -> list[str]:
        table = (
            run_page(report).partition('aria-label="Where the sites disagree, as numbers"')[2].partition("</table>")[0]
        )
        return re.findall(r"<tr><th[^>]*>([^<]*)</th><td>", table)

    task, sites = tiny.classification()
    result = co.run(tiny.method("evidence"), task, sites, participation=taking)

    there = [sites.names[r.client] for r in result.replies]
    assert 0 < len(there) < 4, "with these numbers somebody is missing"
    assert named(result.report) == there
    assert named({**result.report, "ledger": {}}) == [f"reply {k + 1}" for k in range(len(there))]


def test_only_replies_are_averaged() -> None:
    task, sites = tiny.classification()
    method = tiny.method("fedavg")
    result = co.run(method, task, sites, rounds=1, participation=2, engine="sequential")

    everyone = co.run(method, task, sites, rounds=1, engine="sequential").replies
    two = [r for r in everyone if r.client in [s.client for s in result.replies]]
    assert len(two) == 2
    expected = co.aggregation.average(co.messages.payloads(two), co.messages.weights(two))
    for a, b in zip(tree.leaves(result.state.posterior), tree.leaves(expected), strict=True):
        assert torch.equal(a, b)


def test_scaffold_moves_its_control_by_the_share_that_replied() -> None:
    task, sites = tiny.classification(torch.float64)
    method = tiny.method("scaffold")
    result = co.run(method, task, sites, rounds=1, participation=2)

    # Algorithm 1, line 17: c ← c + |S|/N · mean over S of (cₖ⁺ − cₖ); c starts at 0, |S| = 2, N = 4.
    changes = [r.payload[1] for r in result.replies]
    for name, c in result.state.control.items():
        torch.testing.assert_close(c, (changes[0][name] + changes[1][name]) / 4)


def test_too_few_replies_stop_the_run_and_nothing_is_lost(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    method, out = tiny.method("fedavg"), tmp_path / "r"
    strict = Participation(dropout=0.4, min_replies=3)

    sentence = (
        r"at least 3 must \(site \d: dropped out\); all rounds before it are kept: resume with a lower min_replies"
    )
    with pytest.raises(co.InputError, match=sentence) as told:
        co.run(method, task, sites, rounds=30, participation=strict, out=out)
    stopped = json.loads((out / "run.json").read_text())
    last = max(f["round"] for f in stopped["failures"])
    assert f"Round {last}:" in str(told.value) and stopped["finished"] is False

    easier = Participation(dropout=0.4, min_replies=1)
    resumed = co.run(method, task, sites, rounds=last + 1, participation=easier, out=out, resume=True)
    whole = co.run(method, task, sites, rounds=last + 1, participation=easier)
    assert resumed.metrics == whole.metrics
    assert resumed.report["failures"] == whole.report["failures"]


def test_nobody_left_says_why_and_only_what_helps() -> None:
    def told(p: Participation, lost: dict[int, str]) -> str:
        return str(shortfall(p, lost, 2, 0))

    assert shortfall(Participation(min_replies=1), {1: "dropped out"}, 2, 0) is None
    dropped = told(Participation(dropout=0.5), {0: "dropped out", 1: "dropped out"})
    assert "(site 0: dropped out)" in dropped and "start again with a lower dropout." in dropped
    away = told(Participation(min_replies=1), {0: "it is not connected.", 1: "no reply"})
    assert "(site 0: it is not connected); " in away and away.endswith("resume when sites are back.")
    assert "dropout" not in away


@pytest.mark.parametrize(("lost", "diverged"), [({0: FAILED, 1: FAILED}, True), ({0: FAILED, 1: "dropped out"}, False)])
def test_too_few_because_training_failed_is_divergence(lost: dict[int, str], diverged: bool) -> None:
    stop = shortfall(Participation(dropout=0.5, min_replies=2), lost, 3, 0)  # without the failure: three, or two
    assert stop is not None and isinstance(stop, co.Diverged)
    stop = shortfall(Participation(dropout=0.5, min_replies=3), lost, 3, 0)
    assert isinstance(stop, co.Diverged) == diverged


def test_resuming_with_other_participation_is_refused(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, participation=0.5, out=tmp_path / "r")
    with pytest.raises(co.InputError, match="was made with another"):
        co.run(tiny.method("fedavg"), task, sites, rounds=2, participation=0.75, out=tmp_path / "r", resume=True)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_site_that_diverges_is_lost_only_if_asked_for(engine: str) -> None:
    task, sites = tiny.classification()
    train = list(sites.train)
    train[1] = train[1]._replace(x=train[1].x * math.inf)
    broken = dataclasses.replace(sites, train=tuple(train))

    with pytest.raises(co.InputError, match="Site 1: column 0 is NaN or infinite in 42 training rows"):
        co.run(tiny.method("fedavg"), task, broken, rounds=1, engine=engine)
    result = co.run(
        tiny.method("fedavg"), task, broken, rounds=2, engine=engine, participation=Participation(min_replies=2)
    )

    assert [(f["site"], f["round"]) for f in result.report["failures"]] == [(sites.names[1], 1), (sites.names[1], 2)]
    assert all(f["why"].startswith("training failed: Site 1") for f in result.report["failures"])
    assert [r.client for r in result.replies] == [0, 2, 3]


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if not m.about.everyone))
def test_every_method_works_with_some_of_its_clients_or_says_it_cannot(name: str) -> None:
    task, sites = tiny.problem_of(name, "classification")
    rounds = 1 if METHODS[name].about.one_shot else 3
    result = co.run(tiny.method(name), task, sites, rounds=rounds, participation=Participation(3, 0.1), seed=1)
    assert math.isfinite(result.metrics["nll"])


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if m.about.everyone))
def test_methods_that_need_everyone_refuse(name: str) -> None:
    task, sites = tiny.problem_of(name, "classification")
    with pytest.raises(co.InputError, match="needs a reply from every site in every round"):
        co.run(tiny.method(name), task, sites, participation=Participation(dropout=0.1))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Participation(2.5), "a number of sites, or a fraction below 1"),
        (Participation(0), "a number of sites, or a fraction below 1"),
        (Participation(5), "more sites in a round than there are: 4"),
        (Participation(dropout=1.0), "from 0 to below 1"),
        (Participation(deadline=0.0), "give a time above 0"),
        (Participation(2, min_replies=3), "2 sites are asked in a round"),
    ],
)
def test_bad_input_is_one_sentence(given: Participation, sentence: str) -> None:
    task, sites = tiny.classification()
    with pytest.raises(co.InputError, match=sentence):
        co.run(tiny.method("fedavg"), task, sites, rounds=1, participation=given)


def test_on_the_command_line(invoke: Invoke, tmp_path: Path) -> None:
    words = ["run", "fedavg", "--rounds", "6", "--set", "inference.epochs=1", "--no-bounds", "--out", "r"]
    code, out, err = invoke(*words, "--dropout", "0.5", "--min-replies", "4")
    assert code == 2 and err.count("Error:") == 1 and "at least 4 must" in err

    code, out, err = invoke("run", "--resume", "r", "--min-replies", "1")
    assert code == 0, err
    assert "replies were lost" in out
    value = json.loads((tmp_path / "r" / "run.json").read_text())
    assert value["participation"] == {"clients": None, "dropout": 0.5, "deadline": None, "min_replies": 1}
    assert "were lost" in (tmp_path / "r" / "report.html").read_text()


def test_compared_rows_see_the_same_cohorts(invoke: Invoke) -> None:
    words = ["compare", "mixture", "bcm", "--data", "moons", "--json", "--out", "c", "--participation", "3"]
    short = [f"--set=inference.{s}" for s in ("epochs=2", "cycles=1", "samples=2", "keep=2")]
    code, out, err = invoke(*words, *short, "--dropout", "0.3")
    assert code == 0, err
    found = {row["row"]: row for row in json.loads(out)["rows"]}
    assert found["mixture"]["up_bytes"] == found["bcm"]["up_bytes"]  # the same replies
    assert found["local_only"]["settings"]["inference"] == found["mixture"]["settings"]["inference"]
