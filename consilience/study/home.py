"""Where a site keeps what it must not forget: beside its private key, whatever folder a command is run in.

A second book of masks would let a mask be used twice, a second memory let a question be answered twice, and a second
ledger begin with an empty account. There is one of each for a key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.data.sites import Data
from consilience.disk.locks import lock_file
from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.study.budget import merge_budgets, read_budget, write_budget
from consilience.study.counting import KEPT
from consilience.study.masking import book_path
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.signature import public
from consilience.study.recall import Recalled, marks_path, recall
from consilience.study.rows import rows_of
from consilience.study.site import Site, keep_file, kept_path
from consilience.study.spending import find_people
from consilience.study.table_one import KEPT as KEPT_TABLE

STATE = "CONSILIENCE_STATE"  # names the folder of a site whose key lies where nothing can be written


class Opened(NamedTuple):
    """A site whose table was read.

    Attributes:
        site: The site.
        recalled: Its rows, held against those it remembers.
        data: All rows of the table.
    """

    site: Site
    recalled: Recalled
    data: Data


@dataclass(frozen=True)
class Home:
    """A site's files in a study.

    Attributes:
        study: The study.
        member: The site.
        key: Its private key.
        key_file: Where that lies.
    """

    study: Study
    member: Member
    key: Ed25519PrivateKey
    key_file: Path

    @property
    def folder(self) -> Path:
        """The folder of the key itself; as short as it can be said where commands run in it."""
        return state_folder(self.key_file)

    @property
    def ledger(self) -> Path:
        """What the site ever released: one file for a key, whatever name it goes by in a study."""
        return ledger_of(self.key_file)

    @property
    def memory(self) -> Path:
        """What the site remembers of rounds."""
        return self.folder / f"{self.member.name}.memory"

    @property
    def book(self) -> Path:
        """Which masks were used."""
        return book_path(self.study, self.member, self.folder)

    @property
    def counts(self) -> Path:
        """Which counts were sent with noise."""
        return kept_path(self.study, self.member, KEPT, self.folder)

    @property
    def table(self) -> Path:
        """Which table one was sent with noise."""
        return kept_path(self.study, self.member, KEPT_TABLE, self.folder)

    @property
    def served(self) -> Path:
        """The folder of a site that is connected."""
        return self.folder / f"{self.member.name}.site"

    def open(
        self,
        table: Path,
        ledger: Path | None = None,
        memory: Path | None = None,
        one_class: bool = True,
        keep: Callable[[Path, bytes, str], None] = keep_file,
    ) -> Opened:
        """Read a table, and give its rows the roles that they had before.

        Args:
            table: The rows, a CSV file.
            ledger: Where the ledger is wanted; beside the key if None.
            memory: What was kept of rounds; beside the key if None.
            one_class: Whether all rows may be of one class.
            keep: Writes what must be remembered.

        Returns:
            The site, and how the rows differ from those it remembers.

        Raises:
            InputError: The table does not fit the study, or a file of the site is damaged.
        """
        agreement = self.study.agreement
        memory = memory or self.memory
        data, inspection = rows_of(agreement, table, one_class)
        recalled = recall(agreement, self.member.number, self.key, memory, data)
        people = find_people(agreement, data, inspection, self.key)
        files = (ledger_of(self.key_file, ledger), memory, self.book, self.folder)
        site = Site(self.study, self.member, self.key, *files, recalled.rows, inspection, people, keep)
        return Opened(site, recalled, data)

    def adopt(self, folder: Path) -> None:
        """Take over what older versions wrote where commands were run.

        Raises:
            InputError: There are two books of masks.
        """
        ledger = folder / f"{self.member.name}.ledger"
        if ledger.exists() and not _is_same(ledger, self.ledger):
            with lock_file(self.ledger):
                write_budget(self.ledger, merge_budgets(read_budget(self.ledger), read_budget(ledger)))
        if _is_same(folder, self.folder):
            return
        for own in (self.memory, marks_path(self.memory), self.book, self.counts, self.table):
            old = folder / own.name
            if not old.exists() or not self._is_own(old):
                continue
            if not own.exists():
                write_whole(own, old.read_bytes(), "Make room; nothing has left.", PRIVATE)
            elif own == self.book and own.read_bytes() != old.read_bytes():
                raise InputError(
                    f"There are two books of masks of this study, {old} and {own}, and masks that were used twice hide "
                    "nothing: send nothing more in it, and make a new study."
                )

    def _is_own(self, path: Path) -> bool:
        """Whether this site wrote a file in this study."""
        envelope = open_envelope(path)
        return envelope.header.study == self.study.agreement.hash and envelope.signed_by(public(self.key))


def state_folder(key_file: Path) -> Path:
    """Choose where a site keeps what it must not forget: beside its key, or in the folder that `STATE` names.

    Args:
        key_file: The site's private key.

    Raises:
        InputError: Nothing can be written beside the key, or a ledger lies there that another folder would not know.
    """
    beside = key_file.parent
    named = os.environ.get(STATE)
    if not named:
        if not os.access(beside, os.W_OK):
            raise InputError(
                f"The folder of the key, {beside.absolute()}, cannot be written, and a site keeps its ledger, memory "
                f"and masks beside its key: set {STATE} to a folder that lasts, the same for every command of this key."
            )
        return beside
    folder = Path(named)
    ledger = key_file.with_suffix(".ledger")
    if ledger.exists() and not _is_same(folder, beside):
        raise InputError(
            f"This key's ledger is {ledger}, and {STATE} names another folder, which does not know what has left: move "
            f"everything of this site from {beside.absolute()} to {folder}, or do not set {STATE}."
        )
    return folder


def ledger_of(key_file: Path, given: Path | None = None) -> Path:
    """Find the ledger of a key: beside it, or where it was begun, which a note beside the key remembers.

    Args:
        key_file: The site's private key.
        given: Where people want it; only a site that has none yet has a choice.

    Returns:
        Its file.

    Raises:
        InputError: There is one, whose account another would not know.
    """
    ledger = beside = state_folder(key_file) / key_file.with_suffix(".ledger").name
    note = beside.with_name(f"{beside.name}-place")
    if note.exists():
        ledger = Path(note.read_text(encoding="utf-8").strip())
    if given is None or _is_same(given, ledger):
        return ledger
    if ledger.exists():
        raise InputError(
            f"This key's ledger is {ledger}, and another would not know what has left: leave --ledger out, or move "
            "that file to where you want it."
        )
    if _is_same(given, beside):
        note.unlink(missing_ok=True)
    else:
        write_whole(note, str(given.resolve()).encode(), "Make room, and ask again; nothing has left.", PRIVATE)
    return given


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()
