"""An intercept for every site: R's glm and lm with a factor, glmer and lmer, from sums alone."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import honest
import numpy as np
import pytest
import torch
from scipy.stats import norm, poisson
from torch import nn
from typer.testing import CliRunner

import consilience as co
from consilience.biostatistics.effects import Effects, from_json
from consilience.cli import app
from consilience.data.sites import Data, Sites
from consilience.distributions.prior import Flat
from consilience.errors import InputError
from consilience.study.validation.gate import Refused

R = json.loads((Path(__file__).parents[1] / "references" / "centres.json").read_text())
LINKS = ("logit", "log", "identity")


def rows(k: int, n: int = 60) -> dict[str, Any]:
    """The rows of tests/references/centres.R, at site k from 1 on."""
    i = np.arange(1, n + 1)
    u = ((i * i * 31 + i * k * 17 + k * k * 101) % 10007) / 10007
    v = ((i * i * 57 + i * k * 23 + k * k * 11 + 5) % 10009) / 10009
    own = (-1.6, -0.9, -0.2, 0.3, 0.9, 1.7)[k - 1]
    x = ((i * 53 + k * 29) % 97) / 48 - 1 + 0.3 * own
    z = (i + k) % 2
    eta = own + 1.1 * x - 0.5 * z
    p = 1 / (1 + np.exp(-eta))
    return {
        "x": np.stack([x, z], 1),
        "logit": (u < p).astype(int),
        "log": np.stack([poisson.ppf(u, np.exp(0.3 + 0.5 * eta)), np.ones(n)], 1),
        "identity": eta + norm.ppf((u + 1e-3) / 1.002),
        "kind": np.where(u < 0.3, 0, np.where(v < p, 1, 2)),
    }


def sites_of(link: str) -> Sites:
    parts = []
    for k in range(1, 7):
        made = rows(k)
        parts.append(Data.of(torch.tensor(made["x"]), torch.tensor(made[link])))
    classes = {"logit": 2, "kind": 3}.get(link)
    outcome = "counts" if link == "log" else ""
    own = tuple(parts)
    names = tuple(f"h{k}" for k in range(6))
    return Sites(
        own, own, None, None, None, classes, 2, "y", "natural", names, feature_names=("x", "z"), outcome=outcome
    )


def task_of(link: str) -> co.Task:
    if link == "log":
        return co.counts(nn.Linear(2, 1).double(), Flat())
    if link == "identity":
        return co.regression(nn.Linear(2, 1).double(), prior=Flat())
    return co.classification(nn.Linear(2, 2 if link == "logit" else 3).double(), Flat())


def effects_of(link: str, centre: str, **options: Any) -> Effects:
    method = co.methods.GLM(centre=centre)
    return co.run(method, task_of(link), sites_of(link), rounds=10, scored=False, **options).effects()


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("centre", ["fixed", "random"])
def test_effects_are_r_s_on_pooled_rows(centre: str, link: str) -> None:
    """glm and lm with a factor of sites; glmer with 25 nodes, whose Hessian is by differences, and lmer by REML."""
    effects = effects_of(link, centre)
    wanted = R[centre][link]
    found = {row.column: row for row in effects}
    assert set(found) == set(wanted["estimate"])
    near = {"rel": 1e-6} if centre == "fixed" else {"rel": 2e-5, "abs": 2e-6}
    for name, row in found.items():
        assert row.estimate == pytest.approx(wanted["estimate"][name], **near)
        assert row.error == pytest.approx(wanted["error"][name], rel=1e-6 if centre == "fixed" else 2e-4)
    assert effects.centres is not None
    if centre == "random":
        assert effects.centres.tau == pytest.approx(wanted["tau"], rel=2e-5)


def test_the_search_for_the_deviation_of_intercepts_ends_in_the_usual_rounds() -> None:
    """Of counts it took more than eight rounds; elsewhere as many are usual as before."""
    method = co.methods.GLM(centre="random")
    result = co.run(method, task_of("log"), sites_of("log"), scored=False)
    assert method.diagnose(result.task, result.state, torch.empty(0))["converged"]
    assert co.method.usual_rounds(co.methods.GLM(centre="fixed")) == co.method.usual_rounds(co.methods.GLM) == 8


def test_three_classes_have_free_intercepts_of_their_own() -> None:
    """As a multinomial model with a column for each site but the first, fitted to all rows in one place."""
    effects = effects_of("kind", "fixed")
    parts = [rows(k) for k in range(1, 7)]
    marks = [np.eye(6)[[k] * 60][:, 1:] for k in range(6)]
    x = torch.tensor(np.concatenate([np.concatenate([p["x"], m], 1) for p, m in zip(parts, marks, strict=True)]))
    y = torch.tensor(np.concatenate([p["kind"] for p in parts]))
    pooled = co.classification(nn.Linear(7, 3).double(), Flat())
    one = (Data.of(x, y),)
    columns = tuple("xzabcde")
    sites = Sites(one, one, None, None, None, 3, 7, "y", "natural", ("all",), feature_names=columns)
    whole = co.run(co.methods.GLM(), pooled, sites, rounds=10, scored=False).effects()
    wanted = {(row.outcome, row.column): row for row in whole}
    assert len(effects) == 4
    for row in effects:
        there = wanted[row.outcome, row.column]
        assert row.estimate == pytest.approx(there.estimate, rel=1e-6)
        assert row.error == pytest.approx(there.error, rel=1e-6)


def test_the_table_says_which_intercepts_there_are_and_what_they_change() -> None:
    effects = effects_of("logit", "fixed")
    assert effects.centres is not None
    plain = {line.label.column: line for line in effects.centres.plain}
    for name in ("x", "z"):
        assert plain[name].estimate == pytest.approx(R["plain"]["logit"]["estimate"][name], rel=1e-6)
    text = " ".join(effects.notes)
    assert "own intercept, as a fixed effect" in text and "With one intercept for all sites, 'x' would be 1.69" in text
    again = from_json(effects.to_json())
    assert again.centres == effects.centres and again.notes == effects.notes
    assert "as a random effect" in " ".join(effects_of("logit", "random").notes)


def test_a_site_of_one_class_says_nothing_of_the_slopes() -> None:
    """Its own intercept explains it, as in R, where it drops out of the likelihood."""
    sites = sites_of("logit")
    last = sites.train[5]
    lonely = Data(last.x, torch.ones_like(last.y), last.w)
    more, fewer = (
        co.run(
            co.methods.GLM(centre="fixed"),
            task_of("logit"),
            dataclasses.replace(sites, train=parts, test=parts, names=tuple(f"h{k}" for k in range(len(parts)))),
            rounds=10,
            scored=False,
        ).effects()
        for parts in ((*sites.train[:5], lonely), sites.train[:5])
    )
    for with_it, without in zip(more, fewer, strict=True):
        assert with_it.estimate == pytest.approx(without.estimate, rel=1e-9)
        assert with_it.error == pytest.approx(without.error, rel=1e-9)


def test_engines_and_folded_replies_agree() -> None:
    one, other = (effects_of("logit", "random", engine=engine) for engine in ("sequential", "vectorised"))
    for a, b in zip(one, other, strict=True):
        assert (a.estimate, a.error) == pytest.approx((b.estimate, b.error), rel=1e-9)


@pytest.mark.parametrize("link", LINKS)
def test_sites_that_are_alike_have_no_spread(link: str) -> None:
    """τ is 0 where the likelihood is largest there, and the effects are those of one intercept."""
    sites = sites_of(link)
    same = (sites.train[2],) * 4
    sites = dataclasses.replace(sites, train=same, test=same, names=tuple("abcd"))
    effects = co.run(co.methods.GLM(centre="random"), task_of(link), sites, rounds=20, scored=False).effects()
    assert effects.centres is not None and effects.centres.tau == pytest.approx(0, abs=1e-3)
    for row, plain in zip(effects, effects.centres.plain, strict=True):
        assert row.estimate == pytest.approx(plain.estimate, abs=1e-5)
        assert row.error == pytest.approx(plain.error, rel=1e-4)


def test_what_cannot_have_intercepts_of_sites_is_refused() -> None:
    with pytest.raises(InputError, match="two classes, counts and numbers: use centre=fixed"):
        effects_of("kind", "random")
    with pytest.raises(InputError, match="'fixd'"):
        effects_of("logit", "fixd")


@pytest.mark.parametrize("target", ["classes", "numbers"])
@pytest.mark.parametrize("centre", ["fixed", "random"])
def test_a_study_lets_honest_replies_in_and_lies_not(centre: str, target: str, tmp_path: Path) -> None:
    more: dict[str, Any] = {"target": honest.NUMBER} if target == "numbers" else {}
    agreement = honest.agreement_of(
        tmp_path, method="glm", smallest=1, rounds=4, settings=(f"centre={centre}",), choose=0.0, **more
    )
    for played in honest.honest_rounds(agreement, honest.tables(agreement, tmp_path, 60), rounds=4):
        reply = played.replies[0]
        assert played.admit(reply).client == reply.client
        sent = reply.payload
        if target == "classes" and hasattr(sent, "plain"):
            with pytest.raises(Refused, match="log-probabilities to more than 0"):
                played.admit(reply, send=sent._replace(own=sent.own._replace(loss=-sent.own.loss)))
            with pytest.raises(Refused, match=r"'own.gradient' holds"):
                played.admit(reply, send=sent._replace(own=sent.own._replace(gradient=sent.own.gradient + 1e6)))
        if target == "numbers" and centre == "random" and hasattr(sent, "own"):
            sums = sent.own.sums._replace(gram=-sent.own.sums.gram)
            with pytest.raises(Refused, match="positive semi-definite"):
                played.admit(reply, send=sent._replace(own=sent.own._replace(sums=sums)))


def test_studies_have_free_intercepts_unless_asked_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, words, written in (
        ("usual", ("--method", "glm"), 'settings = ["centre=fixed"]'),
        ("advised", ("--effects",), "centre=fixed"),
        ("one", ("--method", "glm", "--centre", "none"), 'settings = ["centre=none"]'),
        ("drawn", ("--method", "glm", "--centre", "random"), 'settings = ["centre=random"]'),
        ("features", ("--method", "glm", "--features", "relu:20"), "settings = []"),
    ):
        made = CliRunner().invoke(app, ["study", "new", name, *words])
        assert made.exit_code == 0, made.output
        text = Path(f"{name}.toml").read_text()
        assert written in text
        assert ("rounds = 8" in text) == (name != "drawn")
    wrong = CliRunner().invoke(app, ["study", "new", "wrong", "--method", "glm", "--centre", "fixd"])
    assert "'fixd'" in str(wrong.exception)
    other = CliRunner().invoke(app, ["study", "new", "other", "--method", "fedavg", "--centre", "fixed"])
    assert "centre" in str(other.exception)
