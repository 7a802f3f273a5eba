"""Private methods on every engine: the same noise, none left out, and refusals by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import consilience as co
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.methods.exact import ExactPooling
from consilience.methods.exact_tuned import ExactTuned
from consilience.models.bounded import Bounded
from consilience.parties import Client
from consilience.privacy.mechanisms import Clipped, Privacy, Released


def problem(sites: int = 4, classes: int | None = 3) -> tuple[co.Task, co.Sites]:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for k in range(sites):
        x = torch.randn(150 + 10 * k, 4, generator=generator)
        y = (x[:, :3] + 0.3 * torch.randn(len(x), 3, generator=generator)).argmax(1)
        if classes is None:
            y = x.sum(1)
        parts.append(Data.of(x, y))
    network = nn.Sequential(nn.Flatten(), Bounded(2.0), nn.Linear(4, classes or 1))
    task = co.regression(network) if classes is None else co.classification(network)
    names = tuple(str(k) for k in range(sites))
    return task, co.Sites(tuple(parts), tuple(parts), None, None, None, classes, 4, "made", "made", names)


@pytest.mark.parametrize("method", [ExactPooling, ExactTuned])
def test_every_engine_adds_the_same_noise(method: type[ExactPooling] | type[ExactTuned]) -> None:
    task, sites = problem()
    private = method(privacy=Privacy(3.0, 1e-4))
    results = [co.run(private, task, sites, engine=engine) for engine in ("sequential", "parallel", "vectorised")]
    sent = [[reply.payload for reply in result.replies] for result in results]
    assert all(isinstance(payload, Released) for payloads in sent for payload in payloads)
    for other in sent[1:]:
        assert all(torch.allclose(a.values, b.values, atol=1e-6) for a, b in zip(sent[0], other, strict=True))
    assert all(float(reply.size) == 0 for reply in results[0].replies)
    assert results[0].report["privacy"]["simulated"] is True
    assert results[0].report["privacy"]["adjacency"] == "add or remove"


def test_what_has_no_noise_yet_cannot_be_stored_or_sent() -> None:
    from consilience.formats.codec import decode, encode, types_of

    task, sites = problem()
    private = ExactPooling(privacy=Privacy(3.0, 1e-4))
    reply = private.local(task, (), Client(sites.train[0], (), Key(0).tensor))
    assert isinstance(reply.send, Clipped)
    with pytest.raises(InputError, match="Clipped"):
        decode(*encode(reply.send), types_of(private))


def test_much_budget_is_nearly_no_noise() -> None:
    task, sites = problem(classes=None)
    private = co.run(ExactPooling(privacy=Privacy(500.0, 1e-4, bound=10.0)), task, sites)
    plain = co.run(ExactPooling(), task, sites)
    x = sites.train[0].x
    a, b = (r.method.predictive(task, r.state)(x).mean for r in (private, plain))
    assert float((a - b).abs().max()) < 0.1


@pytest.mark.parametrize(
    ("method", "word"),
    [(ExactPooling(head=co.pooling.heads.Dirichlet(), privacy=Privacy()), "leave head"),
     (ExactPooling(share=0.1, privacy=Privacy()), "leave head"),
     (ExactTuned(candidates=(co.pooling.heads.OneHot(),), privacy=Privacy()), "candidates"),
     (ExactPooling(privacy=Privacy(delta=0.01)), "one of the 660 rows"),
     (ExactPooling(privacy=Privacy(noise="once", honest=5)), "relied on")],
)  # fmt: skip
def test_refuses_what_has_no_private_form(method: co.Method, word: str) -> None:
    task, sites = problem()
    with pytest.raises(InputError, match=word):
        co.run(method, task, sites)


def test_refuses_features_that_are_not_clipped_and_two_sites() -> None:
    _, sites = problem()
    open_task = co.classification(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(InputError, match="not clipped"):
        co.run(ExactPooling(privacy=Privacy(delta=1e-4)), open_task, sites)
    task, two = problem(2)
    with pytest.raises(InputError, match="With 2 sites"):
        co.run(ExactPooling(privacy=Privacy(delta=1e-4, noise="once", honest=2)), task, two)


@pytest.mark.parametrize("length", [-1.0, float("inf"), float("nan")])
def test_refuses_a_length_that_bounds_nothing(length: float) -> None:
    with pytest.raises(InputError, match="not clipped"):
        Bounded(length)


def test_bounded_features_are_no_longer_than_1_and_lose_what_groups_share() -> None:
    x = 100 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    assert float(Bounded(0.0)(x).norm(dim=1).sub(1).abs().max()) < 1e-6
    assert float(Bounded(5.0)(x).norm(dim=1).max()) <= 1 + 1e-6
    assert torch.allclose(Bounded(5.0)(x / 1000), x / 5000)
    moved = x + torch.tensor([1.0, 2.0]).repeat(3) * 7
    assert torch.allclose(Bounded(0.0, 2)(x), Bounded(0.0, 2)(moved), atol=1e-5)
