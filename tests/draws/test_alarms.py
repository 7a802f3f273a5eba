"""Every alarm rings where it should, and none where nothing is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import consilience as co


def site(seed: int, mean: float = 0.0, sd: float = 1.0, chains: int = 4, draws: int = 400) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, sd, size=(chains, draws))


def alarms(pooled: Any) -> dict[str, bool]:
    return {alarm.kind: alarm.stops for alarm in pooled.alarms}


def test_nothing_rings_where_nothing_is_wrong() -> None:
    pooled = co.draws.pool([{"x": site(s, 0.3 * s)} for s in range(4)], {"x": "normal(0, 10)"})

    assert pooled.alarms == () and pooled.verdict == "Nothing speaks against this pool."


def test_sites_that_cannot_be_of_one_parameter() -> None:
    sites = [{"x": site(0)}, {"x": site(1)}, {"x": site(2, 9.0)}]

    pooled = co.draws.pool(sites, "flat", "gaussian")

    assert alarms(pooled)["overlap"] and not pooled.usable
    assert pooled.verdict.startswith("Do not use this pool: The sites differ more than chance allows")
    assert "site 3 most" in pooled.verdict
    differ = co.draws.pool(sites, "flat")
    assert differ.rule == "hierarchical" and alarms(differ) == {"overlap": False}
    assert "mean over sites, not one that all have" in differ.alarms[0].sentence


def test_a_site_with_another_prior_and_one_that_is_all() -> None:
    sites = [{"x": site(0, sd=0.3)}, {"x": site(1, sd=4.0)}]
    assert alarms(co.draws.pool(sites, {"x": "normal(0, 1)"}, "gaussian"))["prior"]
    assert "prior" not in alarms(co.draws.pool(sites, {"x": "normal(0, 2)"}, "gaussian"))

    sites = [{"x": site(0, sd=0.1)}, {"x": site(1)}]
    assert alarms(co.draws.pool(sites, "flat", "gaussian")) == {"influence": False}


def test_chains_that_do_not_agree_and_few_draws() -> None:
    stuck = site(0)
    stuck[0] += 3
    walk = np.cumsum(site(1), axis=1)

    assert alarms(co.draws.pool([{"x": stuck}, {"x": site(2)}], "flat", "gaussian"))["chains"]
    assert alarms(co.draws.pool([{"x": walk}, {"x": site(2)}], "flat", "gaussian"))["chains"]
    assert alarms(co.draws.pool([{"x": site(0, draws=20)}, {"x": site(2)}], "flat"))["effective draws"]
    assert not alarms(co.draws.pool([{"x": site(0, draws=60)}, {"x": site(2)}], "flat"))["effective draws"]


def test_several_modes_and_labels_that_switch() -> None:
    two = site(0)
    two[:, ::2] += 8
    assert alarms(co.draws.pool([{"x": two}, {"x": site(1)}], "flat", "gaussian"))["modes"]

    one = np.stack([site(0, -2, 0.2), site(1, 2, 0.2)], -1)
    other = np.stack([site(2, 2, 0.2), site(3, -2, 0.2)], -1)
    pooled = co.draws.pool([{"mu": one}, {"mu": other}], "flat", "gaussian")
    assert alarms(pooled)["labels"]
    assert "number the components of mu differently" in pooled.verdict
    within = one.copy()
    within[2:] = other[2:]
    assert alarms(co.draws.pool([{"mu": within}, {"mu": one}], "flat", "gaussian"))["labels"]
    assert "labels" not in alarms(co.draws.pool([{"mu": one}, {"mu": one + 0.02}], "flat", "gaussian"))


def test_skewed_draws() -> None:
    bent = np.random.default_rng(0).gamma(1.5, size=(4, 400)) - 2
    pooled = co.draws.pool([{"x": bent}, {"x": site(1, 0.5)}], "flat", "gaussian", transforms={"x": "real"})

    assert "skewness" in alarms(pooled)


def test_sites_that_know_no_more_than_their_prior() -> None:
    """Forty sites whose draws are the prior's: what is left after taking it out 39 times is noise."""
    sites = [{"x": site(s, draws=100)} for s in range(40)]

    pooled = co.draws.pool(sites, {"x": "normal(0, 1)"}, "gaussian")

    assert "prior" in alarms(pooled)
    assert any("know little of x beyond their prior" in alarm.sentence for alarm in pooled.alarms)


def test_a_prior_against_the_rows_is_a_caution() -> None:
    pooled = co.draws.pool([{"x": site(s, 6.0, 0.5)} for s in range(3)], {"x": "normal(0, 1)"}, "gaussian")

    assert alarms(pooled)["conflict"] is False


def test_proposals_that_miss_the_posterior_are_named() -> None:
    first = co.draws.pool([{"x": site(s)} for s in range(2)], "flat", draws=400)
    asked = co.draws.ask(first, 300)
    far = [co.draws.read(co.draws.answer(asked, lambda theta: -50 * (theta["x"] - 9.0) ** 2)) for _ in range(2)]

    pooled = co.draws.correct(co.draws.read(asked), far, "flat")

    assert not pooled.usable and alarms(pooled)["weights"]


@pytest.mark.parametrize("seed", range(3))
def test_one_mode_is_not_taken_for_two(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for x in (
        rng.normal(size=(2, 300)),
        rng.standard_t(3, size=(2, 300)),
        rng.gamma(2, size=(2, 300)),
        rng.random((2, 300)),
    ):
        found = alarms(co.draws.pool([{"x": x}, {"x": x + 0.01}], "flat", "gaussian", transforms={"x": "real"}))
        assert "modes" not in found
