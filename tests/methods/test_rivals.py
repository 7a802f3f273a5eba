"""Merging by curvature and by inputs: closed forms on linear models, and moments against autograd."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import pytest
import tiny
import torch
from torch import Tensor, nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.payload import nbytes
from consilience.distributions.posterior import Point, Posterior
from consilience.glm.sums import add, summarise
from consilience.inference.layers import curvature_root, label_gradient, layer_moments, linear_layers
from consilience.key import Key
from consilience.messages import Client, Received, Server
from consilience.method import Pooled
from consilience.methods.ccvr import CCVR, draw_features
from consilience.methods.fedavg import FedAvg
from consilience.methods.fedlpa import FedLPA
from consilience.methods.fedov import FedOV, destroy, open_set
from consilience.methods.fens import FENS, FENSState, start_aggregator
from consilience.methods.fisher import FedFisher, FisherMerging
from consilience.methods.regmean import RegMean
from consilience.models.controlled import control
from consilience.task import Task

NOISE = 0.5
BRIEFLY = co.SGD(epochs=1)
# of a network of 2 inputs, 5 hidden units and 2 classes: its weights, and the numbers of its layers' moments
WEIGHTS = 5 * (2 + 1) + 2 * (5 + 1)
INPUTS = (2 + 1) ** 2 + (5 + 1) ** 2
GRADIENTS = 5**2 + 2**2


@dataclass(frozen=True)
class LeastSquares:
    """The maximum of a linear model's likelihood on a client's rows."""

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        x = torch.cat([client.data.x, torch.ones(len(client.data.x), 1, dtype=torch.float64)], 1)
        w = torch.linalg.lstsq(x, client.data.y.unsqueeze(1)).solution.squeeze(1)
        return Point({"0.weight": w[None, :-1], "0.bias": w[-1:]})


def clients(sizes: tuple[int, ...] = (20, 35, 50)) -> list[Data]:
    """Rows of one linear law, whose inputs differ by client."""
    g = torch.Generator().manual_seed(0)
    rows = []
    for k, n in enumerate(sizes):
        x = torch.randn(n, 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.5]) + k
        y = x @ torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64) + torch.randn(n, generator=g, dtype=torch.float64)
        rows.append(Data(x, y, torch.ones(n, dtype=torch.float64)))
    return rows


def linear_task() -> Task:
    return co.regression(nn.Sequential(nn.Linear(3, 1)).double(), noise=NOISE)


def merged(method: co.Method, task: Task, rows: list[Data]) -> dict[str, Tensor]:
    server = Server(None, None, Key(0), len(rows))
    state = method.init(task, server)
    replies = []
    for k, data in enumerate(rows):
        reply = method.local(task, method.broadcast(state), Client(data, (), Key(k)))
        replies.append(Received(k, reply.size, reply.send))
    params: dict[str, Tensor] = method.aggregate(task, state, replies, server).posterior.params
    return params


@pytest.mark.parametrize(
    "method", [FedFisher(LeastSquares(), 0.0), RegMean(LeastSquares(), off_diagonal=1.0)], ids=["F", "R"]
)
def test_layers_of_linear_models_merge_to_least_squares_on_all_rows(method: co.Method) -> None:
    """Each client's loss is ‖X(w − wₖ)‖² plus a constant, so the sum's minimum is that of all rows."""
    rows = clients()
    pooled = Data(*(torch.cat(leaves) for leaves in zip(*rows, strict=True)))

    found = merged(method, linear_task(), rows)

    expected = LeastSquares()(linear_task(), Point({}), Client(pooled, (), Key(0))).params
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


def test_fisher_merging_is_the_product_of_diagonal_gaussians() -> None:
    """F = Σ xxᵀ / noise; its diagonal weighs each weight by itself."""
    rows = clients()
    modes = [LeastSquares()(linear_task(), Point({}), Client(data, (), Key(0))).params for data in rows]
    f = torch.stack([(data.x**2).sum(0) / NOISE for data in rows])
    expected = (f * torch.stack([m["0.weight"][0] for m in modes])).sum(0) / f.sum(0)

    found = merged(FisherMerging(LeastSquares()), linear_task(), rows)

    torch.testing.assert_close(found["0.weight"][0], expected, rtol=1e-6, atol=1e-7)


def test_fedlpa_solves_the_product_of_its_gaussians() -> None:
    """Against the dense system Σₖ nₖ (Aₖ/nₖ + √λ) (bₖ/nₖ + √λ) (w − wₖ) = 0, written out for one output."""
    rows, ridge = clients(), 0.3
    root = math.sqrt(ridge)
    modes = [LeastSquares()(linear_task(), Point({}), Client(data, (), Key(0))).params for data in rows]
    w = [torch.cat([m["0.weight"][0], m["0.bias"]]) for m in modes]
    precisions = []
    for data, own in zip(rows, w, strict=True):
        x = torch.cat([data.x, torch.ones(len(data.x), 1, dtype=torch.float64)], 1)
        gradients = (x @ own - data.y) / NOISE
        inputs = x.mT @ x / len(x) + root * torch.eye(4, dtype=torch.float64)
        precisions.append(len(x) * inputs * ((gradients**2).mean() + root))
    right = sum(p @ v for p, v in zip(precisions, w, strict=True))
    expected = torch.linalg.solve(sum(precisions), right)

    found = merged(FedLPA(LeastSquares(), ridge), linear_task(), rows)

    torch.testing.assert_close(torch.cat([found["0.weight"][0], found["0.bias"]]), expected, rtol=1e-6, atol=1e-7)


def test_one_client_keeps_its_weights() -> None:
    rows = clients()[:1]
    own = LeastSquares()(linear_task(), Point({}), Client(rows[0], (), Key(0))).params

    for method in (FisherMerging, FedFisher, FedLPA, RegMean):
        found = merged(method(LeastSquares()), linear_task(), rows)
        for name, value in own.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


def convolution() -> tuple[Task, Data]:
    """A convolution with bias and stride, one without bias, and a layer above."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Unflatten(1, (1, 6, 6)),
        nn.Conv2d(1, 2, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(2, 3, 2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(12, 4),
    ).double()
    task = co.classification(control(network))
    x = torch.randn(7, 36, dtype=torch.float64)
    return task, Data(x, torch.arange(7) % 4, torch.tensor([1.0, 1, 2, 1, 0, 1, 1], dtype=torch.float64))


def test_the_layers_moments_are_those_of_single_rows_gradients() -> None:
    """Of a linear layer ∂/∂W = g aᵀ, so Σ‖∂/∂W‖² over rows of one place is Σ ‖g‖²‖a‖²; of the last layer, A and B."""
    task, data = convolution()
    params = task.init(Key(1)).params

    moments = layer_moments(task, params, data, label_gradient, batch=3)

    gradients = []
    for x, y in zip(data.x, data.y, strict=True):
        leaf = {k: v.clone().requires_grad_() for k, v in params.items()}
        loss = task.likelihood.nll(task.outputs(leaf, x[None]), y[None], leaf).sum()
        gradients.append(dict(zip(leaf, torch.autograd.grad(loss, list(leaf.values())), strict=True)))
    by_bias = torch.stack([g["6.bias"] for g in gradients])  # the gradient at the last layer's output itself
    torch.testing.assert_close(moments.gradients["6"], torch.einsum("n,ni,nj->ij", data.w, by_bias, by_bias))
    ratio = torch.stack([g["6.weight"][0] / g["6.bias"][0] for g in gradients])  # the last layer's input
    torch.testing.assert_close(moments.inputs["6"][:-1, :-1], torch.einsum("n,ni,nj->ij", data.w, ratio, ratio))
    assert set(moments.inputs) == {"1", "3", "6"} == set(linear_layers(task.model))
    assert moments.inputs["1"].shape == (10, 10) and moments.inputs["3"].shape == (8, 8)
    whole = float(moments.inputs["1"][-1, -1])  # the ones at the bias: rows times nine places, over 9²
    assert whole == pytest.approx(float(data.w.sum()) / 9)


def test_a_convolutions_matrix_times_its_patches_is_its_output() -> None:
    """So that merged matrices act on what was summed."""
    from consilience.inference.layers import from_matrix, layer_matrix, patches

    task, data = convolution()
    layer = task.model.get_submodule("1")
    assert isinstance(layer, nn.Conv2d)
    params = task.init(Key(1)).params
    x = data.x.reshape(7, 1, 6, 6)

    product = patches(layer, x) @ layer_matrix(params, "1").mT

    expected = torch.func.functional_call(layer, {k: params[f"1.{k}"] for k in ("weight", "bias")}, (x,))
    torch.testing.assert_close(product.mT.reshape(expected.shape), expected)
    back = from_matrix(layer_matrix(params, "1"), "1", params)
    assert all(torch.equal(back[name], params[name]) for name in back)


def test_a_softmaxs_root_is_that_of_its_fisher() -> None:
    """diag(p) − ppᵀ, whatever the labels."""
    task, data = convolution()
    z = torch.randn(7, 4, dtype=torch.float64)

    root = curvature_root(task, task.like, z, data.y)

    p = torch.softmax(z, 1)
    torch.testing.assert_close(root @ root.mT, torch.diag_embed(p) - p[:, :, None] * p[:, None, :])


def test_settings_that_cannot_be_are_refused() -> None:
    task, server = linear_task(), Server(None, None, Key(0), 3)
    for method in (FedLPA(ridge=-1.0), FedFisher(damping=-0.1), RegMean(off_diagonal=1.5)):
        with pytest.raises(co.InputError, match="give"):
            method.init(task, server)


def test_a_networks_statistics_are_averaged_and_its_merge_predicts() -> None:
    """Every leaf has a place in the merged weights, batch normalisation's among them."""
    torch.manual_seed(0)
    network = control(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    task = co.classification(network)
    sites = co.datasets.moons(n=120).split(co.splits.dirichlet(0.8), sites=3, test=0.25, seed=1)
    for kind in (FisherMerging, FedFisher, FedLPA, RegMean):
        method = dataclasses.replace(kind(), inference=co.SGD(epochs=1, batch=16))
        result = co.run(method, task, sites, seed=0)
        assert set(result.state.posterior.params) == set(task.like)
        assert tree.all_finite(result.state.posterior)


def test_ccvrs_gaussians_are_those_of_all_clients_rows() -> None:
    """Mean and covariance of many draws against numpy's, of one class over three clients (500 000 draws: 1 % error)."""
    g = torch.Generator().manual_seed(3)
    parts = [torch.randn(n, 2, generator=g, dtype=torch.float64) * (k + 1) + k for k, n in enumerate((30, 40, 50))]
    rows = [Data(x, torch.zeros(len(x), dtype=torch.int64), torch.ones(len(x), dtype=torch.float64)) for x in parts]
    totals = add([summarise(lambda x: x, data, 2, by_class=True) for data in rows])

    drawn = draw_features(totals, 500_000, Key(0))

    pooled = torch.cat(parts)
    assert set(drawn.y.tolist()) == {0}  # the other class has no row, and no Gaussian
    assert float(drawn.w.sum()) == pytest.approx(120)
    torch.testing.assert_close(drawn.x.mean(0), pooled.mean(0), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.x.T.cov(), pooled.T.cov(), rtol=0.02, atol=0.02)


def test_ccvr_fits_the_last_layer_alone_and_only_after_averaging() -> None:
    sites = co.datasets.moons(n=120).split(co.splits.dirichlet(0.8), sites=3, test=0.25, seed=1)
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(5,)))
    quick = co.SGD(epochs=2, batch=16)

    averaged = co.run(FedAvg(quick), task, sites, rounds=1, seed=0).state.posterior.params
    refitted = co.run(CCVR(quick, refit=quick), task, sites, rounds=2, seed=0).state.posterior.params

    changed = {name for name, value in refitted.items() if not torch.equal(value, averaged[name])}
    assert changed == {"2.weight", "2.bias"}


def test_an_open_set_network_says_unknown_to_outliers_and_known_to_rows() -> None:
    sites = co.datasets.load("digits").split(co.splits.iid(), sites=1, test=0.2, seed=0)
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(40,)))
    result = co.run(FedOV(co.SGD(epochs=15)), task, sites, seed=0)
    model = open_set(task).predictive(result.state.posteriors[0])
    test = sites.test[0]

    unknown_to_rows = model(test.x).probs[:, -1].mean()
    unknown_to_outliers = model(destroy(test, 10, Key(5)).x).probs[:, -1].mean()

    assert float(unknown_to_rows) < 0.2 and float(unknown_to_outliers) > 0.6
    assert result.metrics["accuracy"] > 0.9


def test_fens_aggregator_learns_whom_to_believe() -> None:
    """Two models that each know one half of the classes: equal treatment errs, light rounds mend it."""
    sites = co.datasets.load("digits").split(co.splits.dirichlet(0.1), sites=3, test=0.2, seed=0)
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(20,)))
    method = FENS(co.SGD(epochs=10))

    scores = [co.run(method, task, sites, rounds=rounds, seed=0).metrics["nll"] for rounds in (1, 6)]

    assert scores[1] < 0.8 * scores[0]


@pytest.mark.parametrize(
    ("method", "rounds", "expected"),
    [
        (FisherMerging(BRIEFLY), 1, 4 * 2 * WEIGHTS),
        (FedFisher(BRIEFLY), 1, 4 * (WEIGHTS + INPUTS + GRADIENTS + 1)),
        (FedLPA(BRIEFLY), 1, 4 * (WEIGHTS + INPUTS + GRADIENTS + 1)),
        (RegMean(BRIEFLY), 1, 4 * (WEIGHTS + INPUTS + 1)),
        (FedOV(BRIEFLY), 1, 4 * (WEIGHTS + 5 + 1)),
        (FENS(BRIEFLY, light=BRIEFLY, hidden=3), 2, 4 * (3 * (4 * 2 + 1) + 2 * (3 + 1))),
        (CCVR(BRIEFLY, refit=BRIEFLY), 2, 8 * 2 * (1 + 6 + 6 * 7 // 2)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_bytes_are_those_of_the_formula(method: co.Method, rounds: int, expected: int) -> None:
    """A layer of I inputs and O outputs: (I + 1)² and O²; of C classes and D features, D + 1 of them with a 1, sums."""
    task, sites = tiny.classification()  # four sites

    result = co.run(method, task, sites, rounds=rounds, scored=False, engine="sequential")

    assert {nbytes(reply.payload) for reply in result.replies} == {expected}


def test_fedovs_votes_are_the_known_parts_of_all_probabilities_added_up() -> None:
    """p(c) = Σₖ pₖ(c) / Σₖ (1 − pₖ(unknown)), written out with plain softmaxes."""
    task, sites = tiny.classification()
    points = tuple(open_set(task).init(Key(k)) for k in range(3))
    x = sites.all_test.x
    method = FedOV()

    found = method.predictive(task, Pooled(points[0], points, torch.full((3,), 1 / 3)))(x)[0].exp()

    votes = sum(torch.softmax(open_set(task).outputs(point.params, x), -1) for point in points)[:, :-1]
    torch.testing.assert_close(found, votes / votes.sum(-1, keepdim=True), rtol=1e-5, atol=1e-6)


def test_fens_begins_by_treating_models_alike() -> None:
    """K copies of one model are that model alone, and the order of different models does not matter."""
    task, sites = tiny.classification()
    method, x = FENS(hidden=3), sites.all_test.x
    models = [task.init(Key(k)) for k in range(3)]

    def predict(*chosen: Point) -> Tensor:
        start = start_aggregator(method.combination(task, 1), len(chosen), Key(9))
        state = FENSState(models[0], chosen, torch.ones(len(chosen)) / len(chosen), start)
        return method.predictive(task, state)(x)[0]

    torch.testing.assert_close(predict(*[models[0]] * 3), predict(models[0]))
    torch.testing.assert_close(predict(*models), predict(*reversed(models)))
