"""Nine models that people fit, in NumPyro, with made rows for five sites.

Every fit has arrays of the same shape: `seen` says which rows count, so that a model is compiled once. Numbers that
belong to a group of rows (a school, a ward) stay at its site; the others are pooled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

numpyro.enable_x64()

SITES = 5
Rows = dict[str, Any]


class Case(NamedTuple):
    title: str
    model: Callable[..., None]
    make: Callable[[np.random.Generator, list[int]], Rows]
    prior: Mapping[str, str]  # of the parameters that are pooled
    sizes: Mapping[str, list[int]]  # rows, or groups of rows, a site
    transforms: Mapping[str, str] = {}
    likelihood: Callable[..., Any] | None = None  # log p(D | θ), where nothing is to be integrated out


def sizes(equal: int, few: int) -> dict[str, list[int]]:
    whole = SITES * equal
    uneven = [int(whole * share) for share in (0.25, 0.12, 0.08, 0.05)]
    return {"equal": [equal] * SITES, "skewed": [whole - sum(uneven), *uneven], "few rows": [few] * SITES}


def site_of(counts: list[int]) -> np.ndarray:
    return np.repeat(np.arange(SITES), counts)


def covariates(rng: np.random.Generator, counts: list[int], width: int) -> np.ndarray:
    """Columns whose first has another mean at every site."""
    x = rng.normal(size=(sum(counts), width))
    x[:, 0] += np.linspace(-0.7, 0.7, SITES)[site_of(counts)]
    return x


def log_of(name: str) -> Callable[..., Any]:
    return lambda theta, rows: (LIKELIHOODS[name](theta, rows) * rows["seen"]).sum()


# --- generalised linear models -----------------------------------------------------------------------------------

BETA = np.array([0.8, -0.5, 0.3])


def _eta(theta: Mapping[str, Any], rows: Rows) -> Any:
    return theta["alpha"] + rows["x"] @ theta["beta"]


def _negative_binomial(theta: Mapping[str, Any], rows: Rows) -> Any:
    return dist.NegativeBinomial2(jnp.exp(_eta(theta, rows)), theta["phi"]).log_prob(rows["y"])


def _weibull(theta: Mapping[str, Any], rows: Rows) -> Any:
    k, eta, t = theta["shape"], _eta(theta, rows), rows["t"]
    hazard = jnp.log(k) + (k - 1) * jnp.log(t) + eta
    return rows["died"] * hazard - t**k * jnp.exp(eta)


def _autoregression(theta: Mapping[str, Any], rows: Rows) -> Any:
    mean = theta["c"] + theta["phi"] * rows["before"]
    return dist.Normal(mean, theta["sigma"]).log_prob(rows["y"])


def _two_normals(theta: Mapping[str, Any], rows: Rows) -> Any:
    y = rows["y"][:, None]
    weights = jnp.stack([theta["share"], 1 - theta["share"]])
    each = jnp.log(weights) + dist.Normal(theta["mu"], theta["sigma"]).log_prob(y)
    return jax.scipy.special.logsumexp(each, axis=1)


def _process(theta: Mapping[str, Any], rows: Rows) -> Any:
    """Five functions of one kind; each row of y is a site's."""
    t, y, seen = rows["t"], rows["y"], rows["inside"]
    square = (t[:, :, None] - t[:, None, :]) ** 2
    k = theta["amplitude"] ** 2 * jnp.exp(-0.5 * square / theta["length"] ** 2)
    k = k * seen[:, :, None] * seen[:, None, :]
    diagonal = jnp.where(seen > 0, theta["noise"] ** 2, 1.0)
    lower = jnp.linalg.cholesky(k + diagonal[:, :, None] * jnp.eye(t.shape[1]))
    z = jax.scipy.linalg.solve_triangular(lower, (y * seen)[:, :, None], lower=True)[..., 0]
    logs = jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(1)
    return -0.5 * (z**2).sum(1) - logs


LIKELIHOODS: dict[str, Callable[..., Any]] = {
    "logistic": lambda theta, rows: dist.Bernoulli(logits=_eta(theta, rows)).log_prob(rows["y"]),
    "poisson": lambda theta, rows: dist.Poisson(jnp.exp(_eta(theta, rows))).log_prob(rows["y"]),
    "negative binomial": _negative_binomial,
    "weibull": _weibull,
    "autoregression": _autoregression,
    "two normals": _two_normals,
    "gaussian process": _process,
}


def regression(name: str, extra: Mapping[str, Any]) -> Callable[..., None]:
    def model(rows: Rows) -> None:
        theta = {"alpha": numpyro.sample("alpha", dist.Normal(0, 2.5))}
        theta["beta"] = numpyro.sample("beta", dist.Normal(0, 2.5).expand([rows["x"].shape[1]]).to_event(1))
        for other, prior in extra.items():
            theta[other] = numpyro.sample(other, prior)
        numpyro.factor("rows", log_of(name)(theta, rows))

    return model


def make_logistic(rng: np.random.Generator, counts: list[int]) -> Rows:
    x = covariates(rng, counts, 3)
    return {"x": x, "y": rng.binomial(1, 1 / (1 + np.exp(0.5 - x @ BETA)))}


def make_poisson(rng: np.random.Generator, counts: list[int]) -> Rows:
    x = covariates(rng, counts, 3)
    return {"x": x, "y": rng.poisson(np.exp(0.3 + 0.6 * x @ BETA))}


def make_negative_binomial(rng: np.random.Generator, counts: list[int]) -> Rows:
    x = covariates(rng, counts, 3)
    mean = np.exp(0.8 + 0.6 * x @ BETA) * rng.gamma(2.0, 0.5, len(x))
    return {"x": x, "y": rng.poisson(mean)}


def make_weibull(rng: np.random.Generator, counts: list[int]) -> Rows:
    x = covariates(rng, counts, 3)
    time = (rng.exponential(size=len(x)) / np.exp(-0.2 + x @ BETA)) ** (1 / 1.5)
    end = rng.uniform(0.5, 3.0, len(x))
    return {"x": x, "t": np.minimum(time, end), "died": (time <= end).astype(float)}


LINE = {"alpha": "normal(0, 2.5)", "beta": "normal(0, 2.5)"}


# --- groups ------------------------------------------------------------------------------------------------------


def schools(rows: Rows) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([len(rows["y"])]).to_event(1))
    numpyro.factor("rows", (dist.Normal(mu + tau * z, rows["error"]).log_prob(rows["y"]) * rows["seen"]).sum())


def make_schools(rng: np.random.Generator, counts: list[int]) -> Rows:
    error = rng.uniform(4, 9, sum(counts))
    return {"y": 6 + 5 * rng.normal(size=len(error)) + error * rng.normal(size=len(error)), "error": error}


WARD = 10  # rows a ward


def wards(rows: Rows) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 2.5))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([len(rows["y"]) // WARD]).to_event(1))
    mean = mu + jnp.repeat(tau * z, WARD) + beta * rows["x"]
    numpyro.factor("rows", (dist.Normal(mean, sigma).log_prob(rows["y"]) * rows["seen"]).sum())


def make_wards(rng: np.random.Generator, counts: list[int]) -> Rows:
    x = covariates(rng, [c * WARD for c in counts], 1)[:, 0]
    return {"x": x, "y": 1 + np.repeat(0.6 * rng.normal(size=sum(counts)), WARD) + 0.5 * x + rng.normal(size=len(x))}


# --- one series, or one curve, a site ------------------------------------------------------------------------------


def autoregression(rows: Rows) -> None:
    theta = {
        "c": numpyro.sample("c", dist.Normal(0, 2.5)),
        "phi": numpyro.sample("phi", dist.Uniform(-1, 1)),
        "sigma": numpyro.sample("sigma", dist.HalfNormal(2)),
    }
    numpyro.factor("rows", log_of("autoregression")(theta, rows))


def make_autoregression(rng: np.random.Generator, counts: list[int]) -> Rows:
    parts = []
    for count in counts:
        y = [1.0]
        for _ in range(count):
            y.append(0.3 + 0.7 * y[-1] + 0.8 * rng.normal())
        parts.append(np.array([y[1:], y[:-1]]))
    after, before = np.concatenate(parts, 1)
    return {"y": after, "before": before}


def two_normals(rows: Rows) -> None:
    ordered = dist.TransformedDistribution(
        dist.Normal(0, 1).expand([2]).to_event(1), dist.transforms.OrderedTransform()
    )
    theta = {
        "share": numpyro.sample("share", dist.Beta(2, 2)),
        "mu": numpyro.sample("mu", ordered),
        "sigma": numpyro.sample("sigma", dist.LogNormal(0, 0.5).expand([2]).to_event(1)),
    }
    numpyro.factor("rows", log_of("two normals")(theta, rows))


def make_two_normals(rng: np.random.Generator, counts: list[int]) -> Rows:
    upper = rng.random(sum(counts)) > 0.4
    return {"y": np.where(upper, 2.0, -0.5) + np.where(upper, 0.8, 0.6) * rng.normal(size=len(upper))}


def process(rows: Rows) -> None:
    theta = {
        "amplitude": numpyro.sample("amplitude", dist.HalfNormal(2)),
        "length": numpyro.sample("length", dist.InverseGamma(3, 1)),
        "noise": numpyro.sample("noise", dist.HalfNormal(1)),
    }
    numpyro.factor("rows", _process(theta, rows).sum())


def make_process(rng: np.random.Generator, counts: list[int]) -> Rows:
    most = 80  # the same for all splits, so that it compiles once
    t = np.zeros((SITES, most))
    y = np.zeros((SITES, most))
    for k, count in enumerate(counts):
        at = np.sort(rng.uniform(0, 4, count))
        var = np.exp(-0.5 * (at[:, None] - at) ** 2 / 0.5**2) + 0.09 * np.eye(count)
        t[k, :count], y[k, :count] = at, np.linalg.cholesky(var) @ rng.normal(size=count)
    inside = (np.arange(most) < np.array(counts)[:, None]).astype(float)
    return {"t": t, "y": y, "inside": inside}


CASES = {
    "schools": Case(
        "eight schools a site",
        schools,
        make_schools,
        {"mu": "normal(0, 5)", "tau": "halfcauchy(5)"},
        {"equal": [8] * SITES, "skewed": [16, 10, 6, 5, 3], "few rows": [3] * SITES},
    ),
    "logistic": Case(
        "logistic regression", regression("logistic", {}), make_logistic, LINE, sizes(150, 25),
        likelihood=log_of("logistic"),
    ),
    "poisson": Case(
        "Poisson regression", regression("poisson", {}), make_poisson, LINE, sizes(100, 15),
        likelihood=log_of("poisson"),
    ),
    "wards": Case(
        "varying intercepts",
        wards,
        make_wards,
        {"mu": "normal(0, 5)", "beta": "normal(0, 2.5)", "tau": "halfnormal(1)", "sigma": "exponential(1)"},
        {"equal": [10] * SITES, "skewed": [25, 12, 6, 4, 3], "few rows": [3] * SITES},
    ),
    "negative binomial": Case(
        "negative binomial",
        regression("negative binomial", {"phi": dist.Gamma(2, 0.5)}),
        make_negative_binomial,
        {**LINE, "phi": "gamma(2, 0.5)"},
        sizes(120, 20),
        likelihood=log_of("negative binomial"),
    ),
    "two normals": Case(
        "mixture of two normals",
        two_normals,
        make_two_normals,
        {},  # a function, below
        sizes(120, 25),
        {"mu": "ordered"},
        log_of("two normals"),
    ),
    "autoregression": Case(
        "AR(1) series",
        autoregression,
        make_autoregression,
        {"c": "normal(0, 2.5)", "phi": "uniform(-1, 1)", "sigma": "halfnormal(2)"},
        sizes(80, 15),
        likelihood=log_of("autoregression"),
    ),
    "gaussian process": Case(
        "Gaussian process, three hyper-parameters",
        process,
        make_process,
        {"amplitude": "halfnormal(2)", "length": "inversegamma(3, 1)", "noise": "halfnormal(1)"},
        {"equal": [40] * SITES, "skewed": [80, 50, 35, 20, 15], "few rows": [12] * SITES},
        likelihood=lambda theta, rows: _process(theta, rows).sum(),
    ),
    "weibull": Case(
        "Weibull survival",
        regression("weibull", {"shape": dist.HalfNormal(2)}),
        make_weibull,
        {**LINE, "shape": "halfnormal(2)"},
        sizes(100, 15),
        likelihood=log_of("weibull"),
    ),
}  # fmt: skip


def two_normals_prior(theta: Mapping[str, Any]) -> float:
    """The mixture's prior: the ordered means are an image of two independent normals."""
    share, mu, sigma = float(theta["share"]), theta["mu"], theta["sigma"]
    step = np.log(mu[1] - mu[0])
    logs = np.log(share) + np.log1p(-share) - 0.5 * mu[0] ** 2 - 0.5 * step**2 - step
    return float(logs - (np.log(sigma) + 0.5 * (np.log(sigma) / 0.5) ** 2).sum())


def prior_of(name: str) -> Any:
    if name == "two normals":
        return two_normals_prior
    return CASES[name].prior


def mask(name: str, counts: list[int], site: int | None) -> Callable[[Rows], Rows]:
    """The rows of one site, or of all: the others are there and do not count."""

    def part(rows: Rows) -> Rows:
        if name == "gaussian process":
            if site is None:
                return rows
            return {key: value[site : site + 1] for key, value in rows.items()}  # a curve each
        owners, most = site_of(counts), max(map(sum, CASES[name].sizes.values()))
        if name == "wards":
            owners, most = np.repeat(owners, WARD), most * WARD
        seen = np.ones(len(owners))
        if site is not None:
            seen = (owners == site).astype(float)
        fill = max(0, most - len(owners))  # rows that do not count, so that a model is compiled once
        longer = {key: np.concatenate([value, np.repeat(value[-1:], fill, 0)]) for key, value in rows.items()}
        return {**longer, "seen": np.pad(seen, (0, fill))}

    return part


def world_of(name: str, rng: np.random.Generator) -> tuple[dict[str, Any], Rows, list[int]]:
    """Parameters drawn about the case's own, and rows of five equal sites."""
    counts = [80] * SITES
    x = covariates(rng, counts, 3)
    truth = {"alpha": rng.normal(0, 0.5), "beta": BETA + 0.3 * rng.normal(size=3)}
    eta = truth["alpha"] + x @ truth["beta"]
    if name == "logistic":
        return truth, {"x": x, "y": rng.binomial(1, 1 / (1 + np.exp(-eta)))}, counts
    if name == "weibull":
        truth["shape"] = rng.uniform(0.8, 2.0)
        time = (rng.exponential(size=len(x)) / np.exp(eta)) ** (1 / truth["shape"])
        end = rng.uniform(0.5, 3.0, len(x))
        return truth, {"x": x, "t": np.minimum(time, end), "died": (time <= end).astype(float)}, counts
    raise SystemExit(f"There are no worlds of {name}.")
