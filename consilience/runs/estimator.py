"""Scikit-learn's way in: arrays, `fit` and `predict`, with the sites as `groups`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import nn

from consilience.data.arrays import from_arrays
from consilience.errors import InputError
from consilience.method import Method, name
from consilience.methods import defaults
from consilience.methods import method as named
from consilience.models.mlp import mlp
from consilience.predictive import Categorical, Distribution, Normal
from consilience.runs.result import Result
from consilience.runs.run import run
from consilience.splits.labels import natural
from consilience.task import Task, classification, regression

Array = np.ndarray[Any, Any]


class _Federated(BaseEstimator):
    """What the classifier and the regressor share: settings, and how arrays become sites."""

    result_: Result

    def __init__(
        self,
        method: Method | str | None = None,
        *,
        hidden: Sequence[int] = (100, 100),
        model: nn.Module | None = None,
        rounds: int | None = None,
        calibration: int = 0,
        inputs: int | float = 0,
        engine: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.model = model
        self.rounds = rounds
        self.calibration = calibration
        self.inputs = inputs
        self.engine = engine
        self.random_state = random_state

    def _fitted(self, x: Array, y: Array, groups: Any, classes: int, usual: Method) -> Result:
        """Every row trains at its site, but for those the server asks for; scikit-learn's users hold out their own."""
        site = np.zeros(len(x), dtype=int) if groups is None else column_or_1d(groups)
        check_consistent_length(x, site)
        data = from_arrays(x, y, site, x_test=x[:0], y_test=y[:0], site_test=site[:0], classes=classes)
        seed = self.random_state
        if not isinstance(seed, int):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        sites = data.split(natural(), calibration=self.calibration, inputs=self.inputs, seed=seed)
        network = self.model if self.model is not None else mlp(sites.features, sites.classes, hidden=self.hidden)
        task: Task = classification(network) if classes else regression(network)
        chosen = named(self.method) if isinstance(self.method, str) else self.method or usual
        if type(chosen).personal is not Method.personal:
            raise InputError(f"{name(chosen)} has a model for each site and none for all: choose a method that pools.")
        return run(chosen, task, sites, rounds=self.rounds, seed=seed, engine=self.engine, scored=False)

    def _predicted(self, x: Any) -> Distribution:
        check_is_fitted(self)
        rows = torch.from_numpy(validate_data(self, x, reset=False, dtype=np.float64, order="C", copy=True))
        result = self.result_
        return result.method.predictive(result.task, result.state)(result.sites.scaled(rows).float())


class FederatedClassifier(ClassifierMixin, _Federated):
    """A classifier whose rows lie at sites: `fit(X, y, groups=site)`.

    `method`: how the sites learn together, an object or a name; evidence pooling by default. `hidden`: the layers of
    the network, or `model` for a network of your own. `rounds`: of methods that have many. `calibration` and `inputs`:
    rows kept for the server, with and without labels. Fitted, `result_` holds the run.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        x, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_: Array
        self.classes_, coded = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y holds one class, {self.classes_[0]}: give rows of at least two classes.")
        self.result_ = self._fitted(x, coded, groups, len(self.classes_), defaults.classifier())
        return self

    def predict_proba(self, X: Any) -> Array:
        """One probability for each of `classes_`."""
        p = self._predicted(X)
        assert isinstance(p, Categorical)
        probs: Array = torch.softmax(p.log_probs.double(), 1).numpy()  # sums to 1 in double precision
        return probs

    def predict(self, X: Any) -> Array:
        probs = self.predict_proba(X)
        chosen: Array = self.classes_[probs.argmax(1)]
        return chosen


class FederatedRegressor(RegressorMixin, _Federated):
    """A regressor whose rows lie at sites: `fit(X, y, groups=site)`; settings as in `FederatedClassifier`, where the
    default method is the mixture."""

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        self.result_ = self._fitted(x, y.astype(np.float64), groups, 0, defaults.regressor())
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean; with `return_std`, also the standard deviation of an observation."""
        p = self._predicted(X)
        assert isinstance(p, Normal)
        scale, shift = self.result_.sites.target_scale, self.result_.sites.target_shift
        mean, deviation = p.mean.double() * scale + shift, p.total.double().sqrt() * scale
        return (mean.numpy(), deviation.numpy()) if return_std else mean.numpy()
