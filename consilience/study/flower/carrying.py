"""A study's files over Flower, the same as by files: a model down and counts up, a request down and keys of masks up.

A file says itself of which study and site it is and what it is about, and is signed; whatever comes is read by the
same gate as files that people carry. What Flower adds is the way.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from consilience.disk.writing import PRIVATE, write_whole
from consilience.errors import InputError
from consilience.study.flower.asking import Asking
from consilience.study.flower.client import COUNTS, UNMASK
from consilience.study.flower.engine import TTL
from consilience.study.flower.roster import Roster
from consilience.study.flower.wire import carried, carry
from consilience.study.masked_round import read_told
from consilience.study.masking import MESSAGE
from consilience.study.protocol.envelope import MOST_BYTES, Envelope
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.secure import drop_of
from consilience.study.protocol.signature import verifies
from consilience.study.summing import drop_sites
from consilience.study.validation.gate import Refused

PAUSE = 0.05  # seconds between two looks for answers


class Files(NamedTuple):
    """What the sites answered.

    Attributes:
        paths: Their files.
        lost: By name, why a site sent none.
    """

    paths: tuple[Path, ...]
    lost: dict[str, str]


class CountFiles(NamedTuple):
    """What the sites answered.

    Attributes:
        paths: Their files, for `study calibrate`.
        lost: A sentence for each site that sent none.
    """

    paths: tuple[Path, ...]
    lost: tuple[str, ...]


def ask_counts(
    study: Study, grid: Grid, model: bytes, folder: Path, wait: float = 600.0, deadline: float = 3600.0
) -> CountFiles:
    """Ask connected sites for counts about a model, and write their files.

    Args:
        grid: Flower's way to the sites.
        model: The model's file, which the coordinator signed.
        folder: Where the sites' files are written.
        wait: Seconds until the sites must be there.
        deadline: Seconds they have to answer.

    Returns:
        The files, and who sent none.
    """
    asked = _ask(study, study.active, grid, COUNTS, model, folder, "calibration", wait, deadline)
    sentences = [f"{name} sent no counts for prediction sets: {why}" for name, why in asked.lost.items()]
    return CountFiles(asked.paths, tuple(sentences))


def ask_masks(
    study: Study,
    missing: Sequence[str],
    grid: Grid,
    request: bytes,
    folder: Path,
    wait: float = 600.0,
    deadline: float = 3600.0,
) -> Files:
    """Ask connected sites for the masks that they share with missing ones, and write their files.

    Whoever is called missing and is there hears of it first: it then sends nothing any more, or warns its people.

    Args:
        study: The study, which says already that the sum goes on without them.
        missing: The sites that a sum goes on without.
        grid: Flower's way to the sites.
        request: What `drop_sites` wrote.
        folder: Where the sites' files are written.
        wait: Seconds until the other sites must be there.
        deadline: Seconds they have to answer.

    Returns:
        The files, and who sent none.
    """
    gone = [site for site in study.active if site.name in missing]
    others = [site for site in study.active if site.name not in missing]
    heard = _ask(study, gone, grid, UNMASK, request, folder, "unmask", 0.0, deadline)
    told = _ask(study, others, grid, UNMASK, request, folder, "unmask", wait, deadline)
    return Files(told.paths, {**heard.lost, **told.lost})


class Missing:
    """The sites that sums go on without. Which, is written down before their masks are asked for, and never taken back.

    Args:
        key: The coordinator's private key.
        grid: Flower's way to the sites.
        out: The folder for whatever the server knows.
        names: Those that are missing from now on.
        wait: Seconds until the others must be there.
        deadline: Seconds they have to answer.
    """

    def __init__(
        self,
        study: Study,
        key: Ed25519PrivateKey,
        grid: Grid,
        out: Path,
        names: tuple[str, ...],
        wait: float,
        deadline: float,
    ) -> None:
        self.key, self.grid, self.out, self.names = key, grid, out, names
        self.wait, self.deadline = wait, deadline
        self.path = out / "drops.json"
        self.study = study
        if self.path.exists():
            entries = json.loads(self.path.read_text(encoding="utf-8"))
            self.study = dataclasses.replace(study, drops=(*study.drops, *(drop_of(entry) for entry in entries)))

    def of(self, round: int) -> tuple[str, ...]:
        """Name the sites that are missing from a round.

        Args:
            round: Counted from 1.
        """
        drops = [drop for drop in self.study.drops if (drop.round, drop.what) == (round, MESSAGE)]
        missing = {*self.names, *(name for drop in drops for name in drop.sites)}
        return tuple(site.name for site in self.study.active if site.name in missing)

    def places(self, round: int) -> tuple[int, ...]:
        """Find their places on the roster.

        Args:
            round: Counted from 1.
        """
        missing = self.of(round)
        return tuple(k for k, site in enumerate(self.study.active) if site.name in missing)

    def ask(self, round: int) -> list[Envelope]:
        """Ask the other sites for the masks that they share with those that are missing from a round.

        Args:
            round: Counted from 1.

        Returns:
            What they told; nothing where nobody is missing.

        Raises:
            InputError: Too few sites are left, or one did not tell.
        """
        missing = self.of(round)
        if not missing:
            return []
        self.study, request = drop_sites(self.study, missing, self.key, round, MESSAGE)
        entries = [drop._asdict() for drop in self.study.drops if drop.what == MESSAGE]
        content = json.dumps(entries, indent=1).encode()
        write_whole(self.path, content, "Make room, and go on with --resume.", PRIVATE)  # so that no late reply is used
        answers = ask_masks(self.study, missing, self.grid, request, self.out, self.wait, self.deadline)
        told, refused = read_told(self.study, answers.paths, round)
        silent = [f"{name}: {why}" for name, why in answers.lost.items() if name not in missing]
        if silent or refused:
            raise InputError(f"The sum of round {round} waits for masks. {' '.join((*silent, *refused))}")
        return told


def _ask(
    study: Study,
    sites: Sequence[Member],
    grid: Grid,
    kind: str,
    content: bytes,
    folder: Path,
    ending: str,
    wait: float,
    deadline: float,
) -> Files:
    """Send a file to sites, and write the files that they answer with: SITE.ending."""

    def verify(k: int, purpose: str, text: bytes, signature: str) -> bool:
        return verifies(sites[k].key, purpose, text, signature)

    names = [site.name for site in sites]
    roster = Roster(grid, names, [site.number for site in sites], study.agreement.hash, verify, wait, PAUSE)

    def write(cohort: Sequence[int]) -> Mapping[int, Message]:
        query = f"{MessageType.QUERY}.{kind}"
        return {k: Message(carry(content), roster.nodes[k], query, group_id=kind, ttl=deadline + TTL) for k in cohort}

    everybody = range(len(sites))
    roster.meet(everybody)
    present = [k for k in everybody if k in roster.nodes]
    asking = Asking(roster, write, deadline, len(sites), PAUSE)
    asking(present)
    lost = {k: roster.absence() for k in everybody if k not in present} | asking.lost
    paths = []
    for k, replies in asking.answers.items():
        if k in lost:
            continue
        try:
            answer = carried(replies[0].content, MOST_BYTES)
        except Refused as error:
            lost[k] = str(error)
            continue
        paths.append(folder / f"{names[k]}.{ending}")
        write_whole(paths[-1], answer, "Make room, and go on with --resume.", PRIVATE)
    return Files(tuple(paths), {names[k]: why for k, why in sorted(lost.items())})
