"""A site's rows: read by the agreement, given their roles, and guarded before anything is fitted to them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.glm.event_sums import weigh_at_risk
from consilience.key import Key, Stream
from consilience.method.declared import sums_by_class, weighs
from consilience.methods.claims import privacy_statement
from consilience.privacy.disclosure.guard import Finding, Summed, guard
from consilience.privacy.disclosure.rules import RARE_VALUES, SMALLEST_CELL, by_rule
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Inspection, inspect, labelled_rows, spans


class Parts(NamedTuple):
    """A site's rows by their role; the same at every call, as they depend on the seed and the rows alone.

    Attributes:
        train: Rows to train on.
        choose: Rows to choose β, λ and temperature by.
        test: Rows that only score.
        calibrate: Rows to calibrate prediction sets by.
    """

    train: Data
    choose: Data
    test: Data
    calibrate: Data


class Training(NamedTuple):
    """Rows that a reply may be made from.

    Attributes:
        data: The rows, rare values merged.
        notes: A sentence for each value that was merged and each combination that was left out; they stay here.
        merged: The values that were merged or left out, by column: what a reply says of it, without counts.
    """

    data: Data
    notes: tuple[str, ...]
    merged: Mapping[str, tuple[str, ...]] = {}


def rows_of(agreement: Agreement, path: Path, one_class: bool = False) -> tuple[Data, Inspection]:
    """Read a site's table.

    Args:
        path: The table, a CSV file.
        one_class: Whether all rows may be of one class.

    Returns:
        The rows, and what was found in the table.

    Raises:
        InputError: The table does not fit the agreement, has too few rows, or a single class.
    """
    inspection = inspect(path, agreement.columns, agreement.target, clip=is_promised(agreement)).sound()
    agreement.disclosure.check_rows(inspection.rows, path.name)
    present = [label for label, count in inspection.classes.items() if count]
    if len(present) == 1 and not one_class:
        raise InputError(
            f"'{agreement.target.name}' is '{present[0]}' in every row of {path.name}: check the column, or "
            "say that it is so with one_class=True (--one-class)."
        )
    data = labelled_rows(agreement.columns, agreement.target, inspection)
    if agreement.patient:
        data = data._replace(w=patient_weights(agreement.patient, inspection))
    return data, inspection


def patient_weights(column: str, inspection: Inspection) -> Tensor:
    """Let every patient count as one row does: the m rows of one count 1/m each.

    A row's part in a release is no longer than 1, so that a patient's, the mean of m such, is not either.

    Args:
        column: The column that says whose a row is.

    Returns:
        Weights of the rows [N].

    Raises:
        InputError: The table has no such column, or a row that is nobody's.
    """
    if column not in inspection.cells:
        raise InputError(f"{inspection.path} has no column '{column}', which says whose a row is: add it.")
    owners = [cell.text.strip() for cell in inspection.cells[column]]
    if not all(owners):
        raise InputError(f"Column '{column}' of {inspection.path} is empty in row {owners.index('') + 1}: fill it in.")
    counts = Counter(owners)
    return torch.tensor([1 / counts[owner] for owner in owners])


def parts(agreement: Agreement, number: int, data: Data) -> Parts:
    """Give rows their roles, each by its content and the study's seed: what other rows there are changes none.

    Two replies from tables that differ in one row then differ by that row alone, which every promise counts on.
    Studies that were signed before roles were agreed on, and that promise nothing, keep theirs.

    Args:
        number: The site's number in the study.
        data: All rows of the site.

    Returns:
        The rows by role.

    Raises:
        InputError: Too few rows are left to train on.
    """
    if agreement.roles == "content" or is_promised(agreement):
        return _check_left(agreement, _by_content(agreement, data))
    return _check_left(agreement, _by_place(agreement, agreement.key.fold(Stream.ROLES).fold(number), data))


def is_promised(agreement: Agreement) -> bool:
    """Say whether a study promises differential privacy, of what is sent or of training."""
    return agreement.privacy is not None or privacy_statement(agreement.build_method()) is not None


def _by_place(agreement: Agreement, key: Key, data: Data) -> Parts:
    """Roles by rank in the table, within each class, or among rows with and without an event."""
    roles = torch.zeros(len(data.y), dtype=torch.int64)
    groups = agreement.target.groups(data.y)
    for label in sorted(set(groups.tolist())):
        rows = (groups == label).nonzero().flatten()
        order = rows[key.fold(label).permutation(len(rows))]
        choose = round(agreement.choose * len(rows))
        test = round(agreement.test * len(rows))
        roles[order[:choose]] = 1
        roles[order[choose : choose + test]] = 2
        calibrate = round(agreement.calibrate * len(rows))
        roles[order[choose + test : choose + test + calibrate]] = 3
    return _with_roles(data, roles)


def _with_roles(data: Data, roles: Tensor) -> Parts:
    return Parts(*(Data(*(leaf[roles == role] for leaf in data)) for role in range(4)))


def draw_by_content(agreement: Agreement, data: Data, purpose: str = "") -> Tensor:
    """Draw a number for each row that the row has by itself: one row more or less changes no other's.

    Args:
        purpose: What the numbers are for; others have others.

    Returns:
        Numbers in [0, 1), in float64 [N]. The second of two equal rows has another than the first, and so on: one copy
        more gets a number of its own, and all others keep theirs.
    """
    seed = f"{agreement.name} {agreement.seed}{purpose}".encode()
    copies: Counter[bytes] = Counter()
    places = []
    for x, y in zip(data.x, data.y, strict=True):
        text = seed + x.numpy().tobytes() + y.numpy().tobytes()
        copy = copies[text]
        copies[text] += 1
        if copy:
            text += copy.to_bytes(8)
        places.append(int.from_bytes(hashlib.sha256(text).digest()[:6]) / 2**48)
    return torch.tensor(places, dtype=torch.float64)


def _by_content(agreement: Agreement, data: Data) -> Parts:
    """Roles that a row has by itself."""
    place = draw_by_content(agreement, data).float()  # as studies were signed with
    aside = agreement.choose + agreement.test
    roles = (place < aside).long() + (place < agreement.test).long()
    roles[(place >= aside) & (place < aside + agreement.calibrate)] = 3
    return _with_roles(data, roles)


def _check_left(agreement: Agreement, by_role: Parts) -> Parts:
    """Refuse too few rows to train on."""
    if len(by_role.train.y) < agreement.smallest:
        sentence = (
            f"{len(by_role.train.y)} rows are left to train on; the study asks for at least {agreement.smallest}."
        )
        raise InputError(by_rule(SMALLEST_CELL, sentence))
    return by_role


def training_rows(agreement: Agreement, data: Data) -> Training:
    """Keep single patients out of what is sent: the one guard before every fit, by files and over Flower.

    Where the method promises differential privacy, rows stay as they are: what becomes of a rare value depends on other
    rows, so that one row more could change many, and the promise counts on one row changing nothing but itself.

    Args:
        data: The site's rows to train on.

    Returns:
        The rows that may be fitted.

    Raises:
        InputError: The study refuses rare values and there are some, or too few rows are left for the model.
    """
    if is_promised(agreement):
        agreement.disclosure.check_parameters(len(data.y), agreement.parameters)
        return Training(data, ())  # merging looks at other rows, which one row must not change; noise hides rare values
    recode = agreement.rare != "other"
    guarded = guard(data.x, spans(agreement.columns), agreement.smallest, summed(agreement, data), recode)
    findings = guarded.findings
    if findings and agreement.rare == "refuse":
        raise InputError(by_rule(RARE_VALUES, _refusal(findings)))
    notes = [str(finding) for finding in findings]
    rows = guarded.rows
    left = Data(guarded.x[rows], data.y[rows], data.w[rows])
    agreement.disclosure.check_parameters(len(left.y), agreement.parameters)
    if len(left.y) < len(data.y):
        notes.append(f"Of {len(data.y):,} rows to train on, {len(left.y):,} are used.")
    classes = {label: int((left.y == code).sum()) for code, label in enumerate(agreement.target.classes)}
    check_events(agreement, left)
    merged: dict[str, tuple[str, ...]] = {}
    for finding in findings:
        merged[finding.column] = tuple(dict.fromkeys((*merged.get(finding.column, ()), finding.level)))
    return Training(left, (*notes, *agreement.disclosure.check_outcomes(classes)), merged)


def summed(agreement: Agreement, data: Data) -> Summed:
    """Say what of a site's rows may be added up, which decides which rows a sum could show.

    Where features are summed by class, or times a number, the outcome is one more column. A class of fewer rows than
    the smallest count has a rule of its own, so that it is no column.

    Args:
        data: The site's rows to train on.

    Returns:
        What is added up beside the columns.
    """
    apart = None
    if sums_by_class(agreement.build_method(), agreement.build_task()):
        apart = data.y
    weighing = weighs(agreement.build_method(), agreement.build_task(), (), data)
    weights = None
    if agreement.target.kind == "survival":
        weights, _ = weigh_at_risk(data.x, data, None)  # whoever is censored before any event counts nowhere
    elif weighing is not None and weighing[0].shape[1]:
        weights = weighing[0].amax(1)
    outcome = _outcome_columns(agreement, data.y)
    return Summed(agreement.build_feature_map(), outcome, agreement.target.name, apart, weights)


def _outcome_columns(agreement: Agreement, y: Tensor) -> Tensor:
    """The outcome as features are summed with it [N, M]: a number, a count by its exposure, indicators of classes."""
    match agreement.target.kind:
        case "regression":
            return y.reshape(len(y), -1)
        case "counts":
            pair = y.reshape(len(y), -1)
            return pair[:, :1] / pair[:, 1:].prod(1, keepdim=True)
        case "classification":
            counts = y.bincount(minlength=len(agreement.target.classes))
            large = [code for code in counts.argsort(descending=True).tolist() if counts[code] >= agreement.smallest]
            rest = len(y) - int(counts[large].sum())
            if 0 < rest < agreement.smallest:
                large = large[:-1]  # so that the rest are enough
            return (y.unsqueeze(1) == torch.tensor(large, dtype=y.dtype)).float()
        case _:
            return torch.zeros(len(y), 0)


def check_events(agreement: Agreement, data: Data) -> None:
    """Refuse counts and times with few events: sums over these few rows would be what is sent.

    Args:
        data: The rows to train on.

    Raises:
        InputError: Fewer rows have an event, or a count above 0, than the smallest count.
    """
    if not agreement.target.counts_events:
        return
    seen = data.y.reshape(len(data.y), -1)[:, 0]
    what = f"a count of '{agreement.target.name}' above 0"
    if agreement.target.event:
        seen = data.y[:, 1]
        what = f"the event '{agreement.target.event}'"
    agreement.disclosure.check_events(int((seen > 0).sum()), what)


def _refusal(findings: Sequence[Finding]) -> str:
    """The sentence for rare values that a study refuses."""
    first, *others = findings
    more = ""
    if others:
        more = f" Also: {'. '.join(finding.what for finding in others)}."
    return f'{first.what}, and a reply would show them: recode them in the table, or agree on rare = "other".{more}'


def fingerprint(data: Data) -> str:
    """Hash rows, so that those trained on are never taken for rows held out; the hash stays at the site."""
    digest = hashlib.sha256()
    for leaf in data:
        digest.update(leaf.contiguous().numpy().tobytes())
    return digest.hexdigest()
