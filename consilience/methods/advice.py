"""Which method is advised where nobody names one: rules.toml, the one table behind every default."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from consilience.errors import InputError
from consilience.method import Method, OnColumns, OnFeatures
from consilience.method.declared import kind_of, on_linear
from consilience.models.maps import usual_features

KINDS = ("classes", "numbers", "counts", "survival")
PLACES = ("run", "estimator", "study")
NETWORKS = ("none", "linear", "other")
MOST_WEIGHTS = 2000  # of a linear model whose whole precision matrix is sent


@dataclass(frozen=True)
class Situation:
    """What is known where a method is to be chosen.

    Attributes:
        kind: What is predicted: classes, numbers, counts or survival.
        place: Who asks: a run, an estimator of scikit-learn's kind, which has one model for all sites, or a study.
        network: The network that somebody named: none, linear or other.
        images: Whether rows are images rather than columns.
        natural: Whether the sites are those of the data, and not made by a split.
        differ: Whether the sites differ in what is predicted, or in what the columns say of it, beyond chance.
        columns_differ: Whether the sites differ in their columns.
        thin: Whether a site has fewer rows than the advised model has features.
        sites: How many there are; None where nobody knows, and then no limit on it holds.
        rows: Training rows of all sites, likewise.
        weights: Weights of a linear model on the columns, or of the network that was named, likewise.
        secure: Whether replies shall be masked.
        private: Whether differential privacy is asked for.
        one_round: Whether the sites can answer once only.
        effects: Whether coefficients with intervals are asked for.
    """

    kind: str = KINDS[0]
    place: str = PLACES[0]
    network: str = NETWORKS[0]
    images: bool = False
    natural: bool = False
    differ: bool = False
    columns_differ: bool = False
    thin: bool = False
    sites: int | None = None
    rows: int | None = None
    weights: int | None = None
    secure: bool = False
    private: bool = False
    one_round: bool = False
    effects: bool = False


def usual_map(
    methods: Iterable[Method | type[Method]], shape: int | Sequence[int], private: bool = False
) -> str | None:
    """Choose the feature map for methods, where nobody names one or a network.

    Args:
        methods: What is to run, all on the same features.
        shape: A row's number of columns, or the shape of an image.
        private: Whether noise is added, which is the larger the more features there are.

    Returns:
        The map's name; None where no method needs one.
    """
    heads = [kind for kind in map(kind_of, methods) if issubclass(kind, OnFeatures)]
    if not heads:
        return None
    if isinstance(shape, int) and not any(kind.own_prior for kind in heads):
        return "identity"
    return usual_features(shape, private)


def usual_network(methods: Iterable[Method | type[Method]]) -> str | None:
    """Choose the network for methods, where nobody names one or features.

    Args:
        methods: What is to run, all with the same network.

    Returns:
        `linear` where a method is usually on columns; None where a perceptron suits them all.
    """
    if any(issubclass(kind_of(method), OnColumns) for method in methods):
        return "linear"
    return None


def usual_settings(
    method: Method | type[Method], kind: str, weights: int, chosen: Iterable[str] = ()
) -> tuple[str, ...]:
    """List the settings that are usual for a method on a linear model of the rows.

    Args:
        kind: What is predicted: classification, regression, counts or survival; numbers have a learned noise.
        weights: How many the linear model has.
        chosen: Settings that somebody chose; one of how sites infer, or of privacy, leaves no room for usual ones.

    Returns:
        `field=value` each.
    """
    if kind == "regression" or weights > MOST_WEIGHTS:
        return ()
    if any(text.startswith(("inference", "privacy")) for text in chosen):
        return ()
    return on_linear(method)


class Advice(NamedTuple):
    """A method for a situation.

    Attributes:
        method: Its name.
        settings: Its settings, as `field=value`.
        features: The feature map under the network; what is usual for the method if None.
        model: The network; what is usual if None.
        why: The reason in plain words.
        figure: What was measured.
        page: Where that is written.
        cautions: What to know besides.
    """

    method: str
    settings: tuple[str, ...] = ()
    features: str | None = None
    model: str | None = None
    why: str = ""
    figure: str = ""
    page: str = ""
    cautions: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The advice in a few lines."""
        lines = [self.words, f"Why: {self.why}.", f"Measured: {self.figure} ({self.page})."]
        return "\n".join([*lines, *self.cautions])

    @property
    def words(self) -> str:
        """The method, its settings, features and network as the command line takes them."""
        words = [self.method]
        if self.model is not None:
            words.append(f"--model {self.model}")
        if self.features is not None:
            words.append(f"--features {self.features}")
        words += [f"--set {setting}" for setting in self.settings]
        return " ".join(words)


@cache
def table() -> dict[str, list[dict[str, Any]]]:
    """Read rules.toml: its `rules` and `cautions`, in order."""
    return tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))


def advise(situation: Situation) -> Advice:
    """Choose the method for a situation: the first rule that fits.

    Returns:
        The method with its reason.

    Raises:
        InputError: Nothing here serves such a situation; the message says what to do.
    """
    rule = next(rule for rule in table()["rules"] if fits(rule["when"], situation))
    if "refuse" in rule:
        raise InputError(rule["refuse"])
    return Advice(
        rule["method"],
        tuple(rule.get("settings", ())),
        rule.get("features"),
        rule.get("model"),
        rule["why"],
        rule["figure"],
        rule["page"],
    )


def cautions(situation: Situation) -> tuple[str, ...]:
    """List what to know in a situation, whatever is advised.

    Returns:
        A sentence each.
    """
    return tuple(caution["say"] for caution in table()["cautions"] if fits(caution["when"], situation))


def fits(conditions: Mapping[str, Any], situation: Situation) -> bool:
    """Say whether a rule's conditions all hold.

    Args:
        conditions: What must hold, by the names of a situation's fields.

    Returns:
        Whether they hold.
    """
    return all(_holds(name, wanted, situation) for name, wanted in conditions.items())


def _holds(name: str, wanted: Any, situation: Situation) -> bool:
    limit, _, field = name.partition("_")
    if limit not in ("most", "fewest"):
        known = getattr(situation, name)
        if isinstance(wanted, list):
            return known in wanted
        return bool(known == wanted)
    number = getattr(situation, field)
    if number is None:
        return False
    if limit == "most":
        return bool(number <= wanted)
    return bool(number >= wanted)


USUAL_STUDY = advise(Situation(place="study", network="linear"))  # what an agreement says where nobody chose
