"""The thread pool: thousands of steps on one network each, and a complaint that names its site."""

from __future__ import annotations

import os
import time

import pytest
import torch

import consilience as co
from consilience.data import Data
from consilience.key import Key
from consilience.runs.engines import Parallel, Sequential, Turn, workers

STEPS = 20  # epochs of 10 steps, for 6 clients: 1200 steps side by side
TURN = Turn(0, Key(2))


def problem() -> tuple[co.Task, list[Data]]:
    g = torch.Generator().manual_seed(0)
    data = [Data.of(torch.randn(200, 20, generator=g), torch.randint(0, 5, (200,), generator=g)) for _ in range(6)]
    return co.classification(co.models.mlp(20, 5, hidden=(64, 64))), data


def test_thousands_of_steps_side_by_side_give_the_same_weights() -> None:
    task, data = problem()
    method = co.methods.FedAvg(co.SGD(rate=0.05, epochs=STEPS, batch=20))
    before = {k: v.clone() for k, v in task.model.state_dict().items()}
    start = task.init(Key(1))

    alone = Sequential(data).gather(method, task, start, range(6), TURN)
    together = Parallel(data, workers=4).gather(method, task, start, range(6), TURN)

    for a, b in zip(alone, together, strict=True):
        for name in a.payload.params:
            torch.testing.assert_close(a.payload.params[name], b.payload.params[name], atol=1e-4, rtol=1e-3)
    assert all(torch.equal(before[k], v) for k, v in task.model.state_dict().items())


def test_predictions_inside_local_do_not_mix_networks() -> None:
    task, data = problem()
    method = co.methods.EvidenceLogits(co.CyclicalSGHMC(epochs=4, cycles=1, samples=2, keep=2, batch=20))
    from consilience.methods.evidence_logits import Agreed

    message = Agreed(task.init(Key(1)), data[0].x)
    alone = Sequential(data).gather(method, task, message, range(6), TURN)
    for _ in range(3):
        together = Parallel(data, workers=6).gather(method, task, message, range(6), TURN)
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a.payload.logits.values, b.payload.logits.values, atol=1e-4, rtol=1e-4)


def test_a_client_that_diverges_is_named() -> None:
    task, data = problem()
    data[3] = data[3]._replace(x=data[3].x * 1e20)
    with pytest.raises(co.Diverged, match="Site 3, round 1"):
        Parallel(data, workers=2).gather(co.methods.FedAvg(), task, task.init(Key(1)), range(6), TURN)


def test_a_crew_does_everything_once_on_one_network_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 3)
    task, _ = problem()
    crew = workers.Crew()
    busy: set[int] = set()
    networks: set[int] = set()

    def work(own: co.Task, item: int) -> int:
        network = id(own.model)
        assert network not in busy, "two threads on one network"
        assert torch.get_num_threads() == 1 and not torch.is_grad_enabled()
        busy.add(network)
        networks.add(network)
        time.sleep(0.001)
        busy.remove(network)
        return item

    with torch.no_grad():
        for _ in range(3):
            assert sorted(crew.share(work, task, range(40))) == list(range(40))
    assert len(networks) == 3 and id(task.model) in networks, "the caller takes part, and copies are kept"


@pytest.mark.parametrize("culprit", ["caller", "helper"])
def test_a_crew_drops_what_has_not_begun_on_an_error(monkeypatch: pytest.MonkeyPatch, culprit: str) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)
    task, _ = problem()
    begun: list[int] = []

    def work(own: co.Task, item: int) -> None:
        begun.append(item)
        time.sleep(0.002)
        if (own.model is task.model) == (culprit == "caller"):
            raise co.Diverged("too far")

    threads = torch.get_num_threads()
    with pytest.raises(co.Diverged, match="too far"):
        list(workers.Crew().share(work, task, range(1000)))
    assert len(begun) < 100 and torch.get_num_threads() == threads


def test_sister_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_processes", [1])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7), raising=False)
    shares = []
    for processes in (1, 2, 9):
        workers.share_cores(processes)
        shares.append(workers.cores())
    assert shares == [7, 3, 1]
