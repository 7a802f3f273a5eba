"""One table of what is usual for a method: network, inference and features are the same wherever it is named."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.datasets import load_breast_cancer, make_classification
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from torch import nn

import consilience as co
from consilience.benchmark.plan import Plan
from consilience.errors import RunWarning
from consilience.methods import METHODS
from consilience.methods.advice import table, usual_settings
from consilience.runs.problem import Problem
from consilience.runs.recipe import Recipe
from consilience.serialisation.settings import describe
from consilience.study.proposal import EXAMPLE, proposal

ROWS = Problem("moons", sites=3)
X, Y = make_classification(60, 4, random_state=0)
SITE = np.arange(60) % 3


def layers(estimator: Any) -> list[type]:
    return [type(layer) for layer in estimator.result_.task.model.modules() if not isinstance(layer, nn.Sequential)]


def test_gaussian_product_is_the_same_in_a_run_a_comparison_an_estimator_and_a_study() -> None:
    name = "gaussian_product"
    run = Recipe(name, ROWS).choose()
    plan = Plan((name,), ROWS).settle()
    estimator = co.FederatedClassifier(name).fit(X, Y, groups=SITE)
    study = proposal("s", "", *EXAMPLE, method=name)

    assert run.problem.model == plan.problem.model == study.model == "linear"
    assert layers(estimator) == [nn.Linear]
    compared = plan.rows(None)[0].method
    inferences = [describe(m)["inference"] for m in (run.build_method(), compared, estimator.result_.method)]
    inferences.append(describe(study.build_method())["inference"])
    assert all(inference == inferences[0] for inference in inferences)
    assert inferences[0]["dense"] is True
    assert inferences[0]["mode"]["type"] == "Newton"


def test_a_default_and_its_name_are_one_thing() -> None:
    recipe = Recipe("gaussian_product", ROWS)

    assert recipe.choose() == Recipe("gaussian_product", dataclasses.replace(ROWS, model="linear")).choose()
    chosen = dataclasses.replace(recipe, settings=("inference.mode.epochs=3",))
    assert chosen.choose().settings == chosen.settings  # what somebody chose stays alone
    assert recipe.choose(private=True).settings == ()
    assert Plan(("gaussian_product[inference=SWAG]",), ROWS).settle().check()


def test_a_large_precision_matrix_is_not_sent_unasked() -> None:
    method = METHODS["gaussian_product"]

    assert usual_settings(method, "classification", weights=2000) == method.on_linear
    assert usual_settings(method, "classification", weights=2001) == ()  # as the rules for a linear model have it
    assert usual_settings(method, "regression", weights=10) == ()  # a learned noise has no curvature
    assert {
        rule["when"].get("most_weights", 2000) for rule in table()["rules"] if "inference.dense=True" in str(rule)
    } == {2000}


@pytest.mark.parametrize("name", ["gaussian_product", "glm", "hierarchical", "exact"])
def test_no_hidden_layers_means_a_linear_model_of_the_columns(name: str) -> None:
    estimator = co.FederatedClassifier(name, hidden=()).fit(X, Y, groups=SITE)

    assert sum(weight.numel() for weight in estimator.result_.task.like.values()) == (4 + 1) * 2
    hidden = co.FederatedClassifier("fedavg", hidden=(3,), rounds=1).fit(X, Y, groups=SITE)
    assert sum(weight.numel() for weight in hidden.result_.task.like.values()) == (4 + 1) * 3 + (3 + 1) * 2


def test_hierarchical_learns_the_columns_of_a_table() -> None:
    estimator = co.FederatedClassifier("hierarchical").fit(X, Y, groups=SITE)

    assert sum(weight.numel() for weight in estimator.result_.task.like.values()) == (4 + 1) * 2  # 618 with Fourier


def test_gaussian_product_is_not_near_chance_on_breast_cancer() -> None:
    # Logistic regression of all rows has 0.95 to 0.98 on such splits; diagonal Laplace on two layers of 100 had 0.76.
    x, y = load_breast_cancer(return_X_y=True)
    test = np.arange(len(y)) % 3 == 0

    model = co.FederatedClassifier("gaussian_product").fit(x[~test], y[~test], groups=np.arange((~test).sum()) % 4)

    assert model.score(x[test], y[test]) > 0.93


def test_a_fit_without_groups_warns_that_it_is_one_site() -> None:
    search = GridSearchCV(co.FederatedClassifier("exact"), {"random_state": [0]}, cv=2)

    with pytest.warns(UserWarning, match="all rows are at one site: pass groups=site.*enable_metadata_routing=True"):
        search.fit(X, Y, groups=SITE)

    assert len(search.best_estimator_.result_.sites.names) == 1


def test_searches_hand_groups_on_where_routing_is_enabled() -> None:
    folds = StratifiedKFold(2)
    seen: list[int] = []

    def score(estimator: Any, x: Any, y: Any) -> float:
        seen.append(len(estimator.result_.sites.names))
        return float(estimator.score(x, y))

    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", RunWarning)  # of what a Gram matrix shows of few rows
        search = GridSearchCV(co.FederatedClassifier("exact"), {"random_state": [0]}, cv=folds)
        search.fit(X, Y, groups=SITE)
        cross_val_score(
            co.FederatedClassifier("exact"), X, Y, cv=folds, params={"groups": SITE}, scoring=score, error_score="raise"
        )

    assert len(search.best_estimator_.result_.sites.names) == 3
    assert seen == [3, 3]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"engine": "sequential"}, {"engine": "vectorised"}),
        ({"method": "exact"}, {"method": co.methods.ExactPooling()}),
        ({"random_state": 3}, {"random_state": np.random.RandomState(0).randint(1) + 3}),
        ({"hidden": ()}, {"model": co.models.linear(4, 2)}),
        ({"hidden": (), "method": "glm"}, {"features": "identity", "method": "glm"}),
    ],
)
def test_two_names_for_one_setting_agree(one: dict[str, Any], other: dict[str, Any]) -> None:
    usual = {"method": co.methods.FedAvg(co.SGD(epochs=1)), "rounds": 1}

    first, second = (co.FederatedClassifier(**{**usual, **words}).fit(X, Y, groups=SITE) for words in (one, other))

    assert np.allclose(first.predict_proba(X), second.predict_proba(X), atol=1e-5)
