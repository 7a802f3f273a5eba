"""Distillation through unrolled training, by hand on two weights."""

from __future__ import annotations

import pytest
import torch

import consilience as co
from consilience.data.sites import Data
from consilience.distributions.prior import Flat
from consilience.inference import Distillation
from consilience.inference.pseudo_rows import starts
from consilience.inference.unrolled import Lessons, join_lessons, train_on_lessons
from consilience.key import Key
from consilience.messages import Client

SEED = torch.tensor(4)


def problem() -> tuple[co.Task, Data]:
    x = Key(0).normal((20, 2)).double()
    task = co.regression(torch.nn.Linear(2, 1, bias=False).double(), noise=1.0, prior=Flat())
    return task, Data.of(x, x @ torch.tensor([1.0, -2.0], dtype=torch.float64))


def test_lessons_are_plain_gradient_steps() -> None:
    task, _ = problem()
    start = torch.tensor([0.5, 0.0], dtype=torch.float64)
    lessons = Lessons(
        torch.tensor([[[1.0, 0.0]], [[0.0, 2.0]]]).double(),
        torch.tensor([[2.0], [1.0]]).double(),
        torch.tensor([0.1, 0.2]),
    )

    theta = train_on_lessons(task, task.like, start, lessons, 1)

    # ∇ = x(xᵀθ − y): first (1, 0)·(0.5 − 2), a rate of 0.1; then (0, 2)·(0 − 1), a rate of 0.2.
    torch.testing.assert_close(theta, torch.tensor([0.65, 0.4], dtype=torch.float64))


def test_distilling_makes_the_start_fit_the_rows() -> None:
    task, data = problem()
    learn = Distillation(steps=4, batch=3, updates=80, rate=0.3, rate_x=0.3, rate_y=0.3, rate_rate=1e-3)
    lessons = learn(task, SEED, Client(data, (), Key(1)))
    start = starts(task, SEED, 1)[0]

    def error(theta: torch.Tensor) -> float:
        return float(((data.x @ theta - data.y) ** 2).mean())

    assert error(train_on_lessons(task, task.like, start, lessons, 1)) < 0.05 * error(start)
    assert (lessons.rates >= 0).all() and lessons.rates.std() > 0


def test_a_batch_counts_each_client_by_its_rows() -> None:
    one = Lessons(torch.zeros(2, 3, 1), torch.zeros(2, 3), torch.tensor([0.1, 0.3]))
    two = Lessons(torch.ones(2, 1, 1), torch.ones(2, 1), torch.tensor([0.3, 0.1]))

    lessons, w = join_lessons([one, two], torch.tensor([0.25, 0.75], dtype=torch.float64))

    assert lessons.x.shape == (2, 4, 1)
    assert w.tolist() == pytest.approx([0.25] * 3 + [0.75])
    assert lessons.rates.tolist() == pytest.approx([0.25, 0.15])  # ¼·0.1 + ¾·0.3, ¼·0.3 + ¾·0.1
