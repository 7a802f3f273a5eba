"""What happens at a site: the method runs on its rows, and one file is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from consilience.data.sites import Data
from consilience.distributions.posterior import find_posterior
from consilience.errors import InputError
from consilience.key import Stream
from consilience.messages import Reply
from consilience.method import Method
from consilience.methods.claims import privacy_statement
from consilience.metrics.choice import knob_of, log_scores
from consilience.metrics.scores import scores
from consilience.privacy.disclosure.rows import holds_rows
from consilience.privacy.disclosure.rules import SMALLEST_CELL, by_rule
from consilience.privacy.entropy import secret_draws
from consilience.runs.engines import threads_for, using_threads
from consilience.runs.engines.exchange import Turn, alone, client_view
from consilience.serialisation.codec import kept_types_of, types_of
from consilience.serialisation.envelope import Header, open_envelope, seal
from consilience.study.admission import begins_alone, may_leave, message_hash, rules_of
from consilience.study.files import open_file
from consilience.study.masking import MaskBook, book_path, statistics_of
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.rehearsal import Broadcasts, invent_rows, server_of
from consilience.study.rows import Parts, Training, fingerprint, training_rows
from consilience.study.spending import Door, Leaving, cost_of_round
from consilience.study.summing import mask_reply, mask_table
from consilience.study.told import tell_rows
from consilience.study.validation.gate import Refused, limit_bytes
from consilience.study.validation.message import check_asked, check_first, check_message, limit_weights
from consilience.tree import Tree

SENT = "sent in round "  # of a memory's entries that hold a reply


class Fitted(NamedTuple):
    """What a site made of a message.

    Attributes:
        reply: The file that leaves.
        memory: The file that stays: the method's memory after this round and the one before, and which rows were
            trained on; where noise was added, what was sent, so that it is repeated and never drawn again.
        send: What is in the reply.
        training: The rows it was made from.
        round: Which round it answers, from 1 on.
        repeated: Whether it is what was sent before.
    """

    reply: bytes
    memory: bytes
    send: Tree
    training: Training
    round: int = 1
    repeated: bool = False


def first_message(study: Study) -> Tree:
    """Compute what every site knows for itself before the first round.

    Args:
        study: The study.

    Raises:
        InputError: The method begins with the coordinator's own rows.
    """
    agreement = study.agreement
    method = agreement.build_method()
    if method.shows_inputs:
        raise InputError(
            f"{agreement.method} begins with a message from the coordinator: give it with message= (--message)."
        )
    return method.broadcast(method.init(agreement.build_task(), server_of(agreement, len(study.active))))


def read_message(study: Study, path: Path | None) -> tuple[Tree, int]:
    """Read the coordinator's message, and check that it is one to start from.

    Args:
        study: The study.
        path: The file; None for the study's own first message.

    Returns:
        The message and its round, from 1 on.

    Raises:
        InputError: The file is not a message of the study's coordinator, or not one that the method sends.
    """
    if path is None:
        return first_message(study), 1
    agreement = study.agreement
    envelope = open_file(study, path, "message")
    round_ = envelope.header.round
    if envelope.header.sender != "server":
        raise InputError(f"{path} is not used: it does not come from the coordinator.")
    if not 1 <= round_ <= agreement.rounds:
        raise InputError(f"This message is for round {round_} and the study has {agreement.rounds}.")
    method = agreement.build_method()
    task = agreement.build_task()
    message = envelope.value(types_of(method))
    try:
        check_message(message, Broadcasts(method, task, invent_rows(agreement)).until(round_), task)
        if begins_alone(agreement, round_):
            check_first(message, first_message(study))
    except Refused as error:
        raise InputError(f"{path} is not used: {error}") from error
    return message, round_


def fit(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Parts,
    door: Door,
    message: Path | None = None,
    memory: Path | None = None,
    replace: bool = False,
    book: Path | None = None,
) -> Fitted:
    """Run the method's `local` on the training rows; what it sends is sealed, entered into the ledger, and leaves.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        rows: Its rows by role.
        door: Where the reply leaves from, past the site's ledger; it keeps the memory.
        message: The coordinator's message; None in a first round that needs none.
        memory: What the round before left here.
        replace: Whether a first reply from other rows is written over.
        book: The site's book of masks, in a study that masks; by default beside the memory.

    Returns:
        The files.

    Raises:
        InputError: A file does not belong here, or the reply may not leave.
    """
    fitted = _fit(study, member, key, rows, message, memory, replace, book)
    spent = cost_of_round(study.agreement, fitted.round)
    leaving = Leaving("reply", rows.train, door.people, "train", fitted.round, spent, fitted.repeated, replace)
    door.let_out(study.agreement, key, leaving, fitted.reply, fitted.memory)
    return fitted


def _fit(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Parts,
    message: Path | None = None,
    memory: Path | None = None,
    replace: bool = False,
    book: Path | None = None,
) -> Fitted:
    """The files of a fit, which nothing charges: for `fit` alone, and for tests."""
    agreement = study.agreement
    method = agreement.build_method()
    content, round_ = read_message(study, message)
    asked = message_hash(agreement, content, round_)
    answered = _answered(study, member, memory, rows, replace and round_ == 1)
    check_once(answered, round_, asked, memory)
    check_noise_once(method, answered, round_, memory)
    if agreement.privacy is not None:
        agreement.privacy.check(len(study.active), sum(site.rows for site in study.active))
    check_commitment(member, rows)
    memories = _memories(study, member, memory, round_, rows)
    training = training_rows(agreement, rows.train)
    try:
        check_asked(method, agreement.build_task(), content, training.data, agreement.smallest)
    except Refused as error:
        raise InputError(f"The message is not answered: {error}") from error
    sent = _sent(study, member, memory, answered)
    repeated = str(round_) in sent
    if repeated:
        reply = sent[str(round_)]
    else:
        reply = _reply(agreement, member, content, round_, training.data, memories)
    check_reply(agreement, reply, training.data)
    may_leave(reply, method, rules_of(agreement, member.rows))
    said = {"number": member.number, **tell_rows(agreement, training.data.y, training.merged)}
    header = Header("reply", agreement.hash, agreement.name, member.name, round_, {**said, "message": asked})
    leaving = reply
    if agreement.secure:
        masks = MaskBook(book or book_path(study, member, (memory or Path()).parent), study, member, key)
        leaving = mask_reply(masks, round_, f"{asked} {fingerprint(rows.train)}", reply)
    sealed = seal({"send": leaving.send, "size": leaving.size}, header, key)
    try:
        limit_bytes(len(sealed), agreement.most_bytes)
    except Refused as error:
        raise InputError(f"The reply stays here: {error} Agree on a larger size or on a smaller model.") from error
    kept = {str(round_): reply.keep}
    if memories:
        kept = {str(round_ - 1): memories[member.number], **kept}  # so that a lost reply can be made again
    about: dict[str, Any] = {
        "number": member.number,
        "rows": fingerprint(rows.train),
        "rounds": [int(number) for number in kept],
        "answered": {**answered, str(round_): asked},
    }
    if agreement.privacy is not None:
        kept |= {f"{SENT}{number}": (old.send, old.size, old.keep) for number, old in sent.items()}
        kept[f"{SENT}{round_}"] = (reply.send, reply.size, reply.keep)
    memory_file = seal(kept, header._replace(kind="memory", about=about), key)
    return Fitted(sealed, memory_file, reply.send, training, round_, repeated)


def _sent(study: Study, member: Member, path: Path | None, answered: Mapping[str, str]) -> dict[str, Reply]:
    """What was sent with noise, by round: drawn again, the two could be averaged."""
    if study.agreement.privacy is None or path is None or not path.exists() or not answered:
        return {}
    by_name = open_file(study, path, "memory").value(kept_types_of(study.agreement.build_method()))
    return {name.removeprefix(SENT): Reply(*value) for name, value in by_name.items() if name.startswith(SENT)}


def check_once(answered: Mapping[str, str], round: int, message: str, memory: Path | None) -> None:
    """Refuse a round that was answered to another message; the same may be answered again, should the reply be lost.

    Args:
        answered: The hashes of the messages that this site has answered, by round.
        round: The round, from 1 on.
        message: The hash of its message.
        memory: The file that says so.

    Raises:
        InputError: The site has answered.
    """
    if answered.get(str(round), message) != message:
        raise InputError(
            f"This site has answered round {round} to another message, and a second answer would show more of its "
            f"rows: give the first message again, or move {memory} away to take part in a second run."
        )


def check_noise_once(method: Method, answered: Mapping[str, str], round: int, memory: Path | None) -> None:
    """Refuse to answer a round again with other noise: two answers cost twice what was promised.

    Args:
        method: The study's method.
        answered: The hashes of the messages that this site has answered, by round.
        round: The round, from 1 on.
        memory: The file that says so.

    Raises:
        InputError: The site has answered, and its promise covers one answer.
    """
    if str(round) in answered and privacy_statement(method) is not None:
        raise InputError(
            f"This site has answered round {round}, and a second answer with other noise would cost twice the privacy "
            f"budget: hand over the reply that was written, or, if it never left this site, move {memory} away."
        )


def check_reply(agreement: Agreement, reply: Reply, data: Data) -> None:
    """Refuse to send rows, and weights that a message could only have forced.

    Args:
        agreement: The study's agreement.
        reply: What the method would send.
        data: The rows it was trained on.

    Raises:
        InputError: The reply stays here.
    """
    if holds_rows(reply.send, data):
        raise InputError("The reply stays here: it holds rows of this site, which never leave it.")
    try:
        limit_weights(reply.send, agreement.build_task())
    except Refused as error:
        raise InputError(f"The reply stays here: {error}") from error


def _answered(study: Study, member: Member, path: Path | None, rows: Parts, replace: bool) -> dict[str, str]:
    """The hashes of the messages that were answered, by round; none for rows replaced."""
    if path is None or not path.exists():
        return {}
    header = open_envelope(path, "memory").header
    if header.study != study.agreement.hash or header.sender != member.name:
        return {}  # somebody else's: a first round writes over it, a later one refuses it
    about = open_file(study, path, "memory").header.about
    if about.get("rows") != fingerprint(rows.train):
        if replace:
            return {}
        raise InputError(
            "The rows are not those that this site has answered with, and two replies show where they differ: use the "
            f"same table, or, if the reply was never handed over, write over it and {path} with "
            "replace=True (--replace)."
        )
    return dict(about["answered"])


def check_commitment(member: Member, rows: Parts) -> None:
    """Refuse more rows than a site committed to when it joined: the coordinator would not use them.

    Args:
        member: The site.
        rows: Its rows by role.

    Raises:
        InputError: There are more.
    """
    count = len(rows.train.y)
    if member.rows and count > member.rows:
        raise InputError(
            f"There are {count:,} rows to train on, and '{member.name}' committed to {member.rows:,} when it joined: "
            "use the table of then, or let the coordinator take it off the list (`study leave`) and join anew."
        )


def _reply(
    agreement: Agreement, member: Member, message: Tree, round_: int, data: Data, memories: dict[int, Tree]
) -> Reply:
    """The method's reply; a message of another model is refused."""
    method = agreement.build_method()
    task = agreement.build_task()
    turn = Turn(round_ - 1, agreement.key.fold(Stream.LOCAL), (round_ - 1) / agreement.rounds)
    with torch.no_grad(), using_threads(threads_for(task)), secret_draws():
        client = client_view(method, message, data, memories, member.number, turn)
        try:
            return alone(method, task, message, client, member.number, turn.round)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"The message does not fit the study's model: {reason}. Ask for it again.") from error


def _memories(study: Study, member: Member, path: Path | None, round_: int, rows: Parts) -> dict[int, Tree]:
    """What the round before left here, by the site's number; nothing before the first."""
    if round_ == 1:
        return {}
    if path is None or not path.exists():
        raise InputError(
            f"Round {round_} goes on from what round {round_ - 1} left here: give it with memory= (--memory)."
        )
    envelope = open_file(study, path, "memory")
    header = envelope.header
    by_round = envelope.value(kept_types_of(study.agreement.build_method()))
    if header.sender != member.name or str(round_ - 1) not in by_round:
        raise InputError(f"{path} is not what '{member.name}' kept in round {round_ - 1}: give the right file.")
    if header.about.get("rows") != fingerprint(rows.train):
        raise InputError(f"The rows are not those of round {round_ - 1}: use the same table in all rounds.")
    return {member.number: by_round[str(round_ - 1)]}


def read_memory(study: Study, path: Path, round: int) -> Tree:
    """Read what a site kept in a round.

    Args:
        study: The study.
        path: What `site fit` left.
        round: The round, from 1 on.

    Returns:
        The memory.

    Raises:
        InputError: The file is not a memory of this study, or not of this round.
    """
    envelope = open_file(study, path, "memory")
    by_round = envelope.value(kept_types_of(study.agreement.build_method()))
    if str(round) not in by_round:
        raise InputError(f"{path} does not hold what was kept in round {round}, which the model was made in.")
    return by_round[str(round)]


def own_scores(agreement: Agreement, send: Tree, rows: Data) -> dict[str, float]:
    """Score the site's own model on its test rows; these numbers stay here.

    Args:
        agreement: The study's agreement.
        send: What is in the reply.
        rows: The test rows.

    Returns:
        Scores by name; none where there is no model or no row.
    """
    posterior = find_posterior(send)
    if posterior is None or not len(rows.y):
        return {}
    return scores(agreement.build_task().predictive(posterior)(rows.x), rows.y)


def statistics(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    method: Method,
    state: Tree,
    of: str,
    door: Door,
    book: Path | None = None,
) -> bytes:
    """Write a site's table of summed log-scores for a model.

    Args:
        study: The study.
        member: This site.
        key: Its private key.
        rows: The rows set aside to choose by.
        method: The model's method.
        state: The model's state.
        of: The model's checksum.
        door: Where the file leaves from, past the site's ledger.
        book: The site's book of masks, in a study that masks; by default here.

    Returns:
        The file that leaves.

    Raises:
        InputError: Too few rows are set aside.
    """
    content = _statistics(study, member, key, rows, method, state, of, book)
    leaving = Leaving(f"statistics about {of[:12]}", rows, part="choose", one_model=True)
    return door.let_out(study.agreement, key, leaving, content)


def _statistics(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Data,
    method: Method,
    state: Tree,
    of: str,
    book: Path | None = None,
) -> bytes:
    """The file of `statistics`, which nothing charges."""
    agreement = study.agreement
    if agreement.privacy is not None:
        raise InputError(
            "Sums of log-scores would be released without noise, and the study promises differential privacy: none are "
            "sent; a method that is tuned by the sites accounts for them."
        )
    if len(rows.y) < agreement.smallest:
        sentence = (
            f"Only {len(rows.y)} rows are set aside to choose by and no count below {agreement.smallest} may be shown: "
            "this site sends no statistics."
        )
        raise InputError(by_rule(SMALLEST_CELL, sentence))
    task = agreement.build_task()
    with torch.no_grad(), using_threads(threads_for(task)):
        table = log_scores(method, task, state, rows)
    about = {"number": member.number, "model": of, "knob": knob_of(method, state).name}
    header = Header("statistics", agreement.hash, agreement.name, member.name, 1, about)
    if agreement.secure:
        masks = MaskBook(book or book_path(study, member), study, member, key)
        return seal(
            {"masked": mask_table(masks, statistics_of(of), fingerprint(rows), table, len(rows.y))}, header, key
        )
    return seal({"log_scores": table, "count": torch.tensor(len(rows.y))}, header, key)
