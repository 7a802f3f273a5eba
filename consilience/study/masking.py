"""A site's end of a masked sum: each mask hides one thing, is told for one drop-out, and a book says which.

The book is written before anything that it is about, so that a site that dies at any moment comes back knowing all
that may have left: what it masked is handed over again as it was, and nothing else is masked in its place.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.disk.locks import lock_file
from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.privacy.secure_aggregation.masks import (
    Masked,
    Purpose,
    derive_key,
    hash_roster,
    mask,
    public_half,
    shared_key,
)
from consilience.serialisation.codec import TYPES
from consilience.study.files import open_file
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import Envelope, Header, seal
from consilience.study.protocol.members import Member, Study

REPLY = "reply"  # what is summed in a round
MESSAGE = "reply over Flower"  # the same in a deployment, so that no mask serves for a file and a message
KEPT = 2  # masked vectors of each kind that a book holds, should the last be asked for again


def list_roster(study: Study, numbers: Collection[int] | None = None) -> tuple[Member, ...]:
    """List the sites that mask with each other.

    Args:
        numbers: Their numbers; None for all that have not left.

    Returns:
        The sites, by number.

    Raises:
        InputError: There is no site of such a number, or there are too few.
    """
    members = study.active
    if numbers is not None:
        members = tuple(site for site in study.sites if site.number in numbers)
    if numbers is not None and len(members) != len(numbers):
        raise InputError("It is masked for sites that this study does not list: use the current study file.")
    fewest = study.agreement.fewest_sites
    if len(members) < fewest:
        raise InputError(
            f"{len(members)} sites have joined, and the study sums over no fewer than {fewest}: wait for more before "
            "anything is masked."
        )
    return tuple(sorted(members, key=lambda site: site.number))


def purpose_of(study: Study, members: Sequence[Member], round: int, what: str) -> Purpose:
    """Say what masks are for.

    Args:
        members: The sites that mask with each other.
        round: Counted from 1.
    """
    roster = hash_roster((site.number, site.name, site.key, site.masks) for site in members)
    return Purpose(study.agreement.hash, roster, round, what)


@dataclass(frozen=True)
class MaskBook:
    """Which masks a site has used, and which it has told.

    Attributes:
        path: Its file, which stays at the site and is never moved away: without it a mask could be used twice.
        study: The study.
        member: The site.
        key: Its private key.
    """

    path: Path
    study: Study
    member: Member
    key: Ed25519PrivateKey

    def mask(self, round: int, what: str, content: str, values: Tensor) -> Masked:
        """Mask a site's numbers, once; the same question has the same answer.

        Args:
            round: Counted from 1.
            content: A hash of what decides the numbers, such as the message and the rows; noise does not.
            values: Whole numbers, int64 [N].

        Returns:
            What leaves: these numbers masked, or what was masked before for the same question.

        Raises:
            InputError: Something else was masked for this round, or the sum has gone on without this site.
        """
        members = list_roster(self.study)
        purpose = purpose_of(self.study, members, round, what)
        name = f"{round} {what}"
        with lock_file(self.path):
            entries, vectors = self._read()
            entry = entries.get(name)
            if self._is_dropped(round, what, entry):
                raise InputError(f"The sum of round {round} went on without this site: nothing is sent for it.")
            if entry is None:
                self._check_first(entries, round, what, purpose.roster)
                entry = {"content": content, "sites": [site.number for site in members], "roster": purpose.roster}
                vectors[name] = mask(values, self.member.number, self._keys(members, purpose))
                self._write({**entries, name: entry}, vectors)
            if entry["content"] != content or entry["roster"] != purpose.roster or name not in vectors:
                raise InputError(
                    f"This site has masked another answer for round {round}, or one for other sites, and the same "
                    "masks under two answers show how they differ: hand over the first, or make a new study."
                )
        return Masked(vectors[name], torch.tensor(entry["sites"]), _hash_bytes(entry["roster"]))

    def tell(self, request: Path, agreed: Collection[str] | None = None) -> bytes:
        """Answer the coordinator's request to go on without sites: with the keys of the masks shared with them.

        Args:
            request: What `consilience study drop` wrote.
            agreed: The sites that people here have agreed to go on without; None where they run the command themselves.

        Returns:
            The file that leaves.

        Raises:
            InputError: The request is not the coordinator's, or revealing would show what a site sent.
        """
        envelope = open_file(self.study, request, "drop")
        round, what, dropped = _read_drop(envelope)
        gone = [site for site in self.study.sites if site.number in dropped]
        names = ", ".join(site.name for site in gone)
        stays = f"The masks shared with {names or 'these sites'} stay here:"
        name = f"{round} {what}"
        with lock_file(self.path):
            entries, vectors = self._read()
            entry = entries.get(name)
            if self.member.number in dropped:
                self._leave(entries, vectors, name)
            if agreed is not None and not {site.name for site in gone} <= {*agreed}:
                raise InputError(
                    f"{stays} nobody here has agreed to it. Ask {names or 'them'} on another channel whether nothing "
                    f"was sent, then start this site with --without {' --without '.join(site.name for site in gone)}."
                )
            if entry is None or entry["content"] == "":
                raise InputError(f"{stays} this site has not sent its own part of that sum.")
            if entry.get("told", dropped) != dropped:
                raise InputError(f"{stays} others were revealed for this sum, and both together show what a site sent.")
            if len(gone) != len(dropped) or not {*dropped} <= {*entry["sites"]}:
                raise InputError(f"{stays} the sum is not over all of them.")
            try:
                check_left(self.study.agreement, len(entry["sites"]) - len(dropped))
            except InputError as error:
                raise InputError(f"{stays} {error}") from error
            self._write({**entries, name: {**entry, "told": dropped}}, vectors)
        members = list_roster(self.study, entry["sites"])
        keys = self._keys(gone, purpose_of(self.study, members, round, what))
        told = {str(number): torch.tensor(list(key), dtype=torch.uint8) for number, key in keys.items()}
        about = {"number": self.member.number, "what": what, "sites": dropped, "roster": entry["roster"]}
        agreement = self.study.agreement
        header = Header("unmask", agreement.hash, agreement.name, self.member.name, round, about)
        return seal({"keys": told}, header, self.key)

    def _check_first(self, entries: dict[str, Any], round: int, what: str, roster: str) -> None:
        """Refuse to answer a question again about another model or for other sites: two sums show where they differ.

        Only rounds go on with fewer sites, as each asks something else; by files and over Flower they are the same.
        """
        kind = what.partition(" ")[0]
        for name, entry in entries.items():
            before, _, asked = name.partition(" ")
            if not entry["content"] or asked.partition(" ")[0] != kind:
                continue
            if kind != REPLY:
                raise InputError(
                    f"This site has masked {kind} about another model in this study, and the difference of two sums "
                    "can show what a single site sent: go on with the model of then, or make a new study."
                )
            if before == str(round) and entry["roster"] != roster:
                raise InputError(
                    f"This site has masked another answer for round {round}, for other sites, and the difference of "
                    "two sums can show what a single site sent: hand over the first, or make a new study."
                )

    def _leave(self, entries: dict[str, Any], vectors: dict[str, Tensor], name: str) -> None:
        """Write down that a sum goes on without this site, and refuse."""
        if name in entries and entries[name]["content"]:
            raise InputError(
                "This site has masked its part of that sum, and the coordinator asks the others for its masks: whoever "
                "has both can read it. If your file was handed over, warn the other sites before they answer."
            )
        self._write({**entries, name: {"content": "", "sites": [], "roster": ""}}, vectors)
        raise InputError("The sum goes on without this site: it has nothing to reveal, and will send nothing for it.")

    def _is_dropped(self, round: int, what: str, entry: dict[str, Any] | None) -> bool:
        """Whether a sum went on without this site, by its own book or the study's file."""
        own = self.member.name
        listed = any(own in drop.sites and (drop.round, drop.what) == (round, what) for drop in self.study.drops)
        return listed or (entry is not None and entry["content"] == "")

    def _keys(self, members: Sequence[Member], purpose: Purpose) -> dict[int, bytes]:
        """What this site shares with others, by their numbers."""
        own = derive_key(self.key, self.study.agreement.hash)
        if public_half(own) != self.member.masks:
            raise InputError(f"The study lists another key for masks than that of '{self.member.name}': ask why.")
        others = [site for site in members if site.number != self.member.number]
        return {site.number: shared_key(own, site.masks, purpose) for site in others}

    def _read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What was masked and told, by round and what; and the masked numbers that are still held."""
        if not self.path.exists():
            return {}, {}
        envelope = open_file(self.study, self.path, "masks")
        if envelope.header.sender != self.member.name:
            raise InputError(f"{self.path} is another site's: give this site's own book of masks.")
        entries: dict[str, Any] = dict(envelope.header.about["entries"])
        vectors: dict[str, Tensor] = dict(envelope.value(TYPES))
        return entries, vectors

    def _write(self, entries: dict[str, Any], vectors: dict[str, Tensor]) -> None:
        """Keep the book, before anything that it is about leaves."""
        newest = sorted(vectors, key=lambda name: int(name.split()[0]))
        for what in {name.partition(" ")[2] for name in newest}:
            for name in [name for name in newest if name.partition(" ")[2] == what][:-KEPT]:
                del vectors[name]
        agreement = self.study.agreement
        header = Header("masks", agreement.hash, agreement.name, self.member.name, 1, {"entries": entries})
        write_whole(self.path, seal(vectors, header, self.key), "Make room; nothing has left.", PRIVATE)


def check_left(agreement: Agreement, count: int) -> None:
    """Refuse to sum on over too few sites: each could compute the others', or their noise would be too little.

    Args:
        count: How many sites would be left in the sum.

    Raises:
        InputError: There are too few.
    """
    fewest = agreement.fewest_sites
    if count < fewest:
        raise InputError(f"{count} sites would be left, and the study sums over no fewer than {fewest}.")
    privacy = agreement.privacy
    if privacy is not None and privacy.noise == "once" and count < privacy.honest:
        raise InputError(
            f"{count} sites would be left, and the shares of noise that make up ε = {privacy.epsilon:g} are those of "
            f"{privacy.honest} (honest_sites): wait for the others, or make a new study that relies on fewer."
        )


def book_path(study: Study, member: Member, folder: Path = Path()) -> Path:
    """Say where a site keeps its book of masks: one for each study.

    Args:
        folder: Where the site keeps its files.
    """
    return folder / f"{member.name}-{study.agreement.hash[:8]}.masks"


def statistics_of(model: str) -> str:
    """Name the sum of the sites' statistics about a model."""
    return f"statistics {model}"


def counts_of(model: str) -> str:
    """Name the sum of the sites' counts for the prediction sets of a model."""
    return f"counts {model}"


def _read_drop(envelope: Envelope) -> tuple[int, str, list[int]]:
    """Round, what and the numbers of the sites that a sum goes on without."""
    what = envelope.header.about.get("what")
    dropped = envelope.header.about.get("sites")
    if envelope.header.sender != "server" or not isinstance(what, str):
        raise InputError(f"{envelope.path} is not used: it is no request of the study's coordinator.")
    if not isinstance(dropped, list) or not all(type(number) is int for number in dropped) or not dropped:
        raise InputError(f"{envelope.path} is not used: it does not say which sites are missing.")
    return envelope.header.round, what, sorted({*dropped})


def _hash_bytes(roster: str) -> Tensor:
    return torch.tensor(list(bytes.fromhex(roster)), dtype=torch.uint8)
