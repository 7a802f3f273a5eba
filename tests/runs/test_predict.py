"""What a result predicts, where its uncertainty comes from, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch

import consilience as co
from consilience.errors import InputError
from consilience.key import Key


def test_prediction_says_where_its_uncertainty_comes_from() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("mixture"), task, sites)

    p = result.predict(sites.all_test.x)

    assert p.probs is not None
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(len(p.probs)))
    assert bool((p.disagreement >= -1e-6).all()) and bool((p.epistemic >= p.disagreement - 1e-5).all())


def test_regression_predicts_in_the_targets_units() -> None:
    rows = co.datasets.sine(n_per_site=30)
    scaled = co.from_arrays(rows.x.numpy(), 1000 + 50 * rows.y.numpy(), site=rows.site)
    sites = scaled.split(co.splits.natural(), calibration=10, seed=0)
    task = co.regression(co.models.mlp(1, hidden=(5,)))

    result = co.run(tiny.method("mixture"), task, sites)
    p = result.predict(rows.x[:5])

    assert p.mean is not None
    assert 800 < p.mean.mean() < 1200
    assert 20 < result.metrics["rmse"] < 150


def test_each_site_alone_has_no_prediction_for_all() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("local_only"), task, sites)
    with pytest.raises(InputError, match="a model for each site and none for all"):
        result.predict(sites.all_test.x)


def of_two_features() -> co.Result:
    x = Key(0).normal((60, 2)) * 10 + 50
    sites = co.from_arrays(x, x[:, 0]).split(co.splits.iid(), 2)
    return co.run(co.methods.FedAvg(co.SGD(epochs=1)), co.regression(co.models.linear(2)), sites)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([[62.0]], r"rows of 2 features each.*this is \[1, 1\]"),
        ([1.0, 2.0], r"rows of 2 features each.*this is \[2\]"),
        ([[1.0, 2.0, 3.0]], "rows of 2 features each"),
        ([[1.0, 2.0], [float("nan"), 0.0]], "Row 1 holds NaN"),
    ],
)
def test_rows_the_model_was_not_made_for_are_refused(given: list[list[float]], told: str) -> None:
    x = Key(0).normal((60, 2)) * 10 + 50
    result = co.run(
        co.methods.FedAvg(co.SGD(epochs=1)),
        co.regression(co.models.linear(2)),
        co.from_arrays(x, x[:, 0]).split(co.splits.iid(), 2),
    )
    with pytest.raises(InputError, match=told):
        result.predict(given)  # type: ignore[arg-type]


def test_integers_and_doubles_are_predicted_as_the_same_numbers() -> None:
    x = Key(0).normal((60, 2)) * 10 + 50
    result = co.run(
        co.methods.FedAvg(co.SGD(epochs=1)),
        co.regression(co.models.linear(2)),
        co.from_arrays(x, x[:, 0]).split(co.splits.iid(), 2),
    )
    wanted = result.predict(torch.tensor([[62.0, 41.0]])).mean
    for given in ([[62, 41]], torch.tensor([[62, 41]]), torch.tensor([[62.0, 41.0]]).double().numpy()):
        torch.testing.assert_close(result.predict(given).mean, wanted)  # type: ignore[arg-type]


def test_a_temperature_scales_a_variance_and_its_parts_alike() -> None:
    x = Key(0).normal((80, 2))
    sites = co.from_arrays(x, x[:, 0] + Key(1).normal((80,))).split(co.splits.iid(), 2, calibration=20)
    sampler = co.CyclicalSGHMC(epochs=4, cycles=1, samples=2)
    result = co.run(co.methods.Mixture(sampler), co.regression(co.models.mlp(2, hidden=(4,)), noise=0.1), sites)
    t = float(result.report["tempered"]["temperature"])
    assert abs(t - 1) > 0.1
    for part, scaled in zip(
        *(result.predict(sites.all_test.x, temper=soft)[2:6] for soft in (False, True)), strict=True
    ):
        torch.testing.assert_close(scaled, t * part)


@pytest.mark.parametrize("rounds", [1, 3])
def test_every_round_is_scored_once_the_last_too(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history and the report of the last round are made from the same predictions of the test rows."""
    task, sites = tiny.classification()
    asked = []
    predictive = co.methods.FedAvg.predictive

    def counted(self: co.methods.FedAvg, task: co.Task, state: Any) -> Any:
        model = predictive(self, task, state)

        def predict(x: torch.Tensor) -> Any:
            asked.append(len(x))
            return model(x)

        return predict

    monkeypatch.setattr(co.methods.FedAvg, "predictive", counted)
    result = co.run(tiny.method("fedavg"), task, sites, rounds=rounds)

    every = len(sites.all_test.x)
    assert asked.count(every) == rounds
    assert result.report["history"][-1]["nll"] == result.metrics["nll"]
