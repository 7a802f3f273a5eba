"""Work on stacks beneath a vmap: the same rows and gradients as inside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.inference.fast.backprop import perceptron_gradient
from consilience.inference.fast.stacked import in_one_vmap, take_rows
from consilience.key import Key

ROWS = torch.arange(24.0).reshape(2, 4, 3)
ORDER = torch.tensor([[3, 0, 2], [1, 1, 0]])


@pytest.mark.parametrize(("rows_dim", "order_dim"), [(0, 0), (0, None), (None, 0), (1, 0), (0, 1)])
def test_rows_of_every_client_are_its_own(rows_dim: int | None, order_dim: int | None) -> None:
    """Whichever of rows and numbers differ from client to client, and wherever the vmap has put them."""
    rows = _place(ROWS, rows_dim)
    order = _place(ORDER, order_dim)
    taken = torch.func.vmap(take_rows, (rows_dim, order_dim))(rows, order)
    for k in range(2):
        own_rows = ROWS[k if rows_dim is not None else 0]
        own_order = ORDER[k if order_dim is not None else 0]
        assert torch.equal(taken[k], own_rows[own_order])


def _place(stacked: Tensor, dim: int | None) -> Tensor:
    if dim is None:
        return stacked[0]
    return stacked.movedim(0, dim)


def test_which_transformation_runs() -> None:
    found: list[bool] = [in_one_vmap()]

    def note(x: Tensor) -> Tensor:
        found.append(in_one_vmap())
        return x.sum()

    torch.func.vmap(note)(torch.ones(2, 2))
    torch.func.vmap(torch.func.vmap(note))(torch.ones(2, 2, 2))
    torch.func.grad(note)(torch.ones(2))
    assert found == [False, True, False, False]


def test_weights_or_rows_that_clients_share() -> None:
    """The first step of a round starts from common weights; samplers pass many weights over common rows."""
    task = co.classification(co.models.mlp(4, 3, hidden=(5,)).double())
    like = {k: v.double() for k, v in task.init(Key(0)).params.items()}
    vectors = torch.stack([tree.ravel(like), 2 * tree.ravel(like)])
    xs = Key(1).normal((2, 6, 4)).double()
    y = torch.arange(6) % 3
    w = torch.ones(6, dtype=torch.float64)
    alone = perceptron_gradient(task, like)
    assert alone is not None

    def inside(vector: Tensor, x: Tensor) -> Tensor:
        gradient = perceptron_gradient(task, like)
        assert gradient is not None
        return gradient(vector, Data(x, y, w))

    for dims in ((0, None), (None, 0), (0, 0)):
        arguments = [stacked if dim == 0 else stacked[0] for stacked, dim in zip((vectors, xs), dims, strict=True)]
        together = torch.func.vmap(inside, dims)(*arguments)
        for k in range(2):
            vector, x = (stacked[k if dim == 0 else 0] for stacked, dim in zip((vectors, xs), dims, strict=True))
            torch.testing.assert_close(together[k], alone(vector, Data(x, y, w)), atol=1e-14, rtol=0)
