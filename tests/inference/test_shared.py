"""Chains with equal inputs are run once while somebody says so, and no number changes."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import tiny
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.penalties import decay
from consilience.distributions.prior import Isotropic
from consilience.glm.heads import Discriminant, OneHot
from consilience.inference import SGD, Laplace
from consilience.inference.chain import chain
from consilience.inference.fast.shared import share_training
from consilience.inference.kernels import Optimise
from consilience.inference.optimisers import AdamSteps, Descent
from consilience.inference.schedules import constant, cosine
from consilience.key import Key
from consilience.messages import Client

ROWS = Data.of(torch.arange(24.0).reshape(8, 3) / 24, torch.arange(8) % 2)


@lru_cache
def network() -> co.Task:
    return co.classification(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))


def inputs() -> dict[str, Any]:
    """What a chain is made from, each a new object."""
    return {
        "task": dataclasses.replace(network()),
        "start": network().init(Key(0)),
        "client": Client(Data(*(leaf.clone() for leaf in ROWS)), (), Key(1)),
        "kernel": Optimise(Descent(0.1, 0.9), constant),
        "epochs": 2,
        "batch": 4,
        "sample_at": (1,),
        "client_epochs": None,
        "augment": None,
        "shuffle": True,
    }


def other_rows(**leaves: torch.Tensor) -> Client:
    return Client(ROWS._replace(**leaves), (), Key(1))


def others() -> dict[str, tuple[str, Any]]:
    """Each input changed by itself: its name, and the changed one."""
    task = network()
    point = task.init(Key(0)).params
    return {
        "network": ("task", dataclasses.replace(task, model=co.classification(task.model).model)),
        "offset": ("task", task.adjusted(torch.tensor([0.0, 1.0]))),
        "prior": ("task", task.with_prior(Isotropic(2.0))),
        "tilt": ("task", task.tilted(decay(0.1))),
        "another tilt": ("task", task.tilted(decay(0.2))),
        "anchor": ("task", task.anchored(point, point)),
        "guard": ("task", dataclasses.replace(task, guarded=True)),
        "start": ("start", task.init(Key(9))),
        "x": ("client", other_rows(x=ROWS.x + 1e-7)),
        "y": ("client", other_rows(y=1 - ROWS.y)),
        "w": ("client", other_rows(w=ROWS.w * 2)),
        "key": ("client", Client(ROWS, (), Key(2))),
        "rate": ("kernel", Optimise(Descent(0.1 + 1e-9, 0.9), constant)),
        "optimiser": ("kernel", Optimise(AdamSteps(0.1), constant)),
        "schedule": ("kernel", Optimise(Descent(0.1, 0.9), cosine)),
        "factor": ("kernel", Optimise(Descent(0.1, 0.9), constant, torch.tensor(0.5))),
        "epochs": ("epochs", 3),
        "batch": ("batch", 5),
        "samples": ("sample_at", (0, 1)),
        "passes": ("client_epochs", torch.tensor(1.0)),
        "augmentation": ("augment", lambda x, key: x + 0.1),
        "order": ("shuffle", False),
    }


@torch.no_grad()
def trained(**changed: Any) -> Any:
    return chain(**(inputs() | changed))


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_equal_inputs_are_trained_once_bit_for_bit() -> None:
    alone = trained()
    with share_training() as shared:
        first = trained()
        again = trained()
    assert shared.repeated == 1
    assert shared.spared > 0
    assert equal(first, alone) and equal(again, alone)


def test_every_input_counts() -> None:
    with share_training() as shared:
        trained()
        for what, (name, value) in others().items():
            trained(**{name: value})
            assert shared.repeated == 0, what


def test_what_is_handed_out_can_be_written_over() -> None:
    alone = trained()
    with share_training():
        trained().vector.zero_()
        trained().vector.zero_()
        assert equal(trained(), alone)


def test_memory_is_bounded_and_the_oldest_goes_first() -> None:
    size = sum(leaf.nbytes for leaf in tree.leaves(trained()))
    with share_training(budget=2 * size) as shared:
        for seed in (1, 2, 1, 3):
            trained(client=Client(ROWS, (), Key(seed)))
        assert shared.repeated == 1
        trained(client=Client(ROWS, (), Key(1)))  # used after 2 was
        assert shared.repeated == 2
        trained(client=Client(ROWS, (), Key(2)))
        assert shared.repeated == 2


def test_nothing_is_shared_outside_under_vmap_or_with_what_may_change() -> None:
    class Changing:
        """An augmentation with a state of its own."""

        def __call__(self, x: torch.Tensor, key: Key) -> torch.Tensor:
            return x

    changing = Changing()
    with share_training() as shared:
        trained(augment=changing)
        trained(augment=changing)
    trained()
    assert shared.repeated == 0


def test_rules_that_begin_with_the_same_training_share_it() -> None:
    task, sites = tiny.classification()
    training = SGD(epochs=2)
    rules = [
        co.methods.FedAvg(training),
        co.methods.OneShotFL(training, distil=None),
        co.methods.METHODS["regmean"](training),
        co.methods.GaussianProduct(Laplace(mode=training)),
        co.methods.EvidencePooling(training),
    ]

    def state(rule: co.Method) -> Any:
        return co.run(rule, task, sites, rounds=1, scored=False, engine="sequential").state

    alone = [state(rule) for rule in rules]
    with share_training() as shared:
        together = [state(rule) for rule in rules]
    assert all(equal(a, b) for a, b in zip(together, alone, strict=True))
    assert shared.repeated == 3 * len(sites), "evidence pooling trains by a likelihood of its own"


def test_heads_on_the_same_features_share_their_sums() -> None:
    task, sites = tiny.problem_of("exact", "classification")
    rules = [
        co.methods.ExactPooling(OneHot()),
        co.methods.ExactPooling(Discriminant()),
        co.methods.ExactPooling(OneHot(), wire="float16"),
    ]

    def state(rule: co.Method) -> Any:
        return co.run(rule, task, sites, scored=False, engine="sequential").state

    alone = [state(rule) for rule in rules]
    with share_training() as shared:
        together = [state(rule) for rule in rules]
    assert all(equal(a, b) for a, b in zip(together, alone, strict=True))
    assert shared.repeated == 2 * len(sites)
