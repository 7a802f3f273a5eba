"""Uncertainty and its parts: total, aleatoric, epistemic, and what the sites disagree about."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import consilience as co
from consilience.distributions.predictive import Categorical, Distribution, Normal, tempered
from consilience.errors import InputError
from consilience.key import Key
from consilience.metrics.evaluate import uncertainty
from consilience.metrics.uncertainty import belonging_to, decompose

Make: TypeAlias = Callable[[int, int, int], tuple[list[list[Distribution]], Tensor]]


def sites_of_classes(seed: int, sites: int, members: int) -> tuple[list[list[Categorical]], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: Categorical(torch.log_softmax(3 * torch.randn(6, 4, generator=generator), -1))
    weights = torch.rand(sites, generator=generator) + 0.1
    return [[draw() for _ in range(members + k)] for k in range(sites)], weights / weights.sum()


def sites_of_numbers(seed: int, sites: int, members: int) -> tuple[list[list[Normal]], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: Normal(torch.randn(6, generator=generator), *torch.rand(2, 6, generator=generator))
    weights = torch.rand(sites, generator=generator) + 0.1
    return [[draw() for _ in range(members + k)] for k in range(sites)], weights / weights.sum()


@pytest.mark.parametrize("make", [sites_of_classes, sites_of_numbers])
@given(seed=st.integers(0, 10**6), sites=st.integers(1, 4), members=st.integers(1, 3))
@settings(max_examples=40)
def test_uncertainty_splits_into_parts_that_add_up(make: Make, seed: int, sites: int, members: int) -> None:
    found = decompose(*make(seed, sites, members))

    for part in found:
        assert part.shape == (6,)
        assert bool((part >= 0).all())
    torch.testing.assert_close(found.total, found.aleatoric + found.epistemic, atol=1e-5, rtol=1e-5)
    assert bool((found.disagreement <= found.epistemic).all())
    if sites == 1:
        torch.testing.assert_close(found.disagreement, torch.zeros(6), atol=1e-6, rtol=0)


def test_two_certain_sites_that_contradict_each_other_disagree_by_one_bit() -> None:
    yes, no = Categorical(torch.tensor([[0.0, 1.0]]).log()), Categorical(torch.tensor([[1.0, 0.0]]).log())

    found = decompose([[yes, yes], [no]], torch.tensor([0.5, 0.5]))

    # No member has entropy; the half-half mixture has log 2, all of it between the sites.
    assert [float(part) for part in found] == pytest.approx([math.log(2), 0, math.log(2), math.log(2)])


def test_members_that_contradict_each_other_within_a_site_are_epistemic_without_disagreement() -> None:
    yes, no = Categorical(torch.tensor([[0.0, 1.0]]).log()), Categorical(torch.tensor([[1.0, 0.0]]).log())

    found = decompose([[yes, no], [no, yes]], torch.tensor([0.3, 0.7]))

    assert [float(part) for part in found] == pytest.approx([math.log(2), 0, math.log(2), 0])


def test_variances_follow_the_law_of_total_variance() -> None:
    at = lambda mean, var, noise: Normal(*(torch.tensor([v], dtype=torch.float64) for v in (mean, var, noise)))

    found = decompose([[at(0.0, 0.1, 1.0), at(2.0, 0.3, 1.0)], [at(5.0, 0.0, 3.0)]], torch.tensor([0.25, 0.75]))

    # Noise: ¼·1 + ¾·3 = 2.5. Site means 1 and 5, pooled 4: ¼·9 + ¾·1 = 3. Within site one: 0.2 + 1, weighted ¼: 0.3.
    assert [float(part) for part in found] == pytest.approx([5.8, 2.5, 3.3, 3.0])


def test_variances_of_several_outputs_add() -> None:
    (site,), weights = sites_of_numbers(0, 1, 3)
    twice = [Normal(*(torch.stack([part, part], 1) for part in p)) for p in site]

    one, two = decompose([site], weights), decompose([twice], weights)

    torch.testing.assert_close(two.total, 2 * one.total)
    torch.testing.assert_close(two.epistemic, 2 * one.epistemic)


def test_sites_without_weights_or_members_are_refused() -> None:
    sites, weights = sites_of_classes(0, 2, 1)

    with pytest.raises(InputError, match="2 sites and 1 weights"):
        decompose(sites, weights[:1])
    with pytest.raises(InputError, match="at least one member"):
        decompose([sites[0], []], weights)


def test_noise_that_pools_count_as_the_function_is_no_doubt_about_the_weights() -> None:
    x = Key(0).normal((60, 2))
    sites = co.from_arrays(x, x[:, 0]).split(co.splits.iid(), 2)
    network = co.models.mlp(2, hidden=(4,))
    sampler = co.CyclicalSGHMC(epochs=4, cycles=1, samples=2)
    found = [
        co.run(co.methods.Mixture(sampler), co.regression(network, noise=0.5, latent=latent), sites, scored=False)
        for latent in (True, False)
    ]
    apart, within = (
        uncertainty(r.method, r.task, r.state, sites.all_test.x, r.model()(sites.all_test.x)) for r in found
    )
    torch.testing.assert_close(within.aleatoric, torch.full_like(within.total, 0.5))
    torch.testing.assert_close(within.epistemic, apart.epistemic, rtol=1e-4, atol=1e-5)


def test_parts_are_those_of_the_prediction_beside_them_whatever_its_members_say() -> None:
    """p = 0.942 of a mode whose draws are all certain: H = 0.2214 nats, none of it in the outcome."""
    certain = decompose([[classes(1.0, 0.0), classes(0.0, 1.0)]], torch.ones(1))
    mode = classes(0.942, 0.058)
    entropy = -(0.942 * math.log(0.942) + 0.058 * math.log(0.058))

    found = belonging_to(mode, certain)
    assert float(certain.epistemic) == pytest.approx(math.log(2))  # which is no part of 0.2214
    assert (float(found.total), float(found.aleatoric), float(found.epistemic)) == pytest.approx((entropy, 0, entropy))

    surer = belonging_to(mode, decompose([[classes(0.7, 0.3)], [classes(0.7, 0.3)]], torch.ones(2)))
    assert float(surer.aleatoric) == pytest.approx(entropy) and float(surer.epistemic) == 0

    shown = belonging_to(mode, certain, tempered(mode, 2.0))
    hot = tempered(mode, 2.0).probs
    assert float(shown.epistemic) == pytest.approx(float(torch.special.entr(hot).sum()), rel=1e-6)

    number = Normal(torch.zeros(1), torch.tensor([0.2]), torch.tensor(0.5))
    split = decompose([[Normal(torch.zeros(1), torch.zeros(1), torch.tensor(0.9))]], torch.ones(1))
    parts = belonging_to(number, split)
    assert (float(parts.aleatoric), float(parts.epistemic)) == pytest.approx((0.5, 0.2))


def classes(*probs: float) -> Categorical:
    return Categorical(torch.tensor([probs], dtype=torch.float64).log())
