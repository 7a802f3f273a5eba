"""Saving a result and loading it from its path alone."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import tiny
import torch
from torch import nn

import consilience as co
from consilience.methods import METHODS
from consilience.models import MODELS
from consilience.models.batchnorm import BatchNorm
from consilience.models.controlled import control
from consilience.models.convolutions import Convolutions
from consilience.models.frozen import Frozen
from consilience.models.hats import Hats
from consilience.models.maps import RandomFourier, RandomReLU
from consilience.models.mobilenet import Inverted
from consilience.models.resnet import Residual, resnet
from consilience.models.seeded import Dropout
from consilience.runs.recipe import Recipe
from consilience.runs.result import Prediction
from consilience.serialisation.blueprint import LAYERS, build_network, describe_network
from consilience.serialisation.settings import describe, restore


def same(a: Prediction, b: Prediction) -> bool:
    return all((x is None and y is None) or torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_comes_back_from_its_description(name: str) -> None:
    described = describe(tiny.method(name))
    method = restore(json.loads(json.dumps(described)))
    assert type(method) is METHODS[name] and describe(method) == described


def test_scales_and_temperature_are_kept(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    x = 50 + 20 * torch.randn(120, 2, generator=g)
    y = 300 + 7 * x[:, 0] + torch.randn(120, generator=g)
    sites = co.from_arrays(x, y, torch.arange(120) % 2).split(co.splits.natural(), seed=0)  # standardised
    result = co.run(tiny.method("mixture"), co.regression(co.models.linear(2)), sites)

    result.save(tmp_path / "run")
    loaded = co.load(tmp_path / "run")

    assert same(loaded.predict(x), result.predict(x))
    assert same(loaded.predict(x, temper=True), result.predict(x, temper=True))


def test_a_copy_in_another_process_holds_no_rows_and_predicts_the_same() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("scaffold"), task, sites, rounds=2)
    assert sites.calibration is not None and result.checkpoint is not None and result.checkpoint.memories

    content = pickle.dumps(result)

    copy = pickle.loads(content)
    rows = [row for part in (*sites.train, *sites.test, sites.calibration) for row in part.x]
    assert not any(row.numpy().tobytes() in content for row in rows)
    assert same(copy.predict(rows[0][None]), result.predict(rows[0][None]))
    assert copy.report == result.report and copy.checkpoint.memories == {}
    with pytest.raises(co.InputError, match="hand them in"):
        copy.pool(tiny.method("scaffold"))


def test_printing_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=1)
    monkeypatch.setattr("consilience.runs.bounds.train_bounds", lambda result: pytest.fail("trains"))
    monkeypatch.setattr("consilience.runs.result.lines_to_beat", lambda sites: pytest.fail("trains"))

    assert "NLL" in str(result)
    assert repr(result).startswith("Result(fedavg on ")


def test_a_saved_result_has_its_report_and_can_be_printed(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=2)

    folder = result.save(tmp_path / "run")

    assert (folder / "report.html").exists()
    assert "NLL" in str(co.load(folder))


def test_a_bound_that_diverges_is_told_and_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("mixture"), task, sites)
    monkeypatch.setattr(co.methods.Centralised, "local", lambda *_: (_ for _ in ()).throw(co.Diverged("Too far.")))

    page = (result.save(tmp_path / "plain") / "report.html").read_text()
    assert result.bounds  # asked for, and trained
    text = " ".join(str(result).split())
    told = (result.save(tmp_path / "told") / "report.html").read_text()

    assert "bound failed" not in page
    for shown in (text, told):
        assert "The centralised bound failed: Site pooled, round 1: Too far." in shown and "Local only" in shown
        assert "Server only" in shown
    assert set(result.bounds) == {"local_only", "server_only", "centralised"}
    assert "metrics" in result.bounds["local_only"] and "metrics" not in result.bounds["centralised"]


def test_a_saved_run_can_go_on(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    method = tiny.method("scaffold")  # its sites remember something
    co.run(method, task, sites, rounds=2).save(tmp_path / "run")

    on = co.run(method, task, sites, rounds=3, out=tmp_path / "run", resume=True)

    assert on.metrics == co.run(method, task, sites, rounds=3).metrics
    assert on.report["ledger"] == co.run(method, task, sites, rounds=3).report["ledger"]


def test_pooling_needs_the_rows(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("mixture"), task, sites)
    result.save(tmp_path / "run")

    with pytest.raises(co.InputError, match="sites=sites"):
        co.load(tmp_path / "run").pool(tiny.method("bcm"))
    pooled = co.load(tmp_path / "run", sites=sites).pool(tiny.method("bcm"))
    assert pooled.metrics == result.pool(tiny.method("bcm")).metrics
    with pytest.raises(co.InputError, match="other"):
        co.load(tmp_path / "run", sites=tiny.regression()[1])


def test_a_pool_can_be_saved_too(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    pooled = co.run(tiny.method("mixture"), task, sites).pool(tiny.method("beta"))

    pooled.save(tmp_path / "pool")

    assert same(co.load(tmp_path / "pool").predict(sites.all_test.x), pooled.predict(sites.all_test.x))


def test_a_pool_reports_itself_and_not_the_run_before() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=3)
    scores = ("metrics", "intervals", "tempered", "reliability", "uncertainty", "ece_if_calibrated", "per_site")

    unscored, local = result.pool(tiny.method("mixture"), scored=False), result.pool(tiny.method("local_only"))

    assert not set(scores) & set(unscored.report) and unscored.report["method"] == "mixture"
    assert not {"reliability", "uncertainty", "ece_if_calibrated"} & set(local.report)
    for pooled in (unscored, local):  # the replies took three rounds, whose scores were another method's
        assert pooled.report["rounds"] == 3 and pooled.report["ledger"] == result.report["ledger"]
        assert pooled.report["history"] == []
    with pytest.raises(co.InputError, match="centralised trains on all rows in one place"):
        result.pool(tiny.method("centralised"))


def test_a_pool_after_participation_comes_back_with_its_rows(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    pooled = co.run(tiny.method("mixture"), task, sites, participation=3).pool(tiny.method("bcm"))

    loaded = co.load(pooled.save(tmp_path / "pool"), sites=sites)

    assert loaded.metrics == pooled.metrics and len(loaded.replies) == 3


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sinh()


def test_a_network_of_ones_own_is_handed_in(tmp_path: Path) -> None:
    _, sites = tiny.classification()
    task = co.classification(Own())
    result = co.run(tiny.method("fedavg"), task, sites, rounds=1)
    result.save(tmp_path / "run")

    with pytest.raises(co.InputError, match="task=task"):
        co.load(tmp_path / "run")
    assert same(co.load(tmp_path / "run", task=task).predict(sites.all_test.x), result.predict(sites.all_test.x))


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8, momentum=0.3, affine=False), nn.Tanh(), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (1, 2, 2)), resnet((1, 2, 2), 2, 8, nn.BatchNorm2d)),
    ],
    ids=("batch normalisation and dropout", "without weights", "residual"),
)
def test_a_network_with_statistics_or_seeds_comes_back_from_its_path(model: nn.Module, tmp_path: Path) -> None:
    _, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), co.classification(model), sites, rounds=2)
    result.save(tmp_path / "run")

    loaded = co.load(tmp_path / "run")

    assert same(loaded.predict(sites.all_test.x), result.predict(sites.all_test.x))
    assert result.task.statistics and loaded.task.statistics == result.task.statistics


def test_an_unknown_layer_deep_inside_is_told(tmp_path: Path) -> None:
    assert describe_network(Residual(nn.Sequential(Own()), 1, 0)) is None


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=1)
    result.save(tmp_path / "run")
    with pytest.raises(co.InputError, match="already holds a run"):
        result.save(tmp_path / "run")


def test_a_file_names_no_code_of_its_own() -> None:
    with pytest.raises(co.InputError, match=r"layer 'os\.system'"):
        build_network({"os.system": {"command": "true"}})
    with pytest.raises(co.InputError, match="layer 'Linear'"):
        build_network({"Linear": {"device": "cuda"}})
    with pytest.raises(co.InputError, match="'system' is not known here"):
        restore({"type": "system"})
    with pytest.raises(co.InputError, match="other settings"):
        restore({"type": "FedAvg", "colour": 1})


@pytest.mark.parametrize("name", MODELS)
def test_networks_come_back_layer_by_layer(name: str) -> None:
    model = control(MODELS[name]((3, 32, 32), 10))
    again = build_network(json.loads(json.dumps(describe_network(model))))
    assert repr(again) == repr(model)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in model.state_dict().items()}


def test_every_known_layer_comes_back() -> None:
    arguments = {
        nn.Linear: (3, 4),
        nn.Conv1d: (2, 3, 3),
        nn.Conv2d: (2, 4, 3),
        nn.GroupNorm: (2, 4),
        nn.LayerNorm: (4,),
    }
    arguments |= {nn.MaxPool2d: (2,), nn.AvgPool2d: (2,), nn.AdaptiveAvgPool2d: (1,)}
    arguments |= {nn.Unflatten: (1, (2, 2)), BatchNorm: (3, 1e-4, 0.2, False), Dropout: (0.3, True)}
    arguments |= {Residual: (nn.Sequential(nn.Tanh()), 2, 4), Inverted: (nn.Sequential(nn.ReLU6()), True)}
    arguments |= {RandomReLU: (3, 9, 1), RandomFourier: (3, 9, 0.5, 1), Convolutions: ((1, 8, 8), 40, 1)}
    arguments |= {Hats: (3, 20, (), 2.0, 1), Frozen: (nn.Sequential(nn.Linear(2, 3), nn.Tanh()),)}
    for kind in LAYERS:
        layer = kind(*arguments.get(kind, ()))
        assert repr(build_network(json.loads(json.dumps(describe_network(layer))))) == repr(layer)
    assert repr(build_network(describe_network(nn.Linear(3, 4, bias=False)))) == repr(nn.Linear(3, 4, bias=False))


def test_a_stored_recipe_of_0_sites_means_as_many_as_usual() -> None:
    assert Recipe.from_json({"data": "sine", "sites": 0}).problem.sites is None
    assert Recipe.from_json({"data": "sine", "sites": 3}).problem.sites == 3
