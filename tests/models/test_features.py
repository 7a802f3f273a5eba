"""Feature maps: fixed functions of a row, rebuilt from their arguments, of which nothing is learned or sent."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d, unfold

import consilience as co
from consilience import tree
from consilience.inference.gradient import check_exact
from consilience.key import Key
from consilience.models.convolutions import Convolutions
from consilience.models.frozen import Frozen, freeze
from consilience.models.maps import describe_maps, without_last
from consilience.runs.identity import identity
from consilience.serialisation.blueprint import build_network, describe_network, task_from

SHAPES: dict[str, Any] = {"identity": 6, "relu": 6, "fourier": 6, "hats": 6, "conv": (2, 8, 9)}


def rows(shape: Any, count: int = 5) -> torch.Tensor:
    if isinstance(shape, int):
        shape = (shape,)
    return Key(3).normal((count, *shape))


def again(network: nn.Module) -> nn.Module:
    return build_network(json.loads(json.dumps(describe_network(network))))


def normed() -> nn.Module:
    """A network with everything that moves in training."""
    network = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    for _ in range(3):
        network(3 + 2 * torch.randn(20, 6))  # its running statistics are no longer 0 and 1
    return network


@pytest.mark.parametrize("name", co.models.FEATURES)
def test_a_map_is_rebuilt_from_its_arguments_to_the_last_bit(name: str) -> None:
    shape = SHAPES[name]
    network = co.models.model("linear", shape, 3, co.models.features(name, shape))
    rebuilt = again(network)
    rebuilt.load_state_dict(network.state_dict())
    assert torch.equal(rebuilt(rows(shape)), network(rows(shape)))
    assert describe_maps(rebuilt) == describe_maps(network)


@pytest.mark.parametrize("name", ["relu", "fourier", "hats", "conv"])
def test_another_seed_and_another_width_are_other_maps(name: str) -> None:
    shape = SHAPES[name]
    maps = [co.models.features(f"{name}:{words}", shape) for words in ("64", "64:1", "65")]
    assert len({str(describe_maps(m)) for m in maps}) == 3
    assert not torch.equal(maps[0](rows(shape)), maps[1](rows(shape)))
    assert [co.models.width_of(m, shape) for m in maps] == [64, 64, 65]


def responses_by_definition(conv: Convolutions, x: torch.Tensor) -> torch.Tensor:
    """Every patch by itself, in double precision: the filter's response, over the patch's length without its mean."""
    x = x.double()
    _, height, width = conv.shape
    parts = []
    for k in conv.kernels:
        patches = unfold(x, k, padding=k // 2)
        numbers = patches.shape[1]
        contrast = (numbers * (patches.var(1, correction=0) + 0.01)).sqrt()
        filters = conv.get_buffer(f"filters{k}").double().flatten(1)
        response = (filters @ patches / contrast.unsqueeze(1)).unflatten(-1, (height, width))
        threshold = conv.get_buffer(f"thresholds{k}").double().reshape(-1, 1, 1)
        for sign in (1, -1):
            parts.append(adaptive_avg_pool2d((sign * response - threshold).relu(), conv.grid).flatten(1))
    return torch.cat(parts, 1)[:, : conv.outputs]


@pytest.mark.parametrize(
    ("shape", "in_strips"),
    [
        ((1, 8, 8), True),
        ((1, 4, 44), True),  # cells of 11 places, which no strip but the shortest fills
        ((1, 64, 64), True),  # cells of two strips
        ((1, 7, 9), False),
        ((1, 4, 2048), False),
        ((3, 8, 8), False),
    ],
)
def test_convolutions_are_those_of_their_definition(shape: tuple[int, int, int], in_strips: bool) -> None:
    conv = co.models.features("conv:100", shape)
    assert isinstance(conv, Convolutions)
    x = rows(shape, 3).abs()
    x[:, :, : shape[1] // 2] = 0.0
    assert conv.in_strips == in_strips
    expected = responses_by_definition(conv, x)
    torch.testing.assert_close(conv(x).double(), expected, rtol=0, atol=2e-6)  # single precision
    assert torch.equal(conv(x) == 0, expected == 0)  # what is flat has no response, not a small one
    together = torch.vmap(conv)(x.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(together, conv(x), rtol=0, atol=2e-6)


def test_flat_pixels_and_images_have_the_same_convolutions() -> None:
    sites = co.datasets.digits().split(co.splits.iid(), 2)
    assert sites.features == 64
    assert sites.shape == (1, 8, 8)
    assert co.models.usual_features(sites.shape) == "conv:512"
    x = sites.train[0].x
    conv = co.models.features("conv:512", sites.shape)
    assert torch.equal(conv(x), conv(x.reshape(-1, 1, 8, 8)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("kov", "no feature map called 'kov'"),
        ("relu:0", "0 features"),
        ("relu:99999999", "99999999 features cannot be"),
        ("relu:-3", "is not a feature map"),
        ("relu:3:4:5", "is not a feature map"),
        ("relu:3:99999999999999999999999", "is not a feature map"),
        ("identity:4", "write `identity` alone"),
        ("conv", "are not images"),
    ],
)
def test_what_is_no_map_is_refused_in_a_sentence(name: str, sentence: str) -> None:
    with pytest.raises(co.InputError, match=sentence):
        co.models.features(name, 6)


def test_nothing_of_a_frozen_network_is_learned_sent_or_counted() -> None:
    body = normed()
    network = co.models.on_features(without_last(body), co.models.linear(8, 3))
    for task in (co.classification(network), co.regression(co.models.on_features(body, co.models.linear(3)))):
        assert set(task.weights(task.like)) - {"likelihood.log_noise"} == {"1.weight", "1.bias"}
        assert task.statistics == ()
        assert not task.model[0].state_dict()  # type: ignore[index]
        check_exact(task, "This")  # dropout and batch normalisation inside are constants


def test_a_frozen_network_predicts_while_the_rest_trains() -> None:
    body = normed()
    network = co.classification(co.models.on_features(without_last(body), co.models.linear(8, 3))).model
    body.eval()
    expected = without_last(body)(rows(6))
    for training in (True, False):
        assert torch.equal(network.train(training)[0](rows(6)), expected)  # type: ignore[index]
    task = co.classification(network)
    fresh = task.init(Key(1))
    assert torch.equal(task.model[0](rows(6)), expected)  # type: ignore[index]
    assert list(fresh.params) == ["1.weight", "1.bias"]
    double = copy.deepcopy(network).double()[0](rows(6).double())  # type: ignore[index]
    assert torch.allclose(double.float(), expected, atol=1e-5)


def test_the_start_of_a_head_does_not_depend_on_what_is_frozen_below() -> None:
    deep = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 8), nn.Tanh())
    starts = []
    for body in (deep, normed()[:4]):  # type: ignore[index]
        task = co.classification(co.models.on_features(body, co.models.linear(8, 3)))
        starts.append(tree.ravel(task.init(Key(1)).params))
    alone = tree.ravel(co.classification(co.models.linear(8, 3)).init(Key(1)).params)
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[0], alone)


def test_a_frozen_network_comes_back_with_its_numbers() -> None:
    frozen = freeze(without_last(normed()))
    rebuilt = again(frozen)
    assert torch.equal(rebuilt(rows(6)), frozen(rows(6)))
    assert describe_maps(rebuilt) == describe_maps(frozen)
    double = again(copy.deepcopy(frozen).double())
    assert double(rows(6).double()).dtype == torch.float64


def test_frozen_numbers_that_were_changed_are_refused() -> None:
    frozen = freeze(without_last(normed()))
    other = freeze(without_last(normed()))
    assert isinstance(frozen, Frozen)
    assert isinstance(other, Frozen)
    plan = describe_network(frozen)
    with pytest.raises(co.InputError, match="not those of its hash"):
        build_network({"Frozen": {**plan["Frozen"], "numbers": other.numbers}})
    smaller = freeze(nn.Sequential(nn.Linear(2, 2)))
    assert isinstance(smaller, Frozen)
    with pytest.raises(co.InputError, match="do not fit its layers"):
        build_network({"Frozen": {**plan["Frozen"], "numbers": smaller.numbers, "sha256": smaller.sha256}})


@pytest.mark.parametrize(
    "layer",
    [
        {"RandomReLU": {"inputs": 10**12, "outputs": 16000, "seed": 0}},
        {"RandomReLU": {"inputs": 3, "outputs": 10**12, "seed": 0}},
        {"RandomReLU": {"inputs": 3, "outputs": "9", "seed": 0}},
        {"RandomReLU": {"inputs": 3, "outputs": 9, "seed": 10**40}},
        {"RandomFourier": {"inputs": 10**9, "outputs": 9000, "scale": 1.0, "seed": 0}},
        {"RandomFourier": {"inputs": 3, "outputs": 9, "scale": 0, "seed": 0}},
        {"Hats": {"inputs": 10**9, "outputs": 900, "knots": [], "scale": 1.0, "seed": 0}},
        {"Hats": {"inputs": 2, "outputs": 90, "knots": [[2, 1, 3, 4, 5, 6, 7, 8, 9], []], "scale": 1.0, "seed": 0}},
        {"Hats": {"inputs": 2, "outputs": 90, "knots": [["a"], []], "scale": 1.0, "seed": 0}},
        {"Convolutions": {"shape": [10**9, 8, 8], "outputs": 900, "seed": 0}},
        {"Convolutions": {"shape": 7, "outputs": 900, "seed": 0}},
        {"Sequential": {str(i): {"RandomReLU": {"inputs": 16000, "outputs": 16000, "seed": 0}} for i in range(40)}},
        {"Frozen": {"body": {"Linear": {"in_features": 10**6, "out_features": 10**6, "bias": False}}, "numbers": "AA"}},
        {"Frozen": {"body": {"Linear": {"in_features": 2, "out_features": 2, "bias": False}}, "numbers": "?"}},
    ],
)
def test_damaged_maps_are_refused_before_anything_is_allocated(layer: dict[str, Any]) -> None:
    task = co.classification(co.models.linear(3, 2))
    from_file = {
        "network": {"Sequential": {"0": layer, "1": {"Linear": {"in_features": 9, "out_features": 2, "bias": True}}}},
        "dtype": "float32",
        "prior": {"type": "Isotropic"},
        "likelihood": {"type": "Softmax"},
        "draws": task.draws,
    }
    with pytest.raises(co.InputError):
        task_from(from_file, most_parameters=10**6)


def test_normalisation_without_statistics_cannot_be_frozen() -> None:
    with pytest.raises(co.InputError, match="keeps no running statistics"):
        freeze(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))


def test_networks_without_features_below_the_last_layer_are_refused() -> None:
    with pytest.raises(co.InputError, match="is linear"):
        without_last(co.models.linear((1, 4, 4), 3))
    with pytest.raises(co.InputError, match="does not end with a linear layer"):
        without_last(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))
    with pytest.raises(co.InputError, match="other weights"):
        co.models.feature_map(co.models.mlp(4, 3))


def test_a_map_with_a_seed_computes_the_same_in_training_and_prediction() -> None:
    check_exact(co.classification(co.models.model("linear", 6, 3, co.models.features("relu:32", 6))), "This")


def test_the_map_of_a_head_is_found_again() -> None:
    relu = co.models.features("relu:32", 6)
    network = co.models.on_features(relu, co.models.linear(32, 3))
    assert torch.equal(co.models.feature_map(network)(rows(6)), relu(rows(6)))
    assert torch.equal(co.models.feature_map(co.models.linear(6, 3))(rows(6)), rows(6))


def test_maps_decide_a_runs_identity() -> None:
    sites = co.datasets.moons().split(co.splits.iid(), 2)
    maps = [co.models.features(name, 2) for name in ("relu:16", "relu:16:1", "fourier:16")]
    maps += [freeze(nn.Sequential(nn.Linear(2, 16))) for _ in range(2)]
    tasks = [co.classification(co.models.model("linear", 2, 2, map_)) for map_ in maps]
    assert len({identity(co.methods.FedAvg(), task, sites, 0, "sequential") for task in tasks}) == 5


def test_rows_that_were_mapped_once_train_the_same_head() -> None:
    sites = co.datasets.digits().split(co.splits.dirichlet(0.3), 3, seed=1)
    conv = co.models.features("conv:64", sites.shape)
    mapped = co.data.map_sites(sites, conv)
    assert mapped.features == 64
    method = dataclasses.replace(co.methods.FedAvg(), inference=co.SGD(epochs=2))
    on_map = co.run(method, co.classification(co.models.model("linear", sites.features, 10, conv)), sites, rounds=2)
    alone = co.run(method, co.classification(co.models.linear(64, 10)), mapped, rounds=2)
    ours = tree.ravel(on_map.state.posterior.params)
    assert torch.allclose(ours, tree.ravel(alone.state.posterior.params), atol=1e-5)
    assert on_map.metrics["nll"] == pytest.approx(alone.metrics["nll"], rel=1e-4)
