"""The one table of advice: every figure stands on its page, and every default comes from it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy import stats

import consilience as co
from consilience.data.sites import Sites
from consilience.errors import InputError
from consilience.method import Needs, Private, needs
from consilience.method.declared import is_sum
from consilience.method.which import has_common
from consilience.methods import METHODS, method
from consilience.methods.advice import (
    KINDS,
    NETWORKS,
    PLACES,
    USUAL_STUDY,
    Situation,
    advise,
    cautions,
    fits,
    table,
    usual_map,
)
from consilience.methods.situation import describe_situation, measure_shift
from consilience.models import FEATURES, MODELS
from consilience.runs.recipe import Recipe
from consilience.serialisation.settings import configure
from consilience.study.proposal import proposal
from consilience.study.protocol.columns import Column
from consilience.study.protocol.target import Target

ROOT = Path(__file__).parents[2]
RULES = table()["rules"]
NUMBER = re.compile(r"\d[\d.e-]*\d|\d")
WISHES = ("secure", "private", "one_round", "effects")
FIELDS = {field.name for field in dataclasses.fields(Situation)}


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("rule", [rule for rule in RULES if "method" in rule], ids=lambda rule: rule["figure"][:60])
def test_every_figure_is_on_its_page(rule: dict[str, Any]) -> None:
    page = words((ROOT / rule["page"]).read_text())
    for quote in rule["quotes"]:
        assert words(quote) in page, f"{rule['page']} no longer says: {quote}"
    quoted = NUMBER.findall(" ".join(rule["quotes"]))
    for number in NUMBER.findall(rule["figure"]):
        assert number in quoted, f"{number} stands in no quote"
    assert NUMBER.search(rule["figure"]) or "six digits" in rule["figure"] or "two" in rule["figure"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["when"]))
def test_rules_speak_of_what_exists(rule: dict[str, Any]) -> None:
    for name in rule["when"]:
        assert re.sub("^(most|fewest)_", "", name) in FIELDS, name
    if "refuse" in rule:
        assert rule["refuse"].endswith(".") and "method" not in rule
        return
    configure(method(rule["method"]), tuple(rule.get("settings", ())))
    assert rule.get("model") in (None, *MODELS)
    assert (rule.get("features") or "none:").split(":")[0] in ("none", *FEATURES)
    assert needs(METHODS[rule["method"]]()) == {Needs.NOTHING}


@pytest.mark.parametrize(
    "caution", [each for each in table()["cautions"] if "quotes" in each], ids=lambda each: each["say"][:60]
)
def test_every_figure_of_a_caution_is_on_its_page(caution: dict[str, Any]) -> None:
    page = words((ROOT / caution["page"]).read_text())
    assert all(words(quote) in page for quote in caution["quotes"])
    quoted = NUMBER.findall(" ".join(caution["quotes"]))
    measured = [number for number in NUMBER.findall(caution["say"]) if "." in number]
    assert measured and all(number in quoted for number in measured)


def test_who_asks_for_epsilon_hears_where_training_with_noise_did_better() -> None:
    images = Situation(images=True, private=True, rows=1437)
    assert any("DP-SGD" in caution for caution in cautions(images))
    assert not any("DP-SGD" in caution for caution in cautions(dataclasses.replace(images, private=False)))
    assert not cautions(dataclasses.replace(images, secure=True))


def test_who_can_answer_ten_times_hears_of_the_logistic_model() -> None:
    images = Situation(images=True, rows=1437)
    assert any("glm with --prior-var 100" in caution for caution in cautions(images))
    assert not cautions(dataclasses.replace(images, one_round=True))
    assert not cautions(dataclasses.replace(images, network="other"))


def every_situation() -> list[Situation]:
    plain = itertools.product(KINDS, PLACES, NETWORKS, *[(False, True)] * (3 + len(WISHES)), (None, 500, 50_000))
    made = []
    for kind, place, network, images, natural, differ, *wishes, rows in plain:
        asked = dict(zip(WISHES, wishes, strict=True))
        sizes = {"sites": 4, "rows": rows, "weights": rows}
        made.append(Situation(kind, place, network, images, natural, differ, **asked, **sizes))
    return made


def test_every_situation_has_an_answer_that_keeps_what_was_asked_for() -> None:
    """A method that is a sum where masks are asked for, private under ε, of one round, and made for the kind."""
    kinds = {"classes": "classification", "numbers": "regression"}
    taken = set()
    for situation in every_situation():
        rule = next(i for i, rule in enumerate(RULES) if fits(rule["when"], situation))
        taken.add(rule)
        if "refuse" in RULES[rule]:
            continue
        chosen = METHODS[advise(situation).method]
        assert kinds.get(situation.kind, situation.kind) in chosen.about.tasks, situation
        assert is_sum(chosen) or not situation.secure, situation
        assert issubclass(chosen, Private) or not situation.private, situation
        assert has_common(chosen) or situation.place == "run", situation
        one = chosen.about.rounds.usual == 1
        once = one or (situation.kind == "numbers" and situation.effects)
        assert once or not situation.one_round or situation.secure, situation
    assert taken == set(range(len(RULES))), "a rule that is never taken"


def test_effects_are_of_the_columns_unless_features_are_asked_for() -> None:
    glm, exact = METHODS["glm"], METHODS["exact"]
    assert usual_map([glm], 4) == "identity"
    assert usual_map([glm, exact], 4) == usual_map([exact], 4) == "hats:340"
    assert usual_map([glm], (1, 8, 8)) == usual_map([exact], (1, 8, 8))
    assert usual_map([METHODS["fedavg"]], 4) is None


def test_a_run_takes_what_is_recommended() -> None:
    for data, features in (("moons", None), ("sine", None), ("digits", "conv:16")):
        problem = co.Problem(data, sites=3, features=features)
        chosen = Recipe("", problem).choose()
        advice = co.recommend(problem)
        assert (chosen.method, chosen.settings) == (advice.method, advice.settings)
        assert chosen.problem.features == (features or advice.features)
    for data, network, expected in (
        ("moons", "mlp", "evidence_tuned"),
        ("sine", "mlp", "mixture"),
        ("digits", "mlp", "evidence"),
    ):
        problem = co.Problem(data, sites=3, model=network)
        advised = advise(describe_situation(problem.build_sites(), network="other"))
        assert Recipe("", problem).choose().method == expected == advised.method


def test_a_study_proposes_what_is_recommended() -> None:
    columns = (Column("age", "number", "years", (18.0, 110.0), 60.0, 15.0),)
    ill = Target("ill", ("no", "yes"))
    draft = proposal("trial", "", ill, columns)
    assert (draft.method, draft.settings) == (USUAL_STUDY.method, USUAL_STUDY.settings)
    masked = proposal("trial", "", ill, columns, model="mlp", secure=True)
    assert masked.method == advise(Situation(place="study", network="other", secure=True)).method
    private = proposal("trial", "", ill, columns, privacy={"epsilon": 3.0, "delta": 1e-5})
    assert private.method == advise(Situation(place="study", network="linear", private=True)).method


def test_an_estimator_takes_what_is_recommended_for_one_model() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    model = co.FederatedClassifier(hidden=(4,), rounds=1).fit(x, x[:, 0] > 0, groups=np.arange(60) % 3)
    asked = Situation(place="estimator", network="other", one_round=True)
    assert type(model.result_.method) is METHODS[advise(asked).method]


def unequal(shares: tuple[float, ...]) -> Sites:
    """Three sites of 100 rows with these shares of ones, and a column that is the site's number."""
    y = torch.cat([(torch.arange(100) < 100 * share).long() for share in shares])
    site = torch.arange(300) // 100
    x = torch.stack([torch.randn(300), site + 0.1 * torch.randn(300)], 1)
    none = {"x_test": x[:0], "y_test": y[:0], "site_test": site[:0]}
    return co.from_arrays(x, y, site, **none).split(co.splits.natural(), calibration=0)


def test_shift_is_what_scipy_says_of_the_table() -> None:
    sites = unequal((0.1, 0.5, 0.9))
    shift = measure_shift(sites)
    counts = np.array([[90, 10], [50, 50], [10, 90]])  # as it was made
    assert shift.outcome == pytest.approx(stats.contingency.association(counts, "cramer"), abs=1e-9)
    assert shift.chance == pytest.approx(stats.chi2_contingency(counts, correction=False).pvalue)
    groups = [data.x[:, 1].double().numpy() for data in sites.train]
    f = stats.f_oneway(*groups).statistic
    share = 2 * f / (2 * f + 297)  # η² from F with 2 and 297 degrees of freedom
    assert shift.columns[1] == pytest.approx(share, abs=1e-6) and shift.column == "column 2"
    assert co.recommend(sites).method == "hierarchical"
    assert not measure_shift(unequal((0.5, 0.5, 0.5))).matters
    assert co.recommend(unequal((0.5, 0.5, 0.5))).method == "exact_tuned"


def own_slopes(deviation: float, number: bool, spread: float = 1.0) -> Sites:
    """Twelve sites of 150 rows: slopes of N(1, deviation²) beside intercepts of N(0, spread²)."""
    rng = np.random.default_rng(5)
    site = np.repeat(np.arange(12), 150)
    x = rng.normal(size=(1800, 2))
    linear = (x * (1 + deviation * rng.normal(size=(12, 2)))[site]).sum(1) + spread * rng.normal(size=12)[site]
    y: np.ndarray = linear + rng.normal(size=1800)
    if not number:
        y = (rng.random(1800) < 1 / (1 + np.exp(-linear))).astype(int)
    return co.from_arrays(x, y, site).split(co.splits.natural(), test=0, calibration=0)


@pytest.mark.parametrize("number", [False, True])
def test_a_test_of_slopes_is_that_of_statsmodels(number: bool) -> None:
    """F of nested least squares; of nested logistic models the deviance, which the score test is close to."""
    sites = own_slopes(0.4, number)
    x = np.concatenate([part.x.double().numpy() for part in sites.train])
    y = np.concatenate([part.y.double().numpy() for part in sites.train])
    marks = np.eye(12)[np.repeat(np.arange(12), 150)]
    own = np.concatenate([marks * x[:, [j]] for j in range(2)], axis=1)
    found = measure_shift(sites).slopes
    common, full = np.hstack([marks, x]), np.hstack([marks, own])
    if number:
        value, chance, free = sm.OLS(y, full).fit().compare_f_test(sm.OLS(y, common).fit())
        assert free == 22 and found.chance == pytest.approx(chance, rel=1e-4)
        assert found.size == pytest.approx(np.sqrt((22 * value - 22) / 1800), rel=1e-4)
    else:
        deviance = 2 * (sm.Logit(y, full).fit(disp=0).llf - sm.Logit(y, common).fit(disp=0).llf)
        assert found.size == pytest.approx(np.sqrt((deviance - 22) / 1800), rel=0.05)


@pytest.mark.parametrize("number", [False, True])
def test_sites_that_differ_in_slopes_alone_get_models_of_their_own(number: bool) -> None:
    sites = own_slopes(0.4, number, spread=0.0)
    shift = measure_shift(sites)
    assert not shift.matters and shift.slopes_matter
    assert co.recommend(sites).method == "hierarchical"
    alike = measure_shift(own_slopes(0.0, number))
    assert not alike.slopes_matter and alike.slopes.chance > 0.001


def rare(deviation: float) -> Sites:
    """Eight sites of 400 rows with about 6 % events: one intercept, slopes of N(b, deviation²)."""
    rng = np.random.default_rng(2)
    site = np.repeat(np.arange(8), 400)
    x = rng.normal(size=(3200, 4))
    slopes = np.array([1, -0.5, 0.5, 0]) + deviation * rng.normal(size=(8, 4))
    y = rng.random(3200) < 1 / (1 + np.exp(3.2 - (x * slopes[site]).sum(1)))
    return co.from_arrays(x, y.astype(int), site).split(co.splits.natural(), test=0, calibration=0)


def test_small_differences_in_rare_events_are_seen_together() -> None:
    """Cramér's V is small where events are rare; neither χ² says enough alone, and their sum does."""
    shift = measure_shift(rare(0.2))
    assert not shift.matters and not shift.slopes_matter and shift.both_matter
    counts = np.stack([part.y.bincount(minlength=2).numpy() for part in rare(0.2).train])
    found = stats.chi2_contingency(counts, correction=False)
    assert shift.both.q == pytest.approx(found.statistic + shift.slopes.q)
    assert shift.both.chance == pytest.approx(stats.chi2.sf(shift.both.q, found.dof + 28))
    assert co.recommend(rare(0.2)).method == "hierarchical"
    assert co.recommend(rare(0.0)).method == "exact_tuned"


def test_numbers_whose_slopes_hardly_differ_keep_their_features() -> None:
    """Stations in Beijing: slopes of size 0.13 gain less than random features, 5.254 for 5.170 by exact."""
    shift = measure_shift(own_slopes(0.12, True, spread=0.0))
    assert 0.1 < shift.slopes.size < 0.2 and shift.slopes.chance < 1e-3
    assert co.recommend(own_slopes(0.12, True, spread=0.0)).method == "exact"


def test_what_nothing_serves_is_refused_with_a_way_out() -> None:
    sites = unequal((0.5, 0.5, 0.5))
    with pytest.raises(InputError, match="leave one of the two out"):
        co.recommend(sites, effects=True, epsilon=1.0)


def test_recommend_on_the_command_line(invoke: Any, tmp_path: Path) -> None:
    code, shown, _ = invoke("recommend", "--data", "moons", "--sites", "3", "--one-round")
    assert code == 0
    assert "Take exact" in shown and "docs/exact.md" in shown and "--sites 3" in shown
    command = shown.strip().splitlines()[-1]
    assert command.startswith("consilience run exact ")
    code, shown, _ = invoke("recommend", "--data", "moons", "--json")
    assert code == 0 and json.loads(shown)["method"] == "exact_tuned"
    code, _, error = invoke("recommend", "--data", "moons", "--effects", "--epsilon", "1")
    assert code == 2 and "leave one of the two out" in error
