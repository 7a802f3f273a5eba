"""Fit a head to sums: it learns on fixed features from them alone, with its uncertainty, in closed form.

All heads use features in units of their SD over all sites' rows. Each has one setting λ, the weight of its
prior, which maximises the marginal likelihood or is chosen by rows left out one at a time; that is closed form too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from consilience.distributions.likelihood import LOG_NOISE, Heteroscedastic
from consilience.distributions.posterior import Point
from consilience.distributions.predictive import Distribution, maximise
from consilience.errors import InputError
from consilience.glm.linear_model import classes_of
from consilience.glm.sums import Sums, check_memory
from consilience.models.maps import feature_map, last_layer
from consilience.task import Task
from consilience.tree import Params

LEAST = 1e-10  # λ/n: a prior that says nothing
SHARES = (  # values of λ/n that can be chosen: where λ matters half a decade apart, else a whole one
    *(10.0**k for k in range(-10, -6)),
    *(10 ** (k / 2 - 6) for k in range(15)),
    *(10.0**k for k in range(2, 5)),
)
TEMPERATURES = tuple(2 ** (k / 2) for k in range(-4, 11))  # that can be chosen with them: 1/4 to 32


class Head(Protocol):
    """What a head can do; `fit` is all that the server needs."""

    by_class: ClassVar[bool]
    tasks: ClassVar[tuple[str, ...]]

    def prepare(self, totals: Sums) -> Any:
        """Do what does not depend on λ.

        Returns:
            A fit with λ = 0.
        """

    def log_evidence(self, fit: Any, share: float) -> float:
        """Evaluate the logarithm of the marginal likelihood, up to a constant.

        Args:
            fit: What `prepare` returned.
        """

    def predict(self, fit: Any, features: Tensor) -> Distribution:
        """Predict.

        Args:
            features: φ [N, D].

        Returns:
            The predictive distribution, its epistemic part included.
        """

    def left_out(self, fit: Any, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """Predict rows that are among the totals as if each were not.

        Args:
            fit: What `prepare` returned.
            features: Their φ [N, D].

        Returns:
            A distribution for each value.
        """

    def linear(self, fit: Any) -> tuple[Tensor, Tensor]:
        """Write the head's mean as a linear layer.

        Returns:
            Weights [C, D] and biases [C], of features as they are.
        """


def fit(head: Head, totals: Sums, share: float | None = None, least: float = LEAST) -> Any:
    """Fit a head to totals.

    Args:
        share: λ/n; None: where the marginal likelihood is largest.
        least: The smallest λ/n that is considered then.

    Returns:
        What predicting needs.
    """
    prepared = head.prepare(totals)
    if share is None:
        evidence = lambda exponent: head.log_evidence(prepared, 10**exponent)
        share = 10 ** maximise(evidence, math.log10(least), math.log10(SHARES[-1]))
    return prepared._replace(share=torch.as_tensor(share, dtype=torch.float64))


_latest: dict[Head, tuple[Sums, Any]] = {}


def prepared(head: Head, totals: Sums) -> Any:
    """Prepare a head, or take what was prepared last for these very totals: in a simulation all sites ask.

    Returns:
        What `head.prepare` returns.
    """
    known = _latest.get(head)
    if known is None or known[0].gram is not totals.gram:
        known = (totals, head.prepare(totals))
        _latest[head] = known
    return known[1]


def as_point(layer: tuple[Tensor, Tensor], fit: Any, like: Params) -> Point:
    """Write a linear head as weights of a task.

    Args:
        layer: What `Head.linear` returned.
        fit: The fit, for the noise.
        like: The task's weights: a last linear layer, and a noise where that is learned.

    Returns:
        Weights of the same names and types.
    """
    params = dict(like)
    for name, value in like.items():
        if name == LOG_NOISE:
            params[name] = fit.rest.log().mean().reshape(1).to(value)
        elif name.endswith("weight"):
            params[name] = layer[0].to(value)
        elif name.endswith("bias"):
            params[name] = layer[1].to(value)
    return Point(params)


def least_share(wire: str, totals: Sums) -> float:
    """Find the smallest λ/n above what rounding does to a Gram matrix.

    Args:
        wire: The precision in which sums are sent.

    Returns:
        The norm of the rounding errors, roughly; next to nothing where sums are sent in double precision.
    """
    if wire == "float16":
        return 2**-13 * math.sqrt(totals.features)
    if wire == "float32":
        return 2**-24 * math.sqrt(totals.features)
    return LEAST


def at_an_end(share: float, least: float, temperature: float = 1.0) -> dict[str, dict[str, float]]:
    """Say which settings were chosen at an end of what was tried.

    Args:
        least: The smallest that it could be.

    Returns:
        The settings at an end as a diagnosis; empty where none is.
    """
    ranges = {"λ/n": (share, least, SHARES[-1]), "temperature": (temperature, TEMPERATURES[0], TEMPERATURES[-1])}
    ends = {name: value for name, (value, low, high) in ranges.items() if value <= 1.001 * low or value >= 0.999 * high}
    if not ends:
        return {}
    return {"at_end_of_range": ends}


def check_problem(task: Task, head: Head) -> None:
    """Refuse a task that a head cannot be fitted to.

    Raises:
        InputError: The model is not one linear layer on fixed features, the head is for other targets, or too large.
    """
    feature_map(task.model)
    classes = classes_of(task)
    kind = "regression" if classes is None else "classification"
    if kind not in head.tasks or isinstance(task.likelihood, Heteroscedastic):
        raise InputError(f"The head {type(head).__name__} is for {head.tasks[0]}: these rows are another problem.")
    check_memory(last_layer(task.model).in_features, classes or 1, head.by_class)
