"""What a site's releases in studies cost, entered into its ledger before anything leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.agreement.agreement import Agreement
from consilience.data.sites import Data
from consilience.disk.locks import lock_file
from consilience.privacy.budget import Hashes, Release, hash_rows, read_budget, today, write_budget


def secret_of(key: Ed25519PrivateKey) -> bytes:
    """Derive what names rows in a ledger from a site's key.

    Args:
        key: The site's private key.

    Returns:
        A secret of its own.
    """
    return hashlib.sha256(b"consilience ledger" + key.private_bytes_raw()).digest()


def mu_of_round(agreement: Agreement, round: int) -> float:
    """Find what a site's reply of a round spends.

    Args:
        agreement: The study's agreement.
        round: The round, from 1 on.

    Returns:
        μ; infinite where the study promises nothing.
    """
    privacy = agreement.privacy
    if privacy is None:
        return math.inf
    return privacy.mu * math.sqrt(agreement.build_method().spends(round))


def charge(
    path: Path,
    agreement: Agreement,
    key: Ed25519PrivateKey,
    data: Data,
    what: str,
    round: int = 0,
    mu: float = math.inf,
    repeated: bool = False,
) -> None:
    """Enter a release into a site's ledger, before it leaves.

    Args:
        path: The ledger's file. Where the first private study is entered, its (ε, δ) become the site's budget.
        agreement: The study's agreement.
        key: The site's private key.
        data: The rows that it was made from.
        what: What is released, in words.
        round: The round, from 1 on; 0 outside of rounds.
        mu: What it spends; infinite without noise.
        repeated: Whether the very same numbers left before: they tell nothing new.

    Raises:
        InputError: The budget does not allow it.
    """
    rows: Hashes = hash_rows((data.x, data.y), secret_of(key))
    release = Release(agreement.name, agreement.hash, what, round, mu, today(), rows)
    with lock_file(path):
        budget = read_budget(path)
        if not budget.epsilon and agreement.privacy is not None:
            budget = budget.limit(agreement.epsilon, agreement.delta)
        charged = budget.charge(release, repeated)
        write_budget(path, charged)


def with_limit(path: Path, epsilon: float | None, delta: float | None) -> None:
    """Choose a site's budget.

    Args:
        path: The ledger's file.
        epsilon: ε; as it was if None.
        delta: δ; as it was if None.

    Raises:
        InputError: They promise nothing.
    """
    with lock_file(path):
        budget = read_budget(path)
        budget = budget.limit(epsilon or budget.epsilon, delta or budget.delta)
        write_budget(path, dataclasses.replace(budget))
