"""Prediction sets under our protocol: how large they are at equal coverage, where they hold, and what noise costs.

A column is data/what, where 'what' is one of

    methods         six methods (on digits all of them) on one split: sets of each kind by two scores, with and
                    without noise
    a method        the same split: sizes at equal coverage, and sets pooled and by class
    left-out        natural sites: calibrated without one of them, tried on that one, in turn
    folds           exact pooling: rows set aside beside five folds, in which every row trains

A fifth or more of each site's training rows calibrates and trains nobody. Seeds draw the split, the rows set aside,
the start and, where there is no official test part, the test rows. Settings are the package's defaults; networks of
images are linear on fixed features, which every row shares. Nothing is chosen on test rows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

import consilience as co
from consilience import tree
from consilience.benchmark.reproduce import Experiment, Values, run_plan
from consilience.data import Dataset, datasets
from consilience.data.sites import concatenate
from consilience.data.splits.text import parse
from consilience.distributions.predictive import Categorical
from consilience.key import Key
from consilience.methods import METHODS
from consilience.metrics.scores import scores
from consilience.models.maps import features
from consilience.prediction_sets.nonconformity import PREDICTION, Score, class_scores, draws
from consilience.prediction_sets.sets import Guarantee
from consilience.privacy.dp.accountant import sigma_of
from consilience.runs.conformal import assess, models_of
from consilience.runs.recipe import Recipe
from consilience.runs.result import Result

LEVEL = 0.9
EQUAL = (0.9, 0.95, 0.98)  # coverage of test rows at which sizes are compared
KINDS = ("class", "pooled", "quantile", "own")
SCORES = ("hinge", "aps")
PRIVATE_GRID = 30  # edges, with and without noise
NOISE = sigma_of(1.0, 1e-5) ** 2  # of adding or removing a row, ε = 1
FOLDS = 5
NEWCOMERS = 500  # mixtures of classes, Dirichlet(0.1), that a new site might have
SLOW = ("coreset", "dosfl")  # minutes a run
BOUNDS = ("server_only", "local_only")
FEW = ("exact_tuned", "exact", "evidence", "fedavg", "gaussian_product", "mixture")
TOO_LARGE = {"femnist": ("gaussian_product",)}  # its Jacobians at fifty sites of 62 classes take 13 GB
LEFT_OUT = ("exact_tuned", "fedavg", "mixture")
IMAGES = {"mnist": "conv:256", "fashion_mnist": "conv:256", "femnist": "conv:256"}
ROWS = 6000  # training rows of images, and as many for testing at most
INPUTS = 200  # rows without labels at the server, for the methods that ask for some
WRITERS = 50  # of FEMNIST
LEFT_ALONE = {  # what refuses, by data set: all weights in one matrix; rows at the server
    "digits": ("hierarchical",),
    "mnist": ("hierarchical",),
    "fashion_mnist": ("hierarchical",),
    "femnist": ("hierarchical", "glm"),
    "heart_disease": ("evidence_logits", "fedbe", "fedkt", "oneshot"),
}
ENGINE = co.Compute(threads=1)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, what = column.split("/")
    values = Values()
    if what == "folds":
        return score_folds(name, seed, data_dir)
    if what == "left-out":
        for method in LEFT_OUT:
            values |= score_newcomers(name, method, seed, data_dir)
        return values
    if what != "methods":
        return score_sizes(train(name, what, seed, data_dir), what)
    names = [method for method in FEW if method not in TOO_LARGE.get(name, ())]
    if name == "digits":
        names += other_methods(name)
    for method in names:
        values |= score_method(name, method, seed, data_dir)
    return values


def other_methods(name: str) -> list[str]:
    """Methods beside the six, without those that this data set leaves out."""
    without = (*FEW, *SLOW, *BOUNDS, *LEFT_ALONE.get(name, ()))
    return [method for method in METHODS if method not in without]


# Runs


def score_method(name: str, method: str, seed: int, data_dir: str | None) -> Values:
    """A run, its sets of each kind, and the smallest sets that would have covered so much."""
    result = train(name, method, seed, data_dir)
    values = score_sizes(result, method)
    for score in SCORES:
        for kind in KINDS:
            values[f"{method}, {kind}, {score}"] = sets_of(result, kind, score)
    for kind in ("class", "pooled"):
        for noise in (0.0, NOISE):
            row = f"{method}, {kind}, hinge, {PRIVATE_GRID} edges" + ", ε = 1" * bool(noise)
            values[row] = sets_of(result, kind, "hinge", PRIVATE_GRID, noise)
    return values


def score_sizes(result: Result, method: str) -> Values:
    """The smallest sets that would have covered so much, and calibrated ones of two kinds."""
    p, y = predict_test_rows(result), result.sites.all_test.y
    known = scores(p, y)
    values: Values = {method: {score: known[score] for score in ("nll", "accuracy", "ece")}}
    values[method] |= equal_sizes(p, y)
    values[method]["size"] = values[method].get(f"hinge_size_at_{100 * LEVEL:g}")
    for kind in ("class", "pooled"):
        values[f"{method}, {kind}, hinge"] = sets_of(result, kind, "hinge")
    return values


def train(name: str, method: str, seed: int, data_dir: str | None) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in IMAGES:
            sites = image_sites(name, seed, data_dir)
            task = co.classification(co.models.linear(sites.features, sites.classes))
            return co.run(METHODS[method](), task, sites, seed=seed, engine=ENGINE, scored=False)
        recipe = recipe_of(name, method, seed, data_dir)
        return co.run(*recipe.build(), seed=seed, engine=ENGINE, scored=False)


def recipe_of(name: str, method: str, seed: int, data_dir: str | None) -> Recipe:
    problem = co.Problem(name, conformal=0.3, data_dir=data_dir)
    if name == "digits":
        digits = dataclasses.replace(problem, split="dirichlet:0.1", sites=5, inputs=200)
        return Recipe(method, digits, seed).choose()
    return Recipe(method, dataclasses.replace(problem, model="linear"), seed)


@lru_cache(maxsize=1)
def image_sites(name: str, seed: int, data_dir: str | None) -> co.Sites:
    """Images as their features; the server's inputs are rows that no site has."""
    rows, spare = load_femnist(data_dir)
    split, count = "natural", WRITERS
    if name != "femnist":
        rows, spare = load_some(name, seed, data_dir)
        split, count = "dirichlet:0.1", 10
    assert rows.x_test is not None
    network = features(f"{IMAGES[name]}:{seed}", rows.features)
    with torch.no_grad():
        x = torch.cat([network(part) for part in rows.x.split(2000)])
        x_test = torch.cat([network(part) for part in rows.x_test.split(2000)])
        inputs = network(spare)
    mapped = dataclasses.replace(rows, x=x, x_test=x_test, feature_names=None, image=None)
    sites = mapped.split(parse(split), count, calibration=30, conformal=0.3, seed=seed)
    sites = dataclasses.replace(sites, inputs=inputs)
    return sites.standardised().map_x(lambda x: 0.3 * x)  # as in exact/table


def load_some(name: str, seed: int, data_dir: str | None) -> tuple[Dataset, Tensor]:
    """Some rows of a data set, and others for the server."""
    rows = datasets.load(name, data_dir)
    assert rows.x_test is not None and rows.y_test is not None
    order = Key(seed).permutation(len(rows.y))
    some, spare = order[:ROWS], order[ROWS : ROWS + INPUTS]
    tested = Key(seed).fold(1).permutation(len(rows.x_test))[:ROWS]
    cut = dataclasses.replace(
        rows, x=rows.x[some], y=rows.y[some], x_test=rows.x_test[tested], y_test=rows.y_test[tested]
    )
    return cut, rows.x[spare]


def load_femnist(data_dir: str | None) -> tuple[Dataset, Tensor]:
    """The first writers' rows, and others' for the server."""
    rows = datasets.load("femnist", data_dir)
    assert rows.x_test is not None and rows.y_test is not None
    assert rows.site is not None and rows.site_test is not None
    x, x_test = 1 - rows.x, 1 - rows.x_test  # ink on paper → light on dark
    kept, tested = rows.site < WRITERS, rows.site_test < WRITERS
    cut = dataclasses.replace(
        rows,
        x=x[kept],
        y=rows.y[kept],
        site=rows.site[kept],
        x_test=x_test[tested],
        y_test=rows.y_test[tested],
        site_test=rows.site_test[tested],
    )
    return cut, x[~kept][:INPUTS]


# Measures


def predict_test_rows(result: Result) -> Categorical:
    """Predictions of all test rows; where sites have models of their own, each of its own rows."""
    models = [result.model(site) for site in result.sites.names]
    with torch.no_grad():
        p = tree.concatenate([model(rows.x) for model, rows in zip(models, result.sites.test, strict=True)])
    assert isinstance(p, Categorical)
    return p


def sets_of(
    result: Result, kind: str, score: str, grid: int = 1000, noise: float = 0.0, sites: co.Sites | None = None
) -> dict[str, float | None]:
    """Coverage and size of sets; nothing where they are refused."""
    sites = sites or result.sites
    try:
        guarantee = co.conformal(result, LEVEL, kind, score=score, grid=grid, noise=noise)
    except co.InputError:
        return {"coverage": None, "size": None}
    return measured(result, sites, guarantee)


def measured(result: Result, sites: co.Sites, guarantee: Guarantee) -> dict[str, float | None]:
    models = models_of(result.method, result.task, result.state, result.memories, sites)
    report = assess(models, sites, guarantee)
    classes = {entry["name"]: entry["coverage"] for entry in report["by_class"]}
    names = sites.class_names or [str(c) for c in range(sites.classes or 0)]
    by_class = torch.tensor([classes.get(name, math.nan) for name in names], dtype=torch.float64)
    large = [entry["coverage"] for entry in report["by_site"] if entry["rows"] >= 20]
    return {
        "coverage": report["overall"]["coverage"],
        "size": report["overall"]["size"],
        "worst_site": min(large, default=None),
        "worst_class": float(by_class.nan_to_num(1.0).min()),
        "newcomer": newcomer_coverage(by_class),
    }


def newcomer_coverage(by_class: Tensor) -> float:
    """What one in twenty new sites would not reach, were only their classes mixed differently."""
    known = by_class[~by_class.isnan()]
    shares = torch.distributions.Dirichlet(torch.full((len(known),), 0.1, dtype=torch.float64))
    torch.manual_seed(0)
    return float((shares.sample(torch.Size([NEWCOMERS])) @ known).quantile(0.05))


def equal_sizes(p: Categorical, y: Tensor) -> dict[str, float | None]:
    """The mean size of sets whose one threshold covers exactly so many test rows: what a method's order is worth."""
    values: dict[str, float | None] = {}
    for score in SCORES:
        strangeness = class_scores(Score(score), p, draws(Key(0), PREDICTION, len(y)))
        own = strangeness.gather(1, y.unsqueeze(1)).squeeze(1).sort().values
        for level in EQUAL:
            threshold = own[math.ceil(level * len(own)) - 1]
            values[f"{score}_size_at_{100 * level:g}"] = float((strangeness <= threshold).double().sum(1).mean())
    return values


# Folds


def score_folds(name: str, seed: int, data_dir: str | None) -> Values:
    """Exact pooling: sets by rows set aside, and by folds of all rows, on the same test rows."""
    aside = train(name, "exact", seed, data_dir)
    recipe = recipe_of(name, "exact", seed, data_dir)
    problem = dataclasses.replace(recipe.problem, conformal=0.0)
    method, task, sites = dataclasses.replace(recipe, problem=problem).build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folded = co.cross_conformal(method, task, sites, LEVEL, FOLDS, seed=seed, engine=ENGINE)
    rows = sites.all_test
    sets = folded.predict(rows.x)
    assert isinstance(sets, Tensor)
    inside = sets.gather(1, rows.y.unsqueeze(1)).double()
    found = {"coverage": float(inside.mean()), "size": float(sets.double().sum(1).mean())}
    return {
        "rows set aside": sets_of(aside, "pooled", "hinge"),
        f"{FOLDS} folds": {**found, "promised": folded.guarantee.promised},
    }


# A hospital that took no part


def score_newcomers(name: str, method: str, seed: int, data_dir: str | None) -> Values:
    """Train and calibrate at all natural sites but one, and try the sets at that one, on all of its rows."""
    values = Values()
    for inner, outer, label in without_each(name, method, seed, data_dir):
        recipe = recipe_of(name, method, seed, data_dir)
        task = recipe.problem.build(seed)[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = co.run(recipe.build_method(), task, inner, seed=seed, engine=ENGINE, scored=False)
        for kind in KINDS[:3]:
            row = f"{method}, {kind}, without {label}"
            values[row] = sets_of(result, kind, "hinge", sites=outer)
    return values


def without_each(name: str, method: str, seed: int, data_dir: str | None) -> Iterator[tuple[co.Sites, co.Sites, str]]:
    """The sites without one of them, and that one alone; it had a part in the constants that scale the columns."""
    sites = recipe_of(name, method, seed, data_dir).problem.build_sites(seed)
    assert sites.conformal is not None
    for k, label in enumerate(sites.names):
        others = [i for i in range(len(sites)) if i != k]
        inner = dataclasses.replace(
            sites,
            train=tuple(sites.train[i] for i in others),
            test=tuple(sites.test[i] for i in others),
            conformal=tuple(sites.conformal[i] for i in others),
            names=tuple(sites.names[i] for i in others),
        )
        rows = concatenate([sites.train[k], sites.conformal[k], sites.test[k]])
        yield inner, dataclasses.replace(sites, train=(rows,), test=(rows,), conformal=None, names=(label,)), label


def other_steps(name: str, seeds: range) -> Iterator[tuple[str, Sequence[int]]]:
    """All other methods of one seed, then of the next: a seed's rows are mapped once."""
    for seed in seeds:
        for method in other_methods(name):
            yield f"{name}/{method}", (seed,)


PLAN: tuple[tuple[str, Sequence[int]], ...] = (  # columns and their seeds, what decides most first
    ("heart_disease/methods", range(10)),
    ("heart_disease/left-out", range(10)),
    ("heart_disease/folds", range(10)),
    ("digits/methods", range(3)),
    ("fashion_mnist/methods", range(3)),
    ("mnist/methods", range(3)),
    ("femnist/methods", range(3)),
    *other_steps("fashion_mnist", range(3)),
    *other_steps("mnist", range(3)),
    *other_steps("heart_disease", range(10)),
    *other_steps("femnist", range(3)),
    ("digits/methods", range(3, 8)),
)

EXPERIMENT = Experiment(
    title="Prediction sets: size at 90 % coverage",
    columns=tuple(dict.fromkeys(column for column, _ in PLAN)),
    trial=trial,
    score="size",
    digits=3,
)


if __name__ == "__main__":
    only = next(iter(sys.argv[3:]), "")
    stored = json.loads((Path(__file__).parent / "results" / "table.json").read_text())
    run_plan(EXPERIMENT, [step for step in PLAN if only in step[0]], Path(sys.argv[1]), sys.argv[2], stored)
