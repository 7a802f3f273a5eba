"""Feature maps in words: one of the names in `consilience.models.FEATURES`, or the folder of a run."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from consilience.data.quantiles import find_quantiles
from consilience.data.sites import Sites
from consilience.distributions.posterior import Point
from consilience.errors import InputError, unknown_name
from consilience.method.declared import list_members
from consilience.models.frozen import freeze
from consilience.models.hats import LEVELS
from consilience.models.maps import FEATURES, features, knows_quantiles, without_last
from consilience.runs.result import Result
from consilience.runs.run import load
from consilience.tree import Params


def features_from(words: str, sites: Sites, public: bool = False) -> nn.Module:
    """Build a feature map in words.

    Args:
        words: A map's name, as `conv:512`, or the folder of a run, whose network is used without its last layer.
        sites: The rows it is for.
        public: Whether the map may know nothing of the rows, as under differential privacy: then hats lie where they
            do for normal columns.

    Returns:
        The map, without weights.

    Raises:
        InputError: There is no such map or run, or the run has no single network.
    """
    if names_a_map(words):
        if knows_quantiles(words) and not public:
            return features(words, sites.shape, find_quantiles(sites, LEVELS))
        return features(words, sites.shape)
    if (Path(words) / "run.json").exists():
        return learned_features(words)
    if Path(words).exists():
        raise InputError(f"{words} is not a run's folder: it holds no run.json.")
    raise unknown_name("feature map or run's folder", words, FEATURES)


def names_a_map(words: str) -> bool:
    """Say whether words name a map that is built from them alone; any others are the folder of a run.

    Args:
        words: What `features_from` takes.
    """
    return words.partition(":")[0] in FEATURES


def learned_features(folder: str | Path) -> nn.Module:
    """Take the network of a finished run without its last layer.

    Returns:
        Its features, frozen.

    Raises:
        InputError: The run has no single network, or one of another shape than a chain of layers.
    """
    result = load(folder)
    point = _only_network(result, folder)
    network = result.task.model
    network.load_state_dict({name: value for name, value in point.params.items() if name in network.state_dict()})
    try:
        return freeze(without_last(network))
    except InputError as error:
        raise InputError(f"The run in {folder} gives no features. {error}") from error


def _only_network(result: Result, folder: str | Path) -> Point:
    """The weights of the run's one network: the only member of its model, or the student of an ensemble."""
    posteriors, _ = list_members(result.method, result.state)
    point = result.state.posterior
    student = result.method.distil is not None
    if len(posteriors) > 1 and not student:
        raise InputError(
            f"The run in {folder} keeps {len(posteriors)} sites' models and no single network: take the features of a "
            "run whose method averages weights."
        )
    if not isinstance(point, Point) or _shapes(point.params) != _shapes(result.task.like):
        raise InputError(
            f"The run in {folder} has many networks or a Gaussian of them, and no single one: take the features of a "
            "run whose method averages weights."
        )
    if not student and posteriors[0] is not point:
        raise InputError(f"The run in {folder} does not predict with a single network: take the features of another.")
    return point


def _shapes(params: Params) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in params.items()}
