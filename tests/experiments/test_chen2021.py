"""What the release of FedBE does otherwise: each reading changes one thing."""

from __future__ import annotations

import pytest
import torch

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.data.sites import Data
from consilience.key import Key
from consilience.models.resnet import Residual


@pytest.fixture(scope="module")
def sites() -> co.Sites:
    data = co.data.Dataset("images", Key(1).uniform(40 * 192).reshape(40, 3, 8, 8), torch.arange(40) % 10, classes=10)
    return data.split(co.splits.iid(), 2, calibration=0, test=0.2, seed=0)


def job(sites: co.Sites, reading: str) -> object:
    released = module("chen2021/released")
    nothing = Data.of(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long))
    return released.Released("overnight", "resnet20", sites, nothing, 0, 1e-3, reading=reading)


def carrying(task: co.Task) -> int:
    """How many blocks carry their input unchanged."""
    return sum(isinstance(part, Residual) and part.stride == 1 for part in task.model.modules())


def test_identity_blocks_carry_nothing_without_skips(sites: co.Sites) -> None:
    printed, released = (job(sites, reading).task() for reading in ("", "no skips"))  # type: ignore[attr-defined]

    assert (carrying(printed), carrying(released)) == (7, 0)
    assert sum(isinstance(part, Residual) for part in released.model.modules()) == 2  # where the shape changes
    assert printed.init(Key(0)).params.keys() != released.init(Key(0)).params.keys()
    sizes = [sum(w.numel() for w in task.init(Key(0)).params.values()) for task in (printed, released)]
    assert sizes[0] == sizes[1]
    assert released.model(torch.zeros(2, 3, 8, 8)).shape == (2, 10)


def test_weights_begin_with_variance_two_over_fan_in(sites: co.Sites) -> None:
    params = job(sites, "Kaiming").task().init(Key(0)).params  # type: ignore[attr-defined]

    convolutions = [w for w in params.values() if w.ndim == 4]
    assert len(convolutions) == 19
    for weight in convolutions:
        fan_in = weight[0].numel()
        assert weight.var().item() * fan_in == pytest.approx(2.0, rel=6 / weight.numel() ** 0.5)


def test_steps_of_the_student_are_a_tenth_and_nothing_else_moves(sites: co.Sites) -> None:
    printed, released = job(sites, ""), job(sites, "mean over classes")
    one, other = printed.swa.inference, released.swa.inference  # type: ignore[attr-defined]

    assert (other.rate, other.low) == pytest.approx((one.rate / 10, one.low / 10))
    assert released.training == printed.training  # type: ignore[attr-defined]
    assert (one.begin, one.every, one.momentum, one.epochs) == (other.begin, other.every, other.momentum, other.epochs)


def test_no_crops_are_taken_at_the_sites(sites: co.Sites) -> None:
    assert job(sites, "").training.augment is not None  # type: ignore[attr-defined]
    assert job(sites, "no crops").training.augment is None  # type: ignore[attr-defined]


def test_the_first_column_is_table_1s() -> None:
    released, table1 = module("chen2021/released"), module("chen2021/table1")
    assert released.COLUMN in table1.COLUMNS
    assert released.EXPERIMENT.paper["FedBE"][released.COLUMN] == (77.5, 0.42)
