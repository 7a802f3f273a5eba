"""What is let in to a study, and what is let out of a site, by the rules of one gate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.key import Stream
from consilience.messages import Reply
from consilience.method import Method
from consilience.method import name as name_of
from consilience.method.declared import doubt, fewest, implied, is_sum, narrowest, shows_inputs
from consilience.models.maps import longest_features
from consilience.privacy.disclosure.rules import SMALLEST_CELL, SUBTRACTION, by_rule
from consilience.serialisation.codec import encode
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import rehearsal_of
from consilience.study.validation.form import form_of
from consilience.study.validation.gate import (
    MOST_ROWS,
    Arrival,
    Gate,
    Refused,
    Rules,
    check_counts,
    check_finite,
    check_form,
    check_gaussians,
    check_kinds,
    check_numbers,
    check_precisions,
    check_pseudo_rows,
    check_size,
    check_weights,
    refuse_errors,
)
from consilience.study.validation.magnitudes import Bounds
from consilience.tree import Tree

T = TypeVar("T")
SHORTEST = 1e-6  # exposure that counts, of the longest agreed on


def group_answers(answers: Iterable[tuple[Arrival, str, T]]) -> list[tuple[Arrival, list[T]]]:
    """Put answers together that came in the same way; a forged one is thus never held against an honest one.

    Args:
        answers: For each, how it came, its hash, and whatever stands for it.

    Returns:
        For each way, the facts with the number of different answers, and these, copies counted once.
    """
    groups: dict[Arrival, dict[str, T]] = {}
    sizes: dict[Arrival, int] = {}
    for arrival, checksum, answer in answers:
        way = arrival._replace(nbytes=0)
        groups.setdefault(way, {}).setdefault(checksum, answer)
        sizes[way] = max(sizes.get(way, 0), arrival.nbytes)
    return [
        (way._replace(nbytes=sizes[way], answers=len(different)), list(different.values()))
        for way, different in groups.items()
    ]


def rules_of(agreement: Agreement, rows: int = 0) -> Rules:
    """Take the rules from what the sites agreed on.

    Args:
        rows: The most rows that a site committed to; 0 where it did not, or for all sites.
    """
    bounds = bounds_of(agreement)
    return Rules(agreement.smallest, agreement.leaves, agreement.most_bytes, rows or MOST_ROWS, bounds)


def bounds_of(agreement: Agreement) -> Bounds:
    """Find what an honest site's numbers cannot exceed, from the prior, the model and the ranges of the columns."""
    task = agreement.build_task()
    weights = task.weights(task.init(agreement.key.fold(Stream.INIT)).params)
    sizes = [_largest_features(column) for column in agreement.columns]
    target = agreement.target.as_column()
    largest_target = 0.0
    exposures = (1.0, 1.0)
    if not agreement.target.classes:
        largest_target = max(_scaled(target, value) for value in target.range)
    if agreement.target.exposure:
        low, high = agreement.target.exposure_range
        exposures = (max(low, SHORTEST * high), high)
    longest = math.hypot(*(size for column in sizes for size in column))
    feature_map = agreement.build_feature_map()
    if agreement.privacy is not None:
        longest = 1.0
    elif feature_map is not None:
        longest = longest_features(feature_map, longest)
    return Bounds(
        prior_var=agreement.prior_var,
        parameters=sum(leaf.numel() for leaf in weights.values()),
        start=float(tree.ravel(weights).double().norm()),
        shapes=tuple(tuple(leaf.shape) for leaf in weights.values()),
        reach=math.hypot(1.0, longest),
        widest=max(size for column in sizes for size in column),
        classes=len(agreement.target.classes),
        target=largest_target,
        noise=agreement.noise,
        narrowest=narrowest(agreement.build_method()),
        statistics=task.statistics,
        outcome=task.outcome,
        exposures=exposures,
    )


def _largest_features(column: Column) -> tuple[float, ...]:
    """The largest size of each feature that can be other than 0 in one row."""
    if column.type == "category":
        return (1.0,)
    sizes = [_scaled(column, value) for value in column.range]
    if not column.is_marked:
        return (max(sizes),)
    return (max(*sizes, _scaled(column, column.filling)), 1.0)


def _scaled(column: Column, value: float) -> float:
    """How large a number is as the network sees it."""
    return abs(value - column.centre) / column.spread


def gate_of(agreement: Agreement, message: Tree = None, round: int = 1, inputs: Tensor | None = None) -> Gate:
    """Make the gate for a round of a study.

    Args:
        message: What the sites answer to; None for the study's own message of this round.
        round: The round that is collected, from 1 on.
        inputs: The coordinator's own rows without labels, [N, D].
    """
    rehearsal = rehearsal_of(agreement, inputs)
    method = agreement.build_method()
    task = agreement.build_task()
    form = rehearsal.form(method, task, message, round)
    asked = ""
    if message is not None or begins_alone(agreement, round):
        asked = message_hash(agreement, message, round)
    gate = Gate(rules_of(agreement), form, round, asked)
    if message is None:
        return gate
    doubts, behind = partial(doubt, method, task, message), partial(implied, method, task, message)
    return gate.answering(message)._replace(doubt=doubts, implied=behind)


def begins_alone(agreement: Agreement, round: int) -> bool:
    """Say whether a round begins with what every site computes for itself.

    Args:
        round: The round, from 1 on.
    """
    return round == 1 and not shows_inputs(agreement.build_method())


def message_hash(agreement: Agreement, message: Tree, round: int) -> str:
    """Hash a message, so that a reply can say which one it answers.

    Args:
        message: What the coordinator sends.
        round: The round that answers it, from 1 on.

    Returns:
        The hash of its numbers and names; the agreement's, of which it follows, where sites begin by themselves.
    """
    if begins_alone(agreement, round):
        return agreement.hash
    tensors, outline = encode(message)
    digest = hashlib.sha256(f"{agreement.hash} {round} {outline}".encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


OWN = (check_kinds, check_size, check_counts, check_weights, check_precisions, check_pseudo_rows, check_numbers)


def may_leave(reply: Reply, method: Method, rules: Rules) -> None:
    """Refuse at a site what the server would refuse, and what tells about fewer rows than agreed.

    Args:
        reply: What the method would send.
        rules: What the site agreed to.

    Raises:
        InputError: Nothing leaves; the sentence says why and what to do.
    """
    gate = Gate(rules, None, 0)
    try:
        for check in OWN:
            check(reply, gate)
        least = int(fewest(method, reply))
        if 0 < least < rules.smallest:
            sentence = f"it sums over no more than {least} rows, and no count below {rules.smallest} may be shown."
            raise Refused(by_rule(SMALLEST_CELL, sentence))
    except Refused as error:
        remedy = "Agree on a smaller count or on another method."
        raise InputError(f"The reply of {name_of(method)} stays here: {error} {remedy}") from error


def pooling_rules(agreement: Agreement) -> list[str]:
    """Say by which rules replies are pooled, so that nobody's can be found by subtraction.

    Returns:
        Sentences.
    """
    fewest = agreement.fewest_sites
    if fewest == 1:
        return ["Any number of replies is pooled: with two sites, each can compute what the other sent."]
    rules = [f"Fewer than {fewest} replies are not pooled: with two sites, each could compute what the other sent."]
    if agreement.hand_out != "ensemble":
        rules.append(
            f"A model whose sites differ from an earlier model's by fewer than {fewest} is made only if the "
            "coordinator accepts what the two show together: old less new is what those sites sent."
        )
    return rules


def check_release(
    study: Study,
    replies: Collection[str],
    sites: Collection[str],
    accept: bool = False,
    refused: Sequence[str] = (),
) -> list[str]:
    """Refuse a model that shows by subtraction what single sites sent.

    Args:
        study: The study, with the models that were made before.
        replies: Who replied in this round.
        sites: Whose replies of any round are in the model.
        accept: Whether the coordinator accepts what the model and an earlier one show together.
        refused: A sentence for each reply that was left out.

    Returns:
        For the account, what was accepted.

    Raises:
        InputError: Too few sites replied, or the model differs from an earlier one by too few.
    """
    agreement = study.agreement
    fewest = agreement.fewest_sites
    agreement.disclosure.check_sites(len(replies), "replies", " ".join(refused) or "Wait for more replies.")
    if agreement.hand_out == "ensemble":  # by name, so that there is nothing left to subtract
        return []
    differences = {tuple(sorted({*model.sites} ^ {*sites})) for model in study.models}
    near = sorted({name for names in differences for name in names if len(names) < fewest})
    if not near:
        return []
    what = "which part of them came from"
    if is_sum(agreement.build_method()):
        what = "what was sent by"
    shown = f"whoever has this model and an earlier one can compute {what} {', '.join(near)}"
    if not accept:
        sentence = f"W{shown[1:]}: ask these sites and, if they agree, pool with accept_difference."
        raise InputError(by_rule(SUBTRACTION, sentence))
    return [f"Accepted by the coordinator: {shown}."]


def admit(value: Tree, expected: Tree, where: str) -> None:
    """Refuse a value that looks different from the one expected, or that is not sound.

    Args:
        expected: A value with the right names, types and shapes.
        where: Where the value is from, such as a file.

    Raises:
        InputError: The value is not used; the sentence says why.
    """
    gate = Gate(Rules(), form_of(expected), 0)
    try:
        with refuse_errors():
            for check in (check_form, check_finite, check_gaussians):
                check(Reply(value, torch.zeros(())), gate)
    except Refused as error:
        raise InputError(f"{where} is not used: {error}") from error
