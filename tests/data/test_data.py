"""Data sets, the roles of their rows, and scaling."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from consilience.data import datasets
from consilience.data.arrays import from_arrays
from consilience.data.dataset import Dataset
from consilience.data.datasets.synthetic import (
    DATASETS,
    INTERVALS,
    digits,
    linear_gaussian,
    linear_gaussian_truth,
    moons,
    sine,
    sine_truth,
)
from consilience.data.sites import Sites, narrow
from consilience.data.splits.labels import dirichlet, heterogeneous, iid, natural
from consilience.data.splits.split import Split
from consilience.errors import InputError


def numbered(n: int = 100, classes: int = 4, sites: int = 3) -> Dataset:
    """Row i has the feature i, the class i mod C and the site i mod K, so that every row can be recognised."""
    i = torch.arange(n)
    return Dataset("numbered", i.float().unsqueeze(1), i % classes, classes=classes, site=i % sites)


def row_numbers(sites: Sites) -> list[int]:
    parts = [d.x for d in (*sites.train, *sites.test, *(sites.validation or ()))]
    parts += [] if sites.calibration is None else [sites.calibration.x]
    parts += [] if sites.inputs is None else [sites.inputs]
    return sorted(int(v) for v in torch.cat(parts).flatten())


# Roles


@settings(max_examples=60)
@given(
    st.sampled_from([iid(), heterogeneous(0.7), dirichlet(0.1), natural()]),
    st.integers(1, 3),
    st.floats(0.05, 0.5),
    st.integers(0, 20),
    st.one_of(st.integers(0, 10), st.floats(0.01, 0.2)),
    st.floats(0, 0.5),
    st.integers(0, 1000),
)
def test_every_row_has_one_role(
    split: Split, k: int, test: float, calibration: int, inputs: float, validation: float, seed: int
) -> None:
    ask: dict[str, Any] = {"test": test, "calibration": calibration, "inputs": inputs, "validation": validation}
    whole = numbered(sites=k)

    sites = whole.split(split, k, seed=seed, **ask)

    assert row_numbers(sites) == list(range(100))
    assert len(sites) == len(sites.test) == len(sites.names) == k
    assert min(len(d.x) for d in sites.train) >= 1
    for d in (*sites.train, *sites.test):
        assert torch.equal(d.y, d.x.flatten().long() % 4)  # labels stay with their rows
        assert float(d.size) == len(d.x)
    assert (0 if sites.calibration is None else len(sites.calibration.x)) == calibration
    assert (sites.calibration is None) == (calibration == 0)
    assert (sites.inputs is None) == (inputs == 0)
    assert (sites.validation is None) == (validation == 0)
    assert sites.fingerprint() == whole.split(split, k, seed=seed, **ask).fingerprint()


def test_counts_of_the_roles() -> None:
    sites = numbered().split(iid(), 5, test=0.2, calibration=10, inputs=0.25, validation=0.1)

    assert len(sites.all_test.x) == round(0.2 * 34) + 2 * round(0.2 * 33)  # within each natural site of 34, 33, 33 rows
    assert sites.calibration is not None
    assert len(sites.calibration.x) == 10
    assert sites.inputs is not None
    assert len(sites.inputs) == 20  # a quarter of the 79 rows that are not for testing
    assert sites.validation is not None
    assert [len(d.x) for d in sites.validation] == [1] * 5  # 49 rows at 5 sites: 10, 10, 10, 10, 9; a tenth of each
    assert sum(len(d.x) for d in sites.train) == 100 - 21 - 10 - 20 - 5


def test_seed_decides_and_the_server_rows_do_not_depend_on_the_split() -> None:
    a, b, c = (digits().split(s, seed=i) for s, i in ((iid(), 0), (dirichlet(0.1), 0), (iid(), 1)))

    assert a.calibration is not None
    assert b.calibration is not None
    assert torch.equal(a.calibration.x, b.calibration.x)
    assert set(map(tuple, a.all_test.x.tolist())) == set(map(tuple, b.all_test.x.tolist()))
    assert len({a.fingerprint(), b.fingerprint(), c.fingerprint()}) == 3


@pytest.mark.parametrize("split", [dirichlet(0.1), heterogeneous(0.9)])
def test_a_sites_test_rows_follow_its_training_labels(split: Split) -> None:
    sites = digits().split(split, 5)

    train = sites.label_counts()
    test = torch.stack([torch.bincount(d.y, minlength=10) for d in sites.test])

    # The rule of `follow`: of each class, a site has its share of that class's training rows, to within one row.
    quota = train / train.sum(0) * test.sum(0)
    assert (test - quota).abs().max() < 1
    assert int(test.sum()) == 359  # a fifth of 1797


def test_natural_sites_keep_their_rows_and_hold_out_their_own() -> None:
    sites = numbered(n=90).split(natural(), calibration=0)

    assert [len(d.x) for d in sites.test] == [6, 6, 6]  # a fifth of 30
    for k in range(3):
        assert set((sites.train[k].x.flatten() % 3).tolist()) == {float(k)}
        assert set((sites.test[k].x.flatten() % 3).tolist()) == {float(k)}


def test_fewer_natural_sites_are_the_first_by_id() -> None:
    whole = replace(numbered(), site_names=("Ulm", "Bonn", "Kiel"))

    sites = whole.split(natural(), 2, calibration=10)

    assert sites.names == ("Ulm", "Bonn")
    assert row_numbers(sites) == [i for i in range(100) if i % 3 < 2]
    assert whole.split(natural()).names == ("Ulm", "Bonn", "Kiel")
    assert whole.split(iid(), 2).names == ("0", "1")


def test_an_official_test_part_is_the_test_part() -> None:
    i = torch.arange(100, 120)
    official = replace(numbered(), x_test=i.float().unsqueeze(1), y_test=i % 4, site_test=i % 3)

    for split in (iid(), natural(), dirichlet(0.5)):
        sites = official.split(split, 3, test=0.9, calibration=5)
        assert sorted(sites.all_test.x.flatten().tolist()) == list(range(100, 120))
        assert row_numbers(sites) == list(range(120))
    with pytest.raises(InputError, match="site id for every test row"):
        replace(official, site_test=None).split(natural())


def test_sites_may_be_without_test_rows() -> None:
    sites = numbered(n=60).split(dirichlet(0.01), 30, test=0.05, calibration=0)

    assert sum(len(d.x) for d in sites.test) == 3
    assert min(len(d.x) for d in sites.test) == 0
    assert len(sites.all_test.x) == len(sites.pooled().test[0].x) == 3
    assert len(sites.fingerprint()) == 64


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        ({"test": -0.1}, "try test=0.2"),
        ({"test": 1.0}, "try test=0.2"),
        ({"validation": 1.0}, "try validation=0.1"),
        ({"validation": -0.1}, "try validation=0.1"),
        ({"calibration": 90}, "leave 0 to train on at 3 sites"),
        ({"calibration": 0, "inputs": 78}, "leave 1 to train on at 3 sites"),
        ({"calibration": -1}, "calibration=-1 cannot be used: give a count"),
        ({"calibration": 0.5}, "calibration=0.5 cannot be used: give a count"),
        ({"inputs": 1.5}, "a count or a share below 1"),
        ({"inputs": float("nan")}, "a count or a share below 1"),
        ({"sites": 0}, "at least one site"),
        ({"sites": 200}, "to train on at 200 sites"),
        ({"split": natural(), "sites": 4}, "has 3 natural sites: ask for 1 to 3, not for 4"),
        ({"split": natural(), "sites": 0}, "has 3 natural sites: ask for 1 to 3, not for 0"),
        ({"split": iid}, r"pass for example iid\(\)"),
        ({"split": "iid"}, r"pass for example iid\(\)"),
    ],
)
def test_splits_that_cannot_be_made(ask: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        numbered().split(**{"split": iid(), "sites": 3, **ask})


def test_calibration_may_not_use_up_a_natural_site() -> None:
    site = torch.tensor([0] * 2 + [1] * 98)
    whole = replace(numbered(), site=site)

    with pytest.raises(InputError, match="Only 1 natural sites have training rows"):
        whole.split(natural(), calibration=76)  # of 79 rows; seed 0 takes the first site's only one


# Sites


def test_pooled_holds_every_row_in_the_order_of_the_sites() -> None:
    sites = numbered().split(natural(), validation=0.2)

    pooled = sites.pooled()

    assert (len(pooled), pooled.split, pooled.names) == (1, "pooled", ("pooled",))
    assert torch.equal(pooled.train[0].x, torch.cat([d.x for d in sites.train]))
    assert torch.equal(pooled.test[0].y, torch.cat([d.y for d in sites.test]))
    assert pooled.calibration is sites.calibration
    assert row_numbers(pooled) == row_numbers(sites)


@pytest.mark.parametrize("validation", [0.0, 0.2])
def test_pooled_holds_a_row_that_several_sites_have_once(validation: float) -> None:
    sites = numbered(400).split(heterogeneous(0.3, "hasan2023"), 5, validation=validation)
    every = torch.cat([part.x for part in sites.train]).flatten()

    pooled = sites.to(torch.float64).pooled().train[0]

    assert len(every) > 2 * len(every.unique())  # five times the shared part
    assert sorted(pooled.x.flatten().tolist()) == every.unique().tolist()
    assert torch.equal(pooled.x.flatten().long() % 4, pooled.y)
    assert sites.pooled().pooled().fingerprint() == sites.pooled().fingerprint()


def test_label_counts() -> None:
    sites = numbered(n=8, classes=2, sites=1).split(natural(), test=0.25, calibration=0)

    # Row i has class i mod 2: what is not in the test part is counted.
    expected = torch.bincount(sites.train[0].x.flatten().long() % 2, minlength=2)
    assert sites.label_counts().tolist() == [expected.tolist()]
    assert int(sites.label_counts().sum()) == 6
    with pytest.raises(InputError, match="is a regression"):
        linear_gaussian().split(iid()).label_counts()


def test_to_casts_numbers_and_leaves_labels() -> None:
    double = digits().split(iid(), inputs=5, validation=0.1).to(torch.float64)
    regression = linear_gaussian().split(iid()).to(torch.float64)

    assert double.inputs is not None
    assert double.inputs.dtype == double.train[0].x.dtype == double.train[0].w.dtype == torch.float64
    assert double.train[0].y.dtype == torch.int64
    assert regression.test[0].y.dtype == torch.float64
    assert double.to("cpu").fingerprint() == double.fingerprint()


def test_fingerprint_sees_values_and_roles() -> None:
    sites = numbered().split(iid(), 2)
    first, second = sites.train
    bumped = first._replace(x=first.x + torch.eye(len(first.x))[:, :1])

    prints = {
        s.fingerprint()
        for s in (
            sites,
            replace(sites, train=(second, first)),
            replace(sites, train=sites.test, test=sites.train),
            replace(sites, train=(bumped, second)),
            replace(sites, calibration=None),
        )
    }

    assert len(prints) == 5
    assert replace(sites, name="else").fingerprint() == sites.fingerprint()


# Scaling


def test_scaling_comes_from_training_rows_only() -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 50.0, 0.0]) + 7
    raw = Dataset("scaled", x, 3 * x[:, 1] + 100)
    plain, sites = (raw.split(iid(), 4, inputs=10, validation=0.2, standardise=s) for s in (False, True))

    train = torch.cat([d.x for d in plain.train]).double()
    mean, deviation = train.mean(0), train.std(0, correction=0)
    deviation[2] = 1  # a constant column is only shifted

    pairs = [(a.x, b.x) for a, b in zip(plain.test, sites.test, strict=True)]
    assert plain.inputs is not None
    assert sites.inputs is not None
    for before, after in [*pairs, (plain.inputs, sites.inputs)]:
        assert torch.allclose(after, ((before.double() - mean) / deviation).float(), atol=1e-6)
        assert torch.equal(sites.scaled(before), after)
    now = torch.cat([d.x for d in sites.train])
    assert now.mean(0).abs().max() < 1e-5
    assert torch.allclose(now[:, :2].std(0, correction=0), torch.ones(2), atol=1e-5)
    assert now[:, 2].abs().max() < 1e-6


def test_regression_targets_can_be_brought_back() -> None:
    x = torch.arange(50.0).unsqueeze(1)
    raw = Dataset("line", x, 3 * x[:, 0] + 100)
    plain, sites = (raw.split(iid(), 2, calibration=5, standardise=s) for s in (False, True))

    y = torch.cat([d.y for d in sites.train])
    back = sites.target_shift + sites.target_scale * sites.all_test.y

    assert abs(float(y.mean())) < 1e-6
    assert abs(float(y.std(correction=0)) - 1) < 1e-6
    assert torch.allclose(back, plain.all_test.y, rtol=1e-6)
    assert (plain.target_shift, plain.target_scale) == (0.0, 1.0)


def test_images_are_scaled_by_channel() -> None:
    x = torch.rand(40, 2, 3, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 9.0]).reshape(2, 1, 1)
    whole = Dataset("images", x, torch.arange(40) % 2, classes=2, standardise=True)

    sites = whole.split(iid(), 2, calibration=5)

    pooled = sites.pooled().train[0].x
    assert whole.features == sites.features == (2, 3, 3)
    assert torch.allclose(pooled.mean((0, 2, 3)), torch.zeros(2), atol=1e-6)
    assert torch.allclose(pooled.std((0, 2, 3), correction=0), torch.ones(2), atol=1e-6)
    assert torch.equal(sites.scaled(x)[3], sites.scaled(x[3:4])[0])


# Data sets and arrays


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"x": torch.tensor([[0.0], [float("nan")], [float("inf")], [1.0]])}, r"column 0 is NaN or infinite in 2 rows"),
        (
            {"x": torch.tensor([[0.0, 1.0], [0.0, float("nan")]]).repeat(2, 1), "feature_names": ("age", "dose")},
            "column 1 ('dose') is NaN or infinite in 2 rows",
        ),
        ({"x": torch.zeros(4)}, "floating-point"),
        ({"x": torch.zeros(4, 1, dtype=torch.int64)}, "floating-point"),
        ({"y": torch.tensor([0, 1, 2, 0])}, "from 0 to 1"),
        ({"y": torch.tensor([0, 1, -1, 0])}, "from 0 to 1"),
        ({"y": torch.tensor([0.0, 1.0, 0.0, 1.0])}, "from 0 to 1"),
        ({"y": torch.tensor([0, 1, 0])}, "4 rows and 3 labels"),
        ({"site": torch.tensor([0, 1, 0])}, "4 rows and 3 site ids"),
        ({"site": torch.tensor([0, 1, 0, 2]), "site_names": ("a", "b")}, "site ids"),
        ({"classes": 1, "y": torch.zeros(4, dtype=torch.int64)}, "at least two classes"),
        ({"classes": None}, "targets of a regression"),
        ({"classes": None, "y": torch.tensor([0.0, 1.0, float("nan"), 0.0])}, "targets of a regression"),
        ({"x": torch.zeros(1, 1), "y": torch.tensor([0])}, "at least 2"),
        ({"x_test": torch.zeros(2, 1)}, "both x_test and y_test"),
        ({"x_test": torch.zeros(2, 3), "y_test": torch.tensor([0, 1])}, "same columns"),
        ({"x_test": torch.zeros(2, 1), "y_test": torch.tensor([0, 5])}, "test labels"),
    ],
)
def test_data_sets_that_cannot_be_used(change: dict[str, Any], says: str) -> None:
    good: dict[str, Any] = {"x": torch.zeros(4, 1), "y": torch.tensor([0, 1, 0, 1]), "classes": 2}

    with pytest.raises(InputError) as caught:
        Dataset("bad", **{**good, **change})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("y", "classes", "names", "codes"),
    [
        (["ill", "well", "ill", "dead"], 3, ("dead", "ill", "well"), [1, 2, 1, 0]),
        (np.array(["ill", "well", "ill", "dead"], dtype=object), 3, ("dead", "ill", "well"), [1, 2, 1, 0]),
        ([True, False, True, True], 2, ("False", "True"), [1, 0, 1, 1]),
        ([10, 2, 10, 2], 2, ("2", "10"), [1, 0, 1, 0]),
        (torch.tensor([3, 4, 5, 3]), 3, ("3", "4", "5"), [0, 1, 2, 0]),
    ],
)
def test_classes_are_numbered_in_sorted_order(y: Any, classes: int, names: Sequence[str], codes: Sequence[int]) -> None:
    made = from_arrays(np.zeros((4, 2)), y)

    assert (made.classes, made.class_names, made.y.tolist()) == (classes, names, codes)
    assert made.split(iid(), 2, calibration=0).class_names == names


def test_floating_targets_are_a_regression_and_classes_overrides() -> None:
    x, y = [[1], [2], [3]], [0.0, 2.0, 2.0]

    assert (from_arrays(x, y).classes, from_arrays(x, y).y.dtype) == (None, torch.float32)
    assert (from_arrays(x, y, classes=5).classes, from_arrays(x, y, classes=5).y.tolist()) == (5, [0, 2, 2])
    assert (from_arrays(x, [7, 8, 9], classes=0).classes, from_arrays(x, [7, 8, 9], classes=0).y.tolist()) == (
        None,
        [7.0, 8.0, 9.0],
    )


def test_large_numbers_in_arrays_keep_their_digits_until_they_are_scaled() -> None:
    x = 1.7e9 + np.arange(100.0)  # float32 holds every 128th

    sites = from_arrays(x, x).split(iid(), 1, calibration=0)
    plain = from_arrays(x, x, standardise=False).split(iid(), 1, calibration=0)

    assert len(sites.train[0].x.unique()) == len(sites.train[0].y.unique()) == 80
    assert sites.train[0].x.dtype == sites.train[0].y.dtype == plain.train[0].x.dtype == torch.float32


def test_ordinary_numbers_are_float32_beside_large_ones() -> None:
    ordinary, large = np.linspace(0, 1, 100), 1.7e9 + np.arange(100.0)

    alone, beside = (
        from_arrays(np.stack(columns, 1), ordinary).split(iid(), 1, calibration=0)
        for columns in ([ordinary], [ordinary, large])
    )

    assert from_arrays(ordinary, ordinary).x.dtype == torch.float32
    assert torch.equal(alone.train[0].x[:, 0], beside.train[0].x[:, 0])


def test_arrays_with_sites_and_a_test_part() -> None:
    made = from_arrays(
        np.arange(6), list("abbaab"), list("zyzyzy"), x_test=[1, 2], y_test=["b", "a"], site_test=["y", "z"]
    )

    assert made.x.shape == (6, 1)
    assert (made.site_names, made.site is not None and made.site.tolist()) == (("y", "z"), [1, 0, 1, 0, 1, 0])
    assert made.y_test is not None
    assert made.site_test is not None
    assert (made.y_test.tolist(), made.site_test.tolist()) == ([1, 0], [0, 1])
    sites = made.split(natural(), calibration=0)
    assert (sites.names, [d.y.tolist() for d in sites.test]) == (("y", "z"), [[1], [0]])
    assert sites.feature_shift is not None  # arrays are standardised unless told otherwise


def test_a_users_array_is_copied() -> None:
    x = np.zeros((4, 1), dtype=np.float32)

    made = from_arrays(x, [0, 1, 0, 1])
    x[:] = 9

    assert float(made.x.sum()) == 0


@pytest.mark.parametrize(
    ("x", "y", "more", "says"),
    [
        ([["a"], ["b"]], [0, 1], {}, "x must hold numbers"),
        ([[1.0], [1e300]], [0, 1], {}, "NaN or infinite in 1 rows"),
        ([[1], [2]], np.array(["a", None], dtype=object), {}, "y is missing in 1 rows"),
        ([[1], [2]], [[0], [1]], {}, "one value per row"),
        ([[1], [2]], [0.5, 1.0], {"classes": 2}, "whole numbers"),
        ([[1], [2]], [0, 2], {"classes": 2}, "from 0 to 1"),
        ([[1], [2]], [3, 3], {}, "at least two classes"),
        ([[1], [2]], [0, 1], {"x_test": [[1]], "y_test": [5]}, "'5' in y"),
        ([[1], [2]], [0, 1, 1], {}, "2 rows and 3 labels"),
    ],
)
def test_arrays_that_cannot_be_used(x: Any, y: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_arrays(x, y, **more)


# Embedded sets


def test_digits() -> None:
    d = digits()

    assert (tuple(d.x.shape), d.classes, d.features, d.public) == ((1797, 64), 10, 64, True)
    assert (float(d.x.min()), float(d.x.max()), d.x.dtype) == (0.0, 1.0, torch.float32)  # 16 grey levels over 16
    # Images per digit as UCI's optdigits.names lists them for the test part.
    assert torch.bincount(d.y).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert digits().split(iid()).feature_shift is None


def test_moons() -> None:
    clean = moons(n=100, noise=0.0)

    # Without noise one moon is the upper half of the unit circle, the other the lower half of one about (1, ½).
    upper, lower = clean.x[clean.y == 0], clean.x[clean.y == 1]
    assert torch.allclose(upper.norm(dim=1), torch.ones(50), atol=1e-5)
    assert torch.allclose((lower - torch.tensor([1.0, 0.5])).norm(dim=1), torch.ones(50), atol=1e-5)
    assert torch.equal(moons(seed=3).x, moons(seed=3).x)
    assert not torch.equal(moons(seed=3).x, moons(seed=4).x)


def test_linear_gaussian_tells_the_truth() -> None:
    d, theta = linear_gaussian(n=20000, features=3, noise=0.5, seed=1), linear_gaussian_truth(3, seed=1)

    residual = d.y - d.x @ theta
    fitted: Tensor = torch.linalg.lstsq(d.x, d.y.unsqueeze(1)).solution.flatten()

    # Deviations: of the residuals' 0.5/√(2n) = 0.0025; of a weight 0.5/√n = 0.0035; four of each.
    assert abs(float(residual.std()) - 0.5) < 0.01
    assert (fitted - theta).abs().max() < 0.014
    assert d.classes is None
    assert d.split(iid()).target_scale == 1.0


def test_sine_follows_the_paper() -> None:
    d = sine(n_per_site=2000, seed=2)

    x = d.x.flatten()
    inside = torch.stack([(x >= low) & (x <= high) for low, high in INTERVALS])
    noise = d.y - sine_truth(x)
    assert d.site is not None
    shares = torch.stack([inside[:, d.site == k].float().mean(1) for k in range(5)])
    assert inside.any(0).all()
    assert abs(float(noise.std()) - 0.3) < 4 * 0.3 / (2 * 10000) ** 0.5
    assert abs(float(noise.mean())) < 4 * 0.3 / 10000**0.5
    assert float((shares.max(0).values - shares.min(0).values).max()) > 0.2  # sites differ
    assert abs(float(sine_truth(torch.tensor(0.0))) - 1.5) < 1e-6  # 1.5 sin 0 + 1.5 cos 0
    assert abs(float(sine_truth(torch.tensor(1.25))) - 1.5) < 1e-6  # 1.5 sin(π/2) + 1.5 cos(2.5π) = 1.5 + 0
    assert len(sine().split(natural())) == 5


def test_data_sets_by_name() -> None:
    assert all(datasets.load(name).name == name for name in DATASETS)
    with pytest.raises(InputError, match="Did you mean 'digits'"):
        datasets.load("digit")


@pytest.mark.parametrize("h", [0.0, 0.5, 0.9])
def test_rows_to_tune_on_are_trained_on_nowhere_even_where_sites_share_rows(h: float) -> None:
    sites = numbered(400).split(heterogeneous(h, "hasan2023"), 4, validation=0.2)
    trained = {float(v) for d in sites.train for v in d.x[:, 0]}
    assert sites.validation is not None
    tuned = {float(v) for d in sites.validation for v in d.x[:, 0]}
    assert tuned and not tuned & trained
    assert (
        0.1 < sum(len(d.x) for d in sites.validation) / sum(len(d.x) for d in (*sites.train, *sites.validation)) < 0.3
    )


def test_targets_of_very_different_sizes_are_told_that_they_share_a_scale() -> None:
    x, y = torch.randn(40, 2), torch.randn(40, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_arrays(x, y).split(iid(), 2)
    with pytest.warns(UserWarning, match=r"differ \d+-fold in their SDs and share one scale"):
        from_arrays(x, y * torch.tensor([1.0, 100.0])).split(iid(), 2)


def test_a_share_to_tune_on_that_leaves_a_site_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="leaves a site nothing to train on"):
        numbered(60).split(heterogeneous(0.0, "hasan2023"), 20, calibration=0, validation=0.9)


def test_a_quick_look_at_columns_never_changes_how_they_are_rounded() -> None:
    """The rule in full, column by column, on columns of every kind near its border."""
    draw = np.random.default_rng(0)
    shifts = 10.0 ** draw.uniform(-3, 6, 40)
    x = torch.from_numpy(draw.normal(size=(50_000, 40)) * 10.0 ** draw.uniform(-3, 2, 40) + shifts)
    x[:, 0] = 3.3
    x[-1, 1] = 1e12
    x[:, 2] = torch.arange(50_000) / 50_000 + 1000.1
    rounded = x.float().double()
    lost = (x - rounded).abs().amax(0) > 1e-4 * x.std(0, correction=0)
    assert 0 < int(lost.sum()) < 40
    assert torch.equal(narrow(x), torch.where(lost, x, rounded))
    for column, keeps in zip(x.T, lost, strict=True):
        assert narrow(column).dtype == (torch.float64 if keeps else torch.float32)
