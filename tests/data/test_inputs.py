"""The server's inputs from another data set: resized, channels matched, scaled as the sites are, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience.data.inputs import reshape
from consilience.errors import InputError
from consilience.key import Key


def test_grey_becomes_colour_and_colour_its_luminance() -> None:
    grey = torch.rand(2, 1, 8, 8)
    assert torch.equal(reshape(grey, (3, 8, 8)), grey.expand(-1, 3, -1, -1))
    red = torch.zeros(1, 3, 4, 4)
    red[:, 0] = 1.0
    assert torch.allclose(reshape(red, (1, 4, 4)), torch.full((1, 1, 4, 4), 0.299))  # ITU-R BT.601


def test_images_are_resized_without_aliasing() -> None:
    stripes = (torch.arange(64) % 2).float().expand(1, 3, 64, 64)
    small = reshape(stripes, (3, 32, 32))
    assert small.shape == (1, 3, 32, 32)
    # a pixel of the smaller image covers as much black as white; taking every second pixel would leave one of them
    assert small[..., 1:-1].sub(0.5).abs().max() < 0.13
    flat = reshape(torch.full((2, 1, 28, 28), 0.25), (3, 32, 32))
    assert torch.allclose(flat, torch.full((2, 3, 32, 32), 0.25))


@pytest.mark.parametrize(
    ("shape", "features"), [((5, 7), 6), ((5, 1, 8, 8), 64), ((5, 64), (1, 8, 8)), ((2, 4, 8, 8), (3, 8, 8))]
)
def test_what_cannot_be_matched_is_refused_with_the_shape_needed(
    shape: tuple[int, ...], features: int | tuple[int, ...]
) -> None:
    wanted = (features,) if isinstance(features, int) else features
    with pytest.raises(InputError) as error:
        reshape(torch.zeros(shape), features)
    assert str(shape[1:]) in str(error.value) and str(wanted) in str(error.value)


def test_rows_from_elsewhere_are_scaled_by_the_sites_training_rows() -> None:
    sites = co.from_arrays(torch.randn(60, 3) * 5 + 2, [0, 1] * 30).split(co.splits.iid(), 2, calibration=0)
    new = torch.randn(7, 3)
    assert torch.equal(co.data.inputs_from(sites, new).inputs, sites.scaled(new))  # type: ignore[arg-type]
    few = co.data.inputs_from(sites, new, 4, seed=1).inputs
    assert few is not None and all(any(torch.equal(a, b) for b in sites.scaled(new)) for a in few) and len(few) == 4
    with pytest.raises(InputError, match="1 to 7"):
        co.data.inputs_from(sites, new, 8)


def test_another_data_set_is_named_on_the_command_line(invoke: tiny.Invoke, tmp_path: Path) -> None:
    words = (
        "run",
        "fedbe",
        "--data",
        "moons",
        "--sites",
        "2",
        "--rounds",
        "1",
        "--no-bounds",
        "--set",
        "inference.epochs=1",
    )
    code, _, errors = invoke(*words, "--inputs", "swiss_roll:40", "--out", str(tmp_path / "a"))
    assert code == 0, errors
    report = json.loads((tmp_path / "a" / "run.json").read_text())
    assert report["rows"]["inputs"] == 40 and report["recipe"]["inputs"] == "swiss_roll:40"
    for inputs, said in (("digits", "(2,) is needed"), ("cifar", "cifar10"), ("digits:many", "digits:2000")):
        code, _, errors = invoke(*words, "--inputs", inputs, "--out", str(tmp_path / "b"))
        assert code == 2 and said in errors.replace("\n", " "), errors


def test_whole_numbers_are_scaled_as_numbers() -> None:
    rows = Key(0).normal((60, 3)) * 10 + 50
    sites = co.from_arrays(rows, rows[:, 0]).split(co.splits.iid(), 2)
    given = torch.tensor([[40, 50, 61], [55, 48, 50]])
    found = co.data.inputs_from(sites, given).inputs
    wanted = co.data.inputs_from(sites, given.float()).inputs
    assert found is not None and wanted is not None and found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
