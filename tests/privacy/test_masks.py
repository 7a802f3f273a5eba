"""Masks: they vanish from the sum of all, and hide everything else."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy import stats
from torch import Tensor

from consilience.errors import InputError
from consilience.privacy.secure_aggregation.masks import (
    PREFIX,
    Purpose,
    add_up,
    derive_key,
    hash_roster,
    is_usable,
    mask,
    public_half,
    shared_key,
    stream,
)

PURPOSE = Purpose("ab" * 32, "cd" * 32, 1, "reply")
SITES = 4
COUNT = 4096  # numbers: 32,768 bytes, 128 in each of 256 cells

ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"


def private(number: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)


def keys_of(number: int, purpose: Purpose = PURPOSE) -> dict[int, bytes]:
    others = [k for k in range(SITES) if k != number]
    return {k: shared_key(private(number), public_half(private(k)), purpose) for k in others}


def plain(number: int) -> Tensor:
    """Small numbers with a pattern that anybody would see."""
    return (torch.arange(COUNT) % 7) * (number + 1) - 3


def masked(number: int, values: Tensor | None = None) -> Tensor:
    return mask(plain(number) if values is None else values, number, keys_of(number))


def p_value(values: Tensor) -> float:
    """Of a chi-square test that all bytes are equally likely; no key is drawn at random, so it is always the same."""
    counts = torch.bincount(values.contiguous().view(torch.uint8).long(), minlength=256)
    return float(stats.chisquare(counts.numpy()).pvalue)


def test_streams_are_those_of_chacha20() -> None:
    """RFC 8439, A.1, test vector 1: key and nonce of zeros."""
    block = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a37"
    assert stream(bytes(32), 6).view(torch.uint8).tolist() == list(bytes.fromhex(block))


def test_pairs_share_the_key_that_x25519_and_hkdf_give() -> None:
    """RFC 7748, 6.1, and HKDF as RFC 5869 writes it: HMAC of the salt, then of the info and a 1."""
    alice = X25519PrivateKey.from_private_bytes(bytes.fromhex(ALICE))
    bob = X25519PrivateKey.from_private_bytes(bytes.fromhex(BOB))
    secret = bytes.fromhex(SHARED)
    extracted = hmac.digest(bytes.fromhex(PURPOSE.study), secret, hashlib.sha256)
    expected = hmac.digest(extracted, PURPOSE.context + b"\x01", hashlib.sha256)

    assert shared_key(alice, public_half(bob), PURPOSE) == expected
    assert shared_key(bob, public_half(alice), PURPOSE) == expected


def test_masks_vanish_from_the_sum_of_all_and_of_no_other() -> None:
    sent = {k: masked(k) for k in range(SITES)}
    total = sum(plain(k) for k in range(SITES))

    assert torch.equal(add_up(sent), total)
    for missing in range(SITES):
        others = {k: values for k, values in sent.items() if k != missing}
        assert p_value(add_up(others)) > 1e-4


def test_one_masked_reply_is_uniform_whatever_it_hides() -> None:
    nothing = torch.zeros(COUNT, dtype=torch.int64)
    huge = torch.full((COUNT,), 2**61)

    assert p_value(plain(0)) < 1e-300  # the test sees a pattern where there is one
    for hidden in (nothing, plain(0), huge):
        assert 1e-4 < p_value(masked(0, hidden)) < 1 - 1e-4
    one, two = (masked(0, hidden) for hidden in (nothing, huge))
    assert not torch.equal(one, two)


def test_two_that_collude_learn_the_sum_of_the_others_and_nothing_more() -> None:
    """Sites 2 and 3 give the coordinator all their keys; it has everybody's replies."""
    sent = {k: masked(k) for k in range(SITES)}
    left = {}
    for honest in (0, 1):
        left[honest] = add_up({honest: sent[honest]}, {(honest, k): keys_of(k)[honest] for k in (2, 3)})

    assert torch.equal(left[0] + left[1], plain(0) + plain(1))
    assert min(p_value(left[0]), p_value(left[1])) > 1e-4  # the stream that 0 and 1 share is still on each
    assert torch.equal(left[0], mask(plain(0), 0, {1: keys_of(0)[1]}))


def test_a_sum_goes_on_without_a_site_whose_masks_the_others_tell() -> None:
    sent = {k: masked(k) for k in range(3)}
    told = {(k, 3): keys_of(k)[3] for k in range(3)}

    assert torch.equal(add_up(sent, told), plain(0) + plain(1) + plain(2))
    assert p_value(add_up(sent, {pair: key for pair, key in told.items() if pair != (1, 3)})) > 1e-4


@pytest.mark.parametrize(
    "other",
    [
        PURPOSE._replace(study="ac" * 32),
        PURPOSE._replace(roster="ce" * 32),
        PURPOSE._replace(round=2),
        PURPOSE._replace(what="statistics"),
    ],
)
def test_no_two_purposes_have_a_mask_in_common(other: Purpose) -> None:
    assert keys_of(0) != keys_of(0, other)
    assert p_value(mask(plain(0), 0, keys_of(0)) - mask(plain(0), 0, keys_of(0, other))) > 1e-4


def test_parts_of_a_purpose_cannot_be_taken_for_others() -> None:
    one = Purpose("a", "b", 1, "1 x")
    two = Purpose("a", "b", 11, " x")
    assert one.context != two.context


def test_a_key_for_masks_differs_between_studies_and_is_not_the_one_that_signs() -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    one, two = (public_half(derive_key(key, study)) for study in ("ab" * 32, "cd" * 32))

    assert one != two and one == public_half(derive_key(key, "ab" * 32))


def test_points_whose_secrets_everybody_knows_are_no_keys() -> None:
    """RFC 7748, section 6: small orders give a secret of zeros."""
    for raw in (bytes(32), b"\x01" + bytes(31), bytes(31), b""):
        text = PREFIX + base64.b64encode(raw).decode()
        assert not is_usable(text)
        with pytest.raises(InputError, match="not a key for masks"):
            shared_key(private(0), text, PURPOSE)
    assert not is_usable("ed25519:" + public_half(private(0)).removeprefix(PREFIX))
    assert is_usable(public_half(private(0)))


def test_a_roster_is_its_sites_in_whichever_order() -> None:
    a, b = (0, "north", "k", "m"), (1, "south", "l", "n")
    assert hash_roster([a, b]) == hash_roster([b, a])
    assert len({hash_roster(r) for r in ([a, b], [a], [(0, "nort", "hk", "m"), b], [a, (1, "south", "l", "o")])}) == 4
