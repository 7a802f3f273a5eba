"""Effects are those of statsmodels on pooled rows, in the units of the columns; sites differ as in a meta-analysis."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from statsmodels.stats.meta_analysis import combine_effects
from torch import nn

import consilience as co
from consilience.biostatistics.effects import Effects, Estimate, Label, from_json
from consilience.biostatistics.heterogeneity import combine
from consilience.biostatistics.terms import fields_of
from consilience.data.sites import Data, Sites
from consilience.distributions.prior import Flat, Isotropic
from consilience.errors import InputError
from consilience.glm.site_likelihoods import NO_GAUSSIAN, NOT_PLAIN, from_replies, from_rows
from consilience.inference import Laplace, Newton

NAMES = ("age", "cp=a", "cp=b", "cp=c", "bp", "bp missing")


def hospitals(kind: str, sizes: tuple[int, ...] = (90, 120, 150, 180)) -> Sites:
    """Rows in the units of their columns, then standardised; levels, marks of gaps, sites that differ a little."""
    rng = np.random.default_rng(7)
    parts = []
    for k, n in enumerate(sizes):
        age = rng.normal(55, 9, n)
        level = rng.integers(0, 3, n)
        gap = rng.random(n) < 0.2
        bp = np.where(gap, 120.0, rng.normal(130, 15, n))
        eta = -3.5 + 0.05 * age + (0.5 + 0.2 * k) * (level == 1) - 0.7 * (level == 2) + 0.008 * bp + 0.3 * gap
        x = np.column_stack([age, np.eye(3)[level], bp, gap])
        if kind == "number":
            y = torch.tensor(20 + 5 * eta + rng.normal(0, 4, n))
        elif kind == "three":
            y = torch.tensor((rng.logistic(eta, 1) > 0).astype(int) + (rng.random(n) < 0.3))
        else:
            y = torch.tensor((rng.random(n) < 1 / (1 + np.exp(-eta))).astype(int))
        parts.append(Data.of(torch.tensor(x), y))
    classes = {"number": None, "three": 3, "two": 2}[kind]
    names = tuple(f"h{k}" for k in range(len(sizes)))
    sites = Sites(tuple(parts), tuple(parts), None, None, None, classes, 6, "outcome", "natural", names)
    if classes:
        sites = replace(sites, class_names=("no", "yes", "both")[:classes])
    return replace(sites, feature_names=NAMES).standardised()


def linear(sites: Sites, prior: co.Prior, noise: float | None = None) -> co.Task:
    layer = nn.Linear(6, sites.classes or 1).double()
    if sites.classes:
        return co.classification(layer, prior)
    return co.regression(layer, noise=noise, prior=prior)


def in_units(sites: Sites) -> tuple[np.ndarray, np.ndarray]:
    """All training rows with dummies against the first level and a constant, as a statistician would write them."""
    assert sites.feature_shift is not None and sites.feature_scale is not None
    rows = torch.cat([part.x for part in sites.train]) * sites.feature_scale + sites.feature_shift
    y = torch.cat([part.y for part in sites.train]).numpy()
    return sm.add_constant(rows.numpy()[:, [0, 2, 3, 4, 5]]), y


def test_a_logistic_model_has_the_coefficients_and_errors_of_statsmodels() -> None:
    sites = hospitals("two")
    result = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=8)
    frame = result.effects().to_frame()
    oracle = sm.Logit(*reversed(in_units(sites))).fit(disp=0, tol=1e-13, maxiter=100)
    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-6)
    np.testing.assert_allclose(frame["error"], oracle.bse, rtol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], oracle.conf_int(0.05), rtol=1e-6)
    np.testing.assert_allclose(frame[["ratio_low", "ratio_high"]], np.exp(oracle.conf_int(0.05)), rtol=1e-6)
    assert list(frame["column"]) == ["(Intercept)", "age", "cp", "cp", "bp", "bp"]
    assert list(frame["level"]) == ["", "", "b", "c", "", "missing"]
    assert list(frame["reference"]) == ["", "", "a", "a", "", "known"]
    assert set(frame["outcome"]) == {"yes"}


def test_another_level_and_another_reference_are_those_of_statsmodels() -> None:
    sites = hospitals("two")
    result = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=8)
    frame = result.effects(0.8, {"cp": "c", "outcome": "yes"}).to_frame()
    design, y = in_units(sites)
    age, b, c, bp, gap = design[:, 1:].T
    swapped = np.column_stack([np.ones(len(y)), age, 1 - b - c, b, bp, gap])  # levels a and b against c
    oracle = sm.Logit(1 - y, swapped).fit(disp=0, tol=1e-13, maxiter=100)  # the odds of "no"
    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], oracle.conf_int(0.2), rtol=1e-6)
    assert set(frame["outcome"]) == {"no"} and list(frame["reference"])[2] == "c"


def test_a_multinomial_model_has_the_coefficients_of_statsmodels() -> None:
    sites = hospitals("three")
    result = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=12)
    frame = result.effects().to_frame()
    design, y = in_units(sites)
    oracle = sm.MNLogit(y, design).fit(disp=0, method="newton", tol=1e-13, maxiter=100)
    np.testing.assert_allclose(frame["estimate"], np.asarray(oracle.params).T.flatten(), rtol=1e-6)
    np.testing.assert_allclose(frame["error"], np.asarray(oracle.bse).T.flatten(), rtol=1e-6)
    assert list(dict.fromkeys(frame["outcome"])) == ["yes", "both"]


def test_a_linear_model_has_the_coefficients_of_least_squares_in_the_targets_unit() -> None:
    sites = hospitals("number")
    result = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=1)
    table = result.effects()
    frame = table.to_frame()
    design, y = in_units(sites)
    oracle = sm.OLS(y * sites.target_scale + sites.target_shift, design).fit()
    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-6)
    np.testing.assert_allclose(frame["error"], oracle.bse, rtol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], oracle.conf_int(0.05), rtol=1e-6)
    assert frame["ratio"].isna().all() and table.ratio == ""


def test_a_prior_is_in_the_estimates_as_a_penalty_is() -> None:
    """MAP of a linear model with known noise: (XᵀX/σ² + I/v)⁻¹ Xᵀy/σ² on the scaled columns, then to their units."""
    sites = hospitals("number")
    result = co.run(co.methods.GLM(), linear(sites, Isotropic(0.05), noise=0.5), sites, rounds=1)
    frame = result.effects().to_frame()
    x = torch.cat([part.x for part in sites.train]).numpy()
    y = torch.cat([part.y for part in sites.train]).numpy()
    x = np.column_stack([x, np.ones(len(y))])
    var = np.linalg.inv(x.T @ x / 0.5 + np.eye(7) / 0.05)
    mean = var @ (x.T @ y / 0.5)
    assert sites.feature_scale is not None
    unit = sites.target_scale / sites.feature_scale.numpy()
    np.testing.assert_allclose(frame["estimate"][1], mean[0] * unit[0], rtol=1e-8)
    level = np.zeros(7)
    level[[2, 1]] = (unit[2], -unit[1])  # b less a
    np.testing.assert_allclose(frame["estimate"][2], level @ mean, rtol=1e-8)
    np.testing.assert_allclose(frame["error"][2], np.sqrt(level @ var @ level), rtol=1e-8)


def test_exact_pooling_has_the_effects_of_its_ridge() -> None:
    """λ → 0 is least squares."""
    sites = hospitals("number")
    result = co.run(co.methods.ExactPooling(share=1e-10), linear(sites, Flat()), sites)
    frame = result.effects().to_frame()
    design, y = in_units(sites)
    oracle = sm.OLS(y * sites.target_scale + sites.target_shift, design).fit()
    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-6)
    np.testing.assert_allclose(frame["error"], oracle.bse, rtol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], oracle.conf_int(0.05), rtol=1e-6)
    assert list(frame["sites"]) == [4] * 6


@pytest.mark.parametrize("method", ["glm", "exact", "product"])
def test_a_site_of_numbers_estimates_what_least_squares_does_there(method: str) -> None:
    sites = hospitals("number")
    methods = {
        "glm": (co.methods.GLM(), None),
        "exact": (co.methods.ExactPooling(share=1e-10), None),
        "product": (co.methods.GaussianProduct(inference=Laplace(mode=Newton(), dense=True)), 0.6),
    }
    chosen, noise = methods[method]
    result = co.run(chosen, linear(sites, Isotropic(1e6), noise), sites, rounds=1)
    frame = result.effects().sites_frame()
    one = replace(sites, train=sites.train[1:2])
    design, y = in_units(one)
    oracle = sm.OLS(y * sites.target_scale + sites.target_shift, design).fit()
    own = frame[frame["site"] == "h1"]
    np.testing.assert_allclose(own["estimate"], oracle.params, rtol=1e-4)  # of the prior, 1e-6 is left
    if noise is None:
        np.testing.assert_allclose(own["error"], oracle.bse, rtol=1e-6)


def test_sites_of_classes_have_the_coefficients_and_errors_of_statsmodels_on_their_own_rows() -> None:
    sites = hospitals("two")
    table = co.run(
        co.methods.GLM(), linear(sites, Isotropic(0.1)), sites, rounds=8
    ).effects()  # the prior is the pool's
    for k, name in enumerate(sites.names):
        design, y = in_units(replace(sites, train=sites.train[k : k + 1]))
        oracle = sm.Logit(y, design).fit(disp=0, tol=1e-13, maxiter=100)
        own = table.by_site[name]
        np.testing.assert_allclose([found.estimate for found in own], oracle.params, rtol=1e-6)
        np.testing.assert_allclose([found.error for found in own], oracle.bse, rtol=1e-6)


def test_the_product_of_posteriors_tells_how_much_sites_differ() -> None:
    sites = hospitals("two")
    method = co.methods.GaussianProduct(inference=Laplace(mode=Newton(), dense=True))
    table = co.run(method, linear(sites, Isotropic(100.0)), sites).effects()
    assert [row.sites for row in table] == [4] * 6
    design, y = in_units(replace(sites, train=sites.train[3:]))
    oracle = sm.Logit(y, design).fit(disp=0)
    own = [found.estimate for found in table.by_site["h3"]]
    np.testing.assert_allclose(own, oracle.params, rtol=0.05, atol=0.02)  # the site's mode has the prior in it


def test_differences_between_sites_are_those_of_statsmodels() -> None:
    estimates = [0.3, -0.1, 0.8, 0.5, 1.2]
    errors = [0.2, 0.25, 0.3, 0.15, 0.4]
    found = combine(estimates, errors)
    oracle = combine_effects(np.array(estimates), np.array(errors) ** 2, method_re="dl")
    assert found is not None
    assert found.q == pytest.approx(oracle.q)
    assert found.tau**2 == pytest.approx(oracle.tau2)
    assert found.i2 == pytest.approx(oracle.i2)
    assert found.mean == pytest.approx(oracle.mean_effect_re)
    assert found.error == pytest.approx(oracle.sd_eff_w_re)
    assert found.q_p == pytest.approx(oracle.test_homogeneity().pvalue)
    wide = 3.182446 * np.sqrt(oracle.tau2 + oracle.sd_eff_w_re**2)  # the 97.5 % point of Student's t with K − 2 = 3
    assert found.newcomer_low == pytest.approx(oracle.mean_effect_re - wide)
    assert found.at(0.5).newcomer_high == pytest.approx(
        oracle.mean_effect_re + 0.764892 * np.sqrt(oracle.tau2 + oracle.sd_eff_w_re**2)
    )


def test_sites_that_agree_have_no_heterogeneity_and_two_have_no_newcomer() -> None:
    found = combine([1.0, 1.0], [0.5, 0.5])
    assert found is not None
    assert (found.tau, found.i2, found.newcomer_low) == (0.0, 0.0, None)
    assert found.error == pytest.approx(0.5 / np.sqrt(2))
    assert combine([1.0], [0.5]) is None


def test_a_site_that_never_saw_a_level_does_not_estimate_it() -> None:
    sites = hospitals("number")
    first = sites.train[0]
    seen = first.x[:, 3] < 0  # below its mean: not level c
    alone = Data(first.x[seen], first.y[seen], first.w[seen])
    sites = replace(sites, train=(alone, *sites.train[1:]))
    table = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=1).effects()
    assert [found.label.level for found in table.by_site["h0"] if found.label.column == "cp"] == ["b"]
    assert [row.sites for row in table if row.column == "cp"] == [4, 3]


def test_a_table_survives_json_and_csv() -> None:
    sites = hospitals("two", (60, 60, 60))
    table = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=6).effects()
    again = from_json(table.to_json())
    assert again.rows == table.rows and again.at(0.5).rows == table.at(0.5).rows
    lines = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [float(line["estimate"]) for line in lines] == [row.estimate for row in table]
    formula = Label("yes", "=1+1", "-1", "@x", "")  # a level -1 is a number, and stays one
    lines = Effects("y", "no", "logit", 0.95, (Estimate(formula, 0.0, 1.0),)).to_csv().splitlines()
    assert lines[1].startswith("yes,'=1+1,-1,'@x,,0.0,1.0")
    hidden = table.without_sites()
    assert not hidden.by_site and hidden.rows == table.rows
    assert from_json(hidden.to_json()).at(0.8).rows == table.at(0.8).rows


def test_a_saved_run_keeps_what_sites_said(tmp_path: object) -> None:
    sites = hospitals("two", (60, 60, 60))
    result = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=6, out=str(tmp_path))
    again = co.load(str(tmp_path))
    assert again.effects(0.9).rows == result.effects(0.9).rows
    swapped = {"cp": "b"}
    assert again.effects(reference=swapped).rows == result.effects(reference=swapped).rows


def test_a_saved_run_without_the_sites_fits_needs_their_rows_for_another_reference(tmp_path: object) -> None:
    sites = hospitals("two", (60, 60, 60))
    co.run(co.methods.GLM(compare=False), linear(sites, Flat()), sites, rounds=6, out=str(tmp_path))
    again = co.load(str(tmp_path))
    with pytest.raises(InputError, match="Another reference needs what the effects were fitted with"):
        again.effects(reference={"cp": "b"})


def test_what_has_no_effects_says_so() -> None:
    sites = hospitals("two", (40, 40))
    mapped = co.classification(co.models.on_features(co.models.features("relu:20", 6), nn.Linear(20, 2)).double())
    with pytest.raises(InputError, match=NOT_PLAIN[:40]):
        co.run(co.methods.GLM(), mapped, sites, rounds=1).effects()
    with pytest.raises(InputError, match=NO_GAUSSIAN[:40]):
        co.run(co.methods.FedAvg(), linear(sites, Isotropic()), sites, rounds=1).effects()
    result = co.run(co.methods.GLM(), linear(sites, Flat()), sites, rounds=2)
    with pytest.raises(InputError, match="'d'"):
        result.effects(reference={"cp": "d"})
    with pytest.raises(InputError, match="between 0 and 1"):
        result.effects(95)
    assert "effects" not in co.run(co.methods.FedAvg(), linear(sites, Isotropic()), sites, rounds=1).report


def test_columns_are_read_off_names() -> None:
    fields = fields_of(("a", "b=1", "b=2", "c=only", "a missing", "b missing", "d missing"))
    assert [(field.name, field.first, field.levels, field.mark) for field in fields] == [
        ("a", 0, (), 4),
        ("b", 1, ("1", "2"), 5),
        ("c=only", 3, (), None),
        ("d missing", 6, (), None),
    ]


def test_what_sites_sent_is_what_their_rows_say() -> None:
    """The sites' own fits are the same from the state, by their first replies, and from the rows of a simulation."""
    sites = hospitals("three")
    task = linear(sites, Flat())
    result = co.run(co.methods.GLM(), task, sites, rounds=6)
    by_replies = from_replies(task, result.state, result.replies)
    by_rows = from_rows(task, sites.train)
    assert by_replies is not None and by_rows is not None
    for one, other in zip(by_replies, by_rows, strict=True):
        assert torch.allclose(one.precision, other.precision, rtol=1e-9, atol=1e-9)
        assert torch.allclose(one.linear, other.linear, rtol=1e-9, atol=1e-9)
    alone = co.run(co.methods.GLM(compare=False), task, sites, rounds=6)
    assert from_replies(task, alone.state, alone.replies) is None
    assert alone.effects().rows == result.effects().rows
