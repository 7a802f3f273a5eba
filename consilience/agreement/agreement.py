"""What sites agree on before anything is computed: one readable TOML file and its hash.

The upper part is the agreement; its hash is in every file of the study and is what each site signs. The lower part
lists the sites that signed. It is not hashed, so that a site can join or leave without anybody training again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from consilience.admission.gate import MOST_ROWS
from consilience.agreement.columns import Column, Target
from consilience.agreement.guarantees import check_guarantees
from consilience.agreement.names import check_name
from consilience.agreement.promise import bounded_if_private, check_promise, promise_of, promise_settings
from consilience.agreement.secure import Drop, check_secure, drop_of
from consilience.agreement.toml import check_column, convert, parse
from consilience.errors import InputError, unknown_name
from consilience.formats.blueprint import MOST_DRAWS
from consilience.formats.settings import check_settings, configure
from consilience.formats.signature import is_weak, verifies
from consilience.key import Key
from consilience.method import Method, for_rounds
from consilience.methods import METHODS, defaults
from consilience.models import MODELS, model
from consilience.models.features import FOR_IMAGES, features
from consilience.prior import Isotropic
from consilience.privacy.masks import is_usable
from consilience.privacy.mechanisms import Privacy
from consilience.privacy.rules import OUTCOMES, DisclosureRules
from consilience.task import Task, classification, regression
from consilience.version import __version__

FORMAT = 2
FORMAT_1 = {  # what agreements of format 1 lack
    "rare": "keep",
    "rows_per_parameter": 0.0,
    "fewest_sites": 1,
    "most_influence": 1.0,
}
RARE = ("merge", "refuse")
HAND_OUTS = ("mixture", "student", "ensemble")
SITES_BEGIN = "# Sites, written by "  # the rest of that line has been worded differently
SITES = f"{SITES_BEGIN}`consilience study add` and `study leave`. Not part of what is signed.\n"


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
        rare: What becomes of levels, marks and numbers that fewer training rows have: `merge` or `refuse`.
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
        patient: The column that says whose a row is, where patients with several rows are protected; rows if empty.
    """

    name: str
    server: str
    target: Target
    columns: tuple[Column, ...]
    model: str = "linear"
    prior_var: float = 1.0
    noise: float = 0.0
    draws: int = 100
    method: str = defaults.LINEAR_STUDY
    settings: tuple[str, ...] = defaults.LINEAR_STUDY_SETTINGS
    rounds: int = 1
    seed: int = 0
    scaling: str = "agreed"
    choose: float = 0.1
    test: float = 0.2
    smallest: int = 10
    rare: str = "merge"
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
    patient: str = optional("", "privacy", "column that says whose a row is: patients are protected, not single rows")

    @property
    def fields(self) -> dict[str, Any]:
        """What is agreed, by name, as plain values: what is hashed, and what `from_fields` reads."""
        values = dataclasses.asdict(self)
        unused = [f.name for f in dataclasses.fields(self) if f.metadata and values[f.name] == f.default]
        fields = {name: value for name, value in values.items() if name not in unused}
        if self.format == 1:
            return {name: value for name, value in fields.items() if name not in FORMAT_1}
        return fields

    @property
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
        """The kind of problem: `classification` or `regression`."""
        if self.target.classes:
            return "classification"
        return "regression"

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
        return DisclosureRules(
            self.smallest,
            self.rare,
            self.rows_per_parameter,
            self.few_outcomes,
            self.fewest_sites,
            self.hand_out == "ensemble",
        )

    def build_method(self) -> Method:
        """Make the method with the agreed settings.

        Returns:
            The method.

        Raises:
            InputError: A setting is unknown or has a wrong value.
        """
        method = configure(METHODS[self.method](), (*self.settings, *promise_settings(self)))
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
        return bounded_if_private(self, features(self.features, len(self.feature_names)))

    @property
    def network(self) -> str:
        """The network in words, with the feature map under it."""
        if not self.features:
            return self.model
        return f"{self.model} on {self.features}"

    def build_task(self) -> Task:
        """Make the statistical problem: the network, its prior and the likelihood of the target.

        Returns:
            The task.
        """
        network = model(self.model, len(self.feature_names), len(self.target.classes) or None, self.build_feature_map())
        prior = Isotropic(self.prior_var)
        if self.target.classes:
            return replace(classification(network, prior), draws=self.draws)
        return replace(regression(network, self.noise or None, prior), draws=self.draws)

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
        if METHODS[self.method].bound or kind not in method.tasks:
            raise InputError(f"{self.method} cannot serve a {kind} study: choose another of `consilience methods`.")
        if method.one_shot and self.rounds != 1:
            raise InputError(f"{self.method} is a one-round method: write rounds = 1.")
        if self.hand_out not in HAND_OUTS:
            raise unknown_name("way to hand out the model", self.hand_out, HAND_OUTS)
        if self.scaling not in ("agreed", "sums"):
            raise unknown_name("scaling", self.scaling, ["agreed", "sums"])
        if self.hand_out == "student" and not getattr(method, "distil", None):
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
        if self.secure:
            check_secure(self, method)
        columns = (*self.columns, self.target.as_column())
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
        if not 1 <= self.format <= FORMAT:
            raise InputError(f"format = {self.format}: consilience {__version__} reads 1 to {FORMAT}.")
        if self.most_bytes < 1:
            raise InputError(f"most_bytes = {self.most_bytes}: write the size of the largest reply, in bytes.")

    def _check_disclosure(self) -> None:
        """Refuse rules about what may be shown that are no rules."""
        if self.smallest < 1 or self.fewest_sites < 1:
            raise InputError(
                f"smallest = {self.smallest} and fewest_sites = {self.fewest_sites} are counts: write 1 or more."
            )
        if self.format > 1 and self.rare not in RARE:
            raise unknown_name("way with rare values", self.rare, RARE)
        if self.few_outcomes not in OUTCOMES:
            raise unknown_name("way with classes of few rows", self.few_outcomes, OUTCOMES)
        if not 0 <= self.rows_per_parameter < math.inf:
            raise InputError(f"rows_per_parameter = {self.rows_per_parameter:g}: write 0 (no such rule) or more.")
        if not 0 < self.most_influence <= 1:
            raise InputError(f"most_influence = {self.most_influence:g} is a share: write a number above 0, at most 1.")
        if self.format == 1 and {name: getattr(self, name) for name in FORMAT_1} != FORMAT_1:
            raise InputError(f"Format 1 has no {', '.join(FORMAT_1)}: make a new study.")


@dataclass(frozen=True)
class Member:
    """A site that signed the agreement.

    Attributes:
        name: The site's name.
        number: Decides its random numbers; never given twice.
        key: Its public key.
        signature: Its signature of the agreement's hash, the name and the rows.
        left: Whether it has left the study.
        rows: The most rows it will ever say it has; 0 in studies of format 1, where no site committed to a number.
        masks: Its public key for masks; empty in studies that do not mask.
    """

    name: str
    number: int
    key: str
    signature: str
    left: bool = False
    rows: int = 0
    masks: str = ""


class Sender(NamedTuple):
    """Who gave sums for the scaling, before anybody signed.

    Attributes:
        name: The site's name.
        key: Its public key.
        masks: Its public key for masks, where the sums are masked.
        signature: Its signature of that.
    """

    name: str
    key: str
    masks: str = ""
    signature: str = ""


class PooledModel(NamedTuple):
    """A model that was pooled, so that it can be marked when a site leaves.

    Attributes:
        checksum: Hash of the model's file.
        sites: The sites whose replies are in it.
        superseded: Whether one of them has left since.
    """

    checksum: str
    sites: tuple[str, ...]
    superseded: bool = False


@dataclass(frozen=True)
class Study:
    """An agreement, the sites that signed it, and the models that were pooled under it.

    Attributes:
        agreement: What was signed.
        sites: Every site that ever signed, those that left included.
        models: The models that were pooled.
        sums: Who gave sums for the scaling; a site of such a name joins with the same key.
        text: The agreement as people wrote it.
        drops: Sites that masked sums go on without.
    """

    agreement: Agreement
    sites: tuple[Member, ...] = ()
    models: tuple[PooledModel, ...] = ()
    sums: tuple[Sender, ...] = ()
    text: str = field(default="", compare=False)
    drops: tuple[Drop, ...] = ()

    @property
    def active(self) -> tuple[Member, ...]:
        """The sites that have not left."""
        return tuple(site for site in self.sites if not site.left)

    @property
    def next_number(self) -> int:
        """The number of the next site to join."""
        return max((site.number for site in self.sites), default=-1) + 1

    def member(self, name: str) -> Member:
        """Find a site of the study.

        Args:
            name: Its name.

        Returns:
            The site.

        Raises:
            InputError: It is not listed, or has left.
        """
        for site in self.sites:
            if site.name == name and not site.left:
                return site
        if any(site.name == name for site in self.sites):
            raise InputError(f"The site '{name}' has left the study '{self.agreement.name}'.")
        names = [site.name for site in self.active]
        raise unknown_name(f"site in the study '{self.agreement.name}'", name, names or ["none"])

    def with_member(self, name: str, key: str, signature: str, rows: int = 0, masks: str = "") -> Study:
        """Add a site, with a number of its own.

        Args:
            name: The site's name.
            key: Its public key.
            signature: Its signature of the agreement, the name and the rows.
            rows: The number of rows it commits to.
            masks: Its public key for masks.

        Returns:
            The study with the site.

        Raises:
            InputError: The name or the key is another site's, the name cannot be one, or the signature is wrong.
        """
        check_name(name)
        if any(site.name.casefold() == name.casefold() for site in self.active):
            raise InputError(f"The site '{name}' is in the study already: a second one needs another name.")
        if any(site.key == key and not site.left for site in self.sites):
            raise InputError(f"The key of '{name}' belongs to another site already: let it make one of its own.")
        if any(giver.name.casefold() == name.casefold() and giver.key != key for giver in self.sums):
            raise InputError(f"The sums of '{name}' were signed with another key: ask the site which key is its own.")
        check_rows(self.agreement, name, rows)
        if is_weak(key):
            raise InputError(f"The key of '{name}' is none that only its owner can sign with: let it make a new one.")
        if self.agreement.secure and not is_usable(masks):
            raise InputError(
                f"'{name}' gives no key for masks, or one whose secrets everybody knows: let it join anew."
            )
        member = Member(name, self.next_number, key, signature, rows=rows, masks=masks)
        _check_signature(self.agreement, member)
        return replace(self, sites=(*self.sites, member))

    def without(self, name: str) -> Study:
        """Mark a site as having left, and the models that hold it as superseded.

        Args:
            name: The site's name.

        Returns:
            The study after the site has left.

        Raises:
            InputError: There is no such site.
        """
        member = self.member(name)
        sites = list(self.sites)
        sites[sites.index(member)] = replace(member, left=True)
        models = tuple(m._replace(superseded=m.superseded or name in m.sites) for m in self.models)
        return replace(self, sites=tuple(sites), models=models)

    def recorded(self, checksum: str, names: Sequence[str]) -> Study:
        """Add a model; superseded at once if it holds a site that has left.

        Args:
            checksum: Hash of the model's file.
            names: The sites whose replies are in it.

        Returns:
            The study with the model.
        """
        others = tuple(model for model in self.models if model.checksum != checksum)
        superseded = not {*names} <= {site.name for site in self.active}
        return replace(self, models=(*others, PooledModel(checksum, tuple(names), superseded)))


def signed_words(agreement: Agreement, name: str, rows: int, masks: str = "") -> bytes:
    """Return what a site signs when it joins: the agreement, the name it goes by, and how many rows it may speak for.

    Args:
        agreement: The agreement.
        name: The site's name.
        rows: The number of rows it commits to; not signed in format 1.
        masks: Its public key for masks, in a study that masks.

    Returns:
        The bytes to sign.
    """
    if agreement.format == 1:
        return f"{agreement.hash} {name}".encode()
    if agreement.secure:
        return f"{agreement.hash} {rows} {masks} {name}".encode()
    return f"{agreement.hash} {rows} {name}".encode()


def check_rows(agreement: Agreement, name: str, rows: int) -> None:
    """Refuse a number of rows that no site of the study can commit to.

    Args:
        agreement: The agreement.
        name: The site's name.
        rows: The number; not asked for in format 1.

    Raises:
        InputError: It is too small or larger than any site has.
    """
    if agreement.format > 1 and not agreement.smallest <= rows <= MOST_ROWS:
        raise InputError(
            f"'{name}' commits to {rows:,} rows; a whole number from {agreement.smallest} to {MOST_ROWS:,} is needed: "
            "give `site join` the site's table, or its number of rows with --rows."
        )


def _check_signature(agreement: Agreement, site: Member) -> None:
    if not verifies(site.key, "agreement", signed_words(agreement, site.name, site.rows, site.masks), site.signature):
        raise InputError(
            f"The signature of '{site.name}' is not for this agreement and this name: one was changed after that site "
            "signed, an older version wrote it, or the key is wrong: let the coordinator delete the sites' part of the "
            "study's file, and every site sign again with `consilience site join`."
        )


def read(path: Path) -> Study:
    """Read a study; a changed agreement is refused, as signatures no longer fit.

    Args:
        path: The study's file.

    Returns:
        The study.

    Raises:
        InputError: The file cannot be read, a value is wrong, or a signature is not for this agreement.
    """
    text, value = parse(path)
    if type(value.get("format")) is not int or value["format"] > FORMAT:
        raise InputError(
            f"{path} has format {value.get('format')}; consilience {__version__} reads {FORMAT}: use the same version "
            "at all sites."
        )
    agreement = from_toml(value, path)
    try:
        sites = tuple(Member(**convert(Member, site)) for site in value.get("sites", ()))
        models = tuple(_pooled_model(entry) for entry in value.get("models", ()))
        sums = tuple(Sender(**{k: str(v) for k, v in giver.items()}) for giver in value.get("sums", ()))
        drops = tuple(map(drop_of, value.get("drops", ())))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: the list of sites is damaged ({error}); restore it from a copy.") from error
    for site in sites:
        check_name(site.name)
        check_rows(agreement, site.name, site.rows)
        _check_signature(agreement, site)
    names = [site.name.casefold() for site in sites if not site.left]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two of the sites have the same name; restore the list from a copy.")
    return Study(agreement, sites, models, sums, text.split(SITES_BEGIN)[0].rstrip("\n") + "\n", drops)


def _pooled_model(entry: dict[str, Any]) -> PooledModel:
    """A model of the list in a study's file."""
    model = PooledModel(entry["checksum"], tuple(entry["sites"]), entry["superseded"])
    texts = (model.checksum, *model.sites)
    if not all(isinstance(text, str) for text in texts) or type(model.superseded) is not bool:
        raise TypeError(f"{entry!r} is not a model")
    return model


def from_toml(value: dict[str, Any], path: Path | str) -> Agreement:
    """Make an agreement from parsed TOML, and check it.

    Args:
        value: The parsed file.
        path: Where it comes from, for error messages.

    Returns:
        The agreement.

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
        value: The fields.
        path: Where they come from, for error messages.

    Returns:
        The agreement.

    Raises:
        InputError: A field is missing or wrong.
    """
    try:
        target = Target(**convert(Target, value["target"]))
        columns = tuple(Column(**convert(Column, column)) for column in value["columns"])
        if value["format"] == 1:
            value = {**FORMAT_1, **value}
        agreement = Agreement(**convert(Agreement, {**value, "target": target, "columns": columns}))
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: {error} is missing, unknown or of the wrong type: compare with a new one.") from None
    agreement.check()
    return agreement
