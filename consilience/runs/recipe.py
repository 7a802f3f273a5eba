"""A run in words: what the command line says, what run.json remembers, and what it takes to build it again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from consilience.data import datasets
from consilience.data.inputs import inputs_from
from consilience.data.inspection import describe_files
from consilience.data.reading import reading_from
from consilience.data.sites import Sites
from consilience.data.splits.text import parse
from consilience.data.tables import is_tables, list_files, read_sites
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.method import Method
from consilience.methods import method
from consilience.methods.rules import Advice, advise, usual_map, usual_network, usual_settings
from consilience.methods.situation import situation_of
from consilience.models import model
from consilience.models.maps import bound_features
from consilience.runs.features import features_from
from consilience.serialisation.settings import configure
from consilience.serialisation.typed import restore_fields
from consilience.task import Task, classification, counts, regression, survival

OUTCOME = (
    "task",
    "time",
    "event",
    "exposure",
    "horizon",
)  # what recipes say of a target of another kind, and lacked before


class Ingredients(NamedTuple):
    """What a run takes.

    Attributes:
        method: How the sites learn together.
        task: The network, its likelihood and its prior.
        sites: Everybody's rows, by role.
    """

    method: Method
    task: Task
    sites: Sites


def check_prior(var: float | None, methods: Iterable[Method]) -> None:
    """Refuse a prior that cannot be, or that would change nothing.

    Args:
        var: The variance of every weight that is asked for; None: nothing is.
        methods: What is to run; nothing, where that is yet to be chosen.

    Raises:
        InputError: It is no variance, or every method weighs a prior of its own.
    """
    if var is None:
        return
    if not 0 < var < math.inf:
        raise InputError(f"A prior variance of {var:g} is not a variance: give a number above 0, for example 100.")
    learning = [method for method in methods if not method.bound]
    if learning and all(method.own_prior for method in learning):
        names = " and ".join(method.name for method in learning)
        raise InputError(f"A prior variance would change nothing: {names} weighs a prior of its own. Leave it out.")


@dataclass(frozen=True)
class Recipe:
    """A run in words.

    Attributes:
        method: The method's name; empty where it is yet to be chosen.
        data: A data set's name, or a pattern of CSV files, one a site.
        target: The column to predict, for CSV files.
        sites: How many; 5, or as many as the data name, if None.
        split: How rows are spread over the sites; if None, natural where files or sites are named, else
            `dirichlet:0.5`, or `iid` for numbers.
        model: The network, on the features if there are any.
        seed: What the split, the start and all draws come from.
        test: The share of rows to test on.
        calibration: Labelled rows that the server has.
        inputs: Unlabelled rows that the server has: how many, a share below 1, or another data set, as
            `cifar100:2000`.
        validation: The share of training rows left out.
        settings: `field=value` texts for the method.
        data_dir: Where data sets are kept.
        features: The feature map under the network: a name, as `conv:512`, or a run's folder; none if None.
        reading: How tables are read, where not as usual: what `Reading.to_text` writes.
        conformal: The share of training rows set aside for prediction sets.
        task: What the target of CSV files is read as: `classification`, `regression` or `counts`; by its cells if None.
        time: The column of times to an event, for CSV files; with `event`, in place of a target.
        event: The column that says whether the event was seen.
        exposure: The column of how long or how many were exposed, for counts.
        horizon: The time at which predicted risks of an event are held against what was seen.
        bounded: Whether features are no longer than 1, as differential privacy asks for.
        prior_var: The variance of every weight under the prior, N(0, prior_var); 1 if None.
    """

    method: str = ""
    data: str = "digits"
    target: str | None = None
    sites: int | None = None
    split: str | None = None
    model: str = "mlp"
    seed: int = 0
    test: float = 0.2
    calibration: int = 30
    inputs: float | str = 0
    validation: float = 0.0
    settings: tuple[str, ...] = ()
    data_dir: str | None = None
    features: str | None = None
    reading: str = ""
    conformal: float = 0.0
    task: str | None = None
    time: str | None = None
    event: str | None = None
    exposure: str | None = None
    horizon: float | None = None
    bounded: bool = False
    prior_var: float | None = None

    def build(self) -> Ingredients:
        """Build all that a run takes."""
        return Ingredients(self.build_method(), *self.build_problem())

    def build_method(self) -> Method:
        """Build the method with its settings.

        Raises:
            InputError: No method is named yet, or it has no such setting.
        """
        if not self.method:
            raise InputError("No method is named: name one, or let `choose_method` or `choose_all` choose it.")
        return configure(method(self.method), self.settings)

    def choose_method(self, private: bool = False, one_round: bool = False) -> Recipe:
        """Choose the method for these data and this network, where nobody named one.

        Args:
            private: Whether differential privacy is asked for.
            one_round: Whether there is one round only.

        Returns:
            The recipe with the method; its own settings come after the advised ones.
        """
        task, sites = self.build_problem()
        network = "other"
        if self.model == "linear":
            network = self.model
        weights = sum(leaf.numel() for leaf in task.like.values())
        asked = situation_of(sites, network=network, weights=weights, private=private, one_round=one_round)
        recipe = self._with(advise(asked))
        check_prior(self.prior_var, [recipe.build_method()])
        return recipe

    def choose_all(self, features: str | None, private: bool = False, one_round: bool = False) -> Recipe:
        """Choose method, features and network, where nobody named a method or a network.

        Args:
            features: The feature map; what is usual for the rows if None.
            private: Whether differential privacy is asked for.
            one_round: Whether there is one round only.

        Returns:
            The recipe with all three: what `consilience recommend` says.
        """
        asked = situation_of(self.build_sites(), private=private, one_round=one_round)
        if features is not None:
            asked = dataclasses.replace(asked, weights=None)  # those on the features are another number
        advice = advise(asked)
        recipe = self._with(advice)
        if features is not None:
            return recipe.choose_network(None, features, [recipe.build_method()])
        return recipe.choose_network(advice.model, advice.features, [recipe.build_method()])

    def _with(self, advice: Advice) -> Recipe:
        """This recipe with a method that was advised."""
        return dataclasses.replace(self, method=advice.method, settings=(*advice.settings, *self.settings))

    def choose_network(
        self, model: str | None, features: str | None, methods: Iterable[Method], private: bool = False
    ) -> Recipe:
        """Choose the feature map and the network on it, where nobody named them.

        Args:
            model: The network; if None, linear on a feature map, else a perceptron.
            features: The feature map; if None and no network is named either, what is usual for the rows where a
                method needs fixed features.
            methods: What is to run.
            private: Whether differential privacy is asked for, whose methods say themselves how sites infer.

        Returns:
            The recipe with both, and with the method's usual settings on them.

        Raises:
            InputError: A prior is asked for that none of the methods would look at.
        """
        if model is None and features is None and self.build_sites().outcome:
            model = "linear"  # effects of the columns themselves are what counts and survival are modelled for
        methods = list(methods)
        check_prior(self.prior_var, methods)
        if model is None and features is None and any(method.heads for method in methods):
            features = usual_map(methods, self.build_sites().shape)
        if model is None and features is None:
            model = usual_network(methods) or Recipe.model
        chosen = dataclasses.replace(self, model=model or "linear", features=features)
        if not self.method or private:
            return chosen
        return dataclasses.replace(chosen, settings=(*chosen.usual_settings(methods[0]), *self.settings))

    def usual_settings(self, method: Method, chosen: Iterable[str] = ()) -> tuple[str, ...]:
        """List a method's usual settings on this network, on these rows: the same for runs and comparisons.

        Args:
            method: The method.
            chosen: Settings that somebody chose, beside those of the recipe.

        Returns:
            `field=value` each; none where the network is not linear on the columns.
        """
        if self.model != "linear" or self.features not in (None, "identity") or not method.on_linear:
            return ()
        sites = self.build_sites()
        weights = (sites.train[0].x[0].numel() + 1) * (sites.classes or 1)
        return usual_settings(method, sites.kind, weights, (*chosen, *self.settings))

    def protect(self, settings: Sequence[str]) -> Recipe:
        """Ask for differential privacy.

        Args:
            settings: Texts that set a method's `privacy`; none: nothing is asked for.

        Returns:
            The recipe on bounded features; unless somebody says otherwise, all sites add their share of noise that is
            added once.
        """
        if not settings:
            return self
        if "privacy.noise=once" in settings and not any(text.startswith("privacy.honest=") for text in settings):
            settings = (*settings, f"privacy.honest={len(self.build_sites())}")
        return dataclasses.replace(self, settings=(*self.settings, *settings), bounded=True)

    @property
    def predicts_times(self) -> bool:
        """Whether times to an event are predicted; no file is read."""
        facts = datasets.FACTS.get(self.data)
        return self.time is not None or (facts is not None and facts.outcome == "survival")

    def describe_files(self) -> dict[str, str]:
        """Say how each of the files is written; nothing for data sets."""
        if self.data in datasets.DATASETS or not is_tables(self.data):
            return {}
        return describe_files(list_files(self.data), reading_from(self.reading))

    @property
    def network(self) -> str:
        """The network in words, with the feature map under it."""
        if self.features is None:
            return self.model
        return f"{self.model} on {self.features}"

    def build_problem(self, kept: Task | None = None) -> tuple[Task, Sites]:
        """Build the same rows, split and network for every method with the same words.

        Args:
            kept: The task as an earlier start built it, where what it was built from may have gone.

        Returns:
            The task and the sites.

        Raises:
            InputError: The rows are of another kind, or the feature map is not to be had.
        """
        sites = self.build_sites()
        if self.horizon is not None and sites.outcome != "survival":
            raise InputError("horizon is for times to an event, which these rows do not have: leave it out.")
        if kept is not None:
            return kept, sites
        feature_map = None
        if self.features is not None:
            feature_map = features_from(self.features, sites)
        if self.bounded:
            feature_map = bound_features(feature_map, sites.shape)
        network = model(self.model, sites.features, sites.classes, feature_map)
        prior = None
        if self.prior_var is not None:
            prior = Isotropic(self.prior_var)
        if sites.classes:
            return classification(network, prior), sites
        if sites.outcome == "counts":
            return counts(network, prior), sites
        if sites.outcome == "survival":
            return survival(network, prior, horizon=self.horizon), sites
        return regression(network, prior=prior), sites

    def build_sites(self) -> Sites:
        """Build the sites with their rows.

        Returns:
            The sites.

        Raises:
            InputError: The data are unknown, or need a target, or have one already.
        """
        if isinstance(self.inputs, str):
            without_inputs = dataclasses.replace(self, inputs=0).build_sites()
            return with_inputs(without_inputs, self.inputs, self.seed, self.data_dir)
        inputs = self.inputs
        if not 0 < inputs < 1:
            if not float(inputs).is_integer():
                raise InputError(f"inputs={inputs} is neither a count nor a fraction below 1: try inputs=100.")
            inputs = int(inputs)
        roles: dict[str, Any] = {
            "test": self.test,
            "calibration": self.calibration,
            "inputs": inputs,
            "validation": self.validation,
            "conformal": self.conformal,
            "seed": self.seed,
        }
        split = None
        if self.split:
            split = parse(self.split)
        if self.data not in datasets.DATASETS and is_tables(self.data):
            reading = reading_from(self.reading)
            if self.task is not None:
                reading = dataclasses.replace(reading, task=self.task)
            what = {name: getattr(self, name) for name in ("time", "event", "exposure")}
            return read_sites(self.data, self.target, reading, split, self.sites, **what, **roles)
        if self.reading:
            raise InputError(f"{self.data} is a data set that is read already: how to read is for CSV files.")
        for name in ("target", *OUTCOME):
            if name != "horizon" and getattr(self, name) is not None:
                raise InputError(f"{name} is for CSV files, and {self.data} knows what it predicts: leave it out.")
        rows = datasets.load(self.data, self.data_dir)
        return rows.split(split or rows.usual_split(), self.sites, **roles)

    def to_json(self) -> dict[str, Any]:
        """Write the recipe as JSON, without the data folder, which is this machine's business."""
        value = {**dataclasses.asdict(self), "settings": list(self.settings), "data_dir": None}
        if self.features is None:
            del value["features"]  # as recipes were before there were any
        if not self.reading:
            del value["reading"]
        if not self.conformal:
            del value["conformal"]
        if not self.bounded:
            del value["bounded"]
        if self.prior_var is None:
            del value["prior_var"]
        return {name: part for name, part in value.items() if part is not None or name not in OUTCOME}

    @staticmethod
    def from_json(value: dict[str, Any], data_dir: str | None = None) -> Recipe:
        """Read what `to_json` wrote.

        Args:
            value: The JSON.
            data_dir: Where data sets are kept on this machine.

        Returns:
            The recipe, without a target that named data once ignored; 0 sites once meant as many as usual.

        Raises:
            InputError: The value is not a recipe.
        """
        known = {f.name for f in dataclasses.fields(Recipe)}
        if not isinstance(value, dict) or not set(value) <= known:
            raise InputError(
                "run.json does not say how this run was made: it was started from Python, resume it there."
            )
        recipe = restore_fields(Recipe, {**value, "data_dir": data_dir})
        if recipe.sites == 0:
            recipe = dataclasses.replace(recipe, sites=None)
        if is_tables(recipe.data):
            return recipe
        return dataclasses.replace(recipe, target=None)


def with_inputs(sites: Sites, text: str, seed: int, data_dir: str | None) -> Sites:
    """Give the server inputs from another data set.

    Args:
        sites: The sites.
        text: The data set's name, as `cifar100`, or `cifar100:2000` for so many of its rows.
        seed: What the draw of rows comes from.
        data_dir: Where data sets are kept.

    Returns:
        The same sites with these inputs.

    Raises:
        InputError: What follows the colon is not a number of rows.
    """
    name, colon, number = text.partition(":")
    if colon and not number.isdecimal():
        raise InputError(f"'{text}' does not say how many rows: write for example {name}:2000.")
    count = None
    if colon:
        count = int(number)
    return inputs_from(sites, datasets.load(name, data_dir), count, seed)


def run_folder(what: str, data: str) -> Path:
    """Choose where a run is kept when nobody says where.

    Args:
        what: What runs, such as the method's name.
        data: The data's name, or a pattern of files.

    Returns:
        A folder under `runs` that does not exist yet.
    """
    return free_folder(Path("runs"), f"{what}-{Path(data).stem.strip('*') or 'csv'}")


def free_folder(parent: Path, stem: str) -> Path:
    """Find the first of stem-1, stem-2, … that does not exist.

    Args:
        parent: The folder around it.
        stem: What its name begins with.

    Returns:
        The folder, which is not made.
    """
    number = 1
    while (parent / f"{stem}-{number}").exists():
        number += 1
    return parent / f"{stem}-{number}"
