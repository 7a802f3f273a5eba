"""A tree in a file that can be handed over: safetensors, one sorted-JSON header, a checksum and a signature.

The checksum covers the header and every tensor's name, type, shape and bytes; the signature covers the checksum. What
does not add up is refused in one sentence, whatever the bytes are. Nothing in a file is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load, save
from torch import Tensor

from consilience.errors import InputError
from consilience.formats.settings import decode, encode
from consilience.formats.signature import public, sign, verifies
from consilience.tree import Tree
from consilience.version import __version__

FORMAT = 1  # one more whenever older programs could misread a file
MOST_BYTES = 2**30  # a file larger than this is not read
KEY = "consilience"  # the one metadata key: several would come in random order


class Header(NamedTuple):
    """What a file is, before anything in it is used."""

    kind: str  # reply, message, model, state, statistics, sums
    study: str  # the agreement's hash
    study_name: str
    sender: str  # a site's name, or 'server'
    round: int = 1
    about: dict[str, Any] = {}  # noqa: RUF012 — plain facts, by kind; never changed


class Envelope(NamedTuple):
    """An opened file whose checksum is right; who signed it is still to be checked."""

    path: str
    header: Header
    tensors: dict[str, Tensor]
    outline: str
    checksum: str
    key: str  # the public key it claims
    signature: str
    nbytes: int

    def signed_by(self, key: str) -> bool:
        return verifies(key, self.header.kind, self.checksum.encode(), self.signature)

    def value(self, types: Mapping[str, type]) -> Tree:
        """The tree inside; types outside the allow-list are refused."""
        try:
            return decode(self.tensors, self.outline, types)
        except InputError:
            raise
        except Exception as error:  # a signer's own nonsense must not crash the reader
            raise InputError(f"{self.path} does not hold what a {self.header.kind} holds: ask for it again.") from error


def seal(value: Tree, header: Header, key: Ed25519PrivateKey) -> bytes:
    """A tree and its header as the bytes of one signed file; equal input gives equal bytes."""
    tensors, outline = encode(value)
    head = {**header._asdict(), "format": FORMAT, "version": __version__, "outline": outline}
    checksum = _checksum(head, tensors)
    outer = {
        "header": head,
        "checksum": checksum,
        "key": public(key),
        "signature": sign(key, header.kind, checksum.encode()),
    }
    return save(tensors, metadata={KEY: _sorted(outer)})


def open_envelope(path: Path, kind: str | None = None, most: int = MOST_BYTES) -> Envelope:
    """Read a file of one kind, or of any; damage, another format or another kind is refused by name."""
    raw = bytes_of(path, most)
    try:
        length = int.from_bytes(raw[:8], "little")
        outer = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][KEY])
        head = dict(outer["header"])
        format_, version = head.pop("format"), head.pop("version")
        outline, checksum = head["outline"], outer["checksum"]
        tensors = load(raw)
        whole = _checksum({**head, "format": format_, "version": version}, tensors) == checksum
        del head["outline"]
        header = Header(**head)
        texts = (header.kind, header.study, header.study_name, header.sender, outline, checksum, str(version))
        sound = all(isinstance(t, str) for t in (*texts, outer["key"], outer["signature"]))
        sound = sound and type(header.round) is int and isinstance(header.about, dict)
    except Exception:  # any byte may be anything: whatever goes wrong here means the same
        raise InputError(f"{path} is damaged or was not written by consilience: ask for it again.") from None
    if format_ != FORMAT:
        raise InputError(
            f"{path} has format {format_} (consilience {version}), this program reads {FORMAT} ({__version__}): "
            "use the same version at all sites."
        )
    if not whole or not sound:
        raise InputError(f"{path} is damaged: its checksum does not fit its content; ask for it again.")
    if kind is not None and header.kind != kind:
        raise InputError(f"{path} is a {header.kind} file and a {kind} is needed here: give the right file.")
    return Envelope(str(path), header, tensors, outline, checksum, outer["key"], outer["signature"], len(raw))


def bytes_of(path: Path, most: int) -> bytes:
    """What is in a plain file, if that is not too much; pipes and devices, which may never end, are refused."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is not a plain file: it is not used.")
        if found.st_size > most:
            raise InputError(
                f"{path} has {found.st_size:,} bytes, more than the {most:,} that are read: it is not used."
            )
        with path.open("rb") as file:
            return file.read(found.st_size)
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name.") from None
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error


def _checksum(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(_sorted(head).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
