"""A study's files: the message is written, replies are collected from wherever they lie.

Nothing waits. What is missing or wrong is named, and the same command goes on when the files are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.errors import InputError
from consilience.messages import Received
from consilience.serialisation.codec import decode, types_of
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import MOST_BYTES, Envelope, Header, open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.validation.gate import Arrival, Gate, Identity, Refused, limit_bytes
from consilience.study.validation.rules import group_answers, rules_of
from consilience.tree import Tree

SLACK = 100_000  # bytes of a file that is not a reply, beyond those agreed for one


class Collected(NamedTuple):
    """The replies of one round.

    Attributes:
        received: What the server uses, by site number.
        names: The names of these sites.
        refused: One sentence for each file that is left out.
        about: What each reply says of itself, by site.
    """

    received: list[Received]
    names: tuple[str, ...]
    refused: tuple[str, ...]
    about: Mapping[str, Mapping[str, Any]] = {}


class Delivered(NamedTuple):
    """Files that came in the same way, copies counted once.

    Attributes:
        envelopes: What was opened; more than one where a site answers in several ways.
        arrival: How they came.
    """

    envelopes: tuple[Envelope, ...]
    arrival: Arrival

    def refusal(self, why: str) -> str:
        """Write the sentence for files that are left out.

        Args:
            why: The sentence of the rule they break.
        """
        paths = ", ".join(envelope.path for envelope in self.envelopes)
        if len(self.envelopes) > 1:
            return f"{paths} are not used: {why}"
        return f"{paths} is not used: {why}"


def message_file(agreement: Agreement, message: Tree, round: int, key: Ed25519PrivateKey) -> bytes:
    """Write what the coordinator hands to the sites.

    Args:
        message: What the method broadcasts.
        round: The round that answers it, from 1 on.
        key: The coordinator's private key.
    """
    return seal(message, Header("message", agreement.hash, agreement.name, "server", round), key)


def open_file(study: Study, path: Path, kind: str, most: int = MOST_BYTES) -> Envelope:
    """Open a file of this study that is signed by whom it names.

    Args:
        kind: What it must hold: a message, a memory, a state.
        most: The largest size that is read, in bytes.

    Raises:
        InputError: The file is damaged, of another kind or study, or not signed by its sender.
    """
    envelope = _open(study, path, kind, most)
    sender = envelope.header.sender
    try:
        key = _key_of(study, sender)
    except InputError as error:
        raise InputError(f"{path} is not used: {_lower(error)}") from None
    if not envelope.signed_by(key):
        raise InputError(f"{path} is not used: it is not signed with the key of '{sender}' in the study.")
    return envelope


def from_sites(
    study: Study, paths: Sequence[Path], kind: str, round: int = 1, most: int = 0
) -> tuple[list[Envelope], list[str]]:
    """Open the files of one kind and round, at most one a site.

    Args:
        kind: What they must hold: a reply, statistics.
        round: The round they must be of, from 1 on.
        most: The largest size that is read, in bytes; that of a reply, and some more, if 0.

    Returns:
        The files that came as they should, and a sentence for each that is left out.
    """
    rules = rules_of(study.agreement)
    rules = rules._replace(most_bytes=most or rules.most_bytes + SLACK)
    gate = Gate(rules, None, round)
    deliveries, refused = _open_all(study, paths, kind, rules.most_bytes)
    envelopes = []
    for delivered in deliveries:
        try:
            gate.check_arrival(delivered.arrival)
        except Refused as error:
            refused.append(delivered.refusal(str(error)))
            continue
        envelopes.append(delivered.envelopes[0])
    return envelopes, refused


def collect(study: Study, paths: Sequence[Path], gate: Gate) -> Collected:
    """Collect the replies of one round; a bad file is named and left out, the rest go on.

    Args:
        gate: What a reply of this round must be.

    Returns:
        The replies that are sound, and what was left out.
    """
    types = types_of(study.agreement.build_method())
    received = []
    names = {}
    about = {}
    deliveries, refused = _open_all(study, paths, "reply", gate.rules.most_bytes)
    for delivered in deliveries:
        envelope = delivered.envelopes[0]
        member = study.member(envelope.header.sender)
        try:
            read = partial(decode, envelope.tensors, envelope.outline, types)
            reply = gate.admit(member.number, delivered.arrival, read)
        except Refused as error:
            refused.append(delivered.refusal(str(error)))
            continue
        received.append(reply)
        names[member.number] = member.name
        about[member.name] = envelope.header.about
    received.sort(key=lambda reply: reply.client)
    return Collected(received, tuple(names[reply.client] for reply in received), tuple(refused), about)


def _open_all(study: Study, paths: Sequence[Path], kind: str, most: int) -> tuple[list[Delivered], list[str]]:
    """Files of the study's sites with the facts of how they came, and a sentence for each that is none."""
    answers = []
    refused = []
    for path in paths:
        try:
            envelope = _open_from_site(study, path, kind, most)
        except InputError as error:
            refused.append(str(error))
            continue
        answers.append((_arrival(study, envelope), envelope.checksum, envelope))
    return [Delivered(tuple(envelopes), arrival) for arrival, envelopes in group_answers(answers)], refused


def _arrival(study: Study, envelope: Envelope) -> Arrival:
    """How a file came."""
    name = envelope.header.sender
    owners = [site for site in study.active if site.key == envelope.key]
    owner = next(iter(owners), study.member(name))  # nobody's key: the signature will not fit
    sender: Identity = (owner.name, owner.number)
    claimed: Identity = (name, _number_in(envelope))
    signed = envelope.signed_by(_key_of(study, name))
    message = str(envelope.header.about.get("message", ""))
    rows = study.member(name).rows
    return Arrival(sender, claimed, envelope.header.round, signed, envelope.nbytes, message=message, rows=rows)


def _number_in(envelope: Envelope) -> int:
    """The number that a file says it was made under; one that nobody has if it does not say."""
    number = envelope.header.about.get("number")
    if type(number) is int:
        return number
    return -1


def _open_from_site(study: Study, path: Path, kind: str, most: int) -> Envelope:
    """A file that names a site of this study; who signed it is still to be judged."""
    try:
        if path.is_file():
            limit_bytes(path.stat().st_size, most)  # before it is read
    except Refused as error:
        raise InputError(f"{path} is not used: {error}") from error
    envelope = _open(study, path, kind, most)
    try:
        if envelope.header.sender == "server":
            raise InputError(f"It comes from the server, and a site's {kind} is needed.")
        study.member(envelope.header.sender)
    except InputError as error:
        raise InputError(f"{path} is not used: {_lower(error)}") from None
    return envelope


def _open(study: Study, path: Path, kind: str, most: int) -> Envelope:
    """A file of this study; who signed it is still to be checked."""
    agreement = study.agreement
    envelope = open_envelope(path, kind, most)
    header = envelope.header
    if header.study != agreement.hash:
        raise InputError(
            f"{path} belongs to the study '{header.study_name}' ({header.study[:8]}), not to '{agreement.name}' "
            f"({agreement.hash[:8]}): make it again with this study's file."
        )
    return envelope


def _key_of(study: Study, sender: str) -> str:
    """The public key of a site, or of the coordinator."""
    if sender == "server":
        return study.agreement.server
    return study.member(sender).key


def _lower(error: InputError) -> str:
    """An error's sentence within a longer one."""
    text = str(error)
    return text[0].lower() + text[1:]
