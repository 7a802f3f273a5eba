"""Ed25519 keys and signatures: who wrote a file, and that nobody changed it since."""

from __future__ import annotations

import base64
import binascii
import os
import shlex
import stat
import warnings
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consilience.disk.writing import PRIVATE, write_new
from consilience.errors import InputError

PREFIX = "ed25519:"
FIELD = 2**255 - 19
_EIGHTH = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7  # y of a point of order 8; the other is −y
SMALL_ORDER = {0, 1, FIELD - 1, _EIGHTH, FIELD - _EIGHTH}  # y of all points of order 1, 2, 4 and 8


def new_key(path: Path) -> Ed25519PrivateKey:
    """Make a private key and keep it in a file that only its owner may read.

    Args:
        path: The file; one that exists is never written over.

    Raises:
        InputError: The file exists or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_new(path, text, PRIVATE, "it may be the only copy of a key, choose another name")
    return key


def read_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key.

    Args:
        path: The file that `new_key` wrote.

    Raises:
        InputError: The file is missing, empty or not such a key.

    Warns:
        UserWarning: Others on this machine can read the file.
    """
    try:
        content = path.read_bytes()
        if not content:
            raise InputError(
                f"{path} is empty, as a full disk may have left it: restore it from a copy; if it never held a key, "
                "delete it and run the command again."
            )
        _warn_readable(path)
        key = serialization.load_pem_private_key(content, password=None)
    except FileNotFoundError:
        raise InputError(f"There is no key file '{path}': give the path of the private key.") from None
    except InputError:
        raise
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not a private key of consilience: give the path of the private key.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} holds a key of another kind than Ed25519: make one with `consilience site join`.")
    return key


def _warn_readable(path: Path) -> None:
    """Warn of a key that is not its owner's alone."""
    if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        warnings.warn(
            f"Others on this machine can read the private key {path}: run `chmod 600 {shlex.quote(str(path))}`.",
            stacklevel=3,
        )


def public(key: Ed25519PrivateKey) -> str:
    """Write the public half of a key as text, to stand in a study.

    Returns:
        The prefix "ed25519:" and 32 bytes in base 64.
    """
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return PREFIX + base64.b64encode(raw).decode()


def sign(key: Ed25519PrivateKey, purpose: str, message: bytes) -> str:
    """Sign a message for a purpose; the purpose is signed too, so that no signature can serve for another.

    Args:
        key: The signer's private key.
        purpose: What the signature is for, such as "reply".

    Returns:
        The signature in base 64.
    """
    return base64.b64encode(key.sign(_bind(purpose, message))).decode()


def verifies(key: str, purpose: str, message: bytes, signature: str) -> bool:
    """Say whether the owner of a public key signed this message for this purpose.

    Args:
        key: The public key, as `public` writes it.
        purpose: What the signature is for.
        signature: What `sign` returned.

    Returns:
        True where the signature fits; False also where key or signature are not readable, or the key is weak.
    """
    if is_weak(key):
        return False
    try:
        raw = base64.b64decode(key.removeprefix(PREFIX), validate=True)
        signer = Ed25519PublicKey.from_public_bytes(raw)
        signer.verify(base64.b64decode(signature, validate=True), _bind(purpose, message))
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return key.startswith(PREFIX)


def is_weak(key: str) -> bool:
    """Say whether anybody can sign for a public key: a point of small order, under which signatures fit any message.

    Args:
        key: The public key, as `public` writes it.

    Returns:
        True for the eight points whose order divides 8, however they are encoded; False for what is no key.
    """
    try:
        raw = base64.b64decode(key.removeprefix(PREFIX), validate=True)
    except (ValueError, binascii.Error):
        return False
    y = int.from_bytes(raw, "little") % 2**255  # without the sign of x
    return len(raw) == 32 and y % FIELD in SMALL_ORDER


def _bind(purpose: str, message: bytes) -> bytes:
    return f"consilience {purpose}\n".encode() + message
