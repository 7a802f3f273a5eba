"""A first draft of an agreement, and whether what it says about itself is true."""

from __future__ import annotations

import dataclasses
import math

from consilience.errors import InputError, unknown_name
from consilience.method import usual_rounds
from consilience.methods import METHODS
from consilience.study.agreement import Agreement
from consilience.study.columns import Column, Target
from consilience.study.rehearsal import would_leave

EXAMPLE = (  # to be filled in by people
    Target("disease", ("no", "yes")),
    (
        Column("age", "number", "years", (18.0, 110.0), 60.0, 15.0),
        Column("cholesterol", "number", "mg/dl", (80.0, 700.0), 220.0, 50.0, missing="mark", fill=200.0),
        Column("sex", "category", levels=("f", "m")),
    ),
)
# pools that need to know whose is whose
BY_SITE = ("beta", "bcm", "evidence", "evidence_tuned", "oneshot", "fedkt", "fedbe")


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
) -> Agreement:
    """An agreement with sensible defaults; what leaves a site and its size are found by a rehearsal."""
    linear = model in (None, "linear") and bool(target.classes)  # else a full Gaussian is too large, or has no noise
    chosen = method or (Agreement.method if linear else "mixture")
    if chosen not in METHODS:
        raise unknown_name("method", chosen, METHODS)
    draft = Agreement(
        name,
        server,
        target,
        columns,
        model=model or Agreement.model,
        method=chosen,
        settings=(*(Agreement.settings if chosen == Agreement.method and linear else ()), *settings),
        rounds=rounds or usual_rounds(METHODS[chosen]),
        seed=seed,
        scaling=scaling,
        hand_out=hand_out or ("ensemble" if chosen in BY_SITE else "mixture"),
    )
    draft.check()
    kinds, largest = would_leave(draft)
    most = math.ceil(1.2 * (largest + 10_000) / 10_000) * 10_000
    return dataclasses.replace(draft, leaves=kinds, most_bytes=most)


def consistent(agreement: Agreement) -> None:
    """Refuse an agreement that does not say what its method would really send."""
    kinds, largest = would_leave(agreement)
    if set(kinds) - set(agreement.leaves):
        listed = ", ".join(f'"{kind}"' for kind in kinds)
        raise InputError(
            f"The study lets {', '.join(agreement.leaves) or 'nothing'} leave a site, but {agreement.method} sends "
            f"{', '.join(kinds)}: write leaves = [{listed}], or choose another method."
        )
    if agreement.hand_out == "mixture" and agreement.method in BY_SITE and agreement.method != "beta":
        raise InputError(
            f"{agreement.method} pools by site, so it cannot be handed out as a mixture without names: write "
            'hand_out = "ensemble", or "student" with a distilling method.'
        )
    if largest > agreement.most_bytes:
        raise InputError(
            f"A reply has about {largest:,} bytes and the study allows {agreement.most_bytes:,}: write a larger "
            "most_bytes, or choose a smaller model."
        )
