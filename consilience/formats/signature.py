"""Ed25519 keys and signatures: who wrote a file, and that nobody changed it since."""

from __future__ import annotations

import base64
import binascii
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from consilience.errors import InputError

PREFIX = "ed25519:"


def new_key(path: Path) -> Ed25519PrivateKey:
    """A fresh private key in a file that only its owner may read; an existing file is never written over."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_new(path, text, 0o600, "it may be the only copy of a key, choose another name")
    return key


def write_new(path: Path, content: bytes, mode: int, caution: str) -> None:
    """A file with these rights from the start; what exists is left as it is, and the caution given."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise InputError(f"{path} already exists: {caution}.") from None
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error


def read_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise InputError(f"There is no key file '{path}': say where it is with --key.") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is not a private key of consilience: say which file is with --key.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} holds a key of another kind than Ed25519: make one with `consilience site join`.")
    return key


def public(key: Ed25519PrivateKey) -> str:
    """The public half as text, to be written in a study."""
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return PREFIX + base64.b64encode(raw).decode()


def sign(key: Ed25519PrivateKey, purpose: str, message: bytes) -> str:
    """A signature as text; the purpose is signed too, so that none can serve for another."""
    return base64.b64encode(key.sign(_bound(purpose, message))).decode()


def verifies(key: str, purpose: str, message: bytes, signature: str) -> bool:
    """Whether the owner of a public key signed this message for this purpose."""
    try:
        raw = base64.b64decode(key.removeprefix(PREFIX), validate=True)
        own = Ed25519PublicKey.from_public_bytes(raw)
        own.verify(base64.b64decode(signature, validate=True), _bound(purpose, message))
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return key.startswith(PREFIX)


def _bound(purpose: str, message: bytes) -> bytes:
    return f"consilience {purpose}\n".encode() + message
