"""What a reply says of the rows behind it: the rare values that were merged, without counts, and how many events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from consilience.biostatistics.fitted import Fitted
from consilience.data.sites import Data
from consilience.methods.claims import privacy_statement
from consilience.privacy.disclosure.guard import MISSING, UNLIKE
from consilience.privacy.disclosure.small_cells import withhold
from consilience.study.protocol.agreement import Agreement
from consilience.study.spread import spread_of

MASKED = "Replies were summed under masks, so that it is not known which rare values sites merged."


class Said(NamedTuple):
    """What one site says.

    Attributes:
        merged: The values that it merged or left out, by column; under an empty name, that combinations of columns
            were left out.
        events: Rows of each class, those without and with an event, or how many events were counted; None where they
            are withheld.
        spread: The variance that its own fit leaves; None where it does not say.
    """

    merged: Mapping[str, tuple[str, ...]]
    events: tuple[int | None, ...] = ()
    spread: float | None = None


def tells(agreement: Agreement) -> bool:
    """Say whether replies of a study say it: where it was agreed on, and nothing is masked or under noise."""
    if agreement.rare != "other" or agreement.secure:
        return False
    return agreement.privacy is None and privacy_statement(agreement.build_method()) is None


def tell_rows(agreement: Agreement, data: Data, merged: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Write what goes with a reply.

    Args:
        data: The rows behind it.
        merged: The values that were merged or left out, by column.

    Returns:
        Plain values; none in a study whose replies say nothing of it.
    """
    if not tells(agreement):
        return {}
    y = data.y
    counts: list[int] = []
    target = agreement.target
    if target.classes:
        counts = y.bincount(minlength=len(target.classes)).tolist()
    elif target.event:
        seen = int((y[:, 1] > 0).sum())
        counts = [len(y) - seen, seen]
    elif target.counts_events:
        counted = y.reshape(len(y), -1)[:, 0].double()
        if int((counted > 0).sum()) < agreement.smallest:  # few rows whose counts it would tell
            counts = []
        else:
            counts = [round(float(counted.sum()))]
    named = {column: list(values) for column, values in merged.items()}
    told: dict[str, Any] = {"merged": named, "events": withhold(counts, agreement.smallest)}
    spread = spread_of(agreement, data)
    if spread is not None:
        told["spread"] = spread
    return told


def read_told(agreement: Agreement, about: Mapping[str, Any]) -> Said:
    """Read what came with a reply; what no site of the study can say is left out.

    Args:
        about: What a stranger wrote.
    """
    said = about.get("merged")
    merged: dict[str, tuple[str, ...]] = {}
    if tells(agreement) and isinstance(said, dict):
        known = {column.name: (*column.levels, MISSING, "known", UNLIKE) for column in agreement.columns}
        for column, values in {**known, "": ("",)}.items():
            own = said.get(column)
            if isinstance(own, list):
                merged[column] = tuple(value for value in own if isinstance(value, str) and value in values)
    spread = about.get("spread")
    if not tells(agreement) or not isinstance(spread, float) or not 0 < spread < math.inf:
        spread = None
    events = about.get("events")
    wanted = len(agreement.target.classes) or 2 * bool(agreement.target.event) or int(agreement.target.counts_events)
    if not tells(agreement) or not isinstance(events, list) or len(events) != wanted:
        return Said({column: values for column, values in merged.items() if values}, (), spread)
    counts = [count if type(count) is int and count >= 0 else None for count in events]
    return Said({column: values for column, values in merged.items() if values}, tuple(counts), spread)


def fitted_of(agreement: Agreement, rows: int, told: Sequence[Said], sites: int) -> Fitted:
    """Say what a study's model was fitted on.

    Args:
        rows: How many rows there are; 0 where a site withholds its number.

    Returns:
        Rows, events and sites, and what was merged at how many of them.
    """
    merged = {}
    for column in dict.fromkeys(column for site in told for column in site.merged):
        own = [site.merged[column] for site in told if column in site.merged]
        merged[column] = (tuple(dict.fromkeys(value for values in own for value in values)), len(own))
    events: dict[str, int] = {}
    counts = [count for site in told for count in site.events]
    if len(told) == sites and counts and None not in counts and all(site.events for site in told):
        sums = [sum(count or 0 for count in column) for column in zip(*(site.events for site in told), strict=True)]
        events = {"events": sums[-1]}
        if agreement.target.classes:
            events = dict(zip(agreement.target.classes, sums, strict=True))
    more: tuple[str, ...] = ()
    if agreement.secure:
        more = (MASKED,)
    share = agreement.test + agreement.choose + agreement.calibrate
    return Fitted(rows, sites, events, {}, share, merged, more)
