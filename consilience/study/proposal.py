"""A first draft of an agreement, and whether what it says about itself is true."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from consilience.errors import InputError, unknown_name
from consilience.method import Method, usual_rounds
from consilience.method.declared import in_studies, knows_sites, on_linear, without_names
from consilience.methods import METHODS
from consilience.methods.advice import Situation, advise
from consilience.methods.situation import KINDS
from consilience.serialisation.settings import configure
from consilience.study.model import NEEDS_NAMES
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.rehearsal import would_leave
from consilience.study.protocol.target import Target
from consilience.study.summing import masked_bytes

EXAMPLE = (  # to be filled in by people
    Target("disease", ("no", "yes")),
    (
        Column("age", "number", "years", (18.0, 110.0), 60.0, 15.0),
        Column("cholesterol", "number", "mg/dl", (80.0, 700.0), 220.0, 50.0, missing="mark", fill=200.0),
        Column("sex", "category", levels=("f", "m")),
    ),
)


def proposal(
    name: str,
    server: str,
    target: Target,
    columns: tuple[Column, ...],
    method: str | None = None,
    model: str | None = None,
    settings: tuple[str, ...] = (),
    rounds: int | None = None,
    seed: int = 0,
    scaling: str = "agreed",
    hand_out: str | None = None,
    features: str | None = None,
    secure: bool = False,
    privacy: Mapping[str, Any] | None = None,
    effects: bool = False,
) -> Agreement:
    """Draft an agreement with sensible defaults; what leaves a site and its size are found by a rehearsal.

    Args:
        server: The coordinator's public key.
        columns: What it is predicted from.
        method: How the sites learn together; by a rule if None.
        model: The network; linear if None.
        settings: Changes of the method's settings, as `field=value`.
        rounds: How many; as is usual for the method if None.
        scaling: `agreed` constants, or `sums` from a first exchange.
        hand_out: What sites get back; by a rule if None.
        features: The feature map between the columns and the network; none if None.
        secure: Whether replies are added up under masks.
        privacy: The fields of [privacy]; no promise if None.
        effects: Whether effects are asked for: every row is fitted on then, and the rules choose a method for them.

    Raises:
        InputError: The method or model is unknown, or cannot serve such a study.
    """
    has_modes = bool(target.classes) or target.counts_events
    if method is None:
        advice = advise(_situation(model, target, secure, bool(privacy), effects))
        method = advice.method
        settings = (*advice.settings, *settings)
    elif method not in METHODS:
        raise unknown_name("method", method, METHODS)
    elif has_modes and model in (None, Agreement.model):
        settings = (*on_linear(METHODS[method]), *settings)
    draft = Agreement(
        name,
        server,
        target,
        columns,
        model=model or Agreement.model,
        method=method,
        settings=settings,
        rounds=rounds or usual_rounds(configure(METHODS[method](), settings), private=bool(privacy)),
        seed=seed,
        scaling=scaling,
        hand_out=hand_out or usual_hand_out(METHODS[method]),
        features=features or Agreement.features,
        secure=secure,
        roles="content",
        **(privacy or {}),
    )
    plain = draft.model == Agreement.model and draft.features == Agreement.features
    if plain and not privacy and not target.event:  # where times are predicted, sites have baselines of their own
        usual = in_studies(METHODS[method], settings)
        draft = dataclasses.replace(draft, settings=(*settings, *usual))
    if effects:
        draft = dataclasses.replace(draft, test=0.0, choose=0.0)
    if target.event:
        draft = dataclasses.replace(draft, choose=0.0)  # curves are not tempered: nothing is chosen by rows held out
    draft.check()
    kinds, largest = would_leave(draft)
    if secure:
        largest = masked_bytes(draft)
    most = math.ceil(1.2 * (largest + 10_000) / 10_000) * 10_000
    return dataclasses.replace(draft, leaves=kinds, most_bytes=most)


def _situation(model: str | None, target: Target, secure: bool, private: bool, effects: bool) -> Situation:
    """What is known where a study's method is to be chosen: nobody has seen a row yet."""
    network = "linear"
    if model not in (None, Agreement.model):
        network = "other"
    kind = KINDS.get(target.kind, target.kind)
    return Situation(kind=kind, place="study", network=network, secure=secure, private=private, effects=effects)


def usual_hand_out(method: type[Method]) -> str:
    """Say what sites get back unless asked otherwise.

    Returns:
        `ensemble` where the pool must know whose posterior is whose, else `mixture`.
    """
    if knows_sites(method):
        return "ensemble"
    return "mixture"


def consistent(agreement: Agreement) -> None:
    """Refuse an agreement that does not say what its method would really send.

    Raises:
        InputError: Its method sends other or larger values than it lets out, or cannot be released as it says.
    """
    kinds, largest = would_leave(agreement)
    if agreement.secure:
        largest = masked_bytes(agreement)
    if set(kinds) - set(agreement.leaves):
        listed = ", ".join(f'"{kind}"' for kind in kinds)
        raise InputError(
            f"The study lets {', '.join(agreement.leaves) or 'nothing'} leave a site, but {agreement.method} sends "
            f"{', '.join(kinds)}: write leaves = [{listed}], or choose another method."
        )
    method = agreement.build_method()
    if agreement.hand_out == "mixture" and knows_sites(method) and without_names(method) is None:
        raise InputError(NEEDS_NAMES.format(method=agreement.method))
    if largest > agreement.most_bytes:
        raise InputError(
            f"A reply has about {largest:,} bytes and the study allows {agreement.most_bytes:,}: write a larger "
            "most_bytes, or choose a smaller model."
        )
