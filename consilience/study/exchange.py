"""Whatever sites send in a study is an `Exchange`: made at a site, checked and added up at the coordinator.

The steps are the same for all of them. At a site they stand in `Site.answer`, at the coordinator in `hear`; an exchange
says what is made of the rows, what it looks like and which numbers cannot be true.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import torch

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.study.budget import UNBOUNDED, Cost, Hashes
from consilience.study.files import SLACK, from_sites
from consilience.study.masked_round import read_told, sort_files
from consilience.study.model import Model
from consilience.study.protocol.envelope import Envelope, Header, seal
from consilience.study.protocol.members import Member, Study
from consilience.study.rows import Training, fingerprint
from consilience.study.summing import add_tables, mask_table
from consilience.study.validation.gate import Refused, limit_bytes, refuse_errors
from consilience.study.validation.rules import admit, rules_of
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site


C = TypeVar("C")


class Made(NamedTuple):
    """What a site made of its rows; nothing has left.

    Attributes:
        value: What the file holds in the open.
        rows: How many rows stand behind it.
        source: The rows that it is made from, or their hashes, where they are not encoded: what the ledger enters.
        cost: What it tells.
        keeps: Files that the site must write before it leaves, with what people are told of each.
        repeated: Whether the very same numbers left before: they tell nothing new.
        about: What the file says of itself, beside what was asked and who wrote it.
        training: The rows that were fitted, for a reply.
    """

    value: Tree
    rows: int
    source: Data | Hashes
    cost: Cost = UNBOUNDED
    keeps: Mapping[Path, tuple[bytes, str]] = {}
    repeated: bool = False
    about: Mapping[str, Any] = {}
    training: Training | None = None


class Part(NamedTuple):
    """What came in: one site's numbers, or the sum of all under masks.

    Attributes:
        sites: Whose they are.
        rows: How many rows stand behind them.
        table: The numbers, as they are added up.
    """

    sites: tuple[str, ...]
    rows: int
    table: Any


class Exchange(ABC, Generic[C]):
    """Something that sites send about their rows; a subclass and its command are all that a new one needs.

    Attributes:
        kind: Of the file, in its header.
        title: What the ledger and people call it.
        part: The role of the rows that it is made from; empty for the whole table.
        study: The study.
        model: The model that it is about, which is one in a study and no second; None where it is about none.
        round: The round, from 1 on, of replies.
        replaces: Whether the site says that what it answered before was never handed over.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    part: ClassVar[str] = ""
    round = 0
    replaces = False

    def __init__(self, study: Study, model: Model | None = None) -> None:
        """Ask about a model, or about the rows alone."""
        self.study = study
        self.model = model

    def about(self, member: Member) -> dict[str, Any]:
        """Say in the file's header who answers, and about which model."""
        about: dict[str, Any] = {"number": member.number}
        if self.model is not None:
            about["model"] = self.model.checksum
        return about

    @property
    def name(self) -> str:
        """What the ledger enters."""
        if self.model is None:
            return self.title
        return f"{self.title} about {self.model.checksum[:12]}"

    @property
    def masked(self) -> str:
        """What the sum is called under masks; empty where it leaves in the open."""
        if not self.study.agreement.secure or self.model is None:
            return ""
        return f"{self.title} {self.model.checksum}"

    @property
    def most_bytes(self) -> int:
        """How large a file may be."""
        return self.study.agreement.most_bytes + SLACK

    @abstractmethod
    def make(self, site: Site) -> Made:
        """Make what leaves of a site's rows, under the disclosure rules.

        Returns:
            It, and what the site must remember.

        Raises:
            InputError: It stays here.
        """

    @abstractmethod
    def mask(self, site: Site, made: Made) -> Tree:
        """Put a mask over what was made."""

    @abstractmethod
    def seal(self, site: Site, made: Made, value: Tree) -> C:
        """Sign what leaves.

        Args:
            value: That, or what stands for it under a mask.
        """


class File(Exchange[bytes]):
    """An exchange whose answer is a signed file."""

    def mask(self, site: Site, made: Made) -> Tree:
        """Put a mask over what was made."""
        decides = "" if not isinstance(made.source, Data) else fingerprint(made.source)
        return {"masked": mask_table(site.masks, self.masked, decides, self.summand(made.value), made.rows)}

    def seal(self, site: Site, made: Made, value: Tree) -> bytes:
        """Write the signed file.

        Args:
            value: That, or what stands for it under a mask.

        Raises:
            InputError: It is larger than agreed.
        """
        agreement = self.study.agreement
        about = {**self.about(site.member), **made.about}
        header = Header(self.kind, agreement.hash, agreement.name, site.member.name, self.round or 1, about)
        content = seal(value, header, site.key)
        try:
            limit_bytes(len(content), self.most_bytes)
        except Refused as error:
            sentence = f"The {self.title} stays here: {error} Agree on a larger size or on a smaller model."
            raise InputError(sentence) from error
        return content

    def form(self) -> Tree:
        """Give a file's value without any rows: what is received must look like it."""
        raise NotImplementedError

    def summand(self, value: Any) -> Any:
        """Take from a file's value what is added up.

        Args:
            value: What the file holds in the open.
        """
        return value

    def count(self, value: Any) -> int:
        """Read how many rows stand behind a file.

        Args:
            value: What it holds in the open.
        """
        return int(value["count"])

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse numbers that no table under the study's rules can have.

        Args:
            most: The most rows that its sites committed to.
            where: Where it is from, such as a file.

        Raises:
            InputError: It is not used; the sentence says why.
        """
        raise NotImplementedError

    def open(self, paths: Sequence[Path]) -> tuple[list[Envelope], list[str]]:
        """Open the sites' files.

        Returns:
            Those that came as they should, and a sentence for each that did not.
        """
        return from_sites(self.study, paths, self.kind, most=self.most_bytes)


def hear(exchange: File, paths: Sequence[Path]) -> tuple[list[Part], list[str]]:
    """Read what sites sent, one by one or as the sum of all under masks; what cannot be true is left out.

    Args:
        exchange: What they were asked.
        paths: Their files; under masks also what was told of masks shared with missing sites.

    Returns:
        What can be used, and a sentence for each file that is left out.

    Raises:
        InputError: Masked files cannot be summed, or no tables can have their sum.
    """
    study = exchange.study
    if not exchange.masked:
        envelopes, refused = exchange.open(paths)
        parts = []
        for envelope in envelopes:
            try:
                with refuse_errors():
                    parts.append(_admit(exchange, envelope))
            except InputError as error:
                refused.append(str(error))
        return parts, refused
    own, told_paths = sort_files(paths)
    envelopes, refused = exchange.open(own)
    told, others = read_told(study, told_paths, 1)
    about = []
    for envelope in envelopes:
        try:
            _check_model(exchange, envelope)
            about.append(envelope)
        except InputError as error:
            refused.append(str(error))
    try:
        summed = add_tables(study, about, told, exchange.summand(exchange.form()), exchange.masked)
    except InputError as error:
        raise InputError(f"{error} {' '.join((*refused, *others))}".strip()) from error
    part = Part(summed.names, summed.rows, summed.table)
    exchange.check(part, sum(most_rows(study, name) for name in summed.names), f"The sum of all {exchange.title}")
    return [part], [*refused, *others, *summed.refused]


def most_rows(study: Study, name: str) -> int:
    """Say for how many rows a site may speak at most."""
    return rules_of(study.agreement, study.member(name).rows).largest_site


def _check_model(exchange: File, envelope: Envelope) -> None:
    if exchange.model is not None and envelope.header.about.get("model") != exchange.model.checksum:
        raise InputError(
            f"{envelope.path} is about another model than this one: ask the site to answer about this one."
        )


def _admit(exchange: File, envelope: Envelope) -> Part:
    """One site's numbers, if they can be those of its rows."""
    _check_model(exchange, envelope)
    value = envelope.value(TYPES)
    admit(value, exchange.form(), envelope.path)
    name = envelope.header.sender
    part = Part((name,), exchange.count(value), exchange.summand(value))
    exchange.check(part, most_rows(exchange.study, name), envelope.path)
    return part


def check_rows(rows: int, fewest: int, most: int, where: str) -> None:
    """Refuse a file that speaks for too few rows, or for more than its site committed to.

    Args:
        rows: For how many it speaks.
        fewest: The fewest that may be shown.
        where: Where it is from, such as a file.

    Raises:
        InputError: It is not used.
    """
    if not fewest <= rows <= most:
        raise InputError(
            f"{where} is not used: it speaks for {rows:,} rows, and its site may for {fewest:,} to {most:,}."
        )


def add(parts: Sequence[Part]) -> torch.Tensor:
    """Add tables of one shape up."""
    return torch.stack([part.table for part in parts]).sum(0)
