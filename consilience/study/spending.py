"""What a site's releases in studies cost, entered into its ledger before anything leaves."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.data.cells import Cells
from consilience.data.sites import Data
from consilience.disk.locks import lock_file
from consilience.method.declared import spends
from consilience.methods.claims import privacy_statement, steps_of_round
from consilience.study.budget import (
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
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.promise import promised_in_all


def derive_secret(key: Ed25519PrivateKey) -> bytes:
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
        round: The round, from 1 on.

    Returns:
        Its cost; without bound where the study promises nothing.
    """
    method = agreement.build_method()
    if agreement.privacy is not None:
        return Cost(agreement.privacy.mu * math.sqrt(spends(method, round)))
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


def find_people(agreement: Agreement, data: Data, inspection: Inspection, key: Ed25519PrivateKey) -> People:
    """Find whose rows a table holds, whatever the study makes of them: patients by the agreed column, else its rows.

    Args:
        data: All rows of the table, as the study encodes them.
        key: The site's private key.

    Returns:
        Keyed hashes.
    """
    secret = derive_secret(key)
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
        key: The site's private key.

    Returns:
        Sorted hashes, equal rows as often as there are.
    """
    names = [column.name for column in (*agreement.columns, *agreement.target.as_columns())]
    return whole_rows({name: inspection.cells[name] for name in names}, derive_secret(key))


def charge(path: Path, agreement: Agreement, key: Ed25519PrivateKey, leaving: Leaving, dry: bool = False) -> None:
    """Enter a release into a site's ledger, before it leaves.

    Args:
        path: The ledger's file. Where the first private study is entered, its (ε, δ) become the site's budget.
        key: The site's private key.
        leaving: What is to leave.
        dry: Whether only to refuse what may not leave, and to enter nothing.

    Raises:
        InputError: The budget does not allow it, or the question was answered from other rows.
    """
    rows = leaving.rows
    if isinstance(rows, Data):
        rows = hash_rows((rows.x, rows.y), derive_secret(key))
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


def _promised(agreement: Agreement) -> tuple[float, float] | None:
    """(ε, δ) of a study; None where it promises nothing."""
    if agreement.privacy is not None:
        return promised_in_all(agreement)
    stated = privacy_statement(agreement.build_method())
    if stated is None:
        return None
    return stated["epsilon"], stated["delta"]


def with_limit(path: Path, epsilon: float | None, delta: float | None) -> None:
    """Choose a site's budget.

    Args:
        epsilon: ε; as it was if None.
        delta: δ; as it was if None.

    Raises:
        InputError: They promise nothing.
    """
    with lock_file(path):
        budget = read_budget(path)
        budget = budget.limit(epsilon or budget.epsilon, delta or budget.delta)
        write_budget(path, dataclasses.replace(budget))
