"""Gradients in closed form and through a private copy of the network, against autograd on the definition."""

from __future__ import annotations

import copy

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.distributions.penalties import decay, linear, proximal, proximal_norm
from consilience.distributions.prior import Flat
from consilience.inference.gradient import gradient_of
from consilience.key import Key
from consilience.task import Task, grad


def tasks() -> dict[str, tuple[Task, Data]]:
    found = {}
    for problem in ("classification", "regression"):
        task, sites = tiny.PROBLEMS[problem](torch.float64)
        centre = task.init(Key(5)).params
        found[problem] = task, sites.train[0]
        found[f"{problem}, proximal"] = task.tilted(proximal(centre, 0.3)), sites.train[0]
        found[f"{problem}, several tilts"] = (
            task.tilted(linear(centre)).tilted(decay(0.1)).tilted(proximal_norm(centre, 0.2)),
            sites.train[0],
        )
        found[f"{problem}, flat prior"] = task.with_prior(Flat()), sites.train[0]
    task, data = found["classification"]
    found["adjusted"] = task.adjusted(torch.tensor([0.2, -0.4], dtype=torch.float64)), data
    return found


@pytest.mark.parametrize("name", sorted(tasks()))
def test_gradient_is_the_gradient_of_the_loss(name: str) -> None:
    task, data = tasks()[name]
    like = task.init(Key(1)).params
    vector, size = tree.ravel(like), torch.tensor(37.0, dtype=torch.float64)
    weighted = data._replace(w=torch.linspace(0.5, 2, len(data.w), dtype=torch.float64))

    expected = grad(lambda v: task.loss(tree.unravel(v, like), weighted, size), vector)
    found = gradient_of(task, like, size)(vector, weighted)
    vmapped = torch.func.vmap(lambda v: gradient_of(task, like, size)(v, weighted))(vector.unsqueeze(0))[0]

    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(vmapped, expected, rtol=1e-9, atol=1e-10)


def test_the_users_network_is_never_touched() -> None:
    task, data = tasks()["regression"]
    before = copy.deepcopy(task.model.state_dict())
    gradient = gradient_of(task, task.init(Key(1)).params, data.size)
    gradient(tree.ravel(task.init(Key(2)).params), data)
    assert all(torch.equal(before[k], v) for k, v in task.model.state_dict().items())
    assert all(p.grad is None for p in task.model.parameters())


def test_tied_weights_move_together() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(3, 3, bias=False)
            self.second = torch.nn.Linear(3, 3, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(torch.tanh(self.first(x)))
            return out

    task = co.classification(Tied())
    data = Data.of(torch.randn(8, 3, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)
    like = task.init(Key(0)).params
    vector = tree.ravel(like)
    expected = grad(lambda v: task.loss(tree.unravel(v, like), data, data.size), vector)
    torch.testing.assert_close(gradient_of(task, like, data.size)(vector, data), expected, atol=1e-6, rtol=1e-5)
