"""What a site remembers of its rows: a keyed hash of each, by which they are known whatever order they come in.

The hashes lie in a file of their own, which stays at the site. They are keyed by the site's private key, so that
nobody who finds the file alone can try out patients until one fits.
"""

from __future__ import annotations

import hmac
from collections import defaultdict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.data.sites import Data
from consilience.errors import InputError, refuse_damage
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Envelope, Header, open_envelope, seal
from consilience.study.protocol.signature import public
from consilience.study.rows import Parts, fingerprint, parts

KIND = "rows"  # of the file, in its header
BYTES = 16  # of a hash: two of a billion rows are alike by chance once in 10^20


class Recalled(NamedTuple):
    """A table's rows, held against what the site remembers.

    Attributes:
        rows: The rows by role. What was trained on is in `train` alone, in the order it was trained on; rows that are
            new are in `test`.
        known: Whether anything is remembered: without, roles are given by position.
        difference: How the table differs from the remembered one, the end of a sentence; empty where it does not.
        new: How many rows of the table are not remembered.
        missing: How many remembered rows the table lacks: new rows may be corrected copies of them.
        mixed: Whether roles are not known at all, as the table is another and older versions kept one hash for it.
    """

    rows: Parts
    known: bool = False
    difference: str = ""
    new: int = 0
    missing: int = 0
    mixed: bool = False


def marks_of(rows: Parts, key: Ed25519PrivateKey, agreement: Agreement) -> dict[str, Tensor]:
    """Hash every row with a key of its site.

    Args:
        rows: The rows by role.
        key: The site's private key, from which the key of the hashes is made.
        agreement: The study's agreement: the same row has other hashes in other studies.

    Returns:
        A hash for each row [N, 16], by role.
    """
    return {role: _marks(data, key, agreement) for role, data in rows._asdict().items()}


def _marks(data: Data, key: Ed25519PrivateKey, agreement: Agreement) -> Tensor:
    if not len(data.y):
        return torch.zeros(0, BYTES, dtype=torch.uint8)
    secret = hmac.digest(key.private_bytes_raw(), f"rows of {agreement.hash}".encode(), "sha256")
    features = data.x.contiguous().reshape(len(data.y), -1).numpy()
    targets = data.y.contiguous().reshape(len(data.y), -1).numpy()
    if agreement.patient:  # whose rows weigh less the more there are
        targets = torch.cat([data.y.double().reshape(len(data.y), -1), data.w.double().unsqueeze(1)], 1).numpy()
    digests = [
        hmac.digest(secret, x.tobytes() + y.tobytes(), "sha256")[:BYTES] for x, y in zip(features, targets, strict=True)
    ]
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8).reshape(-1, BYTES)


def recall(agreement: Agreement, number: int, key: Ed25519PrivateKey, memory: Path, data: Data) -> Recalled:
    """Give a table's rows their roles: those they had when the site was fitted, by their content.

    Args:
        number: The site's number, which gives the roles where nothing is remembered.
        key: The site's private key.
        memory: What the site kept, with the hashes beside it; need not exist, and may be another study's.
        data: All rows of the table.

    Returns:
        The rows by role, and how they differ from the remembered ones.

    Raises:
        InputError: The memory is damaged or not this site's, or too few rows are left to train on.
    """
    by_position = parts(agreement, number, data)
    marks = _read(marks_path(memory), KIND, agreement, key)
    if marks is not None:
        with refuse_damage(f"{marks.path} does not hold what `site fit` keeps: restore it from a copy."):
            known = {role: marks.tensors[f"tree.{role}"] for role in Parts._fields}
        return _match(known, _marks(data, key, agreement), data)
    older = _read(memory, "memory", agreement, key)
    if older is None:
        return Recalled(by_position)
    if older.header.about.get("rows") == fingerprint(by_position.train):
        return Recalled(by_position, known=True)
    return Recalled(
        by_position,
        known=True,
        difference="they differ in content or in order (an older version remembered no more than that)",
        mixed=True,
    )


def marks_path(memory: Path) -> Path:
    """Say where the hashes lie: beside the memory, NAME.rows."""
    return memory.with_suffix(".rows")


def _read(path: Path, kind: str, agreement: Agreement, key: Ed25519PrivateKey) -> Envelope | None:
    """What the site kept in this study; None where there is nothing, or another study's."""
    if not path.exists():
        return None
    envelope = open_envelope(path, kind)
    if envelope.header.study != agreement.hash:
        return None
    if not envelope.signed_by(public(key)):
        raise InputError(f"{path} is not used: it is not signed with this site's key.")
    return envelope


def _match(known: dict[str, Tensor], table: Tensor, data: Data) -> Recalled:
    """The rows of a table by the roles of equal rows; equal rows are as many as there were."""
    places: defaultdict[bytes, deque[int]] = defaultdict(deque)
    for place, mark in enumerate(_to_bytes(table)):
        places[mark].append(place)
    found: dict[str, list[int]] = {}
    missing = 0
    for role, marks in known.items():
        found[role] = [places[mark].popleft() for mark in _to_bytes(marks) if places[mark]]
        missing += len(marks) - len(found[role])
    new = sorted(place for rest in places.values() for place in rest)
    found["test"] = [*found["test"], *new]
    rows = Parts(*(_take(data, found[role]) for role in Parts._fields))
    return Recalled(rows, known=True, difference=_difference(len(new), missing), new=len(new), missing=missing)


def _to_bytes(marks: Tensor) -> list[bytes]:
    joined = marks.contiguous().numpy().tobytes()
    return [joined[start : start + BYTES] for start in range(0, len(joined), BYTES)]


def _take(data: Data, places: Sequence[int]) -> Data:
    chosen = torch.tensor(places, dtype=torch.int64)
    return Data(*(leaf[chosen] for leaf in data))


def _difference(new: int, missing: int) -> str:
    """How many rows are there that were not, and the other way round."""
    sentences = []
    if new:
        sentences.append(f"{new:,} of its rows are new or changed")
    if missing:
        sentences.append(f"{missing:,} of the rows of then are missing or changed")
    return " and ".join(sentences)


def check_same(recalled: Recalled, memory: Path) -> None:
    """Refuse another table than the one a site has answered with.

    Args:
        memory: The file that remembers the others.

    Raises:
        InputError: The tables differ.
    """
    if recalled.difference:
        raise InputError(
            f"The rows are not those that this site has answered with: {recalled.difference}. Two replies show where "
            "they differ, down to a single patient: use the table of then, or, if the reply was never handed over, "
            f"write over {memory} and the reply with --replace."
        )


def marks_file(agreement: Agreement, name: str, number: int, key: Ed25519PrivateKey, rows: Parts) -> bytes:
    """Write the file that remembers a site's rows.

    Args:
        rows: The rows by role.

    Returns:
        The file that stays.
    """
    header = Header(KIND, agreement.hash, agreement.name, name, 1, {"number": number})
    return seal(marks_of(rows, key, agreement), header, key)
