"""Problems: rows and tasks in words or as objects of one's own, alike for runs, comparisons and searches."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn

import consilience as co
from consilience.data.splits.split import Rows
from consilience.distributions.likelihood import Softmax
from consilience.distributions.predictive import Distribution
from consilience.errors import InputError
from consilience.key import Key
from consilience.runs.problem import Problem
from consilience.runs.recipe import Recipe
from consilience.serialisation.settings import describe
from consilience.tree import Params


class Net(nn.Module):
    """A network of somebody's own."""

    def __init__(self, features: int, classes: int | None) -> None:
        super().__init__()
        self.inside = nn.Linear(features, 4)
        self.out = nn.Linear(4, classes or 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.inside(x)))


class Tempered:
    """A likelihood of somebody's own: no dataclass, with a setting."""

    def __init__(self, heat: float) -> None:
        self.heat = heat

    def extra(self) -> Params:
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        return Softmax().nll(outputs / self.heat, y, params)

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Distribution:
        return Softmax().outcome(outputs / self.heat, members)

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        Softmax().check(outputs, y, classes)


class Mine(co.methods.FedAvg):
    """A method of somebody's own."""

    about = dataclasses.replace(co.methods.FedAvg.about, name="mine")


def halves(rows: Rows, sites: int, key: Key) -> Sequence[Tensor]:
    return key.permutation(len(rows.y)).tensor_split(sites)


def linear_task(sites: co.Sites) -> co.Task:
    return co.classification(co.models.linear(sites.features, sites.classes))


def moons(seed: int = 0) -> co.Sites:
    return co.datasets.load("moons").split(co.splits.iid(), 3, calibration=10, validation=0.2, seed=seed)


SHORT = co.methods.FedAvg(co.SGD(epochs=1, batch=200))
LIKELIHOOD = Tempered(2.0)
PROBLEMS = {
    "words": Problem("moons", sites=3, model="linear", calibration=10),
    "sites and task": Problem(sites=moons(), task=linear_task(moons())),
    "functions": Problem(sites=moons, task=linear_task),
    "own network class": Problem("moons", sites=3, model=Net),
    "own network": Problem("moons", sites=3, model=Net(2, 2)),
    "own likelihood": Problem("moons", sites=3, model="linear", likelihood=LIKELIHOOD),
    "own split": Problem("moons", sites=3, model="linear", split=halves),
    "split object": Problem("moons", sites=3, model="linear", split=co.splits.dirichlet(0.5)),
    "data set": Problem(co.datasets.load("moons"), sites=3, split="iid", features="relu:8"),
    "own features": Problem("moons", sites=3, features=nn.Sequential(nn.Linear(2, 6), nn.Tanh())),
}


MANY = {"words", "own network", "split object", "data set", "own features"}  # much like another of them


@pytest.mark.parametrize("which", [pytest.param(n, marks=[pytest.mark.slow] * (n in MANY)) for n in PROBLEMS])
def test_objects_and_words_run_are_compared_and_tuned(which: str, tmp_path: Path) -> None:
    problem = PROBLEMS[which]
    mine = Mine(co.SGD(epochs=1, batch=200))

    how: dict[str, Any] = {"seeds": (0, 1), "rounds": 1, "engine": "sequential"}

    compared = co.compare([SHORT, mine], problem, **how, bounds=False, out=tmp_path / "c")
    again = co.compare([SHORT, mine], problem, **how, bounds=False, out=tmp_path / "c")
    tuned = co.tune(SHORT, problem, **how, grid={"inference.rate": [0.2]})

    assert [row.method for row in compared.rows] == ["fedavg", "mine"] and again.rows == compared.rows
    alone = co.run(SHORT, problem, rounds=1, seed=1, engine="sequential")  # the numbers are those of runs
    assert compared.rows[0].scores.values["nll"][1] == alone.metrics["nll"]
    assert len(tuned.trials) == 1 and tuned.trials[0].mean is not None


def test_seeds_redraw_the_split_but_of_fixed_sites_which_is_said() -> None:
    hashes = {name: [problem.build_sites(seed).fingerprint() for seed in (0, 1)] for name, problem in PROBLEMS.items()}
    assert {name for name, (first, second) in hashes.items() if first == second} == {"sites and task"}
    for name, problem in PROBLEMS.items():
        assert problem.redraws == (name != "sites and task")
    fixed = co.compare([SHORT], PROBLEMS["sites and task"], seeds=range(2), rounds=1, bounds=False)
    drawn = co.compare([SHORT], PROBLEMS["functions"], seeds=range(2), rounds=1, bounds=False)
    assert fixed.leaves_out.startswith("All seeds share one split") and "All seeds share one split" in str(fixed)
    assert "share one split" not in drawn.leaves_out


def test_several_splits_are_a_table_each() -> None:
    problem = Problem("moons", sites=3, model="linear", split=["iid", co.splits.dirichlet(0.5), halves])
    compared = co.compare([SHORT], problem, rounds=1, bounds=False)
    assert [part.problem.split for part in compared.parts] == ["iid", "dirichlet:0.5", "halves"]
    with pytest.raises(InputError, match="3 splits are for a comparison"):
        co.run(SHORT, problem)


def test_another_problem_does_not_continue_a_comparison(tmp_path: Path) -> None:
    problem = PROBLEMS["own likelihood"]
    arguments: dict[str, Any] = {"rounds": 1, "bounds": False, "out": tmp_path / "c"}
    co.compare([SHORT], problem, **arguments)
    for other in (
        dataclasses.replace(problem, likelihood=Tempered(3.0)),
        dataclasses.replace(problem, model=Net),
        dataclasses.replace(problem, split=halves),
    ):
        with pytest.raises(InputError, match="holds another comparison"):
            co.compare([SHORT], other, **arguments)
    sites = tmp_path / "sites"
    task = linear_task(moons())
    co.compare([SHORT], Problem(sites=moons(), task=task), rounds=1, bounds=False, out=sites)
    with pytest.raises(InputError, match="holds another comparison"):
        co.compare([SHORT], Problem(sites=moons(1), task=task), rounds=1, bounds=False, out=sites)


def test_a_method_by_its_name_is_as_usual_on_the_problem() -> None:
    words = Problem("moons", sites=3, model="linear")
    task, sites = words.build()
    by_name = co.run("gaussian_product", words)
    assert describe(by_name.method) == describe(Recipe("gaussian_product", words).choose().build_method())
    for other in (co.run("gaussian_product", Problem(task=task, sites=sites)), co.run("gaussian_product", task, sites)):
        assert other.metrics == by_name.metrics
    assert co.recommend(words) == co.recommend(sites)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Problem, "Say which rows there are"),
        (lambda: Problem(torch.zeros(3, 2), target="y"), "A Tensor is no name, files or data set"),
        (lambda: Problem("moons", sites=moons()), "data would change nothing"),
        (lambda: Problem(sites=moons(), test=0.3, calibration=5), "test and calibration would change nothing"),
        (lambda: Problem("moons", task=linear_task, model="mlp"), "model would change nothing"),
        (lambda: Problem(sites=moons, task="counts"), "task='counts' is for CSV files"),
        (lambda: Problem(co.datasets.load("moons"), target="y"), "target would change nothing"),
        (lambda: co.run(SHORT, linear_task(moons())), "Say on which rows"),
        (lambda: co.run(SHORT, PROBLEMS["words"], moons()), "leave sites out"),
        (lambda: co.run(SHORT, Problem(sites=lambda seed: None)), "sites= is a function that returned NoneType"),
        (lambda: co.run(SHORT, Problem("moons", model=lambda x, y: 3)), "model= is a function that returned int"),
        (lambda: co.run(SHORT, Problem("moons", model=nn.Bilinear)), "cannot be made for 2 features and 2 outputs"),
        (lambda: co.run(SHORT, Problem("moons", sites=3, split=lambda r, s, k: [[0]])), "dealt to 1 sites, not to 3"),
        (lambda: co.run(SHORT, Problem("moons", sites=1, split=lambda r, s, k: [[-1]])), "should return row numbers"),
        (lambda: co.run(SHORT, PROBLEMS["words"], engine=co.Compute(workers=2)), "leave it out of a run"),
        (lambda: co.compare([SHORT], "moons"), "problem= is a str: pass co.Problem"),
        (lambda: co.compare([SHORT], PROBLEMS["words"], settings=["a", "b"]), "name one file or preset"),
        (lambda: co.compare([SHORT], PROBLEMS["words"], engine=co.Compute(threads=2)), "leave them out"),
        (lambda: co.tune(SHORT, Problem(sites=moons().pooled(), task=linear_task)), "grid"),
    ],
)
def test_mistakes_are_one_sentence(make: Any, sentence: str) -> None:
    if sentence == "grid":
        bare = dataclasses.replace(moons(), validation=None)
        with pytest.raises(InputError, match="There are no validation rows to tune on"):
            co.tune(SHORT, Problem(sites=bare, task=linear_task))
        return
    with pytest.raises(InputError, match=sentence):
        make()


def test_what_other_processes_cannot_be_sent_is_refused() -> None:
    inside = lambda seed: moons(seed + 1)
    with pytest.raises(InputError, match="Other processes cannot be sent this problem"):
        co.compare([SHORT], Problem(sites=inside, task=linear_task), engine=co.Compute(workers=2), seeds=range(2))


def test_files_are_read_once_and_again_where_they_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "hospitals"
    tiny.hospitals(folder)
    read: list[str] = []
    monkeypatch.setattr(
        "consilience.runs.problem.read_rows",
        lambda *inputs, before=Problem.build.__globals__["read_rows"]: read.append(inputs[0]) or before(*inputs),
    )
    problem = Problem(sorted(folder.glob("*.csv")), target="disease")
    co.compare(["exact", "fedavg[rounds=1,inference.epochs=1]"], problem, seeds=range(2), bounds=False)
    co.run("fedavg", problem, rounds=1)
    co.recommend(problem)
    assert len(read) == 1
    file = folder / "north.csv"
    file.write_text(file.read_text() + file.read_text().splitlines()[-1] + "\n")
    before = problem.build_sites(0).fingerprint()
    assert len(read) == 2
    assert dataclasses.replace(problem).build_sites(0).fingerprint() == before and len(read) == 2


def test_settings_written_as_words_are_read_again() -> None:
    problem = Problem("moons", sites=2, model="linear", calibration=5, prior_var=3.0, split="iid")
    recipe = Recipe("fedavg", problem, 3, ("inference.epochs=2",))
    written = recipe.to_json()
    assert list(written)[:6] == ["method", "data", "target", "sites", "split", "model"] and written["seed"] == 3
    assert Recipe.from_json(written) == recipe
    for name, damage in (("sites", "x"), ("split", 3), ("model", None), ("task", 1), ("prior_var", "x"), ("seed", "0")):
        with pytest.raises(InputError, match="file is damaged"):
            Recipe.from_json({**written, name: damage})
    assert builtins.hash(problem) is not None


def test_estimators_folds_and_sets_are_those_of_a_problem() -> None:
    data = co.datasets.load("moons")
    groups = torch.arange(len(data.y)) % 3
    fitted = co.FederatedClassifier("gaussian_product").fit(data.x.numpy(), data.y.numpy(), groups=groups.numpy())
    sites = fitted.result_.sites
    assert describe(fitted.result_.method) == describe(co.run("gaussian_product", PROBLEMS["words"]).method)
    assert [type(layer) for layer in fitted.result_.task.model] == [nn.Linear] and not sites.train

    aside = Problem("moons", sites=3, model="linear", conformal=0.3)
    result = co.run("gaussian_product", aside, seed=2)
    assert co.conformal(result, sites=aside).thresholds == co.conformal(result).thresholds
    words = co.cross_conformal("gaussian_product", PROBLEMS["words"], folds=2)
    task, rows = PROBLEMS["words"].build()
    objects = co.cross_conformal(words.runs[0].method, task, rows, folds=2)
    assert torch.equal(words.guarantee.tables, objects.guarantee.tables)
