"""What sites agree on before anything is computed, and its hash, which is in every file of the study."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from consilience.distributions.prior import Isotropic
from consilience.errors import InputError, unknown_name
from consilience.key import Key
from consilience.method import Bound, Method
from consilience.method.declared import impute
from consilience.methods import METHODS
from consilience.methods.advice import USUAL_STUDY
from consilience.methods.claims import for_rounds
from consilience.models import MODELS, model
from consilience.models.maps import FOR_IMAGES, features
from consilience.privacy.disclosure.rules import OUTCOMES, DisclosureRules
from consilience.privacy.dp.mechanisms import Privacy
from consilience.serialisation.blueprint import MOST_DRAWS
from consilience.serialisation.settings import check_settings, configure
from consilience.study.protocol.calibration import check_evaluation
from consilience.study.protocol.columns import Column, imputed_marks
from consilience.study.protocol.guarantees import check_guarantees
from consilience.study.protocol.posteriors import check_posteriors
from consilience.study.protocol.promise import bounded_if_private, check_promise, promise_of, promise_settings
from consilience.study.protocol.secure import check_secure
from consilience.study.protocol.target import Target
from consilience.study.protocol.toml import check_column, convert
from consilience.task import Task, classification, counts, regression, survival
from consilience.version import __version__

FORMAT = 2
RARE = ("other", "merge", "refuse")
ROLES = ("place", "content")
ADDED = ("same", "since", "quantiles")  # fields of columns that studies once had not
HAND_OUTS = ("mixture", "student", "ensemble")


def optional(default: Any, part: str, says: str) -> Any:
    """Declare a field that a study may do without: at its default it is neither written nor hashed.

    So studies that were signed before there was such a field keep their text and their hash.

    Args:
        default: With which a study does what it did before.
        part: The table of the file that it stands in, as `model`.
        says: What it means, for the people who sign: the comment beside it.

    Returns:
        The field of a dataclass.
    """
    return field(default=default, metadata={"part": part, "says": says})


def _without_added(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Fields by name, as agreements were hashed before columns had some of them, where those say nothing."""
    return {name: value for name, value in pairs if name not in ADDED or value}


@dataclass(frozen=True)
class Agreement:
    """All that decides the numbers and what leaves a site.

    Attributes:
        name: The study's name.
        server: The coordinator's public key.
        target: What is predicted.
        columns: What it is predicted from.
        model: The network, on the features if there are any.
        prior_var: Variance of every weight under the prior.
        noise: Variance of an observation of a number, on the scale of the target; 0: learned.
        draws: Members that stand for a Gaussian posterior when predicting.
        method: How the sites learn together.
        settings: Changes of the method's settings, as `field=value`.
        rounds: How many.
        seed: What all random numbers come from.
        scaling: `agreed`: the constants are in the columns; `sums`: they come from a first exchange of sums.
        choose: Share of a site's rows that choose β, λ and temperature.
        test: Share of a site's rows that only score.
        smallest: The smallest count that may be shown.
        rare: What becomes of levels, marks and numbers that fewer training rows have: `other`, a level of its own;
            `merge`, which counts them as the commonest one where "other" would be small; or `refuse`.
        rows_per_parameter: Training rows that a site needs for each parameter of the model; 0: no such rule.
        fewest_sites: The fewest sites whose replies are pooled: with two, each can compute what the other sent.
        most_influence: Share of the pooled model that one site may have before the coordinator is warned.
        leaves: The kinds of value that may leave a site.
        most_bytes: How large a reply may be.
        hand_out: What sites get back: `mixture`, `student` or `ensemble`.
        format: Version of the file's format.
        features: The feature map between the columns and the network, as `fourier:320`: every site draws the same one
            from the seed in its name. None if empty.
        level: Share of rows that prediction sets shall cover; 0 where none are made.
        calibrate: Share of a site's rows that calibrate them.
        guarantee: Their kind: `class`, `pooled`, `quantile` or `own`; the usual one if empty.
        nonconformity: The score that is counted, as `aps`; the usual one if empty.
        grid: How many edges scores are counted on.
        few_outcomes: What becomes of classes that few rows of a site are of: warn, or refuse.
        secure: Whether replies are added up under masks, so that nobody sees a single one.
        cells: The fewest scores that a cell of a site's counts shows; `smallest` if 0.
        epsilon: ε of differential privacy, of all that a site sends in the study; 0: none is promised.
        delta: Its δ.
        noise_added: Where: `site`, all of it at each; `once`, shares of it, under secure sums.
        honest_sites: Under `once`, how many sites are relied on to add their share.
        table_epsilon: ε of table one beside `epsilon`, at the same δ: sums with noise; 0: none is sent.
        imputations: How many times a site draws its gaps, where a column says so.
        patient: The column that says whose a row is, where patients with several rows are protected; rows if empty.
        evaluation: Whether a site may send a model's calibration on its test rows, in merged counts.
        posteriors: Parameters of the sites' own models that are pooled, each with the prior that all use.
        posteriors_as: What leaves of them: `draws`, or `moments`, which are mean and covariance.
        posterior_draws: How many draws leave.
        rows_per_number: Rows that a site needs for each number whose posterior leaves.
        pool_by: The rule, or `auto`.
        roles: What decides which rows train, choose, test and calibrate: `content`, of each row by itself; `place`, its
            rank in the table, as it was before there was a choice, wherever nothing is promised.
    """

    name: str
    server: str
    target: Target
    columns: tuple[Column, ...]
    model: str = "linear"
    prior_var: float = 1.0
    noise: float = 0.0
    draws: int = 100
    method: str = USUAL_STUDY.method
    settings: tuple[str, ...] = USUAL_STUDY.settings
    rounds: int = 1
    seed: int = 0
    scaling: str = "agreed"
    choose: float = 0.1
    test: float = 0.2
    smallest: int = 10
    rare: str = "other"
    rows_per_parameter: float = 3.0
    fewest_sites: int = 3
    most_influence: float = 0.5
    leaves: tuple[str, ...] = ()
    most_bytes: int = 1_000_000
    hand_out: str = "mixture"
    format: int = FORMAT
    features: str = optional(
        "", "model", "fixed features of the columns that the model learns on; sites draw the same from its seed"
    )
    level: float = optional(0.0, "guarantees", "share of rows that prediction sets shall cover")
    calibrate: float = optional(
        0.0, "guarantees", "share of a site's rows that calibrate prediction sets; counts leave"
    )
    guarantee: str = optional("", "guarantees", "class, pooled, quantile or own: docs/guarantees.md says what holds")
    nonconformity: str = optional("", "guarantees", "the score that is counted: hinge, aps, raps; residual, quantile")
    grid: int = optional(1000, "guarantees", "edges that scores are counted on")
    few_outcomes: str = optional(
        "warn", "rows", "classes of fewer rows than `smallest` at a site: warn it, or refuse (rule: outcome levels)"
    )
    secure: bool = optional(
        False, "privacy", "sites mask what they send: the coordinator sees the sum over all sites, and no site's own"
    )
    cells: int = optional(0, "guarantees", "fewest scores that a cell of a site's counts shows; 0: as smallest")
    epsilon: float = optional(0.0, "privacy", "of all that a site sends in this study; neighbours: add or remove a row")
    delta: float = optional(0.0, "privacy", "less than one over the number of rows of all sites")
    noise_added: str = optional("site", "privacy", "where: site, all of it at each; once, a share, under secure sums")
    honest_sites: int = optional(0, "privacy", "sites relied on, under once, to add their share and keep it")
    imputations: int = optional(20, "rows", "times that a site draws its gaps in columns with missing = impute")
    patient: str = optional("", "privacy", "column that says whose a row is: patients are protected, not single rows")
    table_epsilon: float = optional(
        0.0, "privacy", "of table one, beside epsilon: counts and means with noise; 0: none"
    )
    evaluation: bool = optional(
        False,
        "leaving",
        "sites may also send a model's calibration on their test rows: no count below `smallest`",
    )
    posteriors: tuple[str, ...] = optional(
        (), "posteriors", "of the sites' own models: parameters that are pooled, with the prior that all of them use"
    )
    posteriors_as: str = optional("draws", "posteriors", "what leaves: draws, or moments (mean and covariance)")
    posterior_draws: int = optional(1000, "posteriors", "how many draws leave")
    rows_per_number: int = optional(10, "posteriors", "rows that a site needs for each number whose posterior leaves")
    pool_by: str = optional("auto", "posteriors", "the rule, as `consilience draws pool --rule` has it")
    roles: str = optional("place", "rows", "content: a row's role follows from the row and the seed, from no other row")

    @property
    def fields(self) -> dict[str, Any]:
        """What is agreed, by name, as plain values: what is hashed, and what `from_fields` reads."""
        values = dataclasses.asdict(self, dict_factory=_without_added)
        unused = [f.name for f in dataclasses.fields(self) if f.metadata and values[f.name] == f.default]
        fields = {name: value for name, value in values.items() if name not in unused}
        fields["target"] = self.target.fields
        return fields

    @cached_property
    def hash(self) -> str:
        """The same for the same content, however the file is laid out."""
        value = json.dumps(self.fields, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(value.encode()).hexdigest()

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the network's inputs, in order."""
        return tuple(name for column in self.columns for name in column.names)

    @property
    def kind(self) -> str:
        """The kind of problem: `classification`, `regression`, `counts` or `survival`."""
        return self.target.kind

    @property
    def parameters(self) -> int:
        """How many parameters the network has."""
        task = self.build_task()
        return sum(weight.numel() for weight in task.weights(task.like).values())

    @property
    def fewest_rows(self) -> int:
        """The fewest training rows that a site may fit the network to."""
        return self.disclosure.fewest_rows(self.parameters)

    @property
    def disclosure(self) -> DisclosureRules:
        """The rules of disclosure, by name."""
        rare = self.rare
        if self.epsilon:
            rare = "noise"
        return DisclosureRules(
            self.smallest,
            rare,
            self.rows_per_parameter,
            self.few_outcomes,
            self.fewest_sites,
            self.hand_out == "ensemble",
            self.target.counts_events,
        )

    def build_method(self) -> Method:
        """Make the method with the agreed settings.

        Raises:
            InputError: A setting is unknown or has a wrong value.
        """
        method = configure(METHODS[self.method](), (*self.settings, *promise_settings(self)))
        if marks := imputed_marks(self.columns):
            method = impute(method, marks, self.imputations)
        return for_rounds(method, self.rounds)

    @property
    def privacy(self) -> Privacy | None:
        """What is promised about a row or a patient; None where nothing is."""
        return promise_of(self)

    def build_feature_map(self) -> nn.Module | None:
        """Make the agreed feature map, the same at every site.

        Returns:
            The map; None where the network learns on the columns.

        Raises:
            InputError: There is no such map, or it is not for tables.
        """
        if not self.features:
            return bounded_if_private(self, None)
        if self.features.partition(":")[0] in FOR_IMAGES:
            raise InputError(f"features = '{self.features}' is for images, and a study has columns: try fourier.")
        knots = [own for column in self.columns for own in column.knots]
        return bounded_if_private(self, features(self.features, len(self.feature_names), knots))

    @property
    def network(self) -> str:
        """The network in words, with the feature map under it."""
        if not self.features:
            return self.model
        return f"{self.model} on {self.features}"

    def build_task(self) -> Task:
        """Make the statistical problem: the network, its prior and the likelihood of the target.

        Returns:
            The task, made once: nobody changes it.
        """
        return self._task

    @cached_property
    def _task(self) -> Task:
        network = model(self.model, len(self.feature_names), len(self.target.classes) or None, self.build_feature_map())
        prior = Isotropic(self.prior_var)
        target = self.target
        match target.kind:
            case "classification":
                task = classification(network, prior)
            case "survival":
                task = survival(network, prior, target.times, target.horizon)
            case "counts":
                task = counts(network, prior)
            case _:
                task = regression(network, self.noise or None, prior)
        return replace(task, draws=self.draws)

    @property
    def key(self) -> Key:
        """What all random numbers of the study come from."""
        return Key(self.seed)

    def check(self) -> None:
        """Refuse what cannot work, before anybody signs it.

        Raises:
            InputError: A value is unknown or out of its range, or values do not fit together.
        """
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        if self.model not in MODELS:
            raise unknown_name("model", self.model, MODELS)
        self.build_feature_map()
        check_promise(self)
        method = self.build_method()
        check_settings(method)
        kind = self.kind
        if issubclass(METHODS[self.method], Bound) or kind not in method.about.tasks:
            raise InputError(f"{self.method} cannot serve a {kind} study: choose another of `consilience methods`.")
        if method.about.one_shot and self.rounds != 1:
            raise InputError(f"{self.method} is a one-round method: write rounds = 1.")
        if self.hand_out not in HAND_OUTS:
            raise unknown_name("way to hand out the model", self.hand_out, HAND_OUTS)
        if self.scaling not in ("agreed", "sums"):
            raise unknown_name("scaling", self.scaling, ["agreed", "sums"])
        if self.hand_out == "student" and not method.distil:
            raise InputError('hand_out = "student" needs a distilling method: add "distil=Distil" to its settings.')
        if self.rounds < 1:
            raise InputError(f"rounds = {self.rounds}: at least one is needed.")
        if not (self.choose >= 0 and self.test >= 0 and self.choose + self.test < 1):
            raise InputError(
                f"choose = {self.choose:g} and test = {self.test:g} are shares of a site's rows: from 0, and together "
                "below 1."
            )
        self._check_numbers()
        self._check_disclosure()
        check_guarantees(self)
        check_evaluation(self)
        check_posteriors(self)
        if self.secure:
            check_secure(self, method)
        self.target.check()
        columns = (*self.columns, *self.target.as_columns())
        names = [column.name for column in columns]
        if len(set(names)) != len(names) or len(names) < 2:
            raise InputError("The study needs at least one column beside the target, and each column a different name.")
        for column in columns:
            check_column(column)

    def _check_numbers(self) -> None:
        """Refuse numbers with which no model can be fitted or predict."""
        if not 0 < self.prior_var < math.inf or not 0 <= self.noise < math.inf:
            raise InputError(
                f"prior_var = {self.prior_var:g} and noise = {self.noise:g} are variances: write a number above 0, or "
                "noise = 0 where it is learned."
            )
        if not 1 <= self.draws <= MOST_DRAWS:
            raise InputError(f"draws = {self.draws}: write a number from 1 to {MOST_DRAWS:,}.")
        if self.format != FORMAT:
            raise InputError(f"format = {self.format}: consilience {__version__} reads {FORMAT}.")
        if self.imputations < 2:
            raise InputError(f"imputations = {self.imputations}: the spread between fits needs two tables or more.")
        if self.most_bytes < 1:
            raise InputError(f"most_bytes = {self.most_bytes}: write the size of the largest reply, in bytes.")

    def _check_disclosure(self) -> None:
        """Refuse rules about what may be shown that are no rules."""
        if self.smallest < 1 or self.fewest_sites < 1:
            raise InputError(
                f"smallest = {self.smallest} and fewest_sites = {self.fewest_sites} are counts: write 1 or more."
            )
        if self.rare not in RARE:
            raise unknown_name("way with rare values", self.rare, RARE)
        if self.roles not in ROLES:
            raise unknown_name("way to give rows their roles", self.roles, ROLES)
        if self.few_outcomes not in OUTCOMES:
            raise unknown_name("way with classes of few rows", self.few_outcomes, OUTCOMES)
        if not 0 <= self.rows_per_parameter < math.inf:
            raise InputError(f"rows_per_parameter = {self.rows_per_parameter:g}: write 0 (no such rule) or more.")
        if not 0 < self.most_influence <= 1:
            raise InputError(f"most_influence = {self.most_influence:g} is a share: write a number above 0, at most 1.")


def from_toml(value: dict[str, Any], path: Path | str) -> Agreement:
    """Make an agreement from parsed TOML, and check it.

    Args:
        path: Where it comes from, for error messages.

    Raises:
        InputError: A part is missing or wrong.
    """
    try:
        flat = {k: v for k, v in value.items() if k not in ("sites", "models", "sums", "drops")}
        needed = ("model", "method", "rows", "leaving")
        further = {f.metadata["part"] for f in dataclasses.fields(Agreement) if f.metadata} - {*needed}
        for part in (*needed, *sorted(further & {*flat})):
            flat |= flat.pop(part)
        columns = [{"name": name, **column} for name, column in value["columns"].items()]
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: the part {error} is missing or not a table; compare with a new study.") from None
    return from_fields({**flat, "columns": columns}, path)


def from_fields(value: dict[str, Any], path: Path | str = "The study") -> Agreement:
    """Make an agreement from its fields, the inverse of `Agreement.fields`, and check it.

    Args:
        path: Where they come from, for error messages.

    Raises:
        InputError: A field is missing or wrong.
    """
    try:
        target = Target(**convert(Target, value["target"]))
        columns = tuple(Column(**convert(Column, column)) for column in value["columns"])
        agreement = Agreement(**convert(Agreement, {**value, "target": target, "columns": columns}))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: {error} is missing, unknown or of the wrong type: compare with a new one.") from None
    agreement.check()
    return agreement
