"""A site in a study: its key, its rows, and what it must not forget. Nothing leaves it but by `Site.answer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.data.sites import Data
from consilience.disk.locks import lock_file
from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.study.budget import EVERYBODY, UNBOUNDED, People
from consilience.study.exchange import Exchange, Made
from consilience.study.masking import MaskBook
from consilience.study.protocol.columns import Inspection
from consilience.study.protocol.members import Member, Study
from consilience.study.rows import Parts
from consilience.study.spending import Leaving, charge

C = TypeVar("C")


def keep_file(path: Path, content: bytes, what: str) -> None:
    """Write what a site must remember, whole and for its owner alone.

    Args:
        what: What it is, in words.
    """
    write_whole(path, content, "Make room, and ask again; nothing has left.", PRIVATE)


def kept_path(study: Study, member: Member, ending: str, folder: Path = Path()) -> Path:
    """Say where a site keeps what it sent with noise.

    Args:
        ending: Of the file's name.
        folder: Where the site keeps its files.
    """
    return folder / f"{member.name}-{study.agreement.hash[:8]}.{ending}"


class Sealed(NamedTuple, Generic[C]):
    """What leaves a site, and what it was made from.

    Attributes:
        content: The signed file, or what Flower carries in its place.
        made: What is in it in the open, which stays.
    """

    content: C
    made: Made


@dataclass(frozen=True)
class Site:
    """A site in a study.

    Attributes:
        study: The study.
        member: This site.
        key: Its private key.
        ledger: What it ever released, of all studies.
        memory: What it remembers of rounds; other files lie beside it.
        book: Which masks were used, in a study that masks.
        folder: Where it keeps what was sent with noise.
        rows: Its rows by role; None where only the table is asked about.
        inspection: Its table.
        people: Whose rows they are; everybody at the site, if nobody said.
        keep: Writes what must be remembered: a path, the content, and what it is in words.
    """

    study: Study
    member: Member
    key: Ed25519PrivateKey
    ledger: Path
    memory: Path
    book: Path
    folder: Path = Path()
    rows: Parts | None = None
    inspection: Inspection | None = None
    people: People = EVERYBODY
    keep: Callable[[Path, bytes, str], None] = keep_file

    @property
    def masks(self) -> MaskBook:
        """The masks that it shares with others."""
        return MaskBook(self.book, self.study, self.member, self.key)

    def kept(self, ending: str) -> Path:
        """Say where numbers with noise are kept, so that they are never drawn again: a file for each study.

        Args:
            ending: Of the file's name.
        """
        return kept_path(self.study, self.member, ending, self.folder)

    def role(self, part: str) -> Data:
        """Take the rows of a role.

        Args:
            part: `train`, `choose`, `test` or `calibrate`.

        Raises:
            InputError: The site was made without rows.
        """
        if self.rows is None:
            raise InputError("This site was made without its rows: give them by role (rows=).")
        rows: Data = getattr(self.rows, part)
        return rows

    @property
    def table(self) -> Inspection:
        """Its table.

        Raises:
            InputError: The site was made without it.
        """
        if self.inspection is None:
            raise InputError("This site was made without its table: give what was found in it (inspection=).")
        return self.inspection

    def answer(self, question: Exchange[C]) -> Sealed[C]:
        """Answer a question, in the one order in which a site that dies at any moment loses nothing.

        So:

            1   what is asked is made, if it fits the study and may leave
            2   what the ledger refuses is neither masked, kept nor entered
            3   it is masked, where that was agreed, and sealed
            4   what must not be made again is kept, as noise that is drawn twice could be averaged
            5   it is entered into the ledger
            6   it leaves: the caller has it

        Returns:
            What leaves.

        Raises:
            InputError: It may not leave.
        """
        with lock_file(self.memory):
            return self._answer(question)

    def _answer(self, question: Exchange[C]) -> Sealed[C]:
        made = question.make(self)  # 1
        enter = partial(charge, self.ledger, self.study.agreement, self.key, self.leaving(question, made))
        nobodys = isinstance(made.source, Data) and not len(made.source.y)  # zeros, with noise or without
        if not nobodys:
            enter(dry=True)  # 2
        value = question.mask(self, made) if question.masked else made.value
        content = question.seal(self, made, value)  # 3
        for path, (kept, what) in made.keeps.items():
            self.keep(path, kept, what)  # 4
        if not nobodys:
            enter()  # 5
        return Sealed(content, made)  # 6

    def leaving(self, question: Exchange[Any], made: Made) -> Leaving:
        """Say what is to leave, as the ledger has it.

        Args:
            made: What was made of the rows.
        """
        one_model = question.model is not None and made.cost == UNBOUNDED
        part = question.part
        about = (self.people, part, question.round, made.cost, made.repeated, question.replaces, one_model)
        return Leaving(question.name, made.source, *about)
