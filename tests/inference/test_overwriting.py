"""Steps that write over their own vectors: over nothing else, and to the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.distributions.posterior import Samples
from consilience.inference import SWA, Inference
from consilience.inference.optimisers import AdamSteps
from consilience.key import Key
from consilience.messages import Client


def furthest(a: object, b: object) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


WRITERS: dict[str, Inference] = {
    "SGD": co.SGD(epochs=2, momentum=0.0),
    "SGDM": co.SGD(epochs=2),
    "Adam": co.Adam(epochs=2),
    "SWA": SWA(epochs=2, begin=1, every=1),
    "SGLD": co.SGLD(epochs=3, burn=0, every=1),
    "cSGHMC": co.CyclicalSGHMC(epochs=4, cycles=2, samples=2, keep=4),
    "mean field": co.MeanField(epochs=2),
}


@pytest.mark.parametrize("network", ["perceptron", "tanh"])
@pytest.mark.parametrize("name", WRITERS)
def test_steps_overwrite_nothing_but_their_own(name: str, network: str) -> None:
    """A chain may write over its vectors: never over its start, its rows or the samples it has kept."""
    activation = nn.ReLU if network == "perceptron" else nn.Tanh
    task = co.classification(co.models.mlp(4, 3, hidden=(5,), activation=activation)).tilted(co.task.decay(1e-3))
    start, client = task.init(Key(0)), Client(Data.of(Key(2).normal((60, 4)), torch.arange(60) % 3), (), Key(1))
    before = tree.map(torch.clone, (start, client.data))

    first = WRITERS[name](task, start, client)
    kept = tree.map(torch.clone, first)
    again = WRITERS[name](task, start, client)

    assert furthest((start, client.data), before) == 0
    assert furthest(first, kept) == 0 and furthest(first, again) == 0
    if isinstance(first, Samples):
        samples = tree.ravel(first.params, batch_dims=1)
        assert len(samples.unique(dim=0)) == len(samples) > 2


def test_adam_in_one_pass_is_adam() -> None:
    """Both forms of the step, which engines share out between them."""
    optimiser, gradients = AdamSteps(), torch.randn(40, 300, generator=torch.Generator().manual_seed(0))
    apart, together = gradients[0].clone(), gradients[0].clone()
    a, b = optimiser.init(apart), optimiser.init(together)
    for gradient in gradients:
        apart, a = optimiser.step(apart, gradient, a, 1e-2)
        together, b = optimiser.step(together, gradient, b, 1e-2, overwrite=True)
    torch.testing.assert_close(apart, together, atol=1e-6, rtol=1e-6)
    assert furthest(a, b) <= 1e-6
