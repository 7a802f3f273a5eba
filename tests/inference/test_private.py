"""Clipped sums of gradients, by norms and row by row, against torch's own gradients and against Opacus."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference.clipped_gradient import check_rows_apart, clipped_sum
from consilience.key import Key
from consilience.task import Task
from consilience.tree import Params


def rows(count: int, shape: tuple[int, ...], classes: int = 3) -> Data:
    return Data.of(3 * Key(1).normal((count, *shape)), torch.arange(count) % classes)


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(18, 3))


def summed_by_loop(task: Task, params: Params, data: Data, clip: float) -> Tensor:
    """One row after another, by autograd."""
    total = torch.zeros_like(tree.ravel(params))
    for x, y, w in zip(*data, strict=True):
        leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
        with torch.enable_grad():
            outputs = torch.func.functional_call(task.model, leaves, (x.unsqueeze(0),))
            loss = nn.functional.cross_entropy(outputs, y.unsqueeze(0))
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()))])
        total += w * gradient * min(1.0, clip / float(gradient.norm()))
    return total


@pytest.mark.parametrize("kind", ["perceptron", "images, flattened", "convolutional"])
@pytest.mark.parametrize("clip", [0.5, 100.0])
def test_clipped_sums_are_those_of_a_loop(kind: str, clip: float) -> None:
    model, shape = {
        "perceptron": (co.models.mlp(6, 3, (8, 5)), (6,)),
        "images, flattened": (co.models.mlp((1, 5, 5), 3, (7,)), (1, 5, 5)),
        "convolutional": (convolutional(), (1, 5, 5)),
    }[kind]
    task = co.classification(model)
    data = rows(11, shape)
    data = data._replace(w=torch.tensor([1.0] * 9 + [0.0] * 2))
    params = task.init(Key(0)).params
    ours = clipped_sum(task, params, clip)(tree.ravel(params), data)
    assert torch.allclose(ours, summed_by_loop(task, params, data, clip), rtol=1e-4, atol=2e-5)


def test_clipped_sums_are_those_of_opacus() -> None:
    opacus = pytest.importorskip("opacus")
    task = co.classification(co.models.mlp(6, 3, (8, 5)))
    data = rows(16, (6,))
    params = task.init(Key(0)).params
    model = co.models.mlp(6, 3, (8, 5))
    model.load_state_dict(params)
    wrapped = opacus.GradSampleModule(model)
    optimiser = opacus.optimizers.DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=0.7,
        expected_batch_size=16,
        loss_reduction="sum",
    )
    nn.functional.cross_entropy(wrapped(data.x), data.y, reduction="sum").backward()
    optimiser.clip_and_accumulate()
    theirs = torch.cat([weight.summed_grad.flatten() for weight in wrapped.parameters()])
    ours = clipped_sum(task, params, 0.7)(tree.ravel(params), data)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["perceptron", "linear", "other"])
def test_no_row_moves_the_sum_by_more_than_the_clip(kind: str) -> None:
    """Rows may hold anything: also infinities, whose gradients are not numbers."""
    model = {
        "perceptron": co.models.mlp(4, 3, (6,)),
        "linear": co.models.linear(4, 3),
        "other": nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
    }[kind]
    task = co.classification(model)
    params = task.init(Key(0)).params
    vector = tree.ravel(params)
    total = clipped_sum(task, params, 0.25)
    data = rows(6, (4,))
    for value in (0.0, 1e-3, 1.0, 1e6, 1e30, torch.inf, torch.nan):
        odd = data._replace(x=data.x.clone())
        odd.x[-1] = value
        without = total(vector, Data(*(leaf[:-1] for leaf in odd)))
        assert float((total(vector, odd) - without).norm()) <= 0.25 * (1 + 1e-5)


def test_networks_in_which_rows_meet_are_refused() -> None:
    with pytest.raises(InputError, match="GroupNorm"):
        check_rows_apart(co.classification(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))))
    with pytest.raises(InputError, match="dropout"):
        check_rows_apart(co.classification(nn.Sequential(nn.Linear(4, 5), nn.Dropout(), nn.Linear(5, 2))))
