"""How a study begins: each site signs what was agreed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.errors import InputError
from consilience.privacy.secure_aggregation.masks import derive_key, public_half
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import bytes_of
from consilience.study.protocol.members import Study, check_rows, signed_words
from consilience.study.protocol.names import check_name
from consilience.study.protocol.signature import public, sign


def join_text(agreement: Agreement, name: str, key: Ed25519PrivateKey, rows: int = 0) -> str:
    """Write what a site sends to take part: its name, rows and public key, and its signature of these.

    Args:
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
        path: What `consilience site join` wrote.

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
    """Write an agreement as it is before its constants are known."""
    columns = tuple(dataclasses.replace(c, centre=0.0, spread=1.0, quantiles=()) for c in agreement.columns)
    target = dataclasses.replace(agreement.target, centre=0.0, spread=1.0)
    return dataclasses.replace(agreement, columns=columns, target=target)


def draft_hash(agreement: Agreement) -> str:
    """Hash an agreement as it is before its constants are known."""
    return draft_of(agreement).hash
