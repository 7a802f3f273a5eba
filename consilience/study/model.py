"""A pooled model in a file: what it was made from, by whom, and how it predicts. Needs nothing beside itself."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience import tree
from consilience.disk.typed import restore_fields
from consilience.distributions.posterior import Point, Posterior, Samples, members
from consilience.distributions.predictive import Distribution, Normal, finite_rows, tempered
from consilience.distributions.survival import Survival
from consilience.errors import Diverged, InputError, refuse_damage
from consilience.key import Key
from consilience.method import Method, Pooled, is_made_at_home, name
from consilience.method.declared import hand_out, knob, list_members, without_names
from consilience.method.states import keeps_posteriors
from consilience.method.which import state_at_home
from consilience.methods import METHODS
from consilience.metrics.uncertainty import belonging_to, decompose
from consilience.prediction_sets.sets import Guarantee
from consilience.runs.engines import computing
from consilience.runs.engines.soundness import holds_finite, quietly
from consilience.serialisation.codec import types_of
from consilience.study.protocol.agreement import Agreement, from_fields
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.promise import describe_promise
from consilience.study.protocol.rehearsal import probe_rows
from consilience.tree import Tree

NEEDS_NAMES = (
    "{method} pools by site, so it cannot be released as a mixture without names: write "
    'hand_out = "ensemble", or "student" with a distilling method.'
)


class Facts(NamedTuple):
    """What a model says about itself.

    Attributes:
        sites: Whose replies, of any round, are in it; sorted where nobody shall know whose is whose.
        rows: How many rows they trained on together; 0: withheld by one of them, or not known.
        rounds: How many are done.
        method: How what is in the file predicts.
        knob: `beta` or `penalty`, where one was chosen.
        value: The value that was chosen.
        temperature: The temperature that was chosen.
        statistics_from: The sites whose sums chose these.
        notes: What else to know, in words.
    """

    sites: tuple[str, ...]
    rows: int
    rounds: int
    method: str
    knob: str = ""
    value: float = 0.0
    temperature: float = 1.0
    statistics_from: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Baseline(NamedTuple):
    """The cumulative baseline hazard of a survival model, common to all sites.

    Attributes:
        times: The agreed times.
        hazard: The cumulative hazard at each.
    """

    times: tuple[float, ...]
    hazard: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A pooled model: predicts features as the agreement encodes them.

    Attributes:
        agreement: The agreement of the study it belongs to.
        facts: What it says about itself.
        method: How it predicts.
        state: What it predicts with.
        checksum: Hash of the file it was read from.
        guarantee: The thresholds of its prediction sets; None where it has none.
        baseline: The baseline of its survival curves; None where it predicts no times, or relative risks alone.
        own: Whether it is a site's own, made at home; else it is the one for all, which a newcomer gets.
    """

    agreement: Agreement
    facts: Facts
    method: Method
    state: Tree
    checksum: str = ""
    guarantee: Guarantee | None = None
    baseline: Baseline | None = None
    own: bool = False

    def __call__(self, x: Tensor) -> Distribution:
        """Predict.

        Args:
            x: Features as the network sees them.

        Returns:
            The distribution of the target; a number's in the target's unit.
        """
        p = self.on_network_scale(x)
        if isinstance(p, Normal):
            scale = self.agreement.target.spread
            shift = self.agreement.target.centre
            return Normal(p.mean * scale + shift, p.var * scale**2, p.noise * scale**2)
        return p

    def on_network_scale(self, x: Tensor) -> Distribution:
        """Predict on the scale that the network sees, which the scores of prediction sets are on.

        Args:
            x: Features as the network sees them.

        Returns:
            The distribution of the target as it was trained on; of times, on the baseline if there is one.
        """
        task = self.agreement.build_task()
        predictive = self.method.predictive(task, self.state)
        with torch.no_grad(), computing(task):
            p = tempered(predictive(x), self.facts.temperature)
        if isinstance(p, Survival) and self.baseline is not None:
            times, hazard = (torch.tensor(part, dtype=torch.float64) for part in self.baseline)
            return p.on(times, hazard)
        return p

    @property
    def is_personal(self) -> bool:
        """Whether sites make models of their own of it, each with what it kept."""
        return is_made_at_home(self.method)

    def at_home(self, memory: Tree) -> Model:
        """Make a site's own model, with what the site kept; it stays there.

        Args:
            memory: What the site kept in the last round; () for a newcomer.

        Returns:
            The site's model; the same where there is one for all.
        """
        state = state_at_home(self.method, self.agreement.build_task(), self.state, memory)
        return dataclasses.replace(self, state=state, own=self.is_personal and memory != ())

    def uncertainty(self, x: Tensor) -> dict[str, Tensor]:
        """Split the uncertainty of predictions: aleatoric and epistemic add up to that of what is predicted.

        Args:
            x: Features as the network sees them.

        Returns:
            Aleatoric and epistemic uncertainty and the part of the latter between sites, which samples without names
            cannot tell; empty where one set of weights is all there is.
        """
        task = self.agreement.build_task()
        posteriors, weights = list_members(self.method, self.state)
        if not posteriors or (len(posteriors) == 1 and isinstance(posteriors[0], Point)):
            return {}
        with torch.no_grad(), computing(task):
            draws = [members(posterior, Key(0), task.draws, task.like) for posterior in posteriors]
            split = decompose([[task.predictive(Point(m))(x) for m in draw] for draw in draws], weights)
            plain = self.method.predictive(task, self.state)(x)
        split = belonging_to(plain, split, tempered(plain, self.facts.temperature))
        scale = 1.0
        if self.agreement.kind == "regression":
            scale = self.agreement.target.spread**2
        parts = {"aleatoric": scale * split.aleatoric, "epistemic": scale * split.epistemic}
        if not is_unnamed(self.agreement, self.facts.method):
            parts["disagreement"] = scale * split.disagreement
        return parts


def model_file(model: Model, key: Ed25519PrivateKey) -> bytes:
    """Write a model, signed.

    Returns:
        The file's bytes.

    Raises:
        Diverged: The model predicts numbers that are not finite.
    """
    check_predictions(model, "The model is not written")
    agreement = model.agreement
    about: dict[str, Any] = {
        "agreement": agreement.fields,
        "facts": model.facts._asdict(),
        "settings": _settings(model.method, model.state),
        **describe_promise(agreement),
    }
    if model.guarantee is not None:
        about["guarantee"] = model.guarantee.to_json()
    if model.baseline is not None:
        about["baseline"] = model.baseline._asdict()
    header = Header("model", agreement.hash, agreement.name, "server", model.facts.rounds, about)
    return seal({"state": model.state}, header, key)


def read_model(path: Path, study: Study | None = None) -> Model:
    """Read a model, signed by the coordinator of the study it was made in, or of the study given.

    Args:
        study: The study it must belong to; any if None.

    Raises:
        InputError: The file is not a model's, is not signed by the coordinator, or belongs to another study.
        Diverged: The model predicts numbers that are not finite.
    """
    envelope = open_envelope(path, "model")
    about: Any = envelope.header.about
    try:
        facts = restore_fields(Facts, about["facts"])
        agreement = from_fields(about["agreement"], path)
        guarantee = None
        if "guarantee" in about:
            guarantee = Guarantee.from_json(about["guarantee"])
        known = None
        if "baseline" in about:
            known = _read_baseline(agreement, about["baseline"])
        settings = {str(setting): _number(value) for setting, value in about["settings"].items()}
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"{path} is not a model that this version of consilience wrote.") from error
    if agreement.hash != envelope.header.study or not envelope.signed_by(agreement.server):
        raise InputError(f"{path} is not signed by the coordinator of '{agreement.name}': it is not used.")
    if study is not None and agreement.hash != study.agreement.hash:
        raise InputError(
            f"{path} belongs to the study '{agreement.name}' ({agreement.hash[:8]}), not to '{study.agreement.name}' "
            f"({study.agreement.hash[:8]})."
        )
    with refuse_damage(f"{path} does not hold what a model holds: ask for it again."):
        method = _method_of(agreement, facts, settings)
        state = envelope.value(types_of(method))["state"]
        model = Model(agreement, facts, method, state, envelope.checksum, guarantee, known)
        check_predictions(model, f"{path} is not used")
    return model


def _read_baseline(agreement: Agreement, value: Any) -> Baseline:
    """A baseline on the agreed times, which never falls."""
    hazard = tuple(float(number) for number in value["hazard"])
    rising = all(b >= a for a, b in itertools.pairwise((0.0, *hazard)))
    if tuple(value["times"]) != agreement.target.times or len(hazard) != len(agreement.target.times) or not rising:
        raise ValueError("a baseline")
    return Baseline(agreement.target.times, hazard)


def check_predictions(model: Model, what: str) -> None:
    """Refuse a model that predicts numbers that are not finite, tried on rows that are plausible by its agreement.

    Args:
        what: What is not done with it, the beginning of a sentence.

    Raises:
        Diverged: It does.
    """
    if holds_finite(model.state):
        rows = probe_rows(model.agreement)
        with quietly():
            predictions = model(rows)
            model.uncertainty(rows[:1])  # what goes wrong there is noticed here, before the model is used
        if bool(finite_rows(predictions).all()):
            return
    raise Diverged(f"{what}: it predicts numbers that are not finite. Pool again without the site that spoils it.")


def _method_of(agreement: Agreement, facts: Facts, settings: dict[str, float | None]) -> Method:
    """How what is in a file predicts, with what was chosen after the study was signed."""
    method = agreement.build_method()
    if facts.method != agreement.method:
        method = METHODS[facts.method]()
    if not 0 < facts.temperature < math.inf:
        raise ValueError(f"a temperature of {facts.temperature}")
    fields = {field.name for field in dataclasses.fields(method)}  # type: ignore[arg-type]
    settings = {setting: value for setting, value in settings.items() if setting in fields}
    return dataclasses.replace(method, **settings)  # type: ignore[type-var]


def _settings(method: Method, state: Tree) -> dict[str, float | None]:
    """What was chosen about the method after the study was signed."""
    chosen = knob(method, state)
    if chosen is None or not hasattr(method, chosen.name):
        return {}
    return {chosen.name: getattr(method, chosen.name)}


def _number(value: Any) -> float | None:
    if value is None:
        return None
    return float(value)


def is_unnamed(agreement: Agreement, method: str) -> bool:
    """Say whether a model is a mixture of samples without names.

    Args:
        method: How what is in the file predicts.

    Returns:
        Whether nobody can tell whose sample is whose.
    """
    unnamed = without_names(agreement.build_method())
    return agreement.hand_out == "mixture" and unnamed is not None and name(unnamed) == method


def select_hand_out(agreement: Agreement, method: Method, state: Any) -> tuple[str, Method, Tree]:
    """Take from a pool what the study lets sites and users have.

    Returns:
        The name of how it predicts, that method, and the state to release.

    Raises:
        InputError: The method cannot be released as the study says.
    """
    if not keeps_posteriors(state) or agreement.hand_out == "student":
        return agreement.method, method, hand_out(method, state, ensemble=False)
    if agreement.hand_out == "ensemble":
        return agreement.method, method, hand_out(method, state, ensemble=True)
    unnamed = without_names(method)
    if unnamed is None:
        raise InputError(NEEDS_NAMES.format(method=agreement.method))
    mixture = unnamed_mixture(agreement, state.posterior, state.posteriors, state.weights)
    return name(unnamed), unnamed, mixture


def unnamed_mixture(
    agreement: Agreement, start: Posterior, posteriors: tuple[Posterior, ...], weights: Tensor
) -> Pooled:
    """Turn a mixture into samples in an order that tells nothing, each with its share of its site's weight.

    The order comes from the samples' own numbers and from nothing else: whose they are cannot be read off it.

    Args:
        start: What the round started from.
        posteriors: One for each site.

    Returns:
        The same mixture, as a state of the method `mixture`.
    """
    task = agreement.build_task()
    pairs = []
    for posterior, weight in zip(posteriors, weights, strict=True):
        draws = members(posterior, Key(0), task.draws, task.like)
        for draw in draws:
            sample = Samples({name: value.unsqueeze(0) for name, value in draw.items()})
            pairs.append((sample, float(weight) / len(draws)))
    pairs.sort(key=lambda pair: (_digest(pair[0]), pair[1]))
    samples = tuple(sample for sample, _ in pairs)
    shares = torch.tensor([share for _, share in pairs], dtype=torch.float64)
    return Pooled(start, samples, shares)


def _digest(sample: Samples) -> bytes:
    return hashlib.sha256(tree.ravel(sample.params).view(torch.uint8).numpy().data).digest()
