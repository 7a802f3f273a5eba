"""Every method that says it is a sum: the total of the summands pools to what the replies pool to."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.aggregation.averages import median
from consilience.aggregation.distil import Distil
from consilience.aggregation.merging import cf, eaa, gaa, ppa
from consilience.key import Key, Stream
from consilience.messages import Received
from consilience.method.declared import is_sum, summation
from consilience.methods import METHODS
from consilience.runs.engines.client_turn import Turn
from consilience.runs.engines.round import server_in_round, server_view
from consilience.runs.engines.sequential import Sequential
from consilience.study.validation.steps import scales_of

SUMS = sorted(name for name, kind in METHODS.items() if summation(kind()) is not None)
FURTHER = {  # settings that are summed in their own way
    "variational, eaa": ("variational", {"rule": eaa}),
    "variational, ppa": ("variational", {"rule": ppa}),
    "variational, gaa, equal": ("variational", {"rule": gaa, "equal": True}),
    "variational, cf, equal": ("variational", {"rule": cf, "equal": True}),
    "fedavg, equal": ("fedavg", {"equal": True}),
    "gaussian_product, dense": ("gaussian_product", {"inference": co.Laplace(dense=True)}),
}
CASES = {**{name: (name, {}) for name in SUMS}, **FURTHER}


def test_methods_that_are_sums_say_so_and_others_do_not() -> None:
    assert {*SUMS} >= {"fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedpa", "scaffold", "mime", "mimelite"}
    assert {*SUMS} >= {"gaussian_product", "pvi", "variational", "exact", "exact_tuned", "glm", "evidence_logits"}
    assert not {*SUMS} & {"mixture", "bcm", "beta", "oneshot", "ep_mcmc", "fedbe", "fedkt", "coreset", "evidence"}
    assert {name for name, kind in METHODS.items() if is_sum(kind)} <= {*SUMS}


@pytest.mark.parametrize(
    "method",
    [
        co.methods.FedAvg(rule=median),
        co.methods.GaussianProduct(cap=2.0),
        co.methods.ExactPooling(wire="float16"),
        co.methods.VariationalAveraging(rule=cf),
        co.methods.VariationalAveraging(rule=ppa, population=10),
        co.methods.EvidenceLogits(penalty=None),
        co.methods.EvidenceLogits(penalty=0.0),
    ],
    ids=["median", "cap", "float16", "cf", "population", "estimated penalty", "no penalty"],
)
def test_settings_that_need_single_replies_are_no_sums(method: co.Method) -> None:
    assert summation(method) is None


def prepared(name: str, settings: dict[str, Any]) -> tuple[co.Method, co.Task, Sequential, Any]:
    task, sites = tiny.problem_of(name, "classification", torch.float64)
    method: Any = dataclasses.replace(tiny.method(name), **settings)
    if isinstance(getattr(method, "distil", None), Distil):
        method = dataclasses.replace(method, distil=tiny.shortened(method.distil))
    server = server_view(Key(0), len(sites.train), sites.inputs, sites.calibration)
    return method, task, Sequential(sites.train), server


def replies_of(method: co.Method, task: co.Task, engine: Sequential, message: Any, t: int) -> list[Received]:
    return engine.gather(method, task, message, list(engine.clients), Turn(t, Key(0).fold(Stream.LOCAL), t / 2))


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_total_pools_to_what_the_replies_pool_to(case: str) -> None:
    method, task, engine, server = prepared(*CASES[case])
    how = summation(method)
    assert how is not None
    state = method.init(task, server)

    for t in range(1 if method.about.one_shot else 2):
        replies = replies_of(method, task, engine, method.broadcast(state), t)
        drawing = server_in_round(server, Key(0), t)
        plain = method.aggregate(task, state, replies, drawing)
        summands = [how.split(reply.payload, reply.size) for reply in replies]
        total = tree.map(lambda *leaves: torch.stack(leaves).sum(0), *summands)
        joined = how.join(total, len(replies), replies[0].payload)
        summed = method.aggregate(task, state, joined, drawing)
        for a, b in zip(tree.leaves(plain), tree.leaves(summed), strict=True):
            torch.testing.assert_close(torch.as_tensor(b), torch.as_tensor(a), rtol=1e-5, atol=1e-7)
        assert sum(float(reply.size) for reply in joined) == pytest.approx(sum(float(r.size) for r in replies))
        state = plain


@pytest.mark.parametrize("name", ["fedavg", "gaussian_product", "exact"])
@torch.no_grad()
def test_the_total_is_off_by_no_more_than_half_a_step_for_each_site(name: str) -> None:
    method, task, engine, server = prepared(name, {})
    how = summation(method)
    assert how is not None
    replies = replies_of(method, task, engine, method.broadcast(method.init(task, server)), 0)
    summands = [how.split(reply.payload, reply.size) for reply in replies]
    scales = scales_of(summands[0], None, 1000, len(replies))

    total = scales.to_total(sum(map(scales.to_multiples, summands)), len(replies))

    exact = tree.map(lambda *leaves: torch.stack(leaves).sum(0), *summands)
    for a, b, step in zip(tree.leaves(exact), tree.leaves(total), scales.steps, strict=True):
        limit = len(replies) * step / 2 + 1e-15 * float(a.abs().max() if a.numel() else 0.0)
        assert not a.numel() or float((a - b).abs().max()) <= limit
