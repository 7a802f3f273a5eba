"""Splits with major and dominant classes keep the contract of all splits and give the papers' counts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import equal, keeps_its_contract, labelled

from consilience.data import datasets
from consilience.data.datasets.synthetic import swiss_roll
from consilience.data.splits.skew import dominant, step
from consilience.data.splits.split import Rows, Split
from consilience.errors import InputError
from consilience.key import Key

SPLITS = st.one_of(
    st.builds(step, st.integers(1, 4), st.integers(0, 20)),
    st.floats(0, 1, exclude_min=True).map(dominant),
    st.sampled_from([0.1, 0.5, 0.8, 1.0]).map(dominant),
)


def equal_classes(classes: int, each: int) -> Rows:
    return labelled(torch.arange(classes * each) % classes, classes)


def counts(rows: Rows, parts: list[torch.Tensor]) -> torch.Tensor:
    """[K, C]"""
    return torch.stack([torch.bincount(rows.y[part], minlength=rows.classes or 0) for part in parts])


@settings(max_examples=150)
@given(SPLITS, st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 2**40), st.data())
def test_disjoint_complete_never_empty_deterministic(
    split: Split, labels: list[int], seed: int, data: st.DataObject
) -> None:
    rows, sites = labelled(labels), data.draw(st.integers(1, len(labels)))

    keeps_its_contract(split, rows, sites, seed)


@pytest.mark.parametrize("split", [step(1, 2), step(3), dominant(0.5), dominant(1)])
def test_the_key_matters(split: Split) -> None:
    rows = equal_classes(4, 50)

    assert not equal(split(rows, 3, Key(0)), split(rows, 3, Key(1)))


@pytest.mark.parametrize(
    ("classes", "each", "sites", "major", "minor", "many"),
    [
        # Chen and Chao 2021 print all three. CIFAR-10 (§5.2): 4000 rows a class, 10 sites, 2 major classes of 1960.
        (10, 4000, 10, 2, 10, 1960),
        # Tiny-ImageNet (§5.3): 450 rows a class, 100 sites, 2 major classes of 351 rows, one row of the others.
        (200, 450, 100, 2, 1, 351),
        # CIFAR-100 (App. C.7): 400 rows a class, 100 sites, 5 major classes of 61 rows, one row of the others.
        (100, 400, 100, 5, 1, 61),
    ],
)
def test_step_gives_the_papers_counts(classes: int, each: int, sites: int, major: int, minor: int, many: int) -> None:
    rows = equal_classes(classes, each)

    found = counts(rows, step(major, minor)(rows, sites, Key(3)))

    assert ((found == many) | (found == minor)).all()
    assert ((found == many).sum(1) == major).all()
    assert ((found == many).sum(0) == sites * major // classes).all()  # every class is major equally often


def test_step_where_classes_are_major_unequally_often() -> None:
    rows = equal_classes(4, 100)

    found = counts(rows, step(1, 5)(rows, 6, Key(0)))  # two classes are major at two sites, two at one

    # 100 − 4·5 = 80 rows over two major sites, or 100 − 5·5 = 75 at one.
    assert sorted(found[found != 5].tolist()) == [40, 40, 40, 40, 75, 75]
    assert ((found != 5).sum(1) == 1).all()


def test_step_deals_a_class_that_is_major_nowhere_evenly() -> None:
    rows = equal_classes(4, 60)

    found = counts(rows, step(1, 5)(rows, 3, Key(0)))

    assert sorted(found.sum(0).tolist()) == [60] * 4
    # Three classes are major at one site each, 60 − 2·5 = 50; the fourth is 20, 20, 20.
    assert sorted(found.flatten().tolist()) == [5] * 6 + [20] * 3 + [50] * 3


def test_step_with_rare_classes_never_gives_a_minor_site_more() -> None:
    rows = labelled([0] * 7 + [1] * 2 + [2] * 300, classes=4)

    found = counts(rows, step(2, 10)(rows, 3, Key(1)))

    # 7 rows over 3 sites leave at most 7 // 3 = 2 to a minor one, 2 rows none; 300 leave 10; class 3 has no rows.
    assert found.sum(0).tolist() == [7, 2, 300, 0]
    for c, few in ((0, 2), (1, 0), (2, 10)):
        assert int(found[:, c].min()) == few or int(found[:, c].max() - found[:, c].min()) <= 1


def test_three_sites_with_four_fifths_of_one_class() -> None:
    rows = equal_classes(3, 300)

    found = counts(rows, dominant(0.8)(rows, 3, Key(0)))

    # Chen and Chao 2021, §3.3: the same amount everywhere, 80 % of one class, 20 % of the two others.
    assert sorted(found.tolist()) == [[30, 30, 240], [30, 240, 30], [240, 30, 30]]


def test_dominant_with_more_sites_than_classes_and_fewer() -> None:
    rows = equal_classes(4, 700)

    more = counts(rows, dominant(0.8)(rows, 8, Key(0)))
    fewer = counts(rows, dominant(0.8)(rows, 2, Key(0)))

    # Eight sites: a class has two, 0.8·700/2 = 280 rows each, and 140/6 = 23⅓ at the six others: four fifths of 350.
    assert ((more == 280).sum(0) == 2).all() and ((more == 280).sum(1) == 1).all()
    assert set(more[more != 280].tolist()) == {23, 24}
    # Two sites: two classes each, 560 rows of both and 140 of the others: four fifths of 1400.
    assert [sorted(row) for row in fewer.tolist()] == [[140, 140, 560, 560]] * 2


def test_dominant_at_its_end() -> None:
    rows = equal_classes(4, 10)

    found = counts(rows, dominant(1)(rows, 4, Key(0)))

    assert [sorted(row) for row in found.tolist()] == [[0, 0, 0, 10]] * 4


@pytest.mark.parametrize("split", [step(1, 10), dominant(0.8)])
def test_test_rows_follow_the_training_rows(split: Split) -> None:
    rows, test = equal_classes(4, 400), equal_classes(4, 40)
    parts = split(rows, 4, Key(0))
    train = [rows.take(part) for part in parts]

    found = counts(test, split.follow(test, train, Key(1)))

    # A tenth of a site's training rows of every class, up to the rounding of shares.
    assert (found - counts(rows, parts) / 10).abs().max() < 1
    assert found.sum() == 160


def test_impossible_requests() -> None:
    with pytest.raises(InputError, match="5 major classes of 4"):
        step(5)(equal_classes(4, 10), 2, Key(0))
    for split in (step(2), dominant(0.8)):
        with pytest.raises(InputError, match="a regression has none"):
            split(Rows(torch.zeros(10, 1), torch.zeros(10), None, None), 2, Key(0))


# The swiss roll


def test_the_swiss_roll_is_a_spiral_in_three_equal_parts() -> None:
    d = swiss_roll(n=900, noise=0.0)

    radius = d.x.norm(dim=1)
    # Without noise a point at t is (t cos t, t sin t) / 4.5π with t from 1.5π to 4.5π: the radius is t / 4.5π.
    assert torch.bincount(d.y).tolist() == [300, 300, 300]
    assert 1 / 3 - 1e-6 <= float(radius.min()) < 0.35 and 0.98 < float(radius.max()) <= 1 + 1e-6
    t = radius * 4.5 * torch.pi
    torch.testing.assert_close(d.x, torch.stack([t * t.cos(), t * t.sin()], 1) / (4.5 * torch.pi), atol=1e-5, rtol=0)
    for c in (0, 1):  # one class after another along the roll
        assert radius[d.y == c].max() < radius[d.y == c + 1].min()


def test_the_swiss_roll_has_noise_and_a_seed() -> None:
    clean, noisy, other = swiss_roll(noise=0.0), swiss_roll(noise=0.5), swiss_roll(seed=1)

    away = (noisy.x - clean.x) * 4.5 * torch.pi

    # 3000 numbers: the deviation's own deviation is 0.5 / sqrt(6000) = 0.0065; four of them.
    assert abs(float(away.std()) - 0.5) < 0.026
    assert torch.equal(noisy.y, clean.y)
    assert not torch.equal(noisy.x, other.x)
    assert torch.equal(datasets.load("swiss_roll").x, noisy.x)
    with pytest.raises(InputError, match="at least 3"):
        swiss_roll(n=2)


def test_the_papers_three_sites() -> None:
    sites = swiss_roll().split(dominant(0.8), sites=3)

    largest = [float(torch.bincount(part.y, minlength=3).max() / len(part.y)) for part in sites.train]

    # Test and server rows are taken at random, about 390 of 500 a class stay; 80 % within the chance of that, 4 points.
    assert all(abs(share - 0.8) < 0.04 for share in largest)
