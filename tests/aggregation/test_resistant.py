"""Rules that no single client decides: what they are, what they bound, and that their defaults change nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience.aggregation import average, cap_evidence, median, multiply, trimmed
from consilience.distributions.posterior import Dense, Gaussian, Point
from consilience.errors import InputError
from consilience.key import Key
from consilience.method.declared import averages
from consilience.methods import METHODS
from consilience.methods.gaussian_product import GaussianProduct
from consilience.runs.run import Compute
from consilience.serialisation.settings import configure, describe, restore

RULED = sorted(name for name, kind in METHODS.items() if "average" in str(getattr(kind(), "rule", "")))


def points(*values: float) -> list[Point]:
    return [Point({"w": torch.tensor([value, -value])}) for value in values]


@pytest.mark.parametrize(
    ("rule", "values", "expected"),
    [
        (median, (1.0, 2.0, 1e30), 2.0),
        (median, (1.0, 2.0, 3.0, 1e30), 2.5),
        (trimmed, (1.0, 2.0, 3.0, 1e30), 2.5),
        (trimmed, (*map(float, range(10)), 1e30, -1e30), 4.5),  # a fifth of twelve is two
        (trimmed, (1.0, 5.0), 3.0),
        (median, (4.0,), 4.0),
    ],
)
def test_one_client_does_not_move_them_beyond_the_others(
    rule: object, values: tuple[float, ...], expected: float
) -> None:
    found = rule(points(*values), torch.tensor(values))  # type: ignore[operator]

    assert found.params["w"].tolist() == pytest.approx([expected, -expected])


def test_which_methods_have_a_rule() -> None:
    assert RULED == ["fedadam", "fedavg", "fedavgm", "fedprox", "fedyogi"]


@pytest.mark.parametrize("name", RULED)
def test_a_lie_moves_the_average_and_hardly_the_median(name: str) -> None:
    task, sites = tiny.classification()
    method = tiny.method(name)
    result = co.run(method, task, sites, rounds=1, engine="sequential")
    begin = method.init(task, result.server)
    wild = Point({k: 1e6 * v for k, v in result.replies[1].payload.params.items()})
    lied = [reply._replace(payload=wild) if reply.client == 1 else reply for reply in result.replies]

    def largest(rule: object) -> float:
        robust = dataclasses.replace(method, rule=rule)  # type: ignore[type-var]
        params = robust.aggregate(task, begin, lied, result.server).posterior.params
        return max(float((leaf - begin.posterior.params[k]).abs().max()) for k, leaf in params.items())

    assert not averages(dataclasses.replace(method, rule=median)) and averages(method)  # type: ignore[type-var]
    assert largest(median) < 1 and largest(trimmed) < 1
    assert largest(average) > (0.09 if name in ("fedadam", "fedyogi") else 1e3)  # whose steps are bounded anyway


def gaussians(dense: bool, claims: tuple[float, ...]) -> list[Gaussian | Dense]:
    means = [Key(k).normal((3,)) for k in range(len(claims))]
    if dense:
        return [Dense(m, (1 + claim) * torch.eye(3)) for m, claim in zip(means, claims, strict=True)]
    return [
        Gaussian({"w": m}, {"w": torch.full((3,), 1 / (1 + claim))}) for m, claim in zip(means, claims, strict=True)
    ]


@pytest.mark.parametrize("dense", [False, True])
def test_no_client_claims_more_than_some_times_the_median_one(dense: bool) -> None:
    prior = Dense(torch.zeros(3), torch.eye(3)) if dense else Gaussian({"w": torch.zeros(3)}, {"w": torch.ones(3)})
    factors = gaussians(dense, (10.0, 12.0, 1e6, 8.0))

    capped = cap_evidence(factors, prior, 3.0)

    assert all(a is b for a, b in zip([*capped[:2], capped[3]], [*factors[:2], factors[3]], strict=True))
    alone = multiply([capped[2]], prior)  # type: ignore[arg-type]
    precision = alone.precision.diagonal() if isinstance(alone, Dense) else 1 / alone.var["w"]
    mean = alone.mean if isinstance(alone, Dense) else alone.mean["w"]
    assert precision.tolist() == pytest.approx([1 + 3 * 11.0] * 3, rel=1e-4)  # the prior's 1, and 3 × the median claim
    assert torch.allclose(mean, Key(2).normal((3,)) * 33 / 34, atol=1e-4)  # its own, drawn towards the prior's


def test_a_cap_bounds_what_one_site_moves() -> None:
    task, sites = tiny.classification()
    result = co.run(GaussianProduct(tiny.shortened(co.Laplace())), task, sites, engine="sequential", scored=False)
    first = result.replies[0]
    liar = Gaussian({k: -v for k, v in first.payload.mean.items()}, {k: 1e-9 * v for k, v in first.payload.var.items()})
    lied = [first._replace(payload=liar), *result.replies[1:]]
    x = sites.all_test.x

    def wrong(cap: float) -> float:
        method = GaussianProduct(cap=cap)
        honest, moved = (method.aggregate(task, None, replies, result.server) for replies in (result.replies, lied))  # type: ignore[arg-type]
        p, q = (method.predictive(task, state)(x).probs for state in (honest, moved))  # type: ignore[union-attr]
        return float((p - q).abs().mean())

    assert wrong(1.0) < 0.5 * wrong(0.0)


def test_defaults_are_no_part_of_what_identifies_a_run() -> None:
    for name in (*RULED, "gaussian_product"):
        settings = describe(METHODS[name]())
        assert "rule" not in settings and "cap" not in settings
        assert restore(settings) == METHODS[name]()
    changed = configure(METHODS["fedavg"](), ["rule=trimmed"])
    assert describe(changed)["rule"] == "trimmed" and restore(describe(changed)) == changed


def test_a_rule_survives_its_folder_and_folds_nothing(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    method = dataclasses.replace(tiny.method("fedavg"), rule=median)  # type: ignore[type-var]

    kept = co.run(method, task, sites, rounds=2, out=tmp_path / "run", engine=Compute("sequential"))
    folded = co.run(method, task, sites, rounds=2, keep_replies="none", engine="sequential")

    assert co.load(tmp_path / "run").method == method
    assert tiny.equal([*kept.state.posterior.params.values()], [*folded.state.posterior.params.values()])


@pytest.mark.parametrize(
    ("method", "change", "said"),
    [
        ("fedavg", "rule=eaa", "should be one of average, median, pooled_variance, trimmed"),
        ("variational", "rule=median", "should be one of aalv, cf, eaa, gaa, ppa"),
        ("gaussian_product", "cap=many", "of type float"),
    ],
)
def test_a_rule_of_another_kind_is_refused(method: str, change: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        configure(METHODS[method](), [change])


def test_a_cap_below_one_is_refused() -> None:
    task, sites = tiny.classification()
    with pytest.raises(InputError, match="give 1 or more, or 0 for no cap"):
        co.run(GaussianProduct(cap=0.5), task, sites)
