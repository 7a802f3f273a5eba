"""Hats at quantiles: broken lines of every number, laid out by rows at hand or by counts on a grid."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from tiny import Invoke

import consilience as co
from consilience.data.quantiles import find_quantiles, merge_small, quantiles_from
from consilience.key import Key
from consilience.models.hats import LEVELS, SCORES, Hats
from consilience.models.maps import describe_maps, usual_features
from consilience.serialisation.blueprint import build_network, describe_network

KNOTS = (tuple(float(k * k) for k in range(9)), (), (0.0,) * 5 + (1.0, 2.0, 2.0, 3.0))


def test_hats_are_broken_lines_with_their_corners_at_the_quantiles() -> None:
    x = torch.stack([torch.linspace(-5, 70, 200), torch.ones(200), torch.linspace(-1, 4, 200)], 1).double()
    made = Hats(3, 60, KNOTS)
    phi = made(x)
    first, third = phi[:, 3:12], phi[:, 12:16]  # of equal quantiles, one hat
    assert made.own.tolist() == [0] * 9 + [2] * 4
    for hats, places, values in ((first, KNOTS[0], x[:, 0]), (third, (0.0, 1.0, 2.0, 3.0), x[:, 2])):
        ends = values.clamp(places[0], places[-1])
        assert torch.allclose(hats.sum(1), torch.ones(200).double())
        assert torch.allclose(hats @ torch.tensor(places).double(), ends)  # a straight line is one of the lines
        bent = torch.tensor([p**3 for p in places]).double()
        assert np.allclose((hats @ bent).numpy(), np.interp(values.numpy(), places, bent.numpy()))
    assert phi.shape == (200, 60) and torch.equal(phi[:, :3], x)


def test_hats_are_fewer_and_wider_where_columns_are_many() -> None:
    counts = [Hats(20, 20 + width, (SCORES,) * 20).own.numel() for width in (600, 360, 200, 100)]
    assert counts == [180, 180, 100, 0]
    assert usual_features(15) == "hats:450" and usual_features(15, private=True) == "fourier:315"
    assert usual_features(200) == "hats:1000" and usual_features(2000) == "hats:2300"


def test_hats_come_back_from_json_and_their_quantiles_are_part_of_what_they_are() -> None:
    made = Hats(3, 60, KNOTS)
    again = build_network(json.loads(json.dumps(describe_network(made))))
    x = Key(1).normal((50, 3))
    assert torch.equal(made(x), again(x)) and describe_maps(made) == describe_maps(again)
    other = Hats(3, 60, ((*KNOTS[0][:-1], 65.0), *KNOTS[1:]))
    assert describe_maps(made) != describe_maps(other)
    for knots in (KNOTS[:2], ((1.0, 2.0), (), ()), ((2.0, 1.0) * 4 + (9.0,), (), ()), ((float("nan"),) * 9, (), ())):
        with pytest.raises(co.InputError, match="quantiles"):
            Hats(3, 60, knots)


def test_quantiles_of_counts_are_those_of_the_rows_to_a_cell() -> None:
    values = np.random.default_rng(0).gamma(2.0, 10.0, 5000)
    values = values[values < 100]
    counts, _ = np.histogram(values, 128, (0.0, 100.0))
    found = quantiles_from(counts.astype(float), (0.0, 100.0), LEVELS)
    assert np.abs(np.array(found) - np.quantile(values, LEVELS)).max() < 100 / 128
    assert quantiles_from(np.zeros(128), (0.0, 1.0), LEVELS) == ()


@pytest.mark.parametrize("smallest", [1, 5, 10, 40])
def test_no_cell_of_few_rows_is_counted_alone_and_none_is_lost(smallest: int) -> None:
    for seed in range(20):
        draw = np.random.default_rng(seed)
        counts = draw.poisson(draw.gamma(0.3, 5.0, 128)).astype(float)
        merged = merge_small(counts, smallest)
        assert merged.sum() == (counts.sum() if counts.sum() >= smallest else 0)
        assert ((merged == 0) | (merged >= smallest)).all()
        if smallest == 1:
            assert (merged == counts).all()
        both = np.stack([counts, merged]).cumsum(1)
        assert counts.sum() < smallest or np.abs(both[0] - both[1]).max() < 2 * smallest + counts.max()


def test_sites_rows_lay_hats_out_unless_privacy_is_promised(invoke: Invoke) -> None:
    sites = co.Problem("bike", sites=3, calibration=0).build_sites()
    knots = find_quantiles(sites, LEVELS)
    x = torch.cat([part.x for part in sites.train]).double()
    own = knots[sites.feature_names.index("temp")]
    place = sites.feature_names.index("temp")
    assert np.allclose(own, np.quantile(x[:, place].numpy(), LEVELS, method="inverted_cdf"))
    assert knots[sites.feature_names.index("workingday")] == ()
    words = "--sites 3 --calibration 0 --no-bounds --out"
    code, _, err = invoke("run", "exact", "--data", "bike", *words.split(), "plain")
    assert code == 0, err
    hats = co.load("plain").task.model[0]
    assert isinstance(hats, Hats) and hats.knots[place] == own
    code, _, err = invoke(
        "run", "exact", "--data", "bike", "--epsilon", "9", "--features", "hats:60", *words.split(), "p"
    )
    assert code == 0, err
    hats = next(layer for layer in co.load("p").task.model.modules() if isinstance(layer, Hats))
    assert set(hats.knots) == {SCORES}
