"""A run in words: what the command line says, what run.json remembers, and what it takes to build it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from consilience.data.sites import Sites
from consilience.data.tables import is_tables
from consilience.disk.typed import matches, restore_fields
from consilience.errors import InputError
from consilience.method import Method
from consilience.methods import method
from consilience.methods.advice import Advice, advise
from consilience.methods.situation import describe_situation
from consilience.runs.problem import Problem, check_prior, words_of
from consilience.serialisation.settings import configure
from consilience.task import Task


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


@dataclass(frozen=True)
class Recipe:
    """A method and a problem in words.

    Attributes:
        method: The method's name; empty where it is yet to be chosen.
        problem: What is to be learned from which rows.
        seed: What the split, the start and all draws come from.
        settings: `field=value` texts for the method.
    """

    method: str
    problem: Problem
    seed: int = 0
    settings: tuple[str, ...] = ()

    def build(self) -> Ingredients:
        """Build all that a run takes."""
        return Ingredients(self.build_method(), *self.problem.build(self.seed))

    def build_method(self) -> Method:
        """Build the method with its settings.

        Raises:
            InputError: No method is named yet, or it has no such setting.
        """
        if not self.method:
            raise InputError("No method is named: name one, or let `choose` choose it.")
        return configure(method(self.method), self.settings)

    def choose(self, private: bool = False, one_round: bool = False) -> Recipe:
        """Choose the method, the features and the network, where nobody named them.

        Args:
            private: Whether differential privacy is asked for, whose methods say themselves how sites infer.
            one_round: Whether there is one round only.

        Returns:
            The recipe with all three, and with the method's usual settings on them: what `consilience recommend` says.

        Raises:
            InputError: The method, its settings or the data cannot be used.
        """
        if self.method:
            return self._settle(private)
        if self.problem.model is None and not self.problem.given_task:
            return self._choose_all(private, one_round)
        return self._choose_method(private, one_round)

    def _settle(self, private: bool) -> Recipe:
        """Features, network and usual settings of the method that was named."""
        method = self.build_method()
        chosen = dataclasses.replace(self, problem=self.problem.settle([method], self.seed))
        if private:
            return chosen
        usual = chosen.problem.usual_settings(method, self.settings, self.seed)
        return dataclasses.replace(chosen, settings=(*usual, *self.settings))

    def _choose_method(self, private: bool, one_round: bool) -> Recipe:
        """The method for the network that was named."""
        task, sites = self.problem.build(self.seed)
        network = "other"
        if self.problem.model == "linear":
            network = "linear"
        weights = sum(leaf.numel() for leaf in task.like.values())
        asked = describe_situation(sites, network=network, weights=weights, private=private, one_round=one_round)
        recipe = self._with(advise(asked))
        check_prior(self.problem.prior_var, [recipe.build_method()])
        return recipe

    def _choose_all(self, private: bool, one_round: bool) -> Recipe:
        """Method, features and network together."""
        features = self.problem.features
        asked = describe_situation(self.problem.build_sites(self.seed), private=private, one_round=one_round)
        if features is not None:
            asked = dataclasses.replace(asked, weights=None)  # those on the features are another number
        advice = advise(asked)
        problem = self.problem
        if features is None:
            problem = dataclasses.replace(problem, model=advice.model, features=advice.features)
        recipe = dataclasses.replace(self._with(advice), problem=problem)
        return recipe._settle(private=False)

    def _with(self, advice: Advice) -> Recipe:
        """This recipe with a method that was advised."""
        return dataclasses.replace(self, method=advice.method, settings=(*advice.settings, *self.settings))

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
        protected, problem = protect(self.problem, settings, self.seed)
        return dataclasses.replace(self, settings=(*self.settings, *protected), problem=problem)

    def to_json(self) -> dict[str, Any]:
        """Write the recipe as JSON, without the data folder, which is this machine's business."""
        value: dict[str, Any] = {"method": self.method}
        for name, part in self.problem.to_json().items():
            value[name] = part
            if name == "model":
                value["seed"] = self.seed
            elif name == "validation":
                value["settings"] = list(self.settings)
        return value

    @staticmethod
    def from_json(value: dict[str, Any], data_dir: str | None = None) -> Recipe:
        """Read what `to_json` wrote.

        Args:
            data_dir: Where data sets are kept on this machine.

        Returns:
            The recipe, without a target that named data once ignored; 0 sites once meant as many as usual.

        Raises:
            InputError: The value is not a recipe.
        """
        words = words_of(Problem)
        if not isinstance(value, dict) or not set(value) <= {*words, "method", "seed", "settings"}:
            raise InputError(
                "run.json does not say how this run was made: it was started from Python, resume it there."
            )
        kept = {"data": "digits", "model": "mlp", **value, "data_dir": data_dir}
        for name, kind in words.items():
            if name in kept and not matches(kind, kept[name]):
                raise InputError(f"'{name} = {kept[name]!r}' is not a field of a Problem: the file is damaged.")
        asked = {name: kept[name] for name in words if name in kept}
        if asked.get("sites") == 0:
            asked["sites"] = None
        if not is_tables(asked["data"]):
            asked["target"] = None
        own = {name: part for name, part in value.items() if name not in words}
        return restore_fields(Recipe, {"method": "", **own, "problem": Problem(**asked)})


def protect(problem: Problem, settings: Sequence[str], seed: int = 0) -> tuple[tuple[str, ...], Problem]:
    """Put a problem under differential privacy.

    Args:
        settings: Texts that set a method's `privacy`.
        seed: Of rows that are looked at.

    Returns:
        The settings, with all sites relied on where noise is added once and nobody says otherwise; and the problem on
        bounded features.
    """
    if "privacy.noise=once" in settings and not any(text.startswith("privacy.honest=") for text in settings):
        settings = (*settings, f"privacy.honest={len(problem.build_sites(seed))}")
    return tuple(settings), dataclasses.replace(problem, bounded=True)


def ingredients(method: Method | str, problem: Problem, seed: int = 0) -> Ingredients:
    """Build all that a run of one method takes.

    Args:
        method: The method; by its name it has the settings that are usual on this problem, an object keeps its own.
        problem: What is to be learned from which rows.
        seed: What the split comes from.

    Returns:
        The method, the task and the sites.

    Raises:
        InputError: The method or the problem cannot be used.
    """
    if isinstance(method, str):
        return Recipe(method, problem, seed).choose().build()
    return Ingredients(method, *problem.settle([method], seed).build(seed))


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
