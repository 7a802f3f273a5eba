"""What a site's releases in studies cost, entered into its ledger before anything leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.data.cells import Cells
from consilience.data.sites import Data
from consilience.disk.locks import lock_file
from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.messages import Reply
from consilience.methods.claims import privacy_statement, steps_of_round
from consilience.privacy.dp.budget import (
    EVERYBODY,
    ROWS,
    UNBOUNDED,
    Cost,
    Hashes,
    People,
    Release,
    hash_rows,
    hash_texts,
    read_budget,
    today,
    write_budget,
)
from consilience.serialisation.codec import kept_types_of
from consilience.serialisation.envelope import Header, seal
from consilience.study.files import open_file
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.promise import promised_in_all


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


class Leaving(NamedTuple):
    """What is to leave a site, as its ledger has it.

    Attributes:
        what: In words, the kind first: `reply`, `statistics about MODEL`.
        rows: The rows that it is made from, or their hashes, where they are not encoded.
        people: Whose they are; everybody at the site, if nobody said.
        part: Their role, where they have one.
        round: The round, from 1 on; 0 outside of rounds.
        cost: What it tells.
        repeated: Whether the very same numbers left before: they tell nothing new.
        replaces: Whether the site says that what it answered before, from other rows, was never handed over.
        one_model: Whether it is answered about one model in a study, and no second.
    """

    what: str
    rows: Data | Hashes
    people: People = EVERYBODY
    part: str = ""
    round: int = 0
    cost: Cost = UNBOUNDED
    repeated: bool = False
    replaces: bool = False
    one_model: bool = False


def people_of(agreement: Agreement, data: Data, inspection: Inspection, key: Ed25519PrivateKey) -> People:
    """Find whose rows a table holds, whatever the study makes of them: patients by the agreed column, else its rows.

    Args:
        agreement: The study's agreement.
        data: All rows of the table, as the study encodes them.
        inspection: The table.
        key: The site's private key.

    Returns:
        Keyed hashes.
    """
    secret = secret_of(key)
    table = hashlib.sha256(hash_rows((data.x, data.y), secret).tobytes()).hexdigest()[:16]
    if agreement.patient:
        owners = {cell.text.strip() for cell in inspection.cells[agreement.patient]}
        names = hash_texts((f"patient {owner}".encode() for owner in owners), secret)
        return People(f"patients {agreement.patient}", names, table)
    return People(ROWS, whole_rows(inspection.cells, secret), table)


def whole_rows(cells: Mapping[str, Cells], secret: bytes) -> Hashes:
    """Name the rows of a table as they stand in its file, with every column, in whatever order columns come.

    Args:
        cells: The cells by column.
        secret: What only this site knows.

    Returns:
        Sorted hashes, equal rows as often as there are.
    """
    named = sorted((" ".join(name.split()).casefold(), column) for name, column in cells.items())
    texts = zip(*([cell.text.strip() for cell in column] for _, column in named), strict=True)
    head = json.dumps([name for name, _ in named])
    return hash_texts(((head + json.dumps(row)).encode() for row in texts), secret)


def agreed_rows(agreement: Agreement, inspection: Inspection, key: Ed25519PrivateKey) -> Hashes:
    """Name the rows of a table by all that a study agreed on, gaps included.

    Args:
        agreement: The study's agreement.
        inspection: The table.
        key: The site's private key.

    Returns:
        Sorted hashes, equal rows as often as there are.
    """
    names = [column.name for column in (*agreement.columns, *agreement.target.as_columns())]
    return whole_rows({name: inspection.cells[name] for name in names}, secret_of(key))


def charge(path: Path, agreement: Agreement, key: Ed25519PrivateKey, leaving: Leaving, dry: bool = False) -> None:
    """Enter a release into a site's ledger, before it leaves.

    Args:
        path: The ledger's file. Where the first private study is entered, its (ε, δ) become the site's budget.
        agreement: The study's agreement.
        key: The site's private key.
        leaving: What is to leave.
        dry: Whether only to refuse what may not leave, and to enter nothing.

    Raises:
        InputError: The budget does not allow it, or the question was answered from other rows.
    """
    rows = leaving.rows
    if isinstance(rows, Data):
        rows = hash_rows((rows.x, rows.y), secret_of(key))
    whole = agreement.privacy is not None  # private training answers for its weights, beside sums and moments
    about = (leaving.what, leaving.round, leaving.cost, today(), rows, whole, leaving.people, leaving.part)
    release = Release(agreement.name, agreement.hash, *about)
    with lock_file(path):
        budget = read_budget(path)
        if not leaving.replaces:
            budget.check_once(release, leaving.one_model)
        if not budget.epsilon and (promised := _promised(agreement)) is not None:
            budget = budget.limit(*promised)
        charged = budget.charge(release, leaving.repeated)
        if not dry:
            write_budget(path, charged)


def nothing() -> None:
    """Keep nothing, where what is to leave can be made again; or let the caller carry it away."""


def release(
    path: Path,
    agreement: Agreement,
    key: Ed25519PrivateKey,
    leaving: Leaving,
    leave: Callable[[], None],
    keep: Callable[[], None] = nothing,
) -> None:
    """Let something leave a site, in the one order in which a site that dies at any moment loses nothing.

    So:

        1   what may not leave is refused, and neither kept nor entered
        2   what must not be made again is kept, as noise that is drawn twice could be averaged
        3   it is entered into the ledger
        4   it leaves

    Args:
        path: The ledger's file.
        agreement: The study's agreement.
        key: The site's private key.
        leaving: What is to leave.
        leave: Writes it where it leaves from.
        keep: Writes what the site must remember.

    Raises:
        InputError: It may not leave.
    """
    charge(path, agreement, key, leaving, dry=True)  # 1
    keep()  # 2
    charge(path, agreement, key, leaving)  # 3
    leave()  # 4


class Door(NamedTuple):
    """Where what a site made leaves it: past its ledger, from commands and from Python alike.

    Attributes:
        ledger: The ledger's file, beside the site's key: one for all studies.
        people: Whose rows it is made from; everybody at the site, if nobody said.
        leave: Writes the file where it leaves from; where none is given, the caller carries it away.
        keep: Writes what the site must remember of it.
    """

    ledger: Path
    people: People = EVERYBODY
    leave: Callable[[bytes], None] = lambda content: None
    keep: Callable[[bytes], None] = lambda content: None

    def let_out(
        self, agreement: Agreement, key: Ed25519PrivateKey, leaving: Leaving, content: bytes, kept: bytes = b""
    ) -> bytes:
        """Let a file leave, as `release` does.

        Args:
            agreement: The study's agreement.
            key: The site's private key.
            leaving: What is in it.
            content: The file.
            kept: What the site must remember.

        Returns:
            The file.

        Raises:
            InputError: It may not leave.
        """
        keep = partial(self.keep, kept) if kept else nothing
        own = leaving._replace(people=self.people)
        release(self.ledger, agreement, key, own, partial(self.leave, content), keep)
        return content


def _promised(agreement: Agreement) -> tuple[float, float] | None:
    """(ε, δ) of a study; None where it promises nothing."""
    if agreement.privacy is not None:
        return promised_in_all(agreement)
    stated = privacy_statement(agreement.build_method())
    if stated is None:
        return None
    return stated["epsilon"], stated["delta"]


def release_once(
    path: Path,
    ledger: Path,
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    data: Data,
    people: People,
    round: int,
    question: str,
    make: Callable[[], Reply],
) -> Reply:
    """Make a reply and enter it into the ledger; one with noise is kept, and never drawn again.

    Killed between keeping and entering, a site hands over what it kept, which is then entered. If what was kept is
    lost, another draw is another release.

    Args:
        path: Where replies with noise are kept.
        ledger: The site's ledger.
        study: The study.
        member: This site.
        key: Its private key.
        data: The rows that it is made from.
        people: Whose they are.
        round: The round, from 1 on.
        question: What is answered, as a digest.
        make: Makes the reply.

    Returns:
        The reply.

    Raises:
        InputError: The round was answered to another question, or the budget does not allow it.
    """
    agreement = study.agreement
    leaving = Leaving("reply", data, people, "train", round, cost_of_round(agreement, round))
    if agreement.privacy is None:
        reply = make()
        release(ledger, agreement, key, leaving, nothing)
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

    def keep() -> None:
        if repeated:
            return
        values = {number: (reply.send, reply.size, reply.keep) for number, (_, reply) in kept.items()}
        questions = {number: asked for number, (asked, _) in kept.items()}
        header = Header("memory", agreement.hash, agreement.name, member.name, round, {"questions": questions})
        write_whole(path, seal(values, header, key), "Make room, and let the server ask again.", PRIVATE)

    release(ledger, agreement, key, leaving._replace(repeated=repeated), nothing, keep)
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
