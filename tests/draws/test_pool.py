"""Pools against closed forms: conjugate models, where the posterior of all rows is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import consilience as co
from consilience.distributions.posterior import Dense
from consilience.draws.affine import barycentre, transport
from consilience.draws.pooling import gather
from consilience.draws.pooling_rules import RULES
from consilience.errors import InputError
from consilience.key import Key

SITES, ROWS, WIDTH, DRAWS = 4, 60, 3, 2000
NEAR = 0.12  # pooled SDs: four Monte Carlo errors of 2 000 draws, and as many of the sites'


def posterior(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of y ~ N(x β, 1), β ~ N(0, 4)."""
    var = np.linalg.inv(x.T @ x + np.eye(WIDTH) / 4)
    return var @ (x.T @ y), var


@pytest.fixture(scope="module")
def line() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(ROWS, WIDTH)) for _ in range(SITES)]
    y = [part @ np.array([1.0, -0.5, 0.3]) + rng.normal(size=ROWS) for part in x]
    sites = []
    for part, target in zip(x, y, strict=True):
        mean, var = posterior(part, target)
        sites.append({"beta": rng.multivariate_normal(mean, var, size=(4, DRAWS // 4))})
    mean, var = posterior(np.concatenate(x), np.concatenate(y))
    prior = {"beta": rng.normal(0, 2, size=(1, 4000, WIDTH))}
    return {"sites": sites, "mean": mean, "sd": np.sqrt(np.diag(var)), "prior": prior, "x": x, "y": y}


def flat(pooled: Any, name: str = "beta") -> np.ndarray:
    values = pooled.posterior[name].values
    return values.reshape(-1, *values.shape[2:])


def priors(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "density": {"beta": "normal(0, 2)"},
        "draws": co.draws.read(line["prior"]),
        "function": lambda theta: -((theta["beta"] ** 2).sum()) / 8,
    }


@pytest.mark.parametrize("prior", ["density", "draws", "function"])
def test_the_gaussian_rule_is_exact_for_a_gaussian_model(line: dict[str, Any], prior: str) -> None:
    pooled = co.draws.pool(line["sites"], priors(line)[prior], "gaussian")

    assert pooled.usable and not pooled.alarms
    assert np.abs((flat(pooled).mean(0) - line["mean"]) / line["sd"]).max() < NEAR
    np.testing.assert_allclose(flat(pooled).std(0), line["sd"], rtol=0.06)


def test_the_log_prior_in_the_files_counts_once(line: dict[str, Any]) -> None:
    """brms writes `lprior`; a quadratic through its values is the prior."""
    sites = [{**s, "lprior": -(s["beta"] ** 2).sum(-1) / 8} for s in line["sites"]]

    pooled = co.draws.pool(sites)

    assert pooled.prior == "the log-prior in the sites' files"
    np.testing.assert_allclose(flat(pooled), flat(co.draws.pool(line["sites"], {"beta": "normal(0,2)"})), atol=1e-6)


@pytest.mark.parametrize("rule", ["consensus", "reweighted", "barycentre", "semiparametric", "kernel"])
def test_other_rules_come_near(line: dict[str, Any], rule: str) -> None:
    """Kernel densities of 2 000 draws are rough, and a barycentre does not weigh sites by what they know."""
    near, wide = {"kernel": (0.6, 0.3), "semiparametric": (0.6, 0.2), "barycentre": (0.6, 0.15)}.get(rule, (0.2, 0.08))

    pooled = co.draws.pool(line["sites"], {"beta": "normal(0, 2)"}, rule, draws=1000)

    assert np.abs((flat(pooled).mean(0) - line["mean"]) / line["sd"]).max() < near
    np.testing.assert_allclose(flat(pooled).std(0), line["sd"], rtol=wide)


def test_a_mixture_has_the_sites_draws(line: dict[str, Any]) -> None:
    pooled = co.draws.pool(line["sites"], "flat", "mixture", draws=1000)

    rows = np.concatenate([s["beta"].reshape(-1, WIDTH) for s in line["sites"]])
    found = flat(pooled)
    assert all(np.abs(rows - row).sum(1).min() < 1e-9 for row in found[:50])


@pytest.mark.parametrize("rule", ["consensus", "gaussian"])
def test_without_a_prior_to_divide_by_the_rules_are_numpyros(line: dict[str, Any], rule: str) -> None:
    """NumPyro's `consensus` and `parametric`, an independent program."""
    pytest.importorskip("numpyro")
    import jax
    from numpyro.infer.hmc_util import consensus, parametric

    parts = [{"beta": s["beta"].reshape(-1, WIDTH).astype(np.float32)} for s in line["sites"]]

    pooled = co.draws.pool(line["sites"], "fractional", rule, draws=4000)

    if rule == "gaussian":
        mean, var = parametric(parts)
        mean, sd = np.asarray(mean), np.sqrt(np.diag(np.asarray(var)))
    else:
        other = np.asarray(consensus(parts, 4000, rng_key=jax.random.PRNGKey(0))["beta"])
        mean, sd = other.mean(0), other.std(0)
    assert np.abs((flat(pooled).mean(0) - mean) / sd).max() < 0.1
    np.testing.assert_allclose(flat(pooled).std(0), sd, rtol=0.06)


def test_the_product_itself_is_numpyros_to_rounding(line: dict[str, Any]) -> None:
    pytest.importorskip("numpyro")
    from numpyro.infer.hmc_util import parametric

    parts = [{"beta": s["beta"].reshape(-1, WIDTH).astype(np.float32)} for s in line["sites"]]

    _, _, factors = gather([co.draws.read(s, f"{k}") for k, s in enumerate(line["sites"])], "fractional", None, None)

    mean, var = parametric(parts)
    np.testing.assert_allclose(factors.product.mean, np.asarray(mean), rtol=2e-3, atol=2e-4)
    np.testing.assert_allclose(torch.linalg.inv(factors.product.precision), np.asarray(var), rtol=5e-3, atol=1e-5)


def test_skewness_in_any_direction_is_followed() -> None:
    """Logarithms of rates, mixed: the product of log-gamma densities is one, whose numbers add up.

    A Gaussian product is off by about ½ · skewness · √sites = ½ / √8 · √5 = 0.4 SDs where there are 8 counts a site.
    """
    rng = np.random.default_rng(8)
    mixed = np.array([[1.0, 0.7, -0.4], [0.2, 1.0, 0.6], [-0.5, 0.3, 1.0]])
    counts = rng.poisson(8.0, size=(5, 3))
    sites = [{"u": np.log(rng.gamma(1.0 * own, 1.0, size=(4, 1000, 3))) @ mixed} for own in counts]
    truth = np.log(rng.gamma(1.0 * counts.sum(0), 1 / 5, size=(400_000, 3))) @ mixed
    off = {}

    for rule in ("gaussian", "auto"):
        pooled = co.draws.pool(sites, "flat", rule)
        off[pooled.rule] = np.abs((flat(pooled, "u").mean(0) - truth.mean(0)) / truth.std(0)).max()

    assert off["gaussian"] > 0.2 and off["reweighted"] < 0.15
    np.testing.assert_allclose(flat(pooled, "u").std(0), truth.std(0), rtol=0.08)


def test_a_site_that_knows_less_than_the_prior_does_not_run_away() -> None:
    """Without its prior such a site would have no precision, and a mean anywhere: sites seemed to differ (p = 0)."""
    rng = np.random.default_rng(9)
    sites = [{"a": rng.normal(0.3, width, size=(4, 500))} for width in (0.5, 0.9, 1.0, 1.1)]  # a prior of SD 1

    pooled = co.draws.pool(sites, {"a": "normal(0, 1)"}, "hierarchical")

    assert not any(alarm.kind == "overlap" for alarm in co.draws.pool(sites, {"a": "normal(0, 1)"}).alarms)
    assert abs(flat(pooled, "a").mean()) < 2 and flat(pooled, "a").std() < 3


# --- the Jacobian, once --------------------------------------------------------------------------------------------


def rates(prior_shape: float, prior_rate: float) -> tuple[list[dict[str, np.ndarray]], Any]:
    """Draws of y ~ Poisson(λ), λ ~ gamma, at each site, and the posterior of all rows."""
    rng = np.random.default_rng(3)
    counts = [rng.poisson(2.0, 150) for _ in range(SITES)]
    sites = [{"rate": rng.gamma(prior_shape + c.sum(), 1 / (prior_rate + len(c)), size=(4, 2500))} for c in counts]
    total = sum(c.sum() for c in counts)
    return sites, stats.gamma(prior_shape + total, scale=1 / (prior_rate + sum(map(len, counts))))


@pytest.mark.parametrize(
    ("shape", "rate", "prior"),
    [(3.0, 2.0, {"rate": "gamma(3, 2)"}), (1.0, 0.0, "flat"), (40.0, 20.0, {"rate": "gamma(40, 20)"})],
)
def test_a_positive_parameter_has_its_jacobian_once(shape: float, rate: float, prior: Any) -> None:
    """With it three times, or never, the pooled mean would be off by three of 0.03: one SD a count is 1 / √1200."""
    sites, truth = rates(shape, rate)

    pooled = co.draws.pool(sites, prior)

    assert str(pooled.space.parameters[0].transform) == "positive"
    found = flat(pooled, "rate")
    assert abs(found.mean() - truth.mean()) / truth.std() < 0.06
    assert found.std() == pytest.approx(truth.std(), rel=0.05)


def test_the_jacobian_would_be_seen() -> None:
    """Few counts, where one power of λ too many moves the mean by 3 / total: the test above is not blind."""
    rng = np.random.default_rng(4)
    counts = [12, 15, 11, 14]
    sites = [{"rate": rng.gamma(1.0 + c, 1 / 5, size=(4, 5000))} for c in counts]
    truth = stats.gamma(1.0 + sum(counts), scale=1 / 20)

    found = flat(co.draws.pool(sites, "flat", "reweighted"), "rate")

    assert abs(found.mean() - truth.mean()) / truth.std() < 0.1
    assert 3 / sum(counts) * truth.mean() / truth.std() > 0.4  # by how much it would be off


def test_shares_are_pooled_on_their_simplex() -> None:
    rng = np.random.default_rng(5)
    counts = rng.multinomial(100, [0.5, 0.3, 0.2], size=SITES)
    sites = [{"share": rng.dirichlet(2 + c, size=(2, 3000))} for c in counts]
    truth = stats.dirichlet(2 + counts.sum(0))

    pooled = co.draws.pool(sites, {"share": "dirichlet(2)"})

    assert str(pooled.space.parameters[0].transform) == "simplex"
    found = flat(pooled, "share")
    np.testing.assert_allclose(found.sum(1), 1)
    assert np.abs((found.mean(0) - truth.mean()) / np.sqrt(truth.var())).max() < 0.15  # its Monte Carlo SD is 0.05
    np.testing.assert_allclose(found.std(0), np.sqrt(truth.var()), rtol=0.06)


def test_unit_intervals_with_a_prior_that_matters() -> None:
    rng = np.random.default_rng(6)
    wins = rng.binomial(60, 0.35, SITES)
    sites = [{"p": rng.beta(4 + w, 4 + 60 - w, size=(2, 3000))} for w in wins]
    truth = stats.beta(4 + wins.sum(), 4 + 60 * SITES - wins.sum())

    found = flat(co.draws.pool(sites, {"p": "beta(4, 4)"}), "p")

    assert abs(found.mean() - truth.mean()) / truth.std() < 0.1
    assert found.std() == pytest.approx(truth.std(), rel=0.06)


# --- a further round -----------------------------------------------------------------------------------------------


def likelihood(line: dict[str, Any], k: int) -> Callable[[dict[str, Any]], float]:
    x, y = line["x"][k], line["y"][k]
    return lambda theta: float(-0.5 * ((y - x @ theta["beta"]) ** 2).sum())


def test_a_further_round_corrects_a_bad_pool(line: dict[str, Any]) -> None:
    """A mixture is three times too wide; the sites' log-likelihoods make it exact."""
    first = co.draws.pool(line["sites"], {"beta": "normal(0, 2)"}, "mixture", draws=1000)
    asked = co.draws.ask(first, 3000)
    answers = [co.draws.read(co.draws.answer(asked, likelihood(line, k)), f"{k}") for k in range(SITES)]

    pooled = co.draws.correct(co.draws.read(asked), answers, {"beta": "normal(0, 2)"})

    assert flat(first).std(0).min() > 1.8 * line["sd"].max()
    assert pooled.usable and pooled.k is not None and pooled.k < 0.7
    assert np.abs((flat(pooled).mean(0) - line["mean"]) / line["sd"]).max() < 0.2
    np.testing.assert_allclose(flat(pooled).std(0), line["sd"], rtol=0.15)


def test_functions_at_hand_correct_at_once(line: dict[str, Any]) -> None:
    functions = [likelihood(line, k) for k in range(SITES)]

    pooled = co.draws.pool(line["sites"], {"beta": "normal(0, 2)"}, "mixture", draws=2000, log_likelihoods=functions)

    assert pooled.rule == "corrected" and pooled.usable
    assert np.abs((flat(pooled).mean(0) - line["mean"]) / line["sd"]).max() < NEAR
    np.testing.assert_allclose(flat(pooled).std(0), line["sd"], rtol=0.07)


def test_answers_to_another_question_are_refused(line: dict[str, Any]) -> None:
    first = co.draws.pool(line["sites"], "flat", draws=1000)
    asked, other = co.draws.ask(first, 200), co.draws.ask(first, 100)
    answers = [co.draws.read(co.draws.answer(other, likelihood(line, k)), f"{k}") for k in range(SITES)]

    with pytest.raises(InputError, match="answered 100 of 200"):
        co.draws.correct(co.draws.read(asked), answers, "flat")
    with pytest.raises(InputError, match="4 sites were pooled and 1 answered"):
        co.draws.correct(co.draws.read(asked), answers[:1], "flat")


# --- sites that differ ---------------------------------------------------------------------------------------------


def test_sites_that_differ_are_pooled_partially() -> None:
    """μ, τ and a new site where sites' means are N(1, 0.5²), each known to ± 0.1."""
    rng = np.random.default_rng(8)
    means = 1 + 0.5 * rng.normal(size=12)
    sites = [{"theta": m + 0.1 * rng.normal(size=(2, 500))} for m in means]

    pooled = co.draws.pool(sites, "flat", tau=1.0)

    assert pooled.rule == "hierarchical" and "differ" in pooled.why and pooled.usable
    theta, tau, new = (pooled.posterior[name].values.reshape(-1) for name in ("theta", "tau_theta", "new_theta"))
    assert theta.mean() == pytest.approx(means.mean(), abs=0.05)
    expected = np.sqrt(means.var(ddof=1) - 0.01)
    assert expected * 0.95 < tau.mean() < expected * 1.25  # a posterior mean is above the estimate
    assert new.std() == pytest.approx(np.sqrt((tau**2).mean() + theta.var()), rel=0.08)


# --- names, output, bad input --------------------------------------------------------------------------------------


def test_names_dimensions_and_coordinates_come_back() -> None:
    arviz = pytest.importorskip("arviz")
    rng = np.random.default_rng(9)

    def site() -> Any:
        values = {"beta": rng.normal(size=(2, 300, 2)), "sigma": rng.gamma(50, 0.02, size=(2, 300)),
                  "theta": rng.normal(size=(2, 300, int(rng.integers(3, 6))))}  # fmt: skip
        return arviz.from_dict(posterior=values, coords={"column": ["age", "dose"]}, dims={"beta": ["column"]})

    pooled = co.draws.pool([site(), site()], {"beta": "normal(0, 5)", "sigma": "exponential(1)"})
    made = pooled.to_arviz()

    assert set(made.posterior.data_vars) == {"beta", "sigma"} and pooled.left == ("theta",)  # a site's own
    assert list(arviz.summary(made).index) == ["beta[age]", "beta[dose]", "sigma"]
    assert made.posterior.attrs["rule"] == "reweighted"


def test_the_same_seed_gives_the_same_draws(line: dict[str, Any]) -> None:
    sites = [co.draws.read({"beta": s["beta"][:, ::4]}, f"{k}") for k, s in enumerate(line["sites"])]
    _, _, factors = gather(sites, "flat", None, None)
    for rule in RULES.values():
        one, two = (rule(factors, 100, Key(1)).draws for _ in range(2))
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"prior": None}, "The prior shall count once"),
        ({"prior": {"beta": "normal(0, -1)"}}, "-1 is not above 0"),
        ({"prior": {"beta": "normal(0)"}}, "has 1 numbers and needs 2"),
        ({"prior": {"beta": "norml(0, 1)"}}, "Did you mean 'normal'"),
        ({"prior": {}}, "Nothing says which prior 'beta' has"),
        ({"prior": {"beta": "flat", "gamma": "flat"}}, "'gamma', which is not pooled"),
        ({"prior": {"beta": "exponential(1)"}}, "are no positive numbers"),
        ({"prior": "model"}, "Not every file holds lprior"),
        ({"rule": "gausian"}, "Did you mean 'gaussian'"),
        ({"transforms": {"beta": "positive"}}, "are no positive numbers"),
        ({"transforms": {"alpha": "real"}}, "has a transform and is not pooled"),
        ({"params": ["alpha"]}, "has no parameter 'alpha'"),
        ({"draws": 3}, "too few to describe"),
        ({"rule": "gaussian", "tau": 1.0}, "has no tau"),
        ({"tau": -1.0}, "is no scale"),
    ],
)
def test_what_cannot_be_pooled_is_refused_in_a_sentence(
    line: dict[str, Any], change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        co.draws.pool(line["sites"], **{"prior": "flat", **change})


def test_draws_that_cannot_be_pooled_are_refused(line: dict[str, Any]) -> None:
    beta = line["sites"][0]["beta"]
    for sites, sentence in (
        ([{"beta": beta}], "There is 1 site"),
        ([{"beta": beta}, {"beta": beta[..., :2]}], "No parameter is the same at all sites"),
        ([{"beta": beta, "double": 2 * beta}] * 2, "follow from each other"),
        ([{"beta": beta * 0 + 0.5}] * 2, "all the same"),
        ([{"beta": beta}, {"beta": beta[::-1]}], "site 1 and site 2 sent the same draws"),
        ([{"z": np.round(beta)}] * 2, "whole numbers"),
        ([{"beta": beta * np.nan}] * 2, "not finite"),
        ([{"beta": beta[:1, :5]}] * 2, "sent 5 draws of 3 numbers"),
    ):
        with pytest.raises(InputError, match=sentence):
            co.draws.pool(sites, "flat")


def test_a_prior_may_be_a_file_or_an_object_with_draws_of_it(line: dict[str, Any], tmp_path: Any) -> None:
    """As PyMC writes them: in the group `prior`, alone or beside a posterior, which is not taken for it."""
    arviz = pytest.importorskip("arviz")
    alone = arviz.from_dict(prior=line["prior"])
    beside = arviz.from_dict(posterior={"beta": line["sites"][0]["beta"]}, prior=line["prior"])
    alone.to_netcdf(str(tmp_path / "prior.nc"))
    sites = [co.draws.read(s, f"{k}") for k, s in enumerate(line["sites"])]
    known = gather(sites, co.draws.read(line["prior"]), None, None)[2].product

    for given in (alone, beside, tmp_path / "prior.nc", str(tmp_path / "prior.nc"), line["prior"]):
        assert torch.allclose(gather(sites, given, None, None)[2].product.mean, known.mean)
    with pytest.raises(InputError, match="no group 'posterior'"):
        co.draws.pool([alone, alone], "flat")


def test_draws_are_moved_between_gaussians_on_the_shortest_way() -> None:
    """Equal covariances: a shift. The barycentre of N(±1, 1) to the power 2 is N(0, ½)."""
    x = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x - x.mean()) / x.std()
    one = torch.eye(1, dtype=torch.float64)
    left, right = (Dense(torch.full((1,), m, dtype=torch.float64), one) for m in (-1.0, 1.0))

    torch.testing.assert_close(transport(x - 1, left, right), x + 1)
    made = barycentre([x - 1, x + 1], [left, right])
    assert float(made.mean()) == pytest.approx(0, abs=1e-9)
    assert float(made.var()) == pytest.approx(0.5, rel=1e-3)


def test_an_object_without_a_name_is_called_by_its_number(line: dict[str, Any]) -> None:
    first, second, _, last = line["sites"]
    named = [co.draws.read(site, name) for site, name in ((first, "north"), (second, "south"))]

    pooled = co.draws.pool([*named, {"beta": last["beta"] + 3}], {"beta": "normal(0, 2)"}, "gaussian")

    assert pooled.sites == ("north", "south", "site 3")
    assert "site 3 most" in pooled.verdict
