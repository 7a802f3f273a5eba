"""Effects of counts and times: rate ratios of statsmodels and hazard ratios of lifelines, in the columns' units."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import statsmodels.api as sm
import torch
from events import count_sites, pooled_table, survival_sites
from lifelines import CoxPHFitter
from torch import nn

import consilience as co
from consilience.data.sites import Sites
from consilience.distributions.prior import Flat


def named(sites: Sites) -> Sites:
    return replace(sites, feature_names=("age", "dose", "stage"))


def on_all_rows(sites: Sites) -> Sites:
    whole = sites.trained_on_all()
    assert whole is not None
    return whole


def test_rate_ratios_are_those_of_statsmodels() -> None:
    sites = on_all_rows(named(count_sites(exposed=True)))
    x = torch.cat([part.x for part in sites.train]).double()
    if sites.feature_scale is not None and sites.feature_shift is not None:
        x = x * sites.feature_scale + sites.feature_shift
    y = torch.cat([part.y for part in sites.train]).double().numpy()
    family = sm.families.Poisson()
    oracle = sm.GLM(y[:, 0], sm.add_constant(x.numpy()), family=family, exposure=y[:, 1]).fit(tol=1e-12)

    frame = co.run(co.methods.GLM(), co.counts(nn.Linear(3, 1), Flat()), sites).effects().to_frame()

    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(frame[["ratio_low", "ratio_high"]], np.exp(oracle.conf_int()), rtol=1e-5)
    assert list(frame["column"]) == ["(Intercept)", "age", "dose", "stage"]


def test_hazard_ratios_are_those_of_lifelines() -> None:
    sites = on_all_rows(named(survival_sites()))
    oracle = CoxPHFitter().fit(pooled_table(sites), "time", "event", strata=["site"], fit_options={"precision": 1e-12})
    scale = torch.ones(3)
    if sites.feature_scale is not None:
        scale = sites.feature_scale

    effects = co.run(co.methods.GLM(), co.survival(nn.Linear(3, 1), Flat()), sites).effects()

    frame = effects.to_frame()
    np.testing.assert_allclose(frame["estimate"] * scale.numpy(), oracle.params_.values, atol=1e-6)
    np.testing.assert_allclose(frame["error"] * scale.numpy(), oracle.standard_errors_.values, atol=1e-6)
    assert list(frame["column"]) == ["age", "dose", "stage"]
    assert effects.ratio == "hazard ratio"
