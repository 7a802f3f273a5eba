"""A study's files over Flower, the same as by hand: a model down and counts up, a request down and keys of masks up.

A file says itself of which study and site it is and what it is about, and is signed; whatever comes is read by the
same gate as files that people carry. What Flower adds is the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from consilience.admission.gate import Refused
from consilience.agreement.members import Member, Study
from consilience.disk.writing import PRIVATE, write_whole
from consilience.flower.asking import Asking
from consilience.flower.client import COUNTS, UNMASK
from consilience.flower.engine import TTL
from consilience.flower.roster import Roster
from consilience.flower.wire import carried, carry
from consilience.formats.envelope import MOST_BYTES
from consilience.formats.signature import verifies

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
        study: The study.
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
