"""How much of a pool is one site's: its weight where models are averaged, all of it where it decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience.distributions.posterior import Dense, Point
from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.key import Key
from consilience.messages import Received, Server
from consilience.methods.gaussian_product import GaussianProduct
from consilience.runs.engines.influence import Influence, distance, measure_influence
from consilience.runs.engines.round import server_in_round
from consilience.runs.engines.soundness import MOST


def measured(
    method: co.Method, problem: str = "classification", replies: Sequence[Received] | None = None
) -> Influence:
    """Of one round, on rows drawn from the key."""
    task, sites = tiny.PROBLEMS[problem]()
    result = co.run(method, task, sites, rounds=1, engine="sequential", scored=False)
    begin = method.init(task, result.server)
    server = server_in_round(result.server, Key(0), 0)
    x = Key(5).normal((40, *sites.train[0].x.shape[1:]))
    return measure_influence(method, task, begin, server, replies or result.replies, x)


@pytest.mark.parametrize("problem", tiny.PROBLEMS)
def test_where_predictions_are_averaged_it_is_the_sites_weight(problem: str) -> None:
    """Exactly, for classes; the deviation of a number's mixture holds the means' disagreement too."""
    _, sites = tiny.PROBLEMS[problem]()
    sizes = [len(rows.y) for rows in sites.train]

    shares = measured(tiny.method("mixture"), problem).shares

    near = {"classification": 1e-5, "regression": 0.1}[problem]
    assert [shares[k] for k in range(len(sizes))] == pytest.approx([n / sum(sizes) for n in sizes], abs=near)


def product(claims: Sequence[float]) -> Influence:
    """Four sites that think differently of a linear model, with precisions of I times their claims."""
    task = co.classification(co.models.linear(2, 2))
    size = sum(leaf.numel() for leaf in task.like.values())
    replies = [
        Received(k, torch.ones(()), Dense(0.5 * Key(k).normal((size,)), claim * torch.eye(size)))
        for k, claim in enumerate(claims)
    ]
    method = GaussianProduct()
    server = Server(None, None, Key(0), len(replies))
    x = Key(9).normal((50, 2))
    return measure_influence(method, task, method.init(task, server), server, replies, x)


def test_equal_sites_have_equal_shares_and_one_that_decides_has_all() -> None:
    equal = product([40.0] * 4).shares
    decided = product([40.0, 40.0, 1e6, 40.0]).shares

    assert list(equal.values()) == pytest.approx([0.25] * 4, abs=0.12)
    assert decided[2] > 0.99
    assert max(share for k, share in decided.items() if k != 2) < 0.01


def test_sites_that_say_the_same_share_alike() -> None:
    task, _ = tiny.classification()
    same = [Received(k, torch.ones(()), Point(task.init(Key(0)).params)) for k in range(5)]

    assert measured(tiny.method("fedavg"), replies=same).shares == dict.fromkeys(range(5), 0.2)
    assert measured(tiny.method("fedavg"), replies=same[:1]).shares == {0: 1.0}


def test_of_many_sites_those_near_the_pool_are_measured_and_who_decides_is_among_them() -> None:
    task, _ = tiny.classification()
    many = [Received(k, torch.ones(()), Point(task.init(Key(k)).params)) for k in range(MOST + 20)]
    many[7] = many[7]._replace(payload=Point({k: 1e4 * v for k, v in many[7].payload.params.items()}))

    shares = measured(tiny.method("fedavg"), replies=many).shares

    assert len(shares) == MOST
    assert shares[7] > 0.9 and sum(share > 0.5 for share in shares.values()) == 1


def test_what_cannot_be_measured_says_so() -> None:
    distilled = dataclasses.replace(tiny.method("mixture"), distil=tiny.shortened(co.aggregation.Distil()))  # type: ignore[type-var]

    assert "cannot pool without" in measured(tiny.method("evidence_tuned")).unknown
    assert "trained at the coordinator" in measured(tiny.method("evidence_logits")).unknown
    assert measured(distilled) == measured(tiny.method("mixture"))  # the pool, not the student


def test_distances() -> None:
    p, q = (Categorical(torch.tensor([row]).log()) for row in ([0.5, 0.5], [0.9, 0.1]))
    one = Normal(torch.zeros(2), torch.ones(2), torch.zeros(2))
    two = Normal(torch.ones(2), torch.full((2,), 3.0), torch.ones(2))

    assert distance(p, q) == pytest.approx(0.4)
    assert distance(p, p) == distance(one, one) == 0
    assert distance(one, two) == pytest.approx(2.0)


def test_a_run_of_one_round_tells_it(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    sizes = [len(rows.y) for rows in sites.train]
    result = co.run(tiny.method("mixture"), task, sites, engine="sequential", out=tmp_path / "run")

    expected = {name: n / sum(sizes) for name, n in zip(sites.names, sizes, strict=True)}
    assert result.influence == pytest.approx(expected, abs=1e-5)
    assert co.load(tmp_path / "run").influence == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InputError, match="Influence is measured after one round"):
        _ = co.run(tiny.method("fedavg"), task, sites, rounds=2, engine="sequential").influence
