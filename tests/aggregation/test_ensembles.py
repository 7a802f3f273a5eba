"""FedBE: the model distributions, who is in the ensemble, the student, and other methods inside it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.aggregation.ensembles import FLOOR, dirichlet_shares, floor_var, gaussian
from consilience.benchmark.row_words import read_settings, row
from consilience.distributions.posterior import Point, Samples
from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.inference import SWA
from consilience.inference.swa import refresh_statistics
from consilience.key import Key
from consilience.messages import Server
from consilience.method import Needs, needs
from consilience.methods.ensembles import one_ensemble, v_distillation
from consilience.methods.fedbe import sharpened
from consilience.models.mobilenet import mobilenetv2
from consilience.models.resnet import resnet
from consilience.runs.engines import Sequential, Turn

POINTS = [Point({"a": torch.tensor([0.0, 1.0]).double()}), Point({"a": torch.tensor([4.0, 1.0]).double()})]
WEIGHTS = torch.tensor([0.25, 0.75]).double()
QUICK = co.SGD(rate=0.05, epochs=1, batch=16)
SHAPE = (3, 8, 8)
INNER = {
    "fedavg": co.methods.FedAvg(QUICK),
    "fedprox": co.methods.FedProx(QUICK, mu=0.1),
    "fedavgm": co.methods.FedAvgM(QUICK),
    "scaffold": co.methods.Scaffold(dataclasses.replace(QUICK, momentum=0.0)),
}
ALONE = co.aggregation.Ensemble(samples=0, average=True, clients=False)  # A
TEACH = co.aggregation.Distil(SWA(rate=0.05, low=0.02, begin=4, every=3, epochs=6, batch=4), wide=False)


def test_the_gaussian_has_the_weighted_moments() -> None:
    fitted = gaussian(POINTS, WEIGHTS)
    # μ = ¼·0 + ¾·4 = 3; σ² = ¼·3² + ¾·1² = 3; where clients agree the variance is 0
    assert fitted.mean["a"].tolist() == [3.0, 1.0]
    assert fitted.var["a"].tolist() == [3.0, 0.0]


def test_gaussian_draws_have_these_moments() -> None:
    drawn = co.aggregation.GaussianModels()(POINTS, WEIGHTS, Key(1), 4000).params["a"]
    # standard errors of a mean and a variance of 4000 normals of variance 3: √(3/4000) and 3·√(2/4000)
    assert drawn[:, 0].mean() == pytest.approx(3, abs=4 * (3 / 4000) ** 0.5)
    assert drawn[:, 0].var() == pytest.approx(3, abs=4 * 3 * (2 / 4000) ** 0.5)
    assert torch.equal(drawn[:, 1], torch.ones(4000).double())


def test_a_tenth_of_the_deviation_is_the_same_draws_nearer_to_the_mean() -> None:
    wide, narrow = (co.aggregation.GaussianModels(s)(POINTS, WEIGHTS, Key(1), 50).params["a"] for s in (1.0, 0.1))
    mean = torch.tensor([3.0, 1.0]).double()
    assert torch.allclose(narrow - mean, 0.1 * (wide - mean))
    with pytest.raises(InputError, match="scale=1"):
        co.aggregation.GaussianModels(-0.1)


def test_classes_are_sharpened_by_default_and_numbers_never() -> None:
    labels = Categorical(torch.tensor([[0.8, 0.2], [0.5, 0.5]]).log())
    squared = sharpened(labels, co.methods.FedBE().sharpen).probs
    assert torch.allclose(squared, torch.tensor([[0.64 / 0.68, 0.04 / 0.68], [0.5, 0.5]]))  # temp=0.5 as released
    assert torch.allclose(sharpened(labels, 1.0).probs, labels.probs)
    numbers = Normal(torch.zeros(3), torch.full((3,), 0.5), torch.tensor(0.25))
    assert sharpened(numbers, co.methods.FedBE().sharpen) is numbers


def test_the_student_learns_from_sharpened_labels() -> None:
    """The student of `sharpen=2` is surer than that of 1, and differs from it by nothing else."""
    task, sites = tiny.classification(torch.float64)
    x = sites.all_test.x
    sure = {}
    for power in (1.0, 2.0):
        method = co.methods.FedBE(INNER["fedavg"], sharpen=power, distil=TEACH)
        result = co.run(method, task, sites, rounds=1, seed=2)
        sure[power] = float(method.predictive(task, result.state)(x).probs.amax(-1).mean())
    assert sure[2.0] > sure[1.0]
    default = co.run(co.methods.FedBE(INNER["fedavg"], distil=TEACH), task, sites, rounds=1, seed=2)
    assert float(default.method.predictive(task, default.state)(x).probs.amax(-1).mean()) == sure[2.0]


@pytest.mark.parametrize("alpha", [0.01, 0.5, 1.0, 50.0])
def test_dirichlet_shares_lie_on_the_simplex(alpha: float) -> None:
    shares = dirichlet_shares(alpha, torch.full((3,), 1 / 3).double(), Key(0), 4000)
    assert shares.min() >= 0
    assert torch.allclose(shares.sum(-1), torch.ones(4000).double())
    # equal sizes leave Dirichlet(α, α, α): mean 1/3, variance (1/3)(2/3)/(3α + 1)
    var = 2 / 9 / (3 * alpha + 1)
    assert shares.mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=4 * (var / 4000) ** 0.5)
    assert shares.var(0).tolist() == pytest.approx([var] * 3, rel=0.12)


def test_dirichlet_models_are_the_convex_combinations_of_equation_7() -> None:
    shares = dirichlet_shares(0.5, WEIGHTS, Key(2), 5)
    gamma = dirichlet_shares(0.5, torch.full((2,), 0.5).double(), Key(2), 5)  # the same draws, sizes left out
    assert torch.allclose(shares, gamma * WEIGHTS / (gamma * WEIGHTS).sum(-1, keepdim=True))
    drawn = co.aggregation.DirichletModels(0.5)(POINTS, WEIGHTS, Key(2), 5).params["a"]
    assert torch.allclose(drawn[:, 0], 4 * shares[:, 1])  # clients at 0 and 4
    assert torch.allclose(drawn[:, 1], torch.ones(5).double())


@pytest.mark.parametrize(
    ("samples", "average", "clients", "kept"),
    [(0, True, False, [9.0]), (0, True, True, [9.0, 0.0, 4.0]), (0, False, True, [0.0, 4.0]), (3, False, False, [])],
)
def test_members_are_the_unions_of_table_3(samples: int, average: bool, clients: bool, kept: list[float]) -> None:
    centre = Point({"a": torch.tensor([9.0, 9.0]).double()})
    made = co.aggregation.Ensemble(samples=samples, average=average, clients=clients)(
        POINTS, WEIGHTS, centre, Key(0)
    ).params["a"]
    assert len(made) == samples + len(kept)
    assert made[samples:, 0].tolist() == kept


def test_sampled_running_variances_are_floored_and_counted() -> None:
    params = {
        "n.running_var": torch.tensor([[0.5, -0.1], [1e-9, 0.2]]),
        "n.running_mean": torch.tensor([[-1.0], [1.0]]),
    }
    with pytest.warns(UserWarning, match="2 of 4 sampled running variances"):
        kept = floor_var(params)
    assert torch.allclose(kept["n.running_var"], torch.tensor([[0.5, FLOOR], [FLOOR, 0.2]]))
    assert torch.equal(kept["n.running_mean"], params["n.running_mean"])


@pytest.mark.parametrize("problem", ["classification", "regression"])
@pytest.mark.parametrize("inner", INNER)
def test_with_the_average_alone_the_student_is_the_inner_method(inner: str, problem: str) -> None:
    """The student starts at its own teacher, so that its gradient is 0 and the average of equal weights stays."""
    task, sites = tiny.PROBLEMS[problem](torch.float64)
    plain = co.run(INNER[inner], task, sites, rounds=3, seed=2)
    around = co.run(co.methods.FedBE(INNER[inner], ALONE, sharpen=1.0, distil=TEACH), task, sites, rounds=3, seed=2)
    # for numbers the teacher's variance is larger by the 1e-6 that stands for a single model's
    gap = tree.map(lambda a, b: (a - b).abs().max(), plain.state.posterior, around.state.posterior)
    assert max(float(g) for g in tree.leaves(gap)) < (1e-12 if problem == "classification" else 1e-5)


@pytest.mark.parametrize("inner", INNER)
def test_engines_agree_around_every_inner_method(inner: str) -> None:
    task, sites = tiny.classification(torch.float64)
    method = co.methods.FedBE(INNER[inner], distil=TEACH)
    states = [co.run(method, task, sites, rounds=3, engine=e).state for e in ("sequential", "vectorised", "parallel")]
    for other in states[1:]:
        gaps = tree.map(lambda a, b: (a - b).abs().max(), states[0], other)
        assert max(float(g) for g in tree.leaves(gaps)) < 1e-10


@pytest.mark.parametrize("inner", ["scaffold", "fedavgm"])
def test_a_state_inside_survives_a_stop(inner: str, tmp_path: Path) -> None:
    task, sites = tiny.classification()
    method = co.methods.FedBE(INNER[inner], distil=TEACH)
    whole = co.run(method, task, sites, rounds=3, out=tmp_path / "whole")
    co.run(method, task, sites, rounds=1, out=tmp_path / "parts")
    co.run(method, task, sites, rounds=3, out=tmp_path / "parts", resume=True)
    files = [tmp_path / part / "state.safetensors" for part in ("whole", "parts")]
    assert whole.report["settings"]["inner"]["type"] == type(INNER[inner]).__name__
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_stepped_average_starts_the_student_and_keeps_its_velocity() -> None:
    task, sites = tiny.classification()
    inner = INNER["fedavgm"]
    first = co.run(co.methods.FedBE(inner, distil=None), task, sites, rounds=1).state
    student = co.run(co.methods.FedBE(inner, distil=TEACH), task, sites, rounds=1).state
    assert torch.equal(first.inner.optimiser, student.inner.optimiser)
    assert torch.equal(tree.ravel(student.inner.posterior.params), tree.ravel(student.posterior.params))
    assert not torch.equal(tree.ravel(first.posterior.params), tree.ravel(student.posterior.params))


def test_without_distillation_it_is_the_inner_method_with_the_ensemble_watched() -> None:
    task, sites = tiny.classification()
    plain = co.run(INNER["fedavg"], task, sites, rounds=3)
    watched = co.run(co.methods.FedBE(INNER["fedavg"], distil=None, monitor=True), task, sites, rounds=3)
    assert [r["average_nll"] for r in watched.report["history"]] == [r["nll"] for r in plain.report["history"]]
    assert watched.report["history"][-1]["nll"] == watched.metrics["nll"] != plain.metrics["nll"]
    assert needs(co.methods.FedBE(distil=None)) == {Needs.NOTHING} and Needs.INPUTS in needs(co.methods.FedBE())


def test_one_ensemble_is_the_mean_of_the_clients_probabilities() -> None:
    task, sites = tiny.classification()
    result = co.run(one_ensemble(QUICK), task, sites, rounds=1)
    x = sites.all_test.x
    each = [torch.softmax(task.outputs(r.payload.params, x), -1) for r in result.replies]
    p = result.method.predictive(task, result.state)(x)
    assert torch.allclose(p.probs, torch.stack(each).mean(0), atol=1e-6)  # type: ignore[union-attr]


def test_v_distillation_squares_the_pseudo_labels() -> None:
    """One full-batch SGD step from the average is −ε times the gradient of −Σ q log p with q = p̂² / Σ p̂²."""
    task, sites = tiny.classification(torch.float64)
    rows = len(sites.inputs)  # type: ignore[arg-type]
    method = v_distillation(INNER["fedavg"], co.SGD(rate=0.1, momentum=0.0, epochs=1, batch=rows))
    result = co.run(method, task, sites, rounds=1)
    average = co.aggregation.average([r.payload for r in result.replies], co.messages.weights(result.replies)).params
    with torch.no_grad():
        p = torch.stack([torch.softmax(task.outputs(r.payload.params, sites.inputs), -1) for r in result.replies]).mean(
            0
        )
    q = p**2 / (p**2).sum(-1, keepdim=True)
    theta = {k: v.clone().requires_grad_() for k, v in average.items()}
    loss = -(q * torch.log_softmax(task.outputs(theta, sites.inputs), -1)).sum(-1).mean()  # type: ignore[arg-type]
    gradients = torch.autograd.grad(loss, list(theta.values()))
    for (k, before), gradient in zip(average.items(), gradients, strict=True):
        assert torch.allclose(result.state.posterior.params[k], before - 0.1 * gradient, atol=1e-12), k


def mirrored(x: torch.Tensor, key: Key) -> torch.Tensor:
    return -x


def test_pseudo_labels_are_predicted_without_augmentation_and_distilled_with_it() -> None:
    """One full-batch SGD step from the average: the gradient of −Σ p̂(x) log p(−x), with p̂ the average's own at x."""
    task, sites = tiny.classification(torch.float64)
    x = sites.inputs
    assert x is not None
    distil = co.aggregation.Distil(co.SGD(rate=0.1, momentum=0.0, epochs=1, batch=len(x), augment=mirrored), wide=False)
    result = co.run(co.methods.FedBE(INNER["fedavg"], ALONE, sharpen=1.0, distil=distil), task, sites, rounds=1)
    average = co.aggregation.average([r.payload for r in result.replies], co.messages.weights(result.replies)).params
    theta = {k: v.clone().requires_grad_() for k, v in average.items()}
    target = torch.softmax(task.outputs(average, x), -1).detach()
    loss = -(target * torch.log_softmax(task.outputs(theta, -x), -1)).sum(-1).mean()
    for (k, before), gradient in zip(average.items(), torch.autograd.grad(loss, list(theta.values())), strict=True):
        assert torch.allclose(result.state.posterior.params[k], before - 0.1 * gradient, atol=1e-12), k


def test_a_regression_student_learns_the_ensembles_mean_and_spread() -> None:
    """A linear student under one variance for all rows: least squares to the means; the variance of what is left."""
    x = torch.linspace(-1, 1, 40).double().unsqueeze(1)
    mean, var = 0.5 + 2 * x[:, 0] + 0.3 * torch.cos(3 * x[:, 0]), 0.2 + 0.1 * x[:, 0] ** 2
    task = co.regression(co.models.linear(1).double())
    distil = co.aggregation.Distil(co.SGD(rate=0.1, momentum=0.9, epochs=400, batch=40), wide=False)
    zero = torch.zeros_like(mean)
    student = distil.student(task, lambda _: Normal(mean, var, zero), [task.init(Key(0))], x, Key(1)).params
    design = torch.cat([x, torch.ones_like(x)], 1)
    gradient, shift = torch.linalg.lstsq(design, mean).solution
    left = (mean - design @ torch.stack([gradient, shift])) ** 2
    assert student["0.weight"].item() == pytest.approx(gradient.item(), abs=1e-6)
    assert student["0.bias"].item() == pytest.approx(shift.item(), abs=1e-6)
    assert student["likelihood.log_noise"].exp().item() == pytest.approx((var + left).mean().item(), rel=1e-6)


def test_a_student_with_its_own_variances_does_not_go_back_to_the_clients() -> None:
    task, sites = tiny.regression()
    method = co.methods.FedBE(INNER["fedavg"], distil=dataclasses.replace(TEACH, wide=True))
    plain = co.run(INNER["fedavg"], task, sites, rounds=2)
    wide = co.run(method, task, sites, rounds=2)
    assert torch.equal(tree.ravel(wide.state.inner.posterior.params), tree.ravel(plain.state.posterior.params))
    assert wide.state.posterior.params["2.weight"].shape[0] == 2


@pytest.mark.parametrize("distil", [TEACH, None])
def test_one_reply_leaves_the_average_and_says_so(distil: co.aggregation.Distil | None) -> None:
    task, sites = tiny.classification()
    method = co.methods.FedBE(INNER["fedavg"], distil=distil)
    server = Server(sites.inputs, None, Key(0), len(sites))
    state = method.init(task, server)
    replies = Sequential(sites.train).gather(method, task, method.broadcast(state), [2], Turn(0, Key(3)))
    with pytest.warns(UserWarning, match="Only one client replied"):
        new = method.aggregate(task, state, replies, server)
    assert torch.allclose(tree.ravel(new.posterior.params), tree.ravel(replies[0].payload.params))
    assert isinstance(new.posteriors[0], Samples) and len(new.posteriors[0].params["0.weight"]) == 1


def test_some_of_the_clients_suffice_and_one_is_reported() -> None:
    task, sites = tiny.classification()
    method = co.methods.FedBE(INNER["scaffold"], co.aggregation.Ensemble(samples=3), distil=TEACH)
    some = co.run(method, task, sites, rounds=2, participation=3)
    assert len(some.state.posteriors[0].params["0.weight"]) == 3 + 1 + 3 and not some.report["warnings"]
    single = co.run(method, task, sites, rounds=2, participation=1)
    assert any("Only one client replied" in said for said in single.report["warnings"])
    assert torch.equal(single.state.posterior.params["0.weight"], single.state.inner.posterior.params["0.weight"])


def test_what_makes_no_sense_is_refused() -> None:
    for alpha in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="above 0"):
            co.aggregation.DirichletModels(alpha)
    with pytest.raises(InputError, match="needs members"):
        co.aggregation.Ensemble(samples=0, average=False, clients=False)
    for inner in (co.methods.Mixture(), co.methods.Centralised(), co.methods.FedBE()):
        with pytest.raises(InputError, match="many rounds"):
            co.methods.FedBE(inner)
    task, sites = tiny.classification()
    with pytest.raises(InputError, match="do not send their weights"):
        co.run(tiny.shortened(co.methods.FedBE(co.methods.FedPA())), task, sites, rounds=1)


def test_the_inner_method_is_set_on_the_command_line(invoke: tiny.Invoke, tmp_path: Path) -> None:
    words = [
        "run",
        "fedbe",
        "--data",
        "moons",
        "--inputs",
        "20",
        "--rounds",
        "2",
        "--no-bounds",
        "--out",
        tmp_path / "r",
    ]
    sets = ["inner=scaffold", "inference.epochs=1", "inner.rate=0.5", "ensemble.models=DirichletModels"]
    sets += ["ensemble.models.alpha=0.5", "distil.inference.epochs=2"]
    code, _, errors = invoke(*map(str, words), *(w for s in sets for w in ("--set", s)))
    assert code == 0, errors
    settings = json.loads((tmp_path / "r" / "run.json").read_text())["settings"]
    assert settings["inner"]["type"] == "Scaffold" and settings["inner"]["rate"] == 0.5
    assert settings["inner"]["inference"]["epochs"] == 1
    assert settings["ensemble"]["models"] == {"type": "DirichletModels", "alpha": 0.5}
    code, _, errors = invoke("run", "fedbe", "--inputs", "20", "--set", "inner=fedproxx", "--out", str(tmp_path / "s"))
    assert code == 2 and "fedprox" in errors


def test_the_papers_settings_are_a_preset_that_reaches_the_method_inside() -> None:
    made = row("fedbe[inner=fedprox]", read_settings("chen2021", "cifar10", "step:2")["fedbe"])
    assert (
        isinstance(made.method, co.methods.FedBE)
        and isinstance(made.method.inner, co.methods.FedProx)
        and made.rounds == 40
    )
    training, student = made.method.inner.inference, made.method.distil.inference  # type: ignore[union-attr]
    assert (training.rate, training.epochs, training.batch, training.weight_decay) == (0.01, 20, 40, 1e-3)  # type: ignore[attr-defined]
    # App. B.2: 0.01 if r < 0.3 R, 0.001 if r < 0.6 R, 0.0001 after
    assert [float(training.decay(r / 40)) for r in (11, 12, 23, 24)] == pytest.approx([1, 0.1, 0.1, 0.01])  # type: ignore[attr-defined]
    assert (student.rate, student.low, student.begin, student.every) == (1e-3, 4e-4, 250, 25)  # type: ignore[attr-defined]
    assert (student.epochs, student.batch) == (20, 128)  # type: ignore[attr-defined]


def batchnorm_problem(dtype: torch.dtype = torch.float32) -> tuple[co.Task, co.Sites]:
    sites = tiny.classification(dtype)[1]
    network = torch.nn.Sequential(
        torch.nn.Linear(2, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
    )
    return co.classification(network.to(dtype)), sites


def test_statistics_are_taken_anew_after_swa() -> None:
    task, sites = batchnorm_problem(torch.float64)
    rows = sites.train[0]
    params = task.init(Key(3)).params
    for batch in (len(rows.x), 7):
        found = refresh_statistics(task, params, rows, batch)
        each = [(rows.x @ params["0.weight"].T + params["0.bias"])[i : i + batch] for i in range(0, len(rows.x), batch)]
        mean = torch.cat([part.mean(0).expand(len(part), -1) for part in each]).mean(0)
        assert torch.allclose(found["1.running_mean"], mean)
        whole = [part.var(0) if len(part) > 1 else torch.ones(6).double() for part in each]  # one row has no variance
        var = torch.cat([v.expand(len(part), -1) for v, part in zip(whole, each, strict=True)]).mean(0)
        assert torch.allclose(found["1.running_var"], var)
        assert torch.equal(found["0.weight"], params["0.weight"])


def test_batch_normalisation_is_sampled_distilled_and_agrees_between_engines() -> None:
    task, sites = batchnorm_problem(torch.float64)
    method = co.methods.FedBE(INNER["fedavg"], distil=TEACH)
    runs = [co.run(method, task, sites, rounds=2, engine=e) for e in ("sequential", "vectorised")]
    gaps = tree.map(lambda a, b: (a - b).abs().max(), runs[0].state, runs[1].state)
    assert max(float(g) for g in tree.leaves(gaps)) < 1e-10
    members = runs[0].state.posteriors[0].params
    assert float(members["1.running_var"].min()) >= FLOOR
    assert not any(name.endswith(("num_batches_tracked", "rows")) for name in members)  # counters are never sampled
    assert members["1.running_mean"][:10].std(0).min() > 0


@pytest.mark.parametrize("kind", ["resnet20", "mobilenetv2"])
def test_deep_networks_run_from_end_to_end(kind: str) -> None:
    network = {"resnet20": resnet(SHAPE, 4, 20, torch.nn.BatchNorm2d), "mobilenetv2": mobilenetv2(SHAPE, 4)}[kind]
    y = torch.arange(24) % 4
    rows = co.data.Dataset("drawn", Key(0).uniform(24 * 192).reshape(24, *SHAPE), y, classes=4)
    sites = rows.split(co.splits.iid(), 2, test=0.2, calibration=0, inputs=4)
    method = co.methods.FedBE(
        co.methods.FedAvg(QUICK),
        co.aggregation.Ensemble(samples=2),
        distil=co.aggregation.Distil(SWA(epochs=1, batch=4), wide=False),
    )
    result = co.run(method, co.classification(network), sites, rounds=1)
    assert 0 < result.metrics["nll"] < 50


def test_an_ensemble_predicts_the_same_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for problem in tiny.PROBLEMS.values():
        task, sites = problem(torch.float64)
        points = Samples(tree.stack([task.init(Key(i)).params for i in range(5)]))
        whole = task.predictive(points)(sites.all_test.x)
        monkeypatch.setattr("consilience.task.CHUNK", 7)
        for a, b in zip(whole, task.predictive(points)(sites.all_test.x), strict=True):
            assert torch.allclose(a, b, rtol=1e-12)
