"""The rounds of a generalised linear model whose sites have their own intercepts: what is asked, told and learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.glm.centres import (
    FIXED,
    Asked,
    Centred,
    Climb,
    Given,
    climb,
    doubt_own,
    first_point,
    given_of,
    learns_numbers,
    own_derivatives,
    own_point,
    plain_of,
    sum_tree,
)
from consilience.glm.centres_of_numbers import (
    TOLERANCE,
    Bent,
    Ratio,
    bent_sums,
    doubt_within,
    free_sums,
    given_numbers,
    seek,
)
from consilience.glm.derivatives import NOTHING, Search, pack, sum_up, unpack
from consilience.glm.linear_model import layer_of
from consilience.glm.own_fit import doubt_told, tell_first
from consilience.glm.posteriors import Weighing, differentiate_at, weigh_rows
from consilience.glm.sums import Sums
from consilience.messages import Client, Received, Reply
from consilience.task import Task

TYPES = (Asked, Centred, Bent, Climb, Ratio, Given)  # that messages, replies and states hold


def tell_asked(task: Task, message: Any, client: Client, centre: str | None, compare: bool) -> Reply:
    """Answer a message, at the site.

    Args:
        message: `Asked`; () in the first round, and once the search has ended.
        client: The site.
        centre: `fixed` or `random`.
        compare: Whether it says its own fit too.
    """
    data = client.data
    if isinstance(client.memory, tuple):
        return Reply(_tell_first(task, data, centre, compare), data.size, keep=data.size)
    sent: Any = NOTHING
    if isinstance(message, Asked) and not isinstance(message.plain, Point):
        sent = bent_sums(task, data, message.own)
    elif isinstance(message, Asked):
        plain = differentiate_at(task, data, pack(message.plain.params), True)
        sent = Centred(plain, own_derivatives(task, data, message.own, centre or FIXED))
    return Reply(sent, data.size, client.memory)


def _tell_first(task: Task, data: Data, centre: str | None, compare: bool) -> Any:
    sums = tell_first(task, data, compare)
    if not learns_numbers(task):
        return sums
    if centre == FIXED:
        return Centred(sums, free_sums(task, data))
    return Centred(sums, bent_sums(task, data))


def plain_replies(replies: Sequence[Received]) -> list[Received]:
    """Take what replies say of the model with one intercept for all."""
    return [reply._replace(payload=plain_of(reply.payload)) for reply in replies]


def learn_own(
    task: Task, centre: str | None, before: Any, found: Any, replies: Sequence[Received], tolerance: float
) -> dict[str, Any]:
    """Take a step of the search with an intercept for every site.

    Args:
        centre: `fixed` or `random`.
        before: The state before the round.
        found: What the round says of the model with one intercept for all.
        replies: What the sites sent.
        tolerance: Of the gradient relative to the first, where the search ends.

    Returns:
        Fields of the state after the round: `asked`, `climb` and `given`; `alone` where it changes.
    """
    first = replies[0].payload
    if learns_numbers(task):
        return _learn_numbers(task, centre, before, found, replies)
    if not isinstance(found.search, Search):
        return {"asked": (), "climb": before.climb, "given": before.given}
    plain = Point(unpack(found.search.next, layer_of(task)))
    if not isinstance(before.asked, Asked) or not isinstance(first, Centred):
        if isinstance(before.climb, Climb):  # it has ended
            return {"asked": (), "climb": before.climb, "given": before.given}
        return {"asked": Asked(plain, first_point(found.search.next, centre or FIXED))}
    totals = sum_up([reply.payload.own for reply in replies])
    stood = before.climb if isinstance(before.climb, Climb) else None
    own = climb(task, centre or FIXED, stood, totals, before.asked.own, found.search.first)
    asked: Any = Asked(plain, own.next)
    if max(own.distance, found.search.distance) <= tolerance:
        asked = ()
    return {"asked": asked, "climb": own, "given": given_of(task, centre or FIXED, own)}


def _learn_numbers(
    task: Task, centre: str | None, before: Any, found: Any, replies: Sequence[Received]
) -> dict[str, Any]:
    """One round of sums decides free intercepts; τ of random ones takes more."""
    first = replies[0].payload
    kept: dict[str, Any] = {"alone": found.alone, "climb": before.climb, "given": before.given}
    if isinstance(first, Centred):
        own = sum_tree([reply.payload.own for reply in replies])
        if centre == FIXED:
            return {"given": given_numbers(task, own, None)}
    elif isinstance(first, Bent):
        own = sum_tree([reply.payload for reply in replies])
    else:
        return kept
    ratio = seek(task, before.climb if isinstance(before.climb, Ratio) else None, own)
    asked: Any = ()
    if ratio.distance > TOLERANCE:
        asked = Asked((), ratio.next)
    return {**kept, "asked": asked, "climb": ratio, "given": given_numbers(task, own.sums, ratio.point)}


def weigh_asked(task: Task, data: Data, message: Asked) -> Weighing | None:
    """Say how much each row counts in what is told; None where all count alike."""
    if not isinstance(message.plain, Point):
        return None
    plain = weigh_rows(task, data, message.plain, True)
    own = weigh_rows(task, data, own_point(task, data, message.own), True)
    if plain is None or own is None:
        return None
    return Weighing(torch.cat([plain.products, own.products], 1), torch.cat([plain.lines, own.lines], 1))


def doubt_centred(send: Any) -> str | None:
    """Say why no rows can have sent this, a sentence about the reply as "it"; None where nothing is wrong."""
    if isinstance(send, Bent):
        return doubt_within(send)
    if not isinstance(send, Centred):
        return doubt_told(send)
    if isinstance(send.own, (Sums, Bent)):
        return doubt_told(send.plain) or doubt_within(send.own)
    return doubt_told(send.plain) or doubt_own(send.own)
