"""The way of a reply under masks: reply → summands → whole numbers → masks, and at the coordinator sum → total → pool.

What the coordinator can check of one masked reply is its form, sender, signature, round and size. The total is held
against the same bounds as a single reply would be, for as many rows. Nobody can check what one site's numbers were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.aggregation.summands import Counted, Summation
from consilience.errors import InputError
from consilience.messages import Received, Reply
from consilience.method import Method
from consilience.method.declared import summation
from consilience.privacy.secure_aggregation.masks import KEY, Masked, add_up
from consilience.serialisation.codec import TYPES
from consilience.study.masking import MESSAGE, REPLY, MaskBook, check_left, list_roster, purpose_of
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Envelope, Header, seal
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.rehearsal import INVENTED, Rehearsal, rehearsal_of
from consilience.study.protocol.secure import Drop
from consilience.study.validation.form import FREE, Form, Leaf, form_of
from consilience.study.validation.gate import (
    MOST_ROWS,
    Gate,
    Refused,
    Rules,
    check_counts,
    check_finite,
    check_form,
    check_gaussians,
    check_method,
    check_numbers,
    check_precisions,
    check_size,
    check_weights,
    refuse_errors,
)
from consilience.study.validation.rules import bounds_of
from consilience.study.validation.steps import Scales, scales_of
from consilience.task import Task
from consilience.tree import Tree

TOTAL = (
    check_finite,
    check_gaussians,
    check_size,
    check_counts,
    check_weights,
    check_precisions,
    check_numbers,
    check_method,
)


class Summed(NamedTuple):
    """A sum of masked numbers.

    Attributes:
        total: What the sites' numbers add up to.
        sites: The numbers of the sites in it.
        refused: The numbers of the others that sent something, each with a sentence that says why it is not in it.
    """

    total: Tree
    sites: tuple[int, ...]
    refused: dict[int, str]


def summation_of(method: Method) -> Summation:
    """Find how a method's replies add up.

    Args:
        method: The method, with these settings.

    Raises:
        InputError: It is no sum.
    """
    how = summation(method)
    if how is None:
        raise InputError(f"{type(method).__name__} with these settings needs single replies: they cannot be summed.")
    return how


def scales_for(agreement: Agreement, members: Sequence[Member], summands: Tree) -> Scales:
    """Choose the fixed-point steps of a study's sums, the same at every site and at the coordinator.

    Args:
        members: The sites that add up.
        summands: Of a site, real or invented: kinds and shapes decide, numbers do not.
    """
    rows = max(site.rows for site in members) or MOST_ROWS
    return scales_of(summands, bounds_of(agreement), rows, len(members))


def mask_reply(book: MaskBook, round: int, content: str, reply: Reply, what: str = REPLY) -> Reply:
    """Turn a reply into what leaves a site of a study that masks.

    Args:
        round: Counted from 1.
        content: A hash of what decides the reply.
        reply: What the method would send.

    Returns:
        The masked reply; its number of rows is among what is masked.

    Raises:
        InputError: A number does not fit, or the site has answered in another way.
    """
    study = book.study
    summands = summation_of(study.agreement.build_method()).split(reply.send, reply.size)
    values = scales_for(study.agreement, list_roster(study), summands).to_multiples(summands)
    return Reply(book.mask(round, what, content, values), torch.zeros(()), reply.keep)


def mask_table(book: MaskBook, what: str, content: str, table: Tree, rows: int) -> Masked:
    """Turn any table of sums over a site's rows into what leaves it under masks; outside the rounds.

    Args:
        what: What is summed: a name that no other table of the study has.
        content: A hash of what decides the table.
        table: A tree of numbers.
        rows: How many rows stand behind it, which is masked as well.

    Raises:
        InputError: A number does not fit, or the site has masked another table under this name.
    """
    summands = Counted(torch.tensor(float(rows), dtype=torch.float64), table)
    values = scales_for(book.study.agreement, list_roster(book.study), summands).to_multiples(summands)
    return book.mask(1, what, content, values)


class TableSum(NamedTuple):
    """The sum of the sites' masked tables.

    Attributes:
        table: The sum.
        rows: How many rows stand behind it.
        names: The sites in it.
        refused: A sentence for each file that is left out.
    """

    table: Tree
    rows: int
    names: tuple[str, ...]
    refused: tuple[str, ...]


def add_tables(
    study: Study, envelopes: Sequence[Envelope], told: Sequence[Envelope], like: Tree, what: str
) -> TableSum:
    """Add masked tables up, at the coordinator.

    Args:
        envelopes: The sites' files, which came as they should: a dict with `masked` each.
        told: What sites told of the masks shared with missing ones.
        like: A table of the same form.

    Returns:
        The sum.

    Raises:
        InputError: The files cannot be summed.
    """
    summands = Counted(torch.zeros((), dtype=torch.float64), like)
    gate = masked_gate(Gate(Rules(), None, 1), scales_for(study.agreement, study.sites, summands).count)
    masked: dict[int, Masked] = {}
    refused = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                value = envelope.value(TYPES)["masked"]
                check_form(Reply(value, torch.zeros(())), gate)
        except Refused as error:
            refused.append(f"{envelope.path} is not used: {error}")
            continue
        masked[study.member(envelope.header.sender).number] = value
    scales = partial(scales_for, study.agreement, summands=summands)
    try:
        summed = add_masked(study, masked, told, scales, 1, what)
    except InputError as error:
        raise InputError(f"{error} {' '.join(refused)}".strip()) from error
    refused += [f"The file of {_member(study, k).name} is not used: {why}" for k, why in summed.refused.items()]
    names = tuple(_member(study, number).name for number in summed.sites)
    return TableSum(summed.total.value, round(float(summed.total.rows)), names, tuple(refused))


def masked_bytes(agreement: Agreement) -> int:
    """Count the bytes of the largest masked reply's numbers."""
    method = agreement.build_method()
    counts = []
    for t in range(1, min(agreement.rounds, 2) + 1):
        reply = rehearsal_of(agreement).reply(method, agreement.build_task(), None, t, INVENTED)
        summands = summation_of(method).split(reply.send, reply.size)
        counts.append(scales_of(summands, None, 1, 1).count)
    return 8 * max(counts)


def invent_reply(rehearsal: Rehearsal, method: Method, task: Task, message: Tree, round: int) -> Reply:
    """Let an invented site answer, for the form of its summands.

    Args:
        message: What the sites answer.
        round: Counted from 1.

    Raises:
        InputError: Invented rows do not do.
    """
    for count, _ in rehearsal.ROWS:
        try:
            return rehearsal.reply(method, task, message, round, count)
        except (RuntimeError, ValueError, TypeError, AssertionError, IndexError):
            continue
    raise InputError("What the sites' masked numbers stand for cannot be found out: choose another method.")


def masked_gate(gate: Gate, count: int) -> Gate:
    """Make the gate for masked replies: of their numbers, only how many there are can be checked.

    Args:
        gate: The gate for replies in the open.
        count: How many numbers are masked.
    """
    nothing = Masked(torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), torch.zeros(1))
    leaves = {"values": Leaf("int64", (count,)), "sites": Leaf("int64", (FREE,)), "roster": Leaf("uint8", (KEY,))}
    rules = gate.rules._replace(leaves=(Masked.__name__,), bounds=None)
    return gate._replace(rules=rules, form=Form(form_of(nothing).outline, leaves), doubt=None, implied=None)


def add_masked(
    study: Study,
    masked: Mapping[int, Masked],
    told: Sequence[Envelope],
    scales: Callable[[Sequence[Member]], Scales],
    round: int,
    what: str,
) -> Summed:
    """Add masked numbers up.

    Args:
        masked: What sites sent, by number.
        told: What they told of the masks shared with missing sites.
        scales: Chooses the steps for the sites that mask with each other.
        round: Counted from 1.

    Returns:
        The total.

    Raises:
        InputError: A site is missing whose masks nobody revealed, too few are left, or the masks do not cancel.
    """
    dropped = {name for drop in study.drops if (drop.round, drop.what) == (round, what) for name in drop.sites}
    late = [number for number in masked if _member(study, number).name in dropped]
    refused = dict.fromkeys(late, "the sum has gone on without it, and the others have revealed its masks.")
    rosters: dict[tuple[int, ...], list[int]] = {}
    for number in masked.keys() - {*late}:
        rosters.setdefault((*masked[number].sites.tolist(), *masked[number].roster.tolist()), []).append(number)
    if not rosters:
        raise InputError("No masked file can be used: wait for the sites'.")
    largest: list[int] = max(rosters.values(), key=len)
    here = sorted(largest)
    others = masked.keys() - {*late, *here}
    refused |= dict.fromkeys(others, "it is masked for other sites than the others' files: use one study file.")
    first = masked[here[0]]
    members = list_roster(study, {*first.sites.tolist()})
    purpose = purpose_of(study, members, round, what)
    if bytes(first.roster.tolist()).hex() != purpose.roster or not {*here} <= {*first.sites.tolist()}:
        raise InputError("The files are masked for other sites or keys than this study lists: use its current file.")
    _check_present(study, members, here, dropped, round)
    gone = [site.number for site in members if site.number not in here]
    keys = {}
    for number in here:
        for other, key in _told_by(study, told, number, gone, purpose.roster, what).items():
            keys[number, other] = key
    multiples = add_up({number: masked[number].values for number in here}, keys)
    return Summed(scales(members).to_total(multiples, len(here)), tuple(here), refused)


def _member(study: Study, number: int) -> Member:
    return next(site for site in study.sites if site.number == number)


def _check_present(study: Study, members: Sequence[Member], here: Sequence[int], dropped: set[str], round: int) -> None:
    """Refuse a sum that lacks sites, unless it goes on without them."""
    missing = [site.name for site in members if site.number not in here and site.name not in dropped]
    gone = [site.name for site in members if site.left and site.name in missing]
    if gone:
        raise InputError(
            f"The files are masked for {', '.join(gone)} too, who left the study, and masks vanish only from the sum "
            "of all: a sum without needs a new study, or the next round."
        )
    if missing:
        raise InputError(
            f"Nothing of {', '.join(missing)} is here, and masks vanish only from the sum of all: wait for it; or, if "
            f"it sent nothing, go on without by `consilience study drop STUDY {' '.join(missing)}` (round {round})."
        )
    fewest = study.agreement.fewest_sites
    if len(here) < fewest:
        raise InputError(f"{len(here)} sites are in the sum, and the study sums over no fewer than {fewest}.")


def _told_by(
    study: Study, told: Sequence[Envelope], number: int, gone: Sequence[int], roster: str, what: str
) -> dict[int, bytes]:
    """The keys that a site shares with those that are missing."""
    if not gone:
        return {}
    name = _member(study, number).name
    for envelope in told:
        about = envelope.header.about
        if envelope.header.sender == name and (about.get("what"), about.get("roster")) == (what, roster):
            keys = envelope.value(TYPES)["keys"]
            found = {other: keys.get(str(other)) for other in gone}
            if all(
                isinstance(key, Tensor) and key.shape == (KEY,) and key.dtype == torch.uint8 for key in found.values()
            ):
                return {other: bytes(key.tolist()) for other, key in found.items()}
    names = ", ".join(_member(study, other).name for other in gone)
    raise InputError(f"{name} has not revealed its masks with {names}: let it run `consilience site unmask`.")


def join_total(
    study: Study, gate: Gate, method: Method, total: Tree, sites: Sequence[int], like: Tree
) -> tuple[list[Received], int]:
    """Turn a total into what the method pools, and hold it against the study's bounds.

    Args:
        gate: The gate for replies in the open.
        total: The sum of the sites' summands.
        sites: The numbers of the sites in it.
        like: What a site sends, for its types.

    Returns:
        Replies for `aggregate`, and how many rows stand behind them.

    Raises:
        InputError: No honest sites' replies have such a sum.
    """
    replies = summation_of(method).join(total, len(sites), like)
    rows = round(sum(float(reply.size) for reply in replies))
    most = sum(_member(study, number).rows or MOST_ROWS for number in sites)
    gate = gate._replace(rules=gate.rules._replace(largest_site=most), form=None)
    try:
        for check in TOTAL:
            check(Reply(replies[0].payload, torch.tensor(float(rows), dtype=torch.float64)), gate)
    except Refused as error:
        raise InputError(
            f"The sum of all replies is not used: {error} One of the sites sent something else than it should, and "
            "masks hide which."
        ) from error
    return replies, rows


def drop_sites(
    study: Study, names: Sequence[str], key: Ed25519PrivateKey, round: int, what: str = REPLY
) -> tuple[Study, bytes]:
    """Go on without sites whose file does not come; what they send for this sum later is refused.

    Args:
        round: Counted from 1.

    Returns:
        The study that says so, to be written first, and the request to the other sites.

    Raises:
        InputError: The sum went on without others already, or too few sites would be left.
    """
    agreement = study.agreement
    if not agreement.secure:
        raise InputError("This study does not mask: pool the replies that are there.")
    numbers = sorted({study.member(name).number for name in names})
    drop = Drop(round, what, tuple(_member(study, number).name for number in numbers))
    before = [other for other in study.drops if (other.round, other.what) == (round, what)]
    if before and before != [drop]:
        raise InputError(
            f"The sum of round {round} goes on without {', '.join(before[0].sites)}: leaving others out as well would "
            "show by subtraction what they sent. Make a new study."
        )
    pooled = [name for name in drop.sites if any(name in model.sites for model in study.models)]
    if pooled and what in (REPLY, MESSAGE) and agreement.rounds == 1:
        raise InputError(
            f"A model with {', '.join(pooled)} has been pooled, so it has answered: the sum without it would show by "
            "subtraction what it sent."
        )
    check_left(agreement, len(study.active) - len(numbers))
    header = Header("drop", agreement.hash, agreement.name, "server", round, {"what": what, "sites": numbers})
    request = seal({"sites": torch.tensor(numbers)}, header, key)
    if before:
        return study, request
    return replace(study, drops=(*study.drops, drop)), request
