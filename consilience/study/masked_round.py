"""A round of masked files: replies are told from what was told of masks, summed, and read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from torch import Tensor

from consilience.errors import InputError
from consilience.messages import Received
from consilience.method import Method
from consilience.privacy.secure_aggregation.masks import Masked
from consilience.study.files import Collected, collect, from_sites
from consilience.study.masking import REPLY
from consilience.study.protocol.envelope import Envelope, open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.rehearsal import rehearsal_of
from consilience.study.summing import (
    Summed,
    add_masked,
    invent_reply,
    join_total,
    masked_gate,
    scales_for,
    summation_of,
)
from consilience.study.validation.gate import Gate, Rules
from consilience.task import Task
from consilience.tree import Tree


def sort_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Tell files of masks from others.

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
        round: Counted from 1.

    Returns:
        The files that came as they should, and a sentence for each that is left out.
    """
    if not paths:
        return [], []
    return from_sites(study, paths, "unmask", round)


class Masking:
    """One round after another of a study that masks.

    Attributes:
        replies: What the method pools, of all sites together.
        rows: How many rows stand behind them.
    """

    def __init__(self, study: Study, method: Method, task: Task, inputs: Tensor | None, what: str = REPLY) -> None:
        """Prepare.

        Args:
            inputs: The coordinator's unlabelled rows.
        """
        self.what = what
        self.study = study
        self.method = method
        self.task = task
        self.rehearsal = rehearsal_of(study.agreement, inputs)
        self.replies: list[Received] = []
        self.rows = 0
        self._gate = Gate(Rules(), None, 0)
        self._like: Tree = ()
        self._summands: Tree = ()

    @property
    def round(self) -> int:
        """The round that was prepared, counted from 1."""
        return self._gate.round

    def prepare(self, gate: Gate, message: Tree) -> Gate:
        """Make a round's gate for masked replies.

        Args:
            gate: The gate for replies in the open.
            message: What the sites answer.
        """
        invented = invent_reply(self.rehearsal, self.method, self.task, message, gate.round)
        self._gate = gate
        self._like = invented.send
        self._summands = summation_of(self.method).split(invented.send, invented.size)
        return masked_gate(gate, scales_for(self.study.agreement, self.study.sites, self._summands).count)

    def add(self, masked: Mapping[int, Masked], told: Sequence[Envelope] = ()) -> Summed:
        """Sum the masked replies of the round that was prepared.

        Args:
            masked: What sites sent, by their numbers.
            told: What they told of the masks shared with missing sites.

        Returns:
            Who is in the sum.

        Raises:
            InputError: They cannot be summed.
        """
        scales = partial(scales_for, self.study.agreement, summands=self._summands)
        summed = add_masked(self.study, masked, told, scales, self._gate.round, self.what)
        self.replies, self.rows = join_total(
            self.study, self._gate, self.method, summed.total, summed.sites, self._like
        )
        return summed

    def collect(self, gate: Gate, message: Tree, paths: Sequence[Path]) -> Collected:
        """Collect a round's masked files, and sum them.

        Args:
            gate: The gate for replies in the open.
            message: What the sites answer.

        Returns:
            The masked replies that are in the sum, and what was left out.

        Raises:
            InputError: They cannot be summed.
        """
        replies, told_paths = sort_files(paths)
        collected = collect(self.study, replies, self.prepare(gate, message))
        told, refused = read_told(self.study, told_paths, gate.round)
        sentences = " ".join((*collected.refused, *refused))
        if not collected.received:
            raise InputError(f"No reply can be used. {sentences}".strip())
        try:
            summed = self.add({reply.client: reply.payload for reply in collected.received}, told)
        except InputError as error:
            raise InputError(f"{error} {sentences}".strip()) from error
        return _keep(collected, summed, refused)


def _keep(collected: Collected, summed: Summed, refused: Sequence[str]) -> Collected:
    """The replies that are in the sum."""
    pairs = list(zip(collected.received, collected.names, strict=True))
    kept = [(reply, name) for reply, name in pairs if reply.client in summed.sites]
    names = {reply.client: name for reply, name in pairs}
    left = [f"The reply of {names[number]} is not used: {why}" for number, why in summed.refused.items()]
    sentences = (*collected.refused, *refused, *left)
    return Collected([reply for reply, _ in kept], tuple(name for _, name in kept), sentences)
