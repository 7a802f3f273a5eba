"""Every method learns on a feature map, and a run's folder holds what its map is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.method import OnFeatures
from consilience.runs.feature_maps import features_from, learned_features
from consilience.runs.recipe import Recipe


def on_relu(problem: str = "classification") -> tuple[co.Task, co.Sites]:
    """A tiny problem on six random features beside its columns."""
    _, sites = tiny.PROBLEMS[problem]()
    relu = co.models.features("relu:9", sites.features)
    network = co.models.model("linear", sites.features, sites.classes, relu)
    if sites.classes:
        return co.classification(network), sites
    return co.regression(network), sites


@pytest.mark.parametrize(("name", "problem"), tiny.in_turn())
def test_every_method_runs_on_features(name: str, problem: str) -> None:
    task, sites = on_relu(problem)
    result = co.run(tiny.method(name), task, sites, rounds=1)
    assert all(torch.isfinite(torch.tensor(value)) for value in result.metrics.values() if value is not None)
    assert not any(leaf.startswith("0.") for leaf in task.like)


@pytest.mark.parametrize("body", [co.models.features("relu:9", 2), nn.Sequential(nn.Linear(2, 9), nn.Tanh())])
def test_a_full_gaussian_of_a_head_is_pooled(body: nn.Module) -> None:
    _, sites = tiny.classification()
    task = co.classification(co.models.model("linear", 2, 2, body))
    method = co.methods.GaussianProduct(co.Laplace(co.inference.Newton(), dense=True))
    assert co.run(method, task, sites).metrics["accuracy"] > 0.8


def test_all_engines_agree_on_features() -> None:
    task, sites = on_relu()
    frozen = co.classification(co.models.model("linear", 2, 2, nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6))))
    for problem in (task, frozen):
        points = []
        for engine in ("sequential", "vectorised", "parallel:2"):
            result = co.run(tiny.method("fedavg"), problem, sites, rounds=2, engine=engine)
            points.append(tree.ravel(result.state.posterior.params))
        assert torch.allclose(points[0], points[1], atol=1e-5)
        assert torch.allclose(points[0], points[2], atol=1e-5)


def test_a_folder_predicts_with_its_map(tmp_path: Path) -> None:
    _, sites = on_relu()
    for name, body in {"drawn": co.models.features("fourier:8", 2), "frozen": nn.Linear(2, 8)}.items():
        task = co.classification(co.models.model("mlp", 2, 2, body))
        result = co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / name)
        loaded = co.load(tmp_path / name)
        ours, theirs = (r.method.predictive(r.task, r.state)(sites.all_test.x) for r in (result, loaded))
        assert torch.equal(ours.log_probs, theirs.log_probs)  # type: ignore[union-attr]
        assert co.load(tmp_path / name, sites=sites).report["finished"]
        other = co.classification(co.models.model("mlp", 2, 2, co.models.features("fourier:8:1", 2)))
        with pytest.raises(co.InputError, match="another method, model or data"):
            co.load(tmp_path / name, task=other, sites=sites)


def test_a_frozen_networks_numbers_are_checked_against_their_hash(tmp_path: Path) -> None:
    _, sites = on_relu()
    task = co.classification(co.models.model("linear", 2, 2, nn.Linear(2, 8)))
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "task.json"
    plan = json.loads(path.read_text())
    frozen = plan["network"]["Sequential"]["0"]["Frozen"]
    assert len(frozen["sha256"]) == 64
    frozen["sha256"] = frozen["sha256"][::-1]
    path.write_text(json.dumps(plan))
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    for key in ("files", "checksum"):  # as an older version, or somebody who means it, would write it
        report.pop(key)
    (tmp_path / "run" / "run.json").write_text(json.dumps(report))
    with pytest.raises(co.InputError, match="not those of its hash"):
        co.load(tmp_path / "run")


def learned(folder: Path, network: nn.Module, method: co.Method) -> co.Result:
    _, sites = tiny.classification()
    return co.run(method, co.classification(network), sites, rounds=1, out=folder)


def test_a_runs_network_without_its_last_layer_is_a_map(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), co.models.mlp(8, 2, (5,)))
    result = learned(tmp_path / "run", network, tiny.method("fedavg"))
    before = learned_features(tmp_path / "run")
    x = result.sites.all_test.x
    last = {k: v for k, v in result.state.posterior.params.items() if k.startswith("4.2.")}
    outputs = before(x) @ last["4.2.weight"].T + last["4.2.bias"]
    expected = result.task.outputs(result.state.posterior.params, x)
    assert torch.allclose(outputs, expected, atol=1e-6)
    task = co.classification(co.models.model("linear", 2, 2, before))
    assert list(task.like) == ["1.weight", "1.bias"]
    assert task.statistics == ()


def test_a_run_without_a_single_network_gives_no_features(tmp_path: Path) -> None:
    learned(tmp_path / "mixture", co.models.mlp(2, 2, (5,)), tiny.method("mixture"))
    with pytest.raises(co.InputError, match="4 sites' models and no single network"):
        learned_features(tmp_path / "mixture")
    learned(tmp_path / "pvi", co.models.mlp(2, 2, (5,)), tiny.method("pvi"))
    with pytest.raises(co.InputError, match="no single one"):
        learned_features(tmp_path / "pvi")
    learned(tmp_path / "linear", co.models.linear(2, 2), tiny.method("fedavg"))
    with pytest.raises(co.InputError, match=r"gives no features.* is linear"):
        learned_features(tmp_path / "linear")


def test_words_that_are_neither_map_nor_run_are_refused(tmp_path: Path) -> None:
    _, sites = tiny.classification()
    with pytest.raises(co.InputError, match="no feature map or run's folder called 'fouriers'"):
        features_from("fouriers", sites)
    with pytest.raises(co.InputError, match="is not a run's folder"):
        features_from(str(tmp_path), sites)


def test_a_recipe_without_features_is_written_as_before() -> None:
    assert "features" not in co.Problem("digits").to_json()
    recipe = Recipe("fedavg", co.Problem("digits", features="conv:512", model="linear"))
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe.problem.network == "linear on conv:512"


def test_a_method_that_needs_fixed_features_gets_them() -> None:
    class Head(OnFeatures, co.methods.FedAvg):
        own_prior = True

    digits = co.Problem("digits")
    assert digits.settle([Head()]).network == "linear on conv:512"
    assert co.Problem("moons").settle([Head()]).network == "linear on hats:320"
    assert co.Problem("digits", model="linear").settle([Head()]).network == "linear"
    assert co.Problem("digits", model="mlp", features="relu").settle([Head()]).network == "mlp on relu"
    assert co.Problem("digits", features="relu").settle([co.methods.FedAvg()]).network == "linear on relu"
    assert digits.settle([co.methods.FedAvg()]).network == "mlp"
