"""How a study begins: sites may find the scaling together, and each signs what was agreed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.errors import InputError
from consilience.privacy.disclosure.rules import FEWEST_SITES, by_rule
from consilience.privacy.secure_aggregation.masks import derive_key, public_half
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Header, bytes_of, open_envelope, seal
from consilience.serialisation.signature import public, sign
from consilience.study.admission import admit
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column, Inspection, sums
from consilience.study.protocol.members import Sender, Study, check_rows, signed_words
from consilience.study.protocol.names import check_name
from consilience.study.spending import Door, Leaving, agreed_rows
from consilience.study.validation.gate import Rules


def join_text(agreement: Agreement, name: str, key: Ed25519PrivateKey, rows: int = 0) -> str:
    """Write what a site sends to take part: its name, rows and public key, and its signature of these.

    Args:
        agreement: The study's agreement.
        name: The site's name.
        key: Its private key.
        rows: The number of rows it commits to: no reply of it may speak for more.

    Returns:
        The file's text, JSON.

    Raises:
        InputError: The name cannot be a site's, or the number of rows is missing.
    """
    check_name(name)
    check_rows(agreement, name, rows)
    masks = ""
    if agreement.secure:
        masks = public_half(derive_key(key, agreement.hash))
    fields: dict[str, str | int] = {
        "study": agreement.name,
        "hash": agreement.hash,
        "site": name,
        "key": public(key),
        "signature": sign(key, "agreement", signed_words(agreement, name, rows, masks)),
    }
    if masks:
        fields["masks"] = masks
    fields["rows"] = rows
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def add_member(study: Study, path: Path) -> Study:
    """Let the site that wrote a file take part.

    Args:
        study: The study.
        path: What `consilience site join` wrote.

    Returns:
        The study with that site.

    Raises:
        InputError: The file is not such a file, or is signed for another agreement.
    """
    (name, key, signature, signed_hash, masks), rows = _read_join(path)
    own_hash = study.agreement.hash
    if signed_hash != own_hash:
        raise InputError(f"{path} was signed for another agreement ({signed_hash[:8]}) than this ({own_hash[:8]}).")
    return study.with_member(name, key, signature, rows, masks)


def _read_join(path: Path) -> tuple[list[str], int]:
    """Name, key, signature, hash and key for masks in a file of `consilience site join`, and the rows."""
    content = bytes_of(path, most=100_000)
    try:
        value = json.loads(content)
        texts = [value[name] for name in ("site", "key", "signature", "hash")] + [value.get("masks", "")]
        rows = value.get("rows", 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = [None]
        rows = 0
    if not all(isinstance(text, str) for text in texts) or type(rows) is not int or rows < 0:
        raise InputError(f"{path} is not what `consilience site join` writes: ask the site for it again.")
    return texts, rows


def draft_of(agreement: Agreement) -> Agreement:
    """Write an agreement as it is before its constants are known.

    Args:
        agreement: The study's agreement.
    """
    columns = tuple(dataclasses.replace(c, centre=0.0, spread=1.0) for c in agreement.columns)
    target = dataclasses.replace(agreement.target, centre=0.0, spread=1.0)
    return dataclasses.replace(agreement, columns=columns, target=target)


def draft_hash(agreement: Agreement) -> str:
    """Hash an agreement as it is before its constants are known.

    Args:
        agreement: The study's agreement.
    """
    return draft_of(agreement).hash


def with_scaling(agreement: Agreement, paths: Sequence[Path]) -> tuple[Agreement, tuple[Sender, ...]]:
    """Find the constants that columns are scaled by from the sites' sums.

    Args:
        agreement: The study's agreement.
        paths: What `consilience site sums` wrote at the sites.

    Returns:
        The agreement with the constants, and the sites they came from.

    Raises:
        InputError: The constants are agreed in advance, a file cannot be used, or there are too few.
    """
    if agreement.scaling != "sums":
        raise InputError(
            'This study\'s constants are agreed in advance (scaling = "agreed"): nothing has to be computed.'
        )
    columns = (*agreement.columns, agreement.target.as_scaled())
    total = torch.zeros(len(columns), 3, dtype=torch.float64)
    senders: list[Sender] = []
    for path in paths:
        envelope = open_envelope(path, "sums", most=10_000_000)
        name = envelope.header.sender
        if envelope.header.study != draft_hash(agreement):
            raise InputError(f"{path} belongs to another study ('{envelope.header.study_name}').")
        again = any(name.casefold() == other.name.casefold() or envelope.key == other.key for other in senders)
        if not envelope.signed_by(envelope.key) or again:
            raise InputError(f"{path} is not signed by its sender, or a second file of '{name}': ask for it again.")
        check_name(name)
        value = envelope.value(TYPES)
        admit(value, total, str(path))
        check_sums(columns, value, agreement.smallest, str(path))
        total = total + value
        senders.append(Sender(name, envelope.key))
    if len(senders) < agreement.fewest_sites:
        sentence = (
            f"Sums of {len(senders)} sites are here and the study asks for {agreement.fewest_sites} or more: with two, "
            "each could compute the other's."
        )
        raise InputError(by_rule(FEWEST_SITES, sentence))
    return scale_by(agreement, total), tuple(senders)


def scale_by(agreement: Agreement, total: Tensor) -> Agreement:
    """Write the constants into an agreement.

    Args:
        agreement: The study's agreement.
        total: Count, sum and sum of squares of each column and the target over all sites, [columns, 3].

    Returns:
        The agreement with the constants.
    """
    columns = (*agreement.columns, agreement.target.as_scaled())
    *scaled, last = (_scale(column, *row) for column, row in zip(columns, total.tolist(), strict=True))
    target = dataclasses.replace(agreement.target, centre=last.centre, spread=last.spread)
    scaling = dataclasses.replace(agreement, columns=tuple(scaled), target=target)
    scaling.check()
    return scaling


def check_sums(columns: Sequence[Column], sums: Tensor, smallest: int, where: str) -> None:
    """Refuse sums that no table of the agreed columns can have.

    Args:
        columns: The agreed columns and the target.
        sums: Count, sum and sum of squares of each, [columns, 3].
        smallest: The fewest values that are summed up.
        where: Where they are from, such as a file.

    Raises:
        InputError: They cannot be sums of such columns; the sentence names the first.
    """
    for column, (count, first, second) in zip(columns, sums.tolist(), strict=True):
        if not _is_possible(column, count, first, second, smallest):
            raise InputError(
                f"{where} is not used: {count:g} values of '{column.name}' within {column.range[0]:g} to "
                f"{column.range[1]:g} cannot have the sum {first:g} and the sum of squares {second:g}."
            )
    whole = [int(row[0]) for row, column in zip(sums, columns, strict=True) if column.missing == "refuse" and row[0]]
    if whole and (len({*whole}) > 1 or float(sums[:, 0].max()) > whole[0]):
        raise InputError(f"{where} is not used: its columns do not have the same number of rows.")


def _is_possible(column: Column, count: float, first: float, second: float, smallest: int) -> bool:
    """Whether so many numbers within the column's range can have such a sum and sum of squares."""
    if count == 0 or column.type == "category":
        return count == first == second == 0
    low, high = column.range
    largest = max(abs(low), abs(high), 1.0)
    rounding = 1e-9 * count * largest
    return (
        count.is_integer()
        and smallest <= count <= Rules().largest_site
        and count * low - rounding <= first <= count * high + rounding
        and first * first / count <= second * (1 + 1e-9)
        and second <= (low + high) * first - count * low * high + rounding * largest  # Σ (v − low) (high − v) ≥ 0
    )


def _scale(column: Column, count: float, first: float, second: float) -> Column:
    if column.type == "category" or count == 0:
        return column
    mean = first / count
    deviation = math.sqrt(max(second / count - mean**2, 0.0))
    return dataclasses.replace(column, centre=float(f"{mean:.6g}"), spread=float(f"{deviation:.6g}") or 1.0)


def sums_file(agreement: Agreement, name: str, inspection: Inspection, key: Ed25519PrivateKey, door: Door) -> bytes:
    """Write a site's counts, sums and sums of squares.

    Args:
        agreement: The study's agreement.
        name: The site's name.
        inspection: Its table.
        key: Its private key.
        door: Where the file leaves from, past the site's ledger.

    Returns:
        The signed file.

    Raises:
        InputError: The name cannot be a site's, or the table does not fit the agreement.
    """
    content = _sums_file(agreement, name, inspection, key)
    return door.let_out(agreement, key, Leaving("scaling sums", agreed_rows(agreement, inspection, key)), content)


def _sums_file(agreement: Agreement, name: str, inspection: Inspection, key: Ed25519PrivateKey) -> bytes:
    """The file of `sums_file`, which nothing charges."""
    check_name(name)
    value = sums(agreement.columns, agreement.target, inspection, agreement.smallest)
    return seal(value, Header("sums", draft_hash(agreement), agreement.name, name), key)
