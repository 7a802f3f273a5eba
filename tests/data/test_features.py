"""Features that differ from site to site."""

from __future__ import annotations

import pytest
import torch

import consilience as co
from consilience.data.dataset import Dataset
from consilience.data.splits.features import rotate
from consilience.data.splits.text import parse
from consilience.errors import InputError


def images(rows: int = 600, side: int = 8, channels: int = 1) -> Dataset:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(rows, channels, side, side, generator=g)
    return Dataset("images", x, torch.arange(rows) % 3, classes=3)


def test_a_quarter_turn_moves_every_pixel_to_its_place() -> None:
    x = torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(rotate(x, 90.0), torch.rot90(x, 1, (2, 3)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        rotate(x.flatten(1)[:, :36], -90.0), torch.rot90(x[:, 0], -1, (1, 2)).flatten(1), atol=1e-5, rtol=1e-5
    )


def test_only_the_sites_own_features_change() -> None:
    plain = images().split(co.splits.dirichlet(0.5), 3, inputs=20, validation=0.1, seed=1)
    moved = images().split(
        co.splits.shifted(co.splits.dirichlet(0.5), co.splits.Rotation(90)), 3, inputs=20, validation=0.1, seed=1
    )

    # Three sites: turned by −90, 0 and 90 degrees.
    for k, quarters in enumerate((-1, 0, 1)):
        for role in ("train", "test", "validation"):
            before, after = getattr(plain, role)[k], getattr(moved, role)[k]
            torch.testing.assert_close(after.x, torch.rot90(before.x, quarters, (2, 3)), atol=1e-5, rtol=1e-5)
            assert torch.equal(after.y, before.y)
    assert plain.calibration is not None and moved.calibration is not None and plain.inputs is not None
    assert torch.equal(plain.calibration.x, moved.calibration.x)
    assert moved.inputs is not None and torch.equal(plain.inputs, moved.inputs)
    assert moved.split == "dirichlet:0.5+rotate:90"


def test_noise_grows_from_site_to_site_and_repeats() -> None:
    plain, split = images().split(co.splits.iid(), 3, seed=2), co.splits.shifted(co.splits.iid(), co.splits.Noise(0.6))
    first, again = (images().split(split, 3, seed=2) for _ in range(2))
    for k, deviation in enumerate((0.0, 0.3, 0.6)):
        added = first.train[k].x - plain.train[k].x
        # Some 150 rows of 64 numbers: the deviation's own is below 0.6/√(2·9600) = 0.0044.
        assert added.std().item() == pytest.approx(deviation, abs=0.02)
        assert torch.equal(first.train[k].x, again.train[k].x)
    assert not torch.equal(first.train[2].x[:50] - plain.train[2].x[:50], first.train[1].x[:50] - plain.train[1].x[:50])


def test_natural_sites_and_shared_rows_may_shift_too() -> None:
    sites = co.datasets.sine().split(parse("natural+noise:0.1"), seed=0)
    assert len(sites) == 5
    assert len(images().split(parse("heterogeneous:0.5@hasan2023+noise:0.1"), 3)) == 3


def test_a_table_cannot_turn() -> None:
    with pytest.raises(InputError, match="not square images"):
        co.datasets.moons().split(parse("iid+rotate:30"))
