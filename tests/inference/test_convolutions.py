"""Convolutional networks written out against autograd: the same weights, images, ties and padding."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.inference.fast.backprop_cnn import cnn_gradient
from consilience.key import Key
from consilience.models import model
from consilience.models.plain_cnn import channels_last, plain_cnn, suits_channels_last
from consilience.runs.engines import Turn, engine
from consilience.task import mean_nll
from consilience.tree import Params

ROWS = 5
WEIGHTS = torch.tensor([1.0, 0, 2, 1, 1], dtype=torch.float64)  # padding and weights


def conv(before: int, after: int, kernel: int, **words: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, kernel, **words), nn.ReLU()]  # type: ignore[arg-type]


def networks(channels: int) -> dict[str, nn.Module]:
    """Poolings that leave a row out, that come before ReLU or not at all; strides, padding, no bias, no ReLU."""
    ends = lambda width: [nn.Flatten(), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 3)]
    deep = [*conv(channels, 3, 3), nn.MaxPool2d(2), *conv(3, 5, 2), nn.MaxPool2d((1, 2))]
    strided = [nn.Conv2d(channels, 4, (3, 2), stride=(2, 1), padding=(1, 2), bias=False), nn.MaxPool2d(3), nn.ReLU()]
    linear = [nn.Conv2d(channels, 2, 3, padding=1), nn.Conv2d(2, 3, 1), nn.ReLU()]
    return {
        "pooled": nn.Sequential(*deep, nn.Sequential(*ends(5 * 2 * 1))),
        "strided": nn.Sequential(*strided, *ends(4 * 1 * 3)),
        "unpooled": nn.Sequential(*linear, nn.Flatten(), nn.Linear(3 * 8 * 8, 3)),
    }


def by_autograd(task: co.Task, like: Params, vector: Tensor, batch: Data) -> Tensor:
    leaf = vector.clone().requires_grad_()
    params = tree.unravel(leaf, like)
    weights = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
    outputs = functional_call(task.model, weights, (batch.x,))
    mean_nll(task.likelihood.nll(outputs, batch.y, params), batch.w).backward()
    assert leaf.grad is not None
    return leaf.grad


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", ["pooled", "strided", "unpooled"])
def test_equals_autograd(name: str, channels: int) -> None:
    """To rounding: sums of at most some hundred products of numbers about 1, in double precision."""
    network = networks(channels)[name].double()
    classes = co.classification(network)
    x = Key(0).normal((ROWS, channels, 8, 8)).double()
    x[:, :, :6] = x[:, :, :6].round()  # equal patches, so that windows have several largest responses
    numbers = dataclasses.replace(classes, likelihood=co.regression(network).likelihood)  # has a weight of its own
    labels = torch.tensor([0, 2, 1, 1, 0])
    targets = Key(2).normal((ROWS, 3)).double()
    for task, y in ((classes, labels), (numbers, targets)):
        like = {k: v.double() for k, v in task.init(Key(1)).params.items()}
        vector = tree.ravel(like)
        batch = Data(x, y, WEIGHTS)
        gradient = cnn_gradient(task, like)
        assert gradient is not None
        torch.testing.assert_close(gradient(vector, batch), by_autograd(task, like, vector, batch), atol=1e-12, rtol=0)
        torch.testing.assert_close(task.outputs(like, x), functional_call(network, _own(like), (x,)))


def _own(like: Params) -> Params:
    return {k: v for k, v in like.items() if not k.startswith("likelihood.")}


def test_a_flat_image_has_the_gradient_of_the_first_of_equal_responses() -> None:
    """All four responses of a window are equal, and positive by the bias: autograd takes the first."""
    network = nn.Sequential(*conv(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * 9, 2)).double()
    task = co.classification(network)
    like = {k: v.double() for k, v in task.init(Key(0)).params.items()}
    like["0.bias"] = torch.tensor([0.5, 0.7], dtype=torch.float64)
    x = torch.zeros(2, 1, 8, 8, dtype=torch.float64)
    x[1, :, 3:] = 1.0  # an edge: the patch that the first response saw is not that of the others
    batch = Data(x, torch.tensor([0, 1]), torch.ones(2, dtype=torch.float64))
    gradient = cnn_gradient(task, like)
    assert gradient is not None
    vector = tree.ravel(like)
    torch.testing.assert_close(gradient(vector, batch), by_autograd(task, like, vector, batch), atol=1e-13, rtol=0)


@pytest.mark.parametrize("name", ["cnn_hasan_released", "cnn_ozer", "cnn_chen", "cnn_dhondt"])
def test_the_papers_networks_are_written_out(name: str) -> None:
    """In single precision the gradients differ by rounding: √(products in a sum) · 2⁻²⁴, about 1e-5 of the largest."""
    network = model(name, (1, 28, 28), 3)
    task = co.classification(network)
    like = task.init(Key(0)).params
    batch = Data.of(Key(1).normal((2, 1, 28, 28)), torch.tensor([0, 2]))
    gradient = cnn_gradient(task, like)
    assert gradient is not None
    vector = tree.ravel(like)
    expected = by_autograd(task, like, vector, batch)
    torch.testing.assert_close(gradient(vector, batch), expected, atol=1e-5 * float(expected.abs().max()), rtol=0)


def test_other_networks_go_the_general_way() -> None:
    once = nn.Conv2d(2, 2, 3, padding=1)
    tail = [nn.Flatten(), nn.Linear(8, 2)]
    others = {
        "groups": nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), *tail),
        "gaps": nn.Sequential(nn.Conv2d(2, 2, 3, dilation=2), *tail),
        "reflected": nn.Sequential(nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"), *tail),
        "same": nn.Sequential(nn.Conv2d(2, 2, 3, padding="same"), *tail),
        "overlapping windows": nn.Sequential(nn.Conv2d(2, 2, 3), nn.MaxPool2d(3, 2), *tail),
        "another activation": nn.Sequential(nn.Conv2d(2, 2, 3), nn.Tanh(), *tail),
        "shared": nn.Sequential(once, nn.ReLU(), once, *tail),
        "pooled first": nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(2, 2, 3), *tail),
        "not flattened": nn.Sequential(nn.Conv2d(2, 2, 3), nn.Linear(8, 2)),
        "perceptron": co.models.mlp((2, 4, 4), 2),
        "residual": model("resnet20", (1, 8, 8), 2),
    }
    assert [name for name, network in others.items() if plain_cnn(network) is not None] == []
    watched = nn.Sequential(nn.Conv2d(2, 2, 3), *tail)
    assert plain_cnn(watched) is not None
    watched[0].register_forward_hook(lambda *_: None)
    assert plain_cnn(watched) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_changes_the_layout_alone(channels: int) -> None:
    """Even of one channel, whose two layouts are the same numbers in the same places, the convolution sees which."""
    x = Key(0).normal((2, channels, 5, 4))
    laid_out = channels_last(x)
    assert torch.equal(laid_out, x)
    responses = torch.conv2d(laid_out, Key(1).normal((3, channels, 2, 2)))
    assert responses.is_contiguous(memory_format=torch.channels_last)
    assert channels_last(x[:, :, ::2]).equal(x[:, :, ::2])


def test_which_networks_have_their_channels_last() -> None:
    names = ("cnn_ozer", "resnet20", "resnet20_batchnorm", "mobilenetv2")
    suited = [name for name in names if suits_channels_last(co.classification(model(name, (1, 28, 28), 2)).model)]
    assert suited == ["cnn_ozer", "resnet20_batchnorm", "mobilenetv2"]


def test_engines_agree_on_a_cnn() -> None:
    """Written out (sequential, parallel) and by vmap, three rounds of two steps in double precision."""
    data = [
        Data.of(Key(k).normal((count, 1, 8, 8)).double(), torch.arange(count) % 3) for k, count in enumerate((6, 5, 6))
    ]
    task = co.classification(networks(1)["pooled"].double())
    method = co.methods.FedAvg(co.SGD(rate=0.1, epochs=1, batch=3))
    server = co.messages.Server(None, None, Key(2), len(data))
    states = []
    for name in ("sequential", "vectorised", "parallel"):
        state, where = method.init(task, server), engine(name, data)
        for turn in range(3):
            replies = where.gather(method, task, method.broadcast(state), where.clients, Turn(turn, Key(3)))
            state = method.aggregate(task, state, replies, server)
        states.append(tree.ravel(state.posterior.params))  # type: ignore[union-attr]
    for other in states[1:]:
        torch.testing.assert_close(other, states[0], atol=1e-10, rtol=0)
