"""How a study begins: sites may find the scaling together, and each signs what was agreed."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.errors import InputError
from consilience.formats.envelope import Header, bytes_of, open_envelope, seal
from consilience.formats.settings import TYPES
from consilience.formats.signature import public, sign
from consilience.study.admission import admit
from consilience.study.agreement import Agreement, Study, signed_words
from consilience.study.columns import Column, Inspection, sums
from consilience.study.names import check_name


def join_text(agreement: Agreement, name: str, key: Ed25519PrivateKey) -> str:
    """What a site sends to take part: its name, its public key, and its signature of the agreement and the name."""
    check_name(name)
    fields = {
        "study": agreement.name,
        "hash": agreement.hash,
        "site": name,
        "key": public(key),
        "signature": sign(key, "agreement", signed_words(agreement.hash, name)),
    }
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def add_member(study: Study, path: Path) -> Study:
    """The study with the site that wrote this file."""
    try:
        value = json.loads(bytes_of(path, most=100_000))
        name, key, signature, of = (value[k] for k in ("site", "key", "signature", "hash"))
        texts = all(isinstance(t, str) for t in (name, key, signature, of))
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = False
    if not texts:
        raise InputError(f"{path} is not what `consilience site join` writes: ask the site for it again.")
    if of != study.agreement.hash:
        raise InputError(f"{path} was signed for another agreement ({of[:8]}) than this ({study.agreement.hash[:8]}).")
    return study.with_member(name, key, signature)


def draft_hash(agreement: Agreement) -> str:
    """The agreement's hash before its constants are known."""
    columns = tuple(dataclasses.replace(c, centre=0.0, spread=1.0) for c in agreement.columns)
    target = dataclasses.replace(agreement.target, centre=0.0, spread=1.0)
    return dataclasses.replace(agreement, columns=columns, target=target).hash


def with_scaling(agreement: Agreement, paths: Sequence[Path]) -> tuple[Agreement, tuple[str, ...]]:
    """The agreement with the constants that the sites' sums give, and the sites they came from."""
    if agreement.scaling != "sums":
        raise InputError('This study\'s constants are agreed in advance (scaling = "agreed"): nothing is to be found.')
    columns = (*agreement.columns, agreement.target.as_column())
    total = torch.zeros(len(columns), 3, dtype=torch.float64)
    names: list[str] = []
    for path in paths:
        envelope = open_envelope(path, "sums", most=10_000_000)
        name = envelope.header.sender
        if envelope.header.study != draft_hash(agreement):
            raise InputError(f"{path} belongs to another study ('{envelope.header.study_name}').")
        if not envelope.signed_by(envelope.key) or name in names:
            raise InputError(f"{path} is not signed by its sender, or a second file of '{name}': ask for it again.")
        check_name(name)
        value = envelope.value(TYPES)
        admit(value, total, str(path))
        total, names = total + value, [*names, name]
    made = [_constants(column, *row) for column, row in zip(columns, total.tolist(), strict=True)]
    target = dataclasses.replace(agreement.target, centre=made[-1].centre, spread=made[-1].spread)
    return dataclasses.replace(agreement, columns=tuple(made[:-1]), target=target), tuple(names)


def _constants(column: Column, count: float, first: float, second: float) -> Column:
    if column.type == "category" or count == 0:
        return column
    mean = first / count
    deviation = math.sqrt(max(second / count - mean**2, 0.0))
    return dataclasses.replace(column, centre=float(f"{mean:.6g}"), spread=float(f"{deviation:.6g}") or 1.0)


def sums_file(agreement: Agreement, name: str, found: Inspection, key: Ed25519PrivateKey) -> bytes:
    """A site's counts, sums and sums of squares, signed with its key."""
    check_name(name)
    value = sums(agreement.columns, agreement.target, found, agreement.smallest)
    return seal(value, Header("sums", draft_hash(agreement), agreement.name, name), key)
