"""A tree in a file that can be handed over: safetensors, one sorted-JSON header, a checksum and a signature.

The checksum covers the header and every tensor's name, type, shape and bytes; the signature covers the checksum. What
does not add up is refused in one sentence, whatever the bytes are. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load, save
from torch import Tensor

from consilience.errors import InputError, refuse_damage
from consilience.serialisation.codec import decode, digest, encode
from consilience.study.protocol.signature import public, sign, verifies
from consilience.tree import Tree
from consilience.version import __version__

FORMAT = 1  # one more whenever older programs could misread a file
MOST_BYTES = 2**30  # a file larger than this is not read
KEY = "consilience"  # the one metadata key: several would come in random order


class Header(NamedTuple):
    """What a file is, before anything in it is used.

    Attributes:
        kind: "reply", "message", "model", "state", "statistics", "calibration", "thresholds", "sums" or "table".
        study: The agreement's hash.
        study_name: The study's name.
        sender: A site's name, or "server".
        round: Counted from 1.
        about: Plain facts, which differ by kind.
    """

    kind: str
    study: str
    study_name: str
    sender: str
    round: int = 1
    about: dict[str, Any] = {}  # noqa: RUF012 — never changed


class Envelope(NamedTuple):
    """An opened file whose checksum is right; who signed it is still to be checked.

    Attributes:
        path: Where the file was read.
        header: What the file says it is.
        tensors: The tensors inside, by name.
        outline: How the tensors make a tree, as JSON.
        checksum: SHA-256 of header and tensors.
        key: The public key that the file claims to be signed with.
        signature: The signature of the checksum.
        nbytes: The size of the file.
    """

    path: str
    header: Header
    tensors: dict[str, Tensor]
    outline: str
    checksum: str
    key: str
    signature: str
    nbytes: int

    def signed_by(self, key: str) -> bool:
        """Say whether the owner of a public key signed this file.

        Args:
            key: The public key, as text.

        Returns:
            True where the signature fits.
        """
        return verifies(key, self.header.kind, self.checksum.encode(), self.signature)

    def value(self, types: Mapping[str, type]) -> Tree:
        """Rebuild the tree inside.

        Args:
            types: The named tuples that may be built, by name.

        Raises:
            InputError: The file names another type, or its outline does not fit its tensors.
        """
        # a signer's own nonsense must not crash the reader
        with refuse_damage(f"{self.path} does not hold what a {self.header.kind} holds: ask for it again."):
            return decode(self.tensors, self.outline, types)


def seal(value: Tree, header: Header, key: Ed25519PrivateKey) -> bytes:
    """Write a tree and its header as one signed file; equal input gives equal bytes.

    Args:
        header: What the file is.
        key: The sender's private key.
    """
    tensors, outline = encode(value)
    head = {**header._asdict(), "format": FORMAT, "version": __version__, "outline": outline}
    checksum = digest(_to_json(head), tensors)
    outer = {
        "header": head,
        "checksum": checksum,
        "key": public(key),
        "signature": sign(key, header.kind, checksum.encode()),
    }
    return save(tensors, metadata={KEY: _to_json(outer)})


def open_envelope(path: Path, kind: str | None = None, most: int = MOST_BYTES) -> Envelope:
    """Open a file and check it against its checksum.

    Args:
        kind: The kind that is needed; None for any.
        most: The largest size in bytes that is read.

    Returns:
        The envelope; who signed it is still to be checked.

    Raises:
        InputError: The file is missing, too large or damaged, or of another format or kind.
    """
    raw = bytes_of(path, most)
    try:
        length = int.from_bytes(raw[:8], "little")
        outer = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][KEY])
        head = dict(outer["header"])
        tensors = dict(sorted(load(raw).items()))  # which come in another order every time
        intact = digest(_to_json(head), tensors) == outer["checksum"]
        format_ = head.pop("format")
        version = head.pop("version")
        outline = head.pop("outline")
        header = Header(**head)
        envelope = Envelope(
            str(path), header, tensors, outline, outer["checksum"], outer["key"], outer["signature"], len(raw)
        )
        well_typed = _is_well_typed(envelope)
    except Exception:  # any byte may be anything: whatever goes wrong here means the same
        raise InputError(f"{path} is damaged or was not written by consilience: ask for it again.") from None
    if format_ != FORMAT:
        raise InputError(
            f"{path} has format {format_} (consilience {version}) and this program reads {FORMAT} "
            f"({__version__}): use the same version at all sites."
        )
    if not intact or not well_typed:
        raise InputError(f"{path} is damaged, its checksum does not match its content: ask for it again.")
    if kind is not None and header.kind != kind:
        raise InputError(f"{path} is a {header.kind} file and a {kind} is needed here: give the right file.")
    return envelope


def bytes_of(path: Path, most: int) -> bytes:
    """Read a plain file; pipes and devices, which may never end, are refused.

    Args:
        most: The largest size in bytes that is read.

    Returns:
        Its content.

    Raises:
        InputError: The file is missing, too large, not a plain file or cannot be read.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} is not a plain file: it is not used.")
        if status.st_size > most:
            raise InputError(
                f"{path} has {status.st_size:,} bytes, more than the {most:,} that are read: it is not used."
            )
        with path.open("rb") as file:
            return file.read(status.st_size)
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error


def _is_well_typed(envelope: Envelope) -> bool:
    """Whether every field is of the type that its readers rely on."""
    header = envelope.header
    texts: tuple[Any, ...] = (header.kind, header.study, header.study_name, header.sender)
    texts += (envelope.outline, envelope.checksum, envelope.key, envelope.signature)
    return all(isinstance(text, str) for text in texts) and type(header.round) is int and isinstance(header.about, dict)


def _to_json(value: Any) -> str:
    """Equal values give equal text."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
