"""Masks that hide every site's numbers and vanish from their sum.

Sites i < j derive a secret from their X25519 keys. For each thing that is summed, HKDF makes a key of that secret, the
study's hash, the list of sites, the round and what is summed; ChaCha20 stretches the key to as many whole numbers mod
2⁶⁴ as there are. Site i adds that stream and site j subtracts it. What a site sends is then uniform, whatever it hides,
and all sites' add up to the sum of what they hide. Where a site is missing, the others tell their keys with it for this
one sum, and its streams are taken out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy
import torch
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from consilience.errors import InputError

PREFIX = "x25519:"
KEY = 32  # bytes of a key
NONCE = bytes(16)  # every key serves for one stream, so that all can begin at the same place
WORD = 8  # bytes of one number


class Masked(NamedTuple):
    """Numbers in fixed point under masks; of the sum over all sites the masks vanish.

    Attributes:
        values: int64 [N].
        sites: The numbers of the sites that mask with each other [K].
        roster: The hash of these sites and of their keys, uint8 [32].
    """

    values: Tensor
    sites: Tensor
    roster: Tensor


class Purpose(NamedTuple):
    """What a mask is for; no two have a mask in common.

    Attributes:
        study: The agreement's hash.
        roster: A hash of the sites that mask, and of their keys.
        round: Counted from 1.
        what: What is summed, as `reply`.
    """

    study: str
    roster: str
    round: int
    what: str

    @property
    def context(self) -> bytes:
        """All of it as bytes; different purposes never give the same."""
        parts = (b"consilience mask", *(str(part).encode() for part in self))
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def derive_key(key: Ed25519PrivateKey, study: str) -> X25519PrivateKey:
    """Make a site's key for masks out of the key it signs with: another one in every study, and nothing more to keep.

    Args:
        key: The site's private key.

    Returns:
        The private key for masks.
    """
    seed = key.private_bytes(serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption())
    return X25519PrivateKey.from_private_bytes(_stretch(seed, study.encode(), b"consilience key for masks"))


def public_half(key: X25519PrivateKey) -> str:
    """Write the public half of a key for masks as text, to stand in a study.

    Returns:
        The prefix "x25519:" and 32 bytes in base 64.
    """
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return PREFIX + base64.b64encode(raw).decode()


def is_usable(text: str) -> bool:
    """Say whether a text is a public key with which a secret can be shared.

    Args:
        text: As `public_half` writes it.

    Returns:
        False also for the points of small order, whose secrets everybody knows.
    """
    try:
        X25519PrivateKey.generate().exchange(_read_public(text))
    except (ValueError, binascii.Error):
        return False
    return True


def hash_roster(members: Iterable[tuple[int, str, str, str]]) -> str:
    """Hash who masks with whom.

    Args:
        members: Number, name, public key and public key for masks of every site.

    Returns:
        SHA-256, in hexadecimal digits; the same in whichever order sites are given.
    """
    hashed = hashlib.sha256()
    for member in sorted(members):
        for part in member:
            raw = str(part).encode()
            hashed.update(len(raw).to_bytes(4, "big") + raw)
    return hashed.hexdigest()


def shared_key(own: X25519PrivateKey, other: str, purpose: Purpose) -> bytes:
    """Derive the key of the stream that two sites share for one purpose.

    Args:
        own: One site's private key for masks.
        other: The other's public one.
        purpose: What the stream is for.

    Returns:
        32 bytes, the same at both; they tell nothing of the stream for another purpose.

    Raises:
        InputError: The other key cannot be used.
    """
    try:
        secret = own.exchange(_read_public(other))
    except (ValueError, binascii.Error) as error:
        raise InputError(f"{other[:20]}… is not a key for masks: let that site join anew.") from error
    return _stretch(secret, bytes.fromhex(purpose.study), purpose.context)


def stream(key: bytes, count: int) -> Tensor:
    """Stretch a key to whole numbers.

    Args:
        key: 32 bytes, for this stream alone.

    Returns:
        Numbers that nobody without the key can tell from uniform ones mod 2⁶⁴, int64 [count].
    """
    encryptor = Cipher(algorithms.ChaCha20(key, NONCE), mode=None).encryptor()
    words = numpy.frombuffer(encryptor.update(bytes(WORD * count)), dtype="<u8")
    return torch.from_numpy(words.astype(numpy.uint64).view(numpy.int64))


def mask(values: Tensor, own: int, keys: Mapping[int, bytes]) -> Tensor:
    """Hide a site's numbers.

    Args:
        values: Whole numbers, int64 [N].
        keys: The keys it shares with every other site for this purpose, by number.

    Returns:
        The numbers with all masks on them, mod 2⁶⁴, int64 [N].

    Example:
        >>> import torch
        >>> from consilience.privacy.secure_aggregation.masks import add_up, mask
        >>> secret = bytes(32)
        >>> first, second = torch.tensor([1, 2]), torch.tensor([3, 4])
        >>> masked = {1: mask(first, 1, {2: secret}), 2: mask(second, 2, {1: secret})}
        >>> masked[1].equal(first), add_up(masked).tolist()
        (False, [4, 6])
    """
    total = _words(values).copy()
    for other, key in keys.items():
        _add(total, key, own < other)
    return torch.from_numpy(total.view(numpy.int64))


def add_up(masked: Mapping[int, Tensor], lost: Mapping[tuple[int, int], bytes] | None = None) -> Tensor:
    """Add masked numbers up; the masks vanish.

    Args:
        masked: What the sites sent, by number; each int64 [N].
        lost: The keys that these sites share with those that sent nothing, by the number of the one and of the other.

    Returns:
        The sum of what was hidden, mod 2⁶⁴, int64 [N].
    """
    first = next(iter(masked.values()))
    total = numpy.zeros(len(first), dtype=numpy.uint64)
    for values in masked.values():
        total += _words(values)
    for (here, gone), key in (lost or {}).items():
        _add(total, key, not here < gone)  # what `here` had added is subtracted, and the other way round
    return torch.from_numpy(total.view(numpy.int64))


def _words(values: Tensor) -> numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint64]]:
    words: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint64]] = values.contiguous().numpy().view(numpy.uint64)
    return words


def _add(total: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.uint64]], key: bytes, plus: bool) -> None:
    """Add a stream, or subtract it, in place; numpy's unsigned numbers wrap around as they should."""
    words = _words(stream(key, len(total)))
    if plus:
        total += words
    else:
        total -= words


def _read_public(text: str) -> X25519PublicKey:
    if not text.startswith(PREFIX):
        raise ValueError(text)
    return X25519PublicKey.from_public_bytes(base64.b64decode(text.removeprefix(PREFIX), validate=True))


def _stretch(secret: bytes, salt: bytes, info: bytes) -> bytes:
    return HKDF(algorithm=hashes.SHA256(), length=KEY, salt=salt, info=info).derive(secret)
