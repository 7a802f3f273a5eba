"""What sites agree on before anything is computed: one readable TOML file and its hash.

The upper part is the agreement; its hash is in every file of the study and is what each site signs. The lower part
lists the sites that signed. It is not hashed, so that a site can join or leave without anybody training again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import tomllib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from consilience.errors import InputError, unknown_name
from consilience.formats.settings import configure
from consilience.formats.signature import verifies
from consilience.key import Key
from consilience.method import Method
from consilience.methods import METHODS, defaults
from consilience.models import MODELS, model
from consilience.prior import Isotropic
from consilience.study.columns import Column, Target
from consilience.task import Task, classification, regression
from consilience.version import __version__

FORMAT = 1
LONGEST_NAME = 64
SCRIPTS = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "IDEOGRAPHIC": "CJK"}  # written together
COMPOSED = {"LATIN", "GREEK", "CYRILLIC"}  # where a mark beside a letter is part of it; elsewhere it may be a vowel
HAND_OUTS = ("mixture", "student", "ensemble")
SITES = "# Sites, written by `consilience study add` and `study leave`. Not part of what is signed.\n"


@dataclass(frozen=True)
class Agreement:
    """All that decides the numbers and what leaves a site.

    Attributes:
        name: The study's name.
        server: The coordinator's public key.
        target: What is predicted.
        columns: What it is predicted from.
        model: The network.
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
        leaves: The kinds of value that may leave a site.
        most_bytes: How large a reply may be.
        hand_out: What sites get back: `mixture`, `student` or `ensemble`.
        format: Version of the file's format.
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
    leaves: tuple[str, ...] = ()
    most_bytes: int = 1_000_000
    hand_out: str = "mixture"
    format: int = FORMAT

    @property
    def hash(self) -> str:
        """The same for the same content, however the file is laid out."""
        value = json.dumps(dataclasses.asdict(self), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(value.encode()).hexdigest()

    @property
    def feature_names(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.names)

    def build_method(self) -> Method:
        return configure(METHODS[self.method](), self.settings)

    def build_task(self) -> Task:
        network = model(self.model, len(self.feature_names), len(self.target.classes) or None)
        prior = Isotropic(self.prior_var)
        if self.target.classes:
            return replace(classification(network, prior), draws=self.draws)
        return replace(regression(network, self.noise or None, prior), draws=self.draws)

    @property
    def key(self) -> Key:
        return Key(self.seed)

    def check(self) -> None:
        """Refuse what cannot work, before anybody signs it."""
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        if self.model not in MODELS:
            raise unknown_name("model", self.model, MODELS)
        kind, method = "classification" if self.target.classes else "regression", self.build_method()
        if METHODS[self.method].bound or kind not in method.tasks:
            raise InputError(f"{self.method} cannot serve a {kind} study: choose another of `consilience methods`.")
        if method.one_shot and self.rounds != 1:
            raise InputError(f"{self.method} is a one-round method: write rounds = 1.")
        if self.hand_out not in HAND_OUTS:
            raise unknown_name("way to hand the model out", self.hand_out, HAND_OUTS)
        if self.scaling not in ("agreed", "sums"):
            raise unknown_name("scaling", self.scaling, ["agreed", "sums"])
        if self.hand_out == "student" and not getattr(method, "distil", None):
            raise InputError('hand_out = "student" needs a distilling method: add "distil=Distil" to its settings.')
        if not 0 <= self.choose < 1 or not 0 <= self.test < 1 or self.choose + self.test >= 1 or self.rounds < 1:
            raise InputError("The shares choose and test must lie in 0 to below 1 together, and rounds be at least 1.")
        names = [column.name for column in (*self.columns, self.target.as_column())]
        if len(set(names)) != len(names) or len(names) < 2:
            raise InputError("The study needs at least one column beside the target, each named once.")
        for column in (*self.columns, self.target.as_column()):
            _check_column(column)


def _check_column(column: Column) -> None:
    name = column.name
    if column.type not in ("number", "category"):
        raise unknown_name(f"type of column '{name}'", column.type, ["number", "category"])
    if column.missing not in ("refuse", "mark"):
        raise unknown_name(f"way with missing values of '{name}'", column.missing, ["refuse", "mark"])
    if column.type == "category" and len(set(column.levels)) < 2:
        raise InputError(f"Column '{name}' is a category: list at least two different levels.")
    if column.type == "number":
        numbers = (*column.range, column.centre, column.spread, column.fill)
        if not all(map(math.isfinite, numbers)) or column.range[0] >= column.range[1] or column.spread <= 0:
            raise InputError(f"Column '{name}': write range = [low, high], finite constants and a spread above 0.")


@dataclass(frozen=True)
class Member:
    """A site that signed the agreement.

    Attributes:
        name: The site's name.
        number: Decides its random numbers; never given twice.
        key: Its public key.
        signature: Its signature of the agreement's hash and the name.
        left: Whether it has left the study.
    """

    name: str
    number: int
    key: str
    signature: str
    left: bool = False


class Made(NamedTuple):
    """A model that was made, so that it can be named for what it is when a site leaves.

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
        text: The agreement as people wrote it.
    """

    agreement: Agreement
    sites: tuple[Member, ...] = ()
    models: tuple[Made, ...] = ()
    text: str = field(default="", compare=False)

    @property
    def active(self) -> tuple[Member, ...]:
        return tuple(site for site in self.sites if not site.left)

    def member(self, name: str) -> Member:
        """A site of the study by its name; one that is not listed, or has left, is refused."""
        for site in self.sites:
            if site.name == name and not site.left:
                return site
        if any(site.name == name for site in self.sites):
            raise InputError(f"The site '{name}' has left the study '{self.agreement.name}'.")
        raise unknown_name(
            f"site in the study '{self.agreement.name}'", name, [s.name for s in self.active] or ["none"]
        )

    def with_member(self, name: str, key: str, signature: str) -> Study:
        """A site more, with a number of its own; its name and its signature of the agreement are checked."""
        check_name(name)
        if any(site.name.casefold() == name.casefold() for site in self.active):
            raise InputError(f"The site '{name}' is in the study already: a second one needs another name.")
        if any(site.key == key and not site.left for site in self.sites):
            raise InputError(f"The key of '{name}' belongs to another site already: let it make one of its own.")
        new = Member(name, max((s.number for s in self.sites), default=-1) + 1, key, signature)
        _check_signature(self.agreement, new)
        return replace(self, sites=(*self.sites, new))

    def without(self, name: str) -> Study:
        """A site less; models that hold it are marked."""
        gone = self.member(name)
        sites = tuple(replace(s, left=True) if s is gone else s for s in self.sites)
        models = tuple(m._replace(superseded=m.superseded or name in m.sites) for m in self.models)
        return replace(self, sites=sites, models=models)

    def recorded(self, checksum: str, names: Sequence[str]) -> Study:
        """A model more; old at once if it holds a site that has left."""
        kept = tuple(m for m in self.models if m.checksum != checksum)
        old = not {*names} <= {site.name for site in self.active}
        return replace(self, models=(*kept, Made(checksum, tuple(names), old)))


def check_name(name: str) -> None:
    """Refuse a site's name that could be taken for another's, for a path, or for more than a name."""
    letters = [c for c in name if c.isalpha()]
    scripts = {SCRIPTS.get(s, s) for s in (re.split("[ -]", unicodedata.name(c, "?"))[0] for c in letters)}
    marks = ("Mn", "Mc") if scripts and not scripts & COMPOSED else ()
    fine = (c.isalpha() or unicodedata.category(c) in marks or c in "0123456789 -._,()&'’" for c in name)
    plain = all(fine) and unicodedata.normalize("NFKC", name) == name
    whole = name[:1].isalnum() and name[-1:] not in " -._,(&'’" and len(name) <= LONGEST_NAME
    if not (plain and whole and len(scripts) <= 1) or name.casefold() == "server":
        raise InputError(
            f"{name!r} cannot be a site's name: choose one of at most {LONGEST_NAME} letters of one script, digits, "
            "spaces and -._,()&' that begins with a letter or digit, ends with one or with ), and is not 'server'."
        )


def signed_words(agreement_hash: str, name: str) -> bytes:
    """What a site signs when it joins: the agreement, and the name it goes by."""
    return f"{agreement_hash} {name}".encode()


def _check_signature(agreement: Agreement, site: Member) -> None:
    if not verifies(site.key, "agreement", signed_words(agreement.hash, site.name), site.signature):
        raise InputError(
            f"The signature of '{site.name}' is not for this agreement and this name: one was changed after that site "
            "signed, an older version wrote it, or the key is wrong: let the coordinator delete the sites' part of the "
            "study's file, and every site sign again with `consilience site join`."
        )


def _parsed(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name; `consilience study new` makes one.") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}.") from error


def read_columns(path: Path) -> tuple[Target, tuple[Column, ...]]:
    """The parts [target] and [columns] alone: a data dictionary."""
    _, value = _parsed(path)
    try:
        columns = tuple(Column(**_typed(Column, {"name": name, **c})) for name, c in value["columns"].items())
        return Target(**_typed(Target, value["target"])), columns
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: {error} is missing, unknown or of the wrong type: compare with a new one.") from None


def read(path: Path) -> Study:
    """A study from its file; a changed agreement is refused, as signatures no longer fit."""
    text, value = _parsed(path)
    if type(value.get("format")) is not int or value["format"] > FORMAT:
        raise InputError(
            f"{path} has format {value.get('format')}; consilience {__version__} reads {FORMAT}: use the same version "
            "at all sites."
        )
    agreement = from_toml(value, path)
    try:
        sites = tuple(Member(**_typed(Member, site)) for site in value.get("sites", ()))
        models = tuple(Made(m["checksum"], tuple(m["sites"]), m["superseded"]) for m in value.get("models", ()))
    except (TypeError, KeyError, ValueError) as error:
        raise InputError(f"{path}: the list of sites is damaged ({error}); restore it from a copy.") from error
    for site in sites:
        check_name(site.name)
        _check_signature(agreement, site)
    names = [site.name.casefold() for site in sites if not site.left]
    if len(set(names)) < len(names):
        raise InputError(f"{path}: two of the sites have the same name; restore the list from a copy.")
    return Study(agreement, sites, models, text.split(SITES)[0].rstrip("\n") + "\n")


def from_toml(value: dict[str, Any], path: Path | str) -> Agreement:
    """An agreement from parsed TOML, checked."""
    try:
        flat = {k: v for k, v in value.items() if k not in ("sites", "models")}
        for part in ("model", "method", "rows", "leaving"):
            flat |= flat.pop(part)
        columns = [{"name": name, **column} for name, column in value["columns"].items()]
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: the part {error} is missing or not a table; compare with a new study.") from None
    return from_fields({**flat, "columns": columns}, path)


def from_fields(value: dict[str, Any], path: Path | str = "The study") -> Agreement:
    """The inverse of `dataclasses.asdict`, checked."""
    try:
        target = Target(**_typed(Target, value["target"]))
        columns = tuple(Column(**_typed(Column, column)) for column in value["columns"])
        agreement = Agreement(**_typed(Agreement, {**value, "target": target, "columns": columns}))
    except (TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path}: {error} is missing, unknown or of the wrong type: compare with a new one.") from None
    agreement.check()
    return agreement


def _typed(kind: type, value: dict[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass from TOML: lists become tuples, whole numbers floats, and nothing else is bent."""
    made = {}
    for f in dataclasses.fields(kind):
        if f.name not in value:
            continue
        given = value[f.name]
        given = tuple(given) if isinstance(given, list) else given
        if f.type == "float" and type(given) is int:
            given = float(given)
        if f.name == "range":
            given = (float(given[0]), float(given[1]))
        wanted = {"str": str, "float": float, "int": int, "bool": bool, "tuple[str, ...]": tuple}.get(str(f.type))
        texts = given if wanted is tuple and isinstance(given, tuple) else ()
        if (wanted is not None and type(given) is not wanted) or not all(isinstance(t, str) for t in texts):
            raise ValueError(f"'{f.name} = {given!r}'")
        made[f.name] = given
    strange = [name for name in value if name not in {f.name for f in dataclasses.fields(kind)}]
    if strange:
        raise ValueError(f"'{strange[0]}'")
    return made
