"""What a site's releases in studies cost, entered into its ledger before anything leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.agreement.agreement import Agreement
from consilience.agreement.members import Member, Study
from consilience.data.sites import Data
from consilience.disk.locks import lock_file
from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.formats.codec import kept_types_of
from consilience.formats.envelope import Header, seal
from consilience.handover.files import open_file
from consilience.parties import Reply
from consilience.privacy.budget import UNBOUNDED, Cost, Hashes, Release, hash_rows, read_budget, today, write_budget
from consilience.promises import privacy_statement, steps_of_round


def secret_of(key: Ed25519PrivateKey) -> bytes:
    """Derive what names rows in a ledger from a site's key.

    Args:
        key: The site's private key.

    Returns:
        A secret of its own.
    """
    return hashlib.sha256(b"consilience ledger" + key.private_bytes_raw()).digest()


def cost_of_round(agreement: Agreement, round: int) -> Cost:
    """Find what a site's reply of a round tells.

    Args:
        agreement: The study's agreement.
        round: The round, from 1 on.

    Returns:
        Its cost; without bound where the study promises nothing.
    """
    method = agreement.build_method()
    if agreement.privacy is not None:
        return Cost(agreement.privacy.mu * math.sqrt(method.spends(round)))
    steps = steps_of_round(method)
    if steps is not None:
        return Cost(steps=(steps,))
    return UNBOUNDED


def charge(
    path: Path,
    agreement: Agreement,
    key: Ed25519PrivateKey,
    data: Data,
    what: str,
    round: int = 0,
    cost: Cost = UNBOUNDED,
    repeated: bool = False,
    dry: bool = False,
) -> None:
    """Enter a release into a site's ledger, before it leaves.

    Args:
        path: The ledger's file. Where the first private study is entered, its (ε, δ) become the site's budget.
        agreement: The study's agreement.
        key: The site's private key.
        data: The rows that it was made from.
        what: What is released, in words.
        round: The round, from 1 on; 0 outside of rounds.
        cost: What it tells.
        repeated: Whether the very same numbers left before: they tell nothing new.
        dry: Whether only to refuse what the budget does not allow, before what is to leave is kept.

    Raises:
        InputError: The budget does not allow it.
    """
    rows: Hashes = hash_rows((data.x, data.y), secret_of(key))
    whole = agreement.privacy is not None  # private training answers for its weights, beside sums and moments
    release = Release(agreement.name, agreement.hash, what, round, cost, today(), rows, whole)
    with lock_file(path):
        budget = read_budget(path)
        if not budget.epsilon and (promised := _promised(agreement)) is not None:
            budget = budget.limit(*promised)
        charged = budget.charge(release, repeated)
        if not dry:
            write_budget(path, charged)


def _promised(agreement: Agreement) -> tuple[float, float] | None:
    """(ε, δ) of a study; None where it promises nothing."""
    if agreement.privacy is not None:
        return agreement.epsilon, agreement.delta
    stated = privacy_statement(agreement.build_method())
    if stated is None:
        return None
    return stated["epsilon"], stated["delta"]


def check_once(path: Path, agreement: Agreement, key: Ed25519PrivateKey, data: Data, what: str) -> None:
    """Refuse a second release of a kind that a study may have once; the same one can be made again.

    Args:
        path: The ledger's file.
        agreement: The study's agreement.
        key: The site's private key.
        data: The rows that it is made from.
        what: What is to be released; its first word is the kind.

    Raises:
        InputError: Another one of this kind has left in this study.
    """
    rows = hash_rows((data.x, data.y), secret_of(key))
    kind = what.partition(" ")[0]
    for release in read_budget(path).releases:
        if release.agreement != agreement.hash or release.what.partition(" ")[0] != kind:
            continue
        if release.what != what or not np.array_equal(release.rows, rows):
            raise InputError(
                f"This site has sent an {kind} of another model or of other rows in this study ({release.when}), and a "
                "second would show more of single rows: hand over the first one."
            )


def release_once(
    path: Path,
    ledger: Path,
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    data: Data,
    round: int,
    question: str,
    make: Callable[[], Reply],
) -> Reply:
    """Make a reply and enter it into the ledger; one with noise is kept, and never drawn again.

    It is kept before it is entered, and entered before it leaves: killed in between, a site hands over what it kept,
    which is then entered. If what was kept is lost, another draw is another release.

    Args:
        path: Where replies with noise are kept.
        ledger: The site's ledger.
        study: The study.
        member: This site.
        key: Its private key.
        data: The rows that it is made from.
        round: The round, from 1 on.
        question: What is answered, as a digest.
        make: Makes the reply.

    Returns:
        The reply.

    Raises:
        InputError: The round was answered to another question, or the budget does not allow it.
    """
    agreement = study.agreement
    if agreement.privacy is None:
        reply = make()
        charge(ledger, agreement, key, data, "reply", round, cost_of_round(agreement, round))
        return reply
    kept = _read_kept(path, study)
    repeated = str(round) in kept
    if repeated and kept[str(round)][0] != question:
        raise InputError(
            f"This site has answered round {round} to another question, and a second answer with other noise would "
            "cost twice the privacy budget: let the server ask as it did before."
        )
    if not repeated:
        kept[str(round)] = (question, make())
        values = {number: (reply.send, reply.size, reply.keep) for number, (_, reply) in kept.items()}
        questions = {number: asked for number, (asked, _) in kept.items()}
        header = Header("memory", agreement.hash, agreement.name, member.name, round, {"questions": questions})
        write_whole(path, seal(values, header, key), "Make room, and let the server ask again.", PRIVATE)
    charge(ledger, agreement, key, data, "reply", round, cost_of_round(agreement, round), repeated)
    return kept[str(round)][1]


def _read_kept(path: Path, study: Study) -> dict[str, tuple[str, Reply]]:
    """What was answered with noise, and to which question, by round."""
    if not path.exists():
        return {}
    envelope = open_file(study, path, "memory")
    by_round = envelope.value(kept_types_of(study.agreement.build_method()))
    questions = envelope.header.about["questions"]
    return {number: (questions[number], Reply(*value)) for number, value in by_round.items()}


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
