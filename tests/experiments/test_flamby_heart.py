"""FLamby's Fed-Heart-Disease: its rows, its split, its steps."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn

import consilience as co
from consilience.benchmark.reproduce import load, module
from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.distributions.prior import Flat
from consilience.key import Key
from consilience.messages import Client

needs_data = pytest.mark.skipif("CONSILIENCE_DATA" not in os.environ, reason="CONSILIENCE_DATA names no data folder")


@needs_data
def test_the_rows_and_the_split_are_flambys() -> None:
    heart = module("flamby/heart")
    assert [len(y) for _, y in heart.rows_of().values()] == [303, 261, 46, 130]  # its README
    sites = heart.sites_of(None)
    assert [len(part.y) for part in sites.train] == [199, 172, 30, 85]  # 486 training rows, as its `common.py` counts
    assert [len(part.y) for part in sites.test] == [104, 89, 16, 45]
    for part in sites.train:
        assert part.x.mean(0).abs().max() < 1e-5
        spread = part.x.std(0)
        assert bool(((spread - 1).abs() < 1e-4).logical_or(spread < 1e-4).all())  # constant columns stay constant


def test_a_step_on_two_logits_is_flambys_step_on_one() -> None:
    """Batches of all rows: θ ← θ − lr · mean((σ(θᵀx) − y) x) for one output, ours by the difference of the logits."""
    updates = module("flamby/heart").Updates(rate=0.3, updates=3, batch=8)
    x = Key(0).normal((8, 3))
    y = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    task = co.classification(nn.Linear(3, 2), Flat())
    start = Point({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)})
    client = Client(Data.of(x, y), (), Key(1), torch.tensor(0.0))
    params = updates(task, start, client).params
    one = torch.zeros(4)
    design = torch.cat([x, torch.ones(8, 1)], 1)
    for _ in range(3):
        one = one - 0.3 * ((torch.sigmoid(design @ one) - y).unsqueeze(1) * design).mean(0)
    ours = torch.cat([params["weight"][1] - params["weight"][0], (params["bias"][1] - params["bias"][0]).reshape(1)])
    assert torch.allclose(ours, one, atol=1e-6)


def test_the_published_rows_are_there() -> None:
    paper = load("flamby/heart").paper
    assert paper is not None
    assert paper["FedAvg"]["mean"][0] == pytest.approx((73.08 + 71.91 + 65.0 + 64.0) / 4, abs=0.01)
    assert {"FedAvg", "FedProx", "SCAFFOLD", "FedAdam", "FedYogi", "FedAdagrad", "Cyclic"} <= paper.keys()
