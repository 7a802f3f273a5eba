"""Predictions asked for again are computed once, and only while somebody says so."""

from __future__ import annotations

import tiny
import torch

import consilience as co
from consilience.key import Key
from consilience.models.remembered import remember, remember_values


def test_the_same_objects_are_computed_once_and_then_forgotten() -> None:
    asked = []
    x, y = torch.zeros(2), torch.zeros(2)

    def value() -> int:
        asked.append(1)
        return len(asked)

    with remember_values():
        assert [remember(value, x), remember(value, x), remember(value, y), remember(value, x, y)] == [
            1,
            1,
            2,
            3,
        ]
    assert [remember(value, x), remember(value, x)] == [4, 5]


def test_predictions_are_the_same_with_and_without() -> None:
    task, sites = tiny.classification()
    x, points = sites.all_test.x, [task.init(Key(i)) for i in range(3)]
    before = [task.predictive(p)(x).log_probs for p in points]

    with remember_values():
        first = [task.predictive(p)(x).log_probs for p in points]
        again = [task.predictive(p)(x).log_probs for p in points]
        tempered = task.predictive(points[0])(x.clone()).log_probs

    assert all(torch.equal(a, b) for a, b in zip(before, first, strict=True))
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert tempered is not first[0], "other inputs are other predictions"


def test_pools_of_the_same_replies_give_the_same_scores() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("mixture"), task, sites)
    alone = [result.pool(tiny.method(name)).metrics for name in ("mixture", "bcm", "beta")]
    with remember_values():
        assert [result.pool(tiny.method(name)).metrics for name in ("mixture", "bcm", "beta")] == alone
