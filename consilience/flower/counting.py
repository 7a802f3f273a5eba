"""Counts for prediction sets over Flower: the same files as by hand, the model down and every site's counts up.

A file says itself of which study and site it is and about which model, and is signed; whatever comes is read by the
same gate as files that people carry. What Flower adds is the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from consilience.admission.gate import Refused
from consilience.agreement.members import Study
from consilience.disk.writing import PRIVATE, write_whole
from consilience.flower.asking import Asking
from consilience.flower.client import COUNTS
from consilience.flower.engine import TTL
from consilience.flower.roster import Roster
from consilience.flower.wire import carried, carry
from consilience.formats.envelope import MOST_BYTES
from consilience.formats.signature import verifies

PAUSE = 0.05  # seconds between two looks for answers


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
    sites = study.active

    def verify(k: int, purpose: str, text: bytes, signature: str) -> bool:
        return verifies(sites[k].key, purpose, text, signature)

    roster = Roster(
        grid, [site.name for site in sites], [site.number for site in sites], study.agreement.hash, verify, wait, PAUSE
    )

    def write(cohort: Sequence[int]) -> Mapping[int, Message]:
        kind = f"{MessageType.QUERY}.{COUNTS}"
        return {k: Message(carry(model), roster.nodes[k], kind, group_id=COUNTS, ttl=deadline + TTL) for k in cohort}

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
            content = carried(replies[0].content, MOST_BYTES)
        except Refused as error:
            lost[k] = str(error)
            continue
        paths.append(folder / f"{sites[k].name}.calibration")
        write_whole(paths[-1], content, "Make room, and go on with --resume.", PRIVATE)
    sentences = [f"{sites[k].name} sent no counts for prediction sets: {why}" for k, why in sorted(lost.items())]
    return CountFiles(tuple(paths), tuple(sentences))
