"""Sites that are only reached by files: the message is written, replies are collected from a folder.

Nothing waits. What is missing is named, and the same call goes on when the files are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.engines.exchange import Turn
from consilience.errors import InputError
from consilience.formats.codec import types_of
from consilience.formats.envelope import Envelope, Header, open_envelope, seal
from consilience.key import Stream
from consilience.method import Method
from consilience.parties import Received, Reply
from consilience.study.admission import admit, admit_size, kinds_of, rehearse
from consilience.study.agreement import Agreement, Study
from consilience.task import Task
from consilience.tree import Tree

SLACK = 100_000  # bytes of a file beside its tensors


class Waiting(InputError):
    """Files of some sites are still to come."""


class Collected(NamedTuple):
    received: list[Received]  # by site number
    names: tuple[str, ...]  # of these sites
    refused: tuple[str, ...]  # one sentence for each file left out


def message_file(agreement: Agreement, message: Tree, round: int, key: Ed25519PrivateKey) -> bytes:
    """What the coordinator hands to the sites; `round` counts from 1."""
    return seal(message, Header("message", agreement.hash, agreement.name, "server", round), key)


def open_file(study: Study, path: Path, kind: str, most: int | None = None) -> Envelope:
    """A file of this study, signed by the site or the server that it names."""
    agreement = study.agreement
    envelope = open_envelope(path, kind, most or agreement.most_bytes + SLACK)
    header = envelope.header
    if header.study != agreement.hash:
        raise InputError(
            f"{path} belongs to the study '{header.study_name}' ({header.study[:8]}), not to '{agreement.name}' "
            f"({agreement.hash[:8]}): make it again with this study's file."
        )
    try:
        key = agreement.server if header.sender == "server" else study.member(header.sender).key
    except InputError as error:
        raise InputError(f"{path} is not used: {str(error)[0].lower()}{str(error)[1:]}") from None
    if not envelope.signed_by(key):
        raise InputError(f"{path} is not signed with the key of '{header.sender}' in the study: it is not used.")
    return envelope


def from_sites(study: Study, paths: Sequence[Path], kind: str, round: int = 1) -> tuple[list[Envelope], list[str]]:
    """The sound files of one kind and round, at most one a site, and a sentence for each that is left out."""
    found: dict[str, list[Envelope]] = {}
    refused = []
    for path in paths:
        try:
            envelope = open_file(study, path, kind)
            if envelope.header.sender == "server":
                raise InputError(f"{path} comes from the server and a site's {kind} is needed: it is not used.")
            if envelope.header.round != round:
                theirs = envelope.header.round
                raise InputError(f"{path} is for round {theirs}; round {round} is collected: it is not used.")
        except InputError as error:
            refused.append(str(error))
            continue
        same = found.setdefault(envelope.header.sender, [])
        if all(envelope.checksum != other.checksum for other in same):  # a copy of the same file does no harm
            same.append(envelope)
    for name, several in found.items():
        if len(several) > 1:
            files = ", ".join(e.path for e in several)
            refused.append(f"There are {len(several)} different files of '{name}' ({files}): keep the right one.")
    return [several[0] for several in found.values() if len(several) == 1], refused


def collect(study: Study, paths: Sequence[Path], round: int, expected: Reply) -> Collected:
    """Replies of one round, each checked in full; a bad file is named and left out, the rest go on."""
    method, received, names = study.agreement.build_method(), [], {}
    envelopes, refused = from_sites(study, paths, "reply", round)
    for envelope in envelopes:
        header, path = envelope.header, envelope.path
        try:
            value = envelope.value(types_of(method))
            admit(value, {"send": expected.send, "size": expected.size}, path)
            admit_size(value["size"], study.agreement.smallest, path)
            _allowed(study.agreement, value["send"], path)
        except InputError as error:
            refused.append(str(error))
            continue
        number = study.member(header.sender).number
        received.append(Received(number, value["size"], value["send"]))
        names[number] = header.sender
    received.sort(key=lambda r: r.client)
    return Collected(received, tuple(names[r.client] for r in received), tuple(refused))


def _allowed(agreement: Agreement, send: Tree, path: str) -> None:
    strange = [kind for kind in kinds_of(send) if kind not in agreement.leaves]
    if strange:
        raise InputError(f"{path} holds a '{strange[0]}', which the study does not let leave a site: it is not used.")


class Files:
    """An engine: `gather` writes the message into a folder and collects the replies that lie there.

    `handed_over` is called when the message is written; the files may be carried meanwhile. Sites that have not
    answered after it stop the round with `Waiting`; the same round can be gathered again.
    """

    def __init__(
        self,
        study: Study,
        folder: Path,
        key: Ed25519PrivateKey,
        handed_over: Callable[[Path], None] = lambda message: None,
    ) -> None:
        self.study = study
        self.folder = folder
        self.key = key
        self.handed_over = handed_over
        self.memories: dict[int, Tree] = {}  # stay at the sites
        self.forgiving, self.lost = False, dict[int, str]()
        self.refused: tuple[str, ...] = ()  # what was wrong with files of the last round

    @property
    def clients(self) -> Sequence[int]:
        return [site.number for site in self.study.active]

    def gather(self, method: Method, task: Task, message: Tree, cohort: Sequence[int], turn: Turn) -> list[Received]:
        agreement = self.study.agreement
        if method != agreement.build_method() or int(turn.key.seed) != int(agreement.key.fold(Stream.LOCAL).seed):
            raise InputError("The method or seed differs from the study's: run what the sites signed.")
        number = turn.round + 1
        path = self.folder / f"round-{number}.message"
        self.folder.mkdir(parents=True, exist_ok=True)
        path.write_bytes(message_file(agreement, message, number, self.key))
        self.handed_over(path)
        here = sorted(self.folder.glob("*.reply"))
        found = collect(self.study, here, number, rehearse(agreement, message, number))
        self.refused = found.refused
        wanted = [site for site in self.study.active if site.number in cohort and site.name not in found.names]
        self.lost = {site.number: "no sound reply file" for site in wanted}
        if wanted and not self.forgiving:
            said = f" Not used: {' '.join(found.refused)}" if found.refused else ""
            raise Waiting(
                f"Round {number} waits for {', '.join(site.name for site in wanted)}: hand them {path}, put their "
                f"replies into {self.folder}, and go on.{said}"
            )
        return [r for r in found.received if r.client in cohort]
