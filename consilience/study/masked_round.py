"""A round of masked files: replies are told from what was told of masks, summed, and read as one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from consilience.admission.gate import Gate
from consilience.agreement.agreement import Study
from consilience.agreement.rehearsal import rehearsal_of
from consilience.errors import InputError
from consilience.formats.envelope import Envelope, open_envelope
from consilience.method import Method
from consilience.parties import Received
from consilience.study.files import Collected, collect, from_sites
from consilience.study.masking import REPLY
from consilience.study.summing import (
    Summed,
    add_masked,
    invent_reply,
    join_total,
    masked_gate,
    scales_for,
    summation_of,
)
from consilience.task import Task
from consilience.tree import Tree


def sort_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Tell files of masks from others.

    Args:
        paths: The files.

    Returns:
        Those that are not, and those that tell masks.
    """
    told = [path for path in paths if _is_unmask(path)]
    return [path for path in paths if path not in told], told


def _is_unmask(path: Path) -> bool:
    try:
        return open_envelope(path).header.kind == "unmask"
    except InputError:  # whatever is wrong is said when it is read as what it should be
        return False


def read_told(study: Study, paths: Sequence[Path], round: int) -> tuple[list[Envelope], list[str]]:
    """Read what sites told of the masks shared with missing sites.

    Args:
        study: The study.
        paths: Their files.
        round: Counted from 1.

    Returns:
        The files that came as they should, and a sentence for each that is left out.
    """
    if not paths:
        return [], []
    return from_sites(study, paths, "unmask", round)


class Masking:
    """One round's files of a study that masks.

    Attributes:
        replies: What the method pools, of all sites together.
        rows: How many rows stand behind them.
    """

    def __init__(self, study: Study, method: Method, task: Task, inputs: Tensor | None, paths: Sequence[Path]) -> None:
        """Prepare.

        Args:
            study: The study.
            method: Its method.
            task: Its problem.
            inputs: The coordinator's unlabelled rows.
            paths: The sites' files.
        """
        self.study = study
        self.method = method
        self.task = task
        self.inputs = inputs
        self.paths = paths
        self.replies: list[Received] = []
        self.rows = 0

    def collect(self, gate: Gate, message: Tree) -> Collected:
        """Collect a round's masked replies, and sum them.

        Args:
            gate: The gate for replies in the open.
            message: What the sites answer.

        Returns:
            The masked replies that are in the sum, and what was left out.

        Raises:
            InputError: They cannot be summed.
        """
        study = self.study
        rehearsal = rehearsal_of(study.agreement, self.inputs)
        invented = invent_reply(rehearsal, self.method, self.task, message, gate.round)
        summands = summation_of(self.method).split(invented.send, invented.size)
        replies, told_paths = sort_files(self.paths)
        count = scales_for(study.agreement, study.sites, summands).count
        collected = collect(study, replies, masked_gate(gate, count))
        told, refused = read_told(study, told_paths, gate.round)
        masked = {reply.client: reply.payload for reply in collected.received}
        if not masked:
            raise InputError(f"No reply can be used. {' '.join((*collected.refused, *refused))}".strip())
        scales = partial(scales_for, study.agreement, summands=summands)
        try:
            summed = add_masked(study, masked, told, scales, gate.round, REPLY)
        except InputError as error:
            raise InputError(f"{error} {' '.join((*collected.refused, *refused))}".strip()) from error
        self.replies, self.rows = join_total(study, gate, self.method, summed.total, summed.sites, invented.send)
        return _keep(collected, summed, refused)


def _keep(collected: Collected, summed: Summed, refused: Sequence[str]) -> Collected:
    """The replies that are in the sum."""
    pairs = list(zip(collected.received, collected.names, strict=True))
    kept = [(reply, name) for reply, name in pairs if reply.client in summed.sites]
    names = {reply.client: name for reply, name in pairs}
    left = [f"The reply of {names[number]} is not used: {why}" for number, why in summed.refused.items()]
    sentences = (*collected.refused, *refused, *left)
    return Collected([reply for reply, _ in kept], tuple(name for _, name in kept), sentences)
