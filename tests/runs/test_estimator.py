"""The scikit-learn estimators: its own conformance suite, sites through groups, and life in a pipeline."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import consilience as co
from consilience import tree
from consilience.data.dataset import Dataset
from consilience.errors import Diverged, InputError
from consilience.method import OnFeatures

QUICK = co.SGD(rate=0.1, epochs=30, batch=16)
CLASSIFIER = co.FederatedClassifier(co.methods.EvidencePooling(QUICK), hidden=(8,))
REGRESSOR = co.FederatedRegressor(co.methods.Mixture(co.Adam(rate=0.01, epochs=60, batch=16)), hidden=(8,))


CHECKS = parametrize_with_checks([CLASSIFIER, REGRESSOR]).args
# These ask for seven digits of numbers made in float32: the order in which a processor sums decides whether they pass.
FINER = ("check_methods_subset_invariance", "check_methods_sample_order_invariance")
LEARNING = ("check_classifiers_train", "check_regressors_train")  # these ask for a score


def short(value: Any) -> str:
    """The estimator's class or the check's name: scikit-learn's own ids hold addresses, which differ by process."""
    return value.func.__name__ if hasattr(value, "func") else type(value).__name__


@pytest.mark.parametrize(CHECKS[0], [case for case in CHECKS[1] if short(case[1]) not in FINER], ids=short)
def test_scikit_learn_accepts_them(estimator: Any, check: Any, request: pytest.FixtureRequest) -> None:
    if short(check) not in LEARNING:
        request.getfixturevalue("hurried")
    check(estimator)


@pytest.mark.parametrize(("estimator", "predict"), [(CLASSIFIER, "predict_proba"), (REGRESSOR, "predict")], ids=short)
def test_a_row_is_predicted_alone_and_in_any_order_as_among_others(estimator: Any, predict: str) -> None:
    x = 3 * np.random.default_rng(0).uniform(size=(20, 3))
    predicted = getattr(clone(estimator).fit(x, x[:, 0].astype(int)), predict)

    together = predicted(x)
    alone = np.concatenate([predicted(row[None]) for row in x])
    backward = predicted(x[::-1])[::-1]

    # Two layers of sums of at most 8 terms near 1, in another order: some 10 roundings of float32's 6e-8 each.
    assert alone == pytest.approx(together, abs=2e-6)
    assert backward == pytest.approx(together, abs=2e-6)


def shifted(n: int = 240) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three classes in the plane; each site lacks one of them."""
    g = np.random.default_rng(0)
    y = np.arange(n) % 3
    x = np.array([[0.0, 3.0], [3.0, 0.0], [-3.0, -3.0]])[y] + g.normal(size=(n, 2))
    return x, np.array(["a", "b", "c"])[y], np.array(["north", "south", "west"])[(y + 1 + g.integers(2, size=n)) % 3]


def test_groups_are_the_sites() -> None:
    x, y, site = shifted()

    model = clone(CLASSIFIER).fit(x, y, groups=site)

    assert model.result_.sites.names == ("north", "south", "west")
    assert [int(reply.size) for reply in model.result_.replies] == [int((site == s).sum()) for s in np.unique(site)]
    assert list(model.classes_) == ["a", "b", "c"]
    assert model.predict_proba(x).sum(1) == pytest.approx(1)
    assert model.score(x, y) > 0.9  # the classes lie four deviations apart


def test_it_is_the_run_it_says_it_is() -> None:
    x, y, site = shifted()
    model = co.FederatedClassifier("fedavg", hidden=(4,), rounds=2, random_state=3).fit(x, y, groups=site)

    data = co.from_arrays(x, y, site, x_test=x[:0], y_test=y[:0], site_test=site[:0])
    sites = data.split(co.splits.natural(), calibration=0, seed=3)
    task = co.classification(co.models.mlp(2, 3, hidden=(4,)))
    result = co.run(co.methods.FedAvg(), task, sites, rounds=2, seed=3, scored=False)

    assert model.predict_proba(x) == pytest.approx(result.predict(np.float32(x)).probs.numpy(), abs=1e-6)


def test_in_a_pipeline_and_across_validation() -> None:
    x, y, site = shifted()
    pipeline = make_pipeline(StandardScaler(), clone(CLASSIFIER))

    pipeline.fit(x, y, federatedclassifier__groups=site)
    scores = cross_val_score(clone(CLASSIFIER), x, y, groups=site, cv=GroupKFold(3))  # each fold: a site left out

    assert pipeline.predict(x[:4]).shape == (4,)
    assert len(scores) == 3


def test_a_number_comes_with_its_deviation() -> None:
    g = np.random.default_rng(0)
    x = g.uniform(-2, 2, (200, 1))
    y = 100 + 50 * x[:, 0] + 5 * g.normal(size=200)  # nearly noiseless: 1 − 25 / (50² · 4/3) = 0.99 can be explained

    model = co.FederatedRegressor(hidden=()).fit(x, y, groups=np.arange(200) % 2)
    mean, deviation = model.predict(x, return_std=True)

    assert model.score(x, y) > 0.95
    assert mean.shape == deviation.shape == (200,)
    assert 3 < deviation.mean() < 30


def test_large_numbers_keep_their_digits() -> None:
    x = np.linspace(-1, 1, 60)[:, None]
    seconds = 1.7e9 + x  # float32 holds every 128th

    near, far = (co.FederatedRegressor(hidden=(4,)).fit(rows, rows[:, 0]) for rows in (x, seconds))

    # Scaled, both are the same but for double precision's rounding at 1.7e9, 2e-7, which training may enlarge.
    assert np.allclose(far.predict(seconds) - 1.7e9, near.predict(x), atol=1e-2)


@pytest.mark.parametrize("estimator", [CLASSIFIER, REGRESSOR], ids=short)
def test_what_is_fitted_holds_nobodys_rows(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither here nor in a copy that is handed on, which predicts the same."""
    x, _, site = shifted(60)
    seen = []
    split = Dataset.split
    monkeypatch.setattr(Dataset, "split", lambda *args, **kwargs: seen.append(split(*args, **kwargs)) or seen[0])
    fitted = clone(estimator).set_params(calibration=9, inputs=9).fit(x, (x[:, 0] > 0).astype(int), groups=site)

    content = pickle.dumps(fitted)

    rows = [*(row for part in seen[0].train for row in part.x), *seen[0].calibration.x, *seen[0].inputs]
    assert len(rows) == 60
    assert not any(row.numpy().tobytes() in content for row in rows)
    assert fitted.result_.sites.train == () and fitted.result_.server.calibration is None
    assert np.array_equal(pickle.loads(content).predict(x), fitted.predict(x))


def test_what_the_server_needs_is_asked_for() -> None:
    x, y, site = shifted()
    with pytest.raises(co.InputError, match="needs labelled rows"):
        co.FederatedClassifier("beta").fit(x, y, groups=site)
    model = co.FederatedClassifier(co.methods.BetaPredictiveBayes(QUICK), calibration=12, hidden=(4,)).fit(
        x, y, groups=site
    )
    assert model.result_.report["rows"]["calibration"] == 12
    with pytest.raises(ValueError, match="inconsistent"):
        clone(CLASSIFIER).fit(x, y, groups=site[:-1])


def test_a_model_for_each_site_is_no_model_for_all() -> None:
    x, y = make_classification(60, random_state=0)
    with pytest.raises(InputError, match="choose a method that pools"):
        co.FederatedClassifier("local_only").fit(x, y, groups=np.arange(60) % 2)


def test_predictions_that_are_not_finite_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = co.FederatedClassifier("fedavg", hidden=(4,), rounds=1).fit(x, x[:, 0] > 0, groups=np.arange(40) % 2)
    spoilt = tree.map(lambda leaf: leaf * 0 + 3e38, model.result_.state)
    model.result_ = dataclasses.replace(model.result_, state=spoilt)

    with pytest.raises(Diverged, match="not finite for"):
        model.predict(x)


def test_an_estimator_learns_on_features() -> None:
    x, y, site = shifted()
    method = co.methods.FedAvg(co.SGD(rate=0.1, epochs=5, batch=16))
    for features in ("fourier:20", nn.Sequential(nn.Linear(2, 20), nn.Tanh())):
        model = clone(co.FederatedClassifier(method, features=features, rounds=3)).fit(x, y, groups=site)
        assert list(model.result_.task.like) == ["1.weight", "1.bias"]
        assert model.result_.task.like["1.weight"].shape == (3, 20)
        assert model.score(x, y) > 0.8
    adam = co.methods.FedAvg(co.Adam(rate=0.01, epochs=20, batch=16))
    regressor = co.FederatedRegressor(adam, features="relu:20", rounds=3).fit(x, x[:, 0], groups=site)
    assert regressor.score(x, x[:, 0]) > 0.8
    own = co.FederatedClassifier(method, features="relu:20", model=co.models.mlp(20, 3, (4,)), rounds=1)
    assert "3.weight" in own.fit(x, y, groups=site).result_.task.like


def test_an_estimator_whose_method_needs_fixed_features_gets_them() -> None:
    class Head(OnFeatures, co.methods.FedAvg):
        own_prior = True

    x, y, site = shifted()
    model = co.FederatedClassifier(Head(co.SGD(rate=0.05, epochs=2)), rounds=1).fit(x, y, groups=site)
    assert model.result_.task.like["1.weight"].shape == (3, 320)
