"""Scikit-learn's way in: arrays, `fit` and `predict`, with the sites as `groups`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import nn

from consilience.data.arrays import from_arrays
from consilience.data.sites import Sites
from consilience.data.splits.labels import natural
from consilience.distributions.predictive import Categorical, Distribution, Normal, check_finite
from consilience.errors import InputError
from consilience.method import Method, OnFeatures, name
from consilience.method.which import has_common
from consilience.methods import method as method_from_name
from consilience.methods.advice import advise
from consilience.methods.situation import describe_situation
from consilience.models.mlp import mlp
from consilience.prediction_sets.kinds import KINDS
from consilience.prediction_sets.sets import Guarantee, prediction_intervals, prediction_sets
from consilience.runs.conformal import conformal
from consilience.runs.engines import computing
from consilience.runs.problem import Problem
from consilience.runs.result import Result
from consilience.runs.run import run
from consilience.serialisation.settings import configure

NO_GROUPS = (
    "fit was given no groups, so all rows are at one site: pass groups=site. GridSearchCV and cross_val_score hand "
    "them on only after sklearn.set_config(enable_metadata_routing=True)."
)
Array = np.ndarray[Any, Any]
LEVELS = (0.8, 0.9, 0.95, 0.99)  # of prediction sets, whose thresholds are found when fitting


class _Federated(BaseEstimator):
    """What the classifier and the regressor share: settings, and how arrays become sites."""

    # What scikit-learn's searches hand on to `fit`, once metadata routing is enabled.
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True}

    result_: Result
    guarantees_: dict[tuple[float, str | None], Guarantee | str]

    def __init__(
        self,
        method: Method | str | None = None,
        *,
        hidden: Sequence[int] | None = None,
        model: nn.Module | None = None,
        features: str | nn.Module | None = None,
        rounds: int | None = None,
        calibration: int = 0,
        inputs: int | float = 0,
        engine: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
        conformal: float = 0.0,
    ) -> None:
        self.method = method
        self.hidden = hidden
        self.model = model
        self.features = features
        self.rounds = rounds
        self.calibration = calibration
        self.inputs = inputs
        self.engine = engine
        self.random_state = random_state
        self.conformal = conformal

    def _fit(self, x: Array, y: Array, groups: Any, classes: int) -> Result:
        """Every row trains at its site, but for those the server asks for; scikit-learn's users hold out their own."""
        site = np.zeros(len(x), dtype=int)
        if groups is None:
            warnings.warn(NO_GROUPS, stacklevel=3)
        else:
            site = column_or_1d(groups)
            if site.dtype.kind == "f" and np.isnan(site).any():
                raise InputError(f"groups is missing in {int(np.isnan(site).sum())} rows: give every row its site.")
        check_consistent_length(x, site)
        data = from_arrays(x, y, site, x_test=x[:0], y_test=y[:0], site_test=site[:0], classes=classes)
        seed = self.random_state
        if not isinstance(seed, int):
            seed = int(check_random_state(seed).randint(2**31 - 1))
        roles: dict[str, Any] = {"calibration": self.calibration, "inputs": self.inputs, "conformal": self.conformal}
        sites = data.split(natural(), **roles, seed=seed)
        method = self.method or self._advised(sites)
        result = run(
            method, self._problem(sites, method), rounds=self.rounds, seed=seed, engine=self.engine, scored=False
        )
        self.guarantees_ = {}
        if self.conformal:
            self.guarantees_ = _calibrate_all(result)
        return result.without_rows()  # what is fitted may be handed on: it holds nobody's rows

    def _guarantee(self, level: float, kind: str | None) -> Guarantee:
        """The thresholds that fitting found; rows to find others by are not kept."""
        if not self.guarantees_:
            raise InputError("No rows are held out for prediction sets: fit with conformal=0.2.")
        known = self.guarantees_.get((level, kind))
        if known is None:
            levels = ", ".join(f"{each:g}" for each in LEVELS)
            raise InputError(f"Thresholds were found for the levels {levels} when fitting: ask for one of them.")
        if isinstance(known, str):
            raise InputError(known)
        return known

    def _problem(self, sites: Sites, method: Method | str) -> Problem:
        """The rows, and the network that was asked for; the method must have one model for all sites."""
        if isinstance(method, str):
            method = method_from_name(method)
        if not has_common(method):
            raise InputError(f"{name(method)} has a model for each site and none for all: choose a method that pools.")
        model: Any = self.model
        on_columns = self.features is None and (not isinstance(method, OnFeatures) or not self.hidden)
        if model is None and self.hidden is not None and on_columns:
            model = partial(mlp, hidden=self.hidden)
        return Problem(sites=sites, model=model, features=self.features)

    def _advised(self, sites: Sites) -> Method:
        """What the rules advise for these rows and the network that was chosen, if one was."""
        network = "other"
        if self.model is None and self.hidden is None:
            network = "none"
        advice = advise(describe_situation(sites, place="estimator", network=network, one_round=self.rounds == 1))
        return configure(method_from_name(advice.method), advice.settings)

    def _predictive(self, x: Any) -> Distribution:
        check_is_fitted(self)
        rows = torch.from_numpy(validate_data(self, x, reset=False, dtype=np.float64, order="C", copy=True))
        result = self.result_
        with computing(result.task):
            p = result.model()(result.sites.scaled(rows).float())
        check_finite(p)
        return p


class FederatedClassifier(ClassifierMixin, _Federated):
    """A classifier whose rows lie at sites: `fit(X, y, groups=site)`.

    Example:
        >>> import numpy as np
        >>> from consilience import FederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> site = np.arange(60) % 3
        >>> model = FederatedClassifier("fedavg", hidden=(10,), rounds=2).fit(X, X[:, 0] > 0, groups=site)
        >>> model.predict_proba(X).shape
        (60, 2)

    Args:
        method: How the sites learn together, an object or a name; if None, what
            `consilience recommend` advises for one model of all sites.
        hidden: The widths of the network's hidden layers; if None, two of 100 where the method needs a network.
        model: A network of your own, in place of `hidden`.
        features: Fixed features under the network: a name, as `fourier`, a run's folder, or any network, whose weights
            are then constants. The network on them is linear, or `model`; `hidden` is not looked at. If None, none,
            or what is usual for tables where the method learns a linear layer on fixed features.
        rounds: The rounds of methods that have many; what is usual if None.
        calibration: Labelled rows taken from the sites for the server.
        inputs: Unlabelled rows taken from the sites for the server: how many, or a share below 1.
        engine: Where the sites' work runs.
        random_state: What all random numbers come from.
        conformal: The share of each site's rows held out for prediction sets; 0 for none.

    Attributes:
        classes_: The classes, once fitted.
        result_: The run, once fitted; it holds nobody's rows.
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows at their sites.

        Args:
            X: The inputs, a row each.
            y: Their classes, numbers or texts.
            groups: The site of each row; all rows are at one site if None.

        Returns:
            The fitted classifier.

        Raises:
            InputError: There is one class only, or the method has no model for all sites.
        """
        x, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_: Array
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y holds one class, {self.classes_[0]}: give rows of at least two classes.")
        self.result_ = self._fit(x, codes, groups, len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Predict probabilities.

        Args:
            X: The inputs, a row each.

        Returns:
            For each row one probability for each of `classes_`.
        """
        p = self._predictive(X)
        assert isinstance(p, Categorical)
        probs: Array = torch.softmax(p.log_probs.double(), 1).numpy()  # sums to 1 in double precision
        return probs

    def predict(self, X: Any) -> Array:
        """Predict classes.

        Args:
            X: The inputs, a row each.

        Returns:
            The most probable class of each row.
        """
        probs = self.predict_proba(X)
        labels: Array = self.classes_[probs.argmax(1)]
        return labels

    def predict_set(self, X: Any, level: float = 0.9, kind: str | None = None, site: Any = None) -> Array:
        """Predict sets of classes with a finite-sample guarantee; fit with `conformal=0.2`.

        Args:
            X: The inputs, a row each.
            level: The share of rows whose class the sets shall hold: 0.8, 0.9, 0.95 or 0.99.
            kind: `class`, `pooled`, `quantile` or `own`, as for `co.conformal`; chosen if None.
            site: Whose rows they are, one of `groups`, for kind `own`.

        Returns:
            For each row and each of `classes_`, whether the class is in the set.
        """
        p = self._predictive(X)
        assert isinstance(p, Categorical)
        sets: Array = prediction_sets(p, self._guarantee(level, kind), _site_name(site)).numpy()
        return sets


class FederatedRegressor(RegressorMixin, _Federated):
    """A regressor whose rows lie at sites: `fit(X, y, groups=site)`.

    Args:
        method: How the sites learn together, an object or a name; if None, what
            `consilience recommend` advises for one model of all sites.
        hidden: The widths of the network's hidden layers; if None, two of 100 where the method needs a network.
        model: A network of your own, in place of `hidden`.
        features: Fixed features under the network: a name, as `fourier`, a run's folder, or any network, whose weights
            are then constants. The network on them is linear, or `model`; `hidden` is not looked at. If None, none,
            or what is usual for tables where the method learns a linear layer on fixed features.
        rounds: The rounds of methods that have many; what is usual if None.
        calibration: Labelled rows taken from the sites for the server.
        inputs: Unlabelled rows taken from the sites for the server: how many, or a share below 1.
        engine: Where the sites' work runs.
        random_state: What all random numbers come from.
        conformal: The share of each site's rows held out for prediction sets; 0 for none.

    Attributes:
        result_: The run, once fitted; it holds nobody's rows.

    Example:
        >>> import numpy as np
        >>> from consilience import FederatedRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> site = np.arange(60) % 3
        >>> model = FederatedRegressor("gaussian_product", hidden=()).fit(X, X @ [1.0, 2.0], groups=site)
        >>> mean, sd = model.predict(X, return_std=True)
        >>> mean.shape, sd.shape
        ((60,), (60,))
    """

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:
        """Train on rows at their sites.

        Args:
            X: The inputs, a row each.
            y: The numbers to predict.
            groups: The site of each row; all rows are at one site if None.

        Returns:
            The fitted regressor.

        Raises:
            InputError: The method has no model for all sites.
        """
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        self.result_ = self._fit(x, y.astype(np.float64), groups, 0)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict numbers, in the units of `y`.

        Args:
            X: The inputs, a row each.
            return_std: Whether to return standard deviations too.

        Returns:
            The mean for each row; with `return_std`, also the standard deviation of an observation.
        """
        p = self._predictive(X)
        assert isinstance(p, Normal)
        sites = self.result_.sites
        mean = (p.mean.double() * sites.target_scale + sites.target_shift).numpy()
        if not return_std:
            return mean
        deviation = (p.total.double().sqrt() * sites.target_scale).numpy()
        return mean, deviation

    def predict_interval(self, X: Any, level: float = 0.9, kind: str | None = None, site: Any = None) -> Array:
        """Predict intervals with a finite-sample guarantee, in the units of `y`; fit with `conformal=0.2`.

        Args:
            X: The inputs, a row each.
            level: The share of rows whose number the intervals shall hold: 0.8, 0.9, 0.95 or 0.99.
            kind: `pooled`, `quantile` or `own`, as for `co.conformal`; `pooled` if None.
            site: Whose rows they are, one of `groups`, for kind `own`.

        Returns:
            The lower and the upper end for each row, [N, 2].
        """
        p = self._predictive(X)
        assert isinstance(p, Normal)
        ends = prediction_intervals(p, self._guarantee(level, kind), _site_name(site))
        sites = self.result_.sites
        interval: Array = torch.stack([end * sites.target_scale + sites.target_shift for end in ends], 1).numpy()
        return interval


def _calibrate_all(result: Result) -> dict[tuple[float, str | None], Guarantee | str]:
    """Thresholds for the usual levels and every kind, or the sentence why there are none."""
    found: dict[tuple[float, str | None], Guarantee | str] = {}
    for level in LEVELS:
        for kind in (None, *KINDS):
            try:
                found[level, kind] = conformal(result, level, kind, newcomer=True)  # of the model that predicts
            except InputError as error:
                found[level, kind] = str(error)
    return found


def _site_name(site: Any) -> str | None:
    """The name of one of the groups."""
    if site is None:
        return None
    return str(site)
