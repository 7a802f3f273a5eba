"""The chain rule written out against autograd, for every likelihood, alone and under vmap."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.aggregation.distil import MatchClasses, MatchNoise, MatchNormals
from consilience.data import Data
from consilience.distributions.likelihood import Softmax
from consilience.inference.fast.backprop import perceptron_gradient
from consilience.key import Key
from consilience.models.plain import perceptron
from consilience.task import mean_nll

ROWS, FEATURES = 7, 4
SHARES = torch.tensor([[0.2, 0.3, 0.5]] * ROWS, dtype=torch.float64)
LABELS = torch.tensor([0, 2, 1, 1, 0, 2, 2])
NUMBERS = torch.linspace(-1, 1, ROWS, dtype=torch.float64)
MOMENTS = torch.stack([NUMBERS, NUMBERS.abs() + 0.1], -1)
OFFSET = torch.tensor([0.1, -0.4, 0.3], dtype=torch.float64)


def cases() -> dict[str, tuple[co.Task, torch.Tensor]]:
    network = lambda outputs, hidden: co.models.mlp((2, 2), outputs, hidden=hidden).double()
    moments = network(2, (6,))
    classes, numbers = co.classification(network(3, (6, 5))), co.regression(network(1, (6,)))
    return {
        "softmax": (classes, LABELS),
        "linear": (co.classification(network(3, ())), LABELS),
        "adjusted": (dataclasses.replace(classes, likelihood=Softmax(OFFSET)), LABELS),
        "student": (dataclasses.replace(classes, likelihood=MatchClasses()), SHARES),
        "learned noise": (numbers, NUMBERS),
        "known noise": (co.regression(network(1, (6,)), noise=0.5), NUMBERS),
        "heteroscedastic": (co.regression(network(2, (6,)), heteroscedastic=True), NUMBERS),
        "vectors, learned noise": (co.regression(network(3, (6,))), SHARES),
        "vectors, heteroscedastic": (co.regression(network(6, (6,)), heteroscedastic=True), SHARES),
        "student of numbers": (
            dataclasses.replace(numbers, model=moments, likelihood=MatchNormals()),
            MOMENTS,
        ),
        "student with one noise": (dataclasses.replace(numbers, likelihood=MatchNoise()), MOMENTS),
    }


def built_inside(task: co.Task, like: tree.Params) -> Callable[[torch.Tensor, Data], torch.Tensor]:
    gradient = perceptron_gradient(task, like)
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("name", cases())
def test_equals_autograd(name: str) -> None:
    task, y = cases()[name]
    x = Key(0).normal((ROWS, 2, 2)).double()
    batch = Data(x, y, torch.tensor([1.0, 1, 0, 1, 2, 1, 0], dtype=torch.float64))  # padding and weights
    like = {k: v.double() for k, v in task.init(Key(1)).params.items()}
    vector = tree.ravel(like)
    gradient = built_inside(task, like)

    v = vector.clone().requires_grad_()
    params = tree.unravel(v, like)
    mean_nll(task.likelihood.nll(task.outputs(params, x), y, params), batch.w).backward()

    torch.testing.assert_close(gradient(vector, batch), v.grad, atol=1e-12, rtol=1e-12)
    stacked = torch.stack([vector, 2 * vector])
    together = torch.func.vmap(lambda v: built_inside(task, like)(v, batch))(stacked)
    alone = torch.stack([gradient(vector, batch).clone(), gradient(2 * vector, batch)])
    torch.testing.assert_close(together, alone, atol=1e-12, rtol=1e-12)


def test_only_plain_perceptrons_are_written_out() -> None:
    flat, images = perceptron(co.models.mlp(4, 2)), perceptron(co.models.mlp((2, 2), 2))
    assert flat is not None and flat.weights == ("0.weight", "2.weight", "4.weight") and not flat.flat
    assert images is not None and images.biases == ("1.bias", "3.bias", "5.bias") and images.flat
    others = [
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)),
        co.models.mlp(4, 2, activation=nn.Tanh),
        co.models.mlp(4, 2, norm=nn.LayerNorm),
        nn.Linear(4, 2),
        nn.Sequential(nn.ReLU()),
    ]
    assert all(perceptron(other) is None for other in others)
    watched = co.models.mlp(4, 2)
    watched[0].register_forward_hook(lambda *_: None)
    assert perceptron(watched) is None


def test_a_layer_without_bias_goes_the_general_way() -> None:
    task = co.classification(nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)))
    assert perceptron_gradient(task, task.like) is None


@pytest.mark.parametrize("features", [4, (2, 2)])
def test_a_written_out_pass_is_the_networks_own(features: int | tuple[int, int]) -> None:
    model = co.models.mlp(features, 3)
    task = co.classification(model)
    x = Key(0).normal((5, 4)).reshape(5, *((features,) if isinstance(features, int) else features))
    torch.testing.assert_close(task.outputs(task.like, x), model(x), atol=0, rtol=0)


def test_layers_that_are_used_twice_go_the_general_way() -> None:
    once, rectified = nn.Linear(3, 3), nn.ReLU()
    tied = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    twice = nn.Sequential(once, rectified, nn.Linear(3, 3), rectified)
    for model in (twice, nn.Sequential(once, rectified, once), tied):
        assert perceptron(model) is None
        task, x = co.classification(model), Key(0).normal((5, 3))
        torch.testing.assert_close(task.outputs(task.like, x), model(x))
