"""What happens at a site: rows are read by the agreement, given their roles, fitted, and one file is written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.data.sites import Data
from consilience.engines import threads_for, using_threads
from consilience.engines.exchange import Turn, alone, client_view
from consilience.errors import InputError
from consilience.formats.codec import kept_types_of, types_of
from consilience.formats.envelope import Header, seal
from consilience.key import Stream
from consilience.method import Method, Needs
from consilience.metrics.scores import scores
from consilience.parties import Reply
from consilience.posterior import Dense, Gaussian, Point, Posterior, Samples
from consilience.study.admission import kinds_of, leaves_of, server_of
from consilience.study.agreement import Agreement, Member, Study
from consilience.study.choice import knob_of, log_scores
from consilience.study.columns import Inspection, inspect, labelled_rows
from consilience.study.files import open_file
from consilience.tree import Tree


class Parts(NamedTuple):
    """A site's rows by their role; the same at every call, as they depend on the seed and the site's number alone."""

    train: Data
    choose: Data  # choose β, λ and temperature
    test: Data  # only score


class Fitted(NamedTuple):
    reply: bytes  # what leaves
    memory: bytes  # what stays: the method's memory after this round and the one before, and which rows were trained on
    send: Tree


def rows_of(agreement: Agreement, path: Path, one_class: bool = False) -> tuple[Data, Inspection]:
    """A site's rows, sound and enough."""
    found = inspect(path, agreement.columns, agreement.target).sound()
    if found.rows < agreement.smallest:
        raise InputError(f"{path.name} has {found.rows} rows; the study asks for at least {agreement.smallest}.")
    present = [label for label, count in found.classes.items() if count]
    if len(present) == 1 and not one_class:
        raise InputError(
            f"'{agreement.target.name}' is '{present[0]}' in every row of {path.name}: check the column, or add "
            "--one-class if that is so."
        )
    return labelled_rows(agreement.columns, agreement.target, found), found


def parts(agreement: Agreement, number: int, data: Data) -> Parts:
    """Roles drawn by the seed, within each class."""
    key, picked = agreement.key.fold(Stream.ROLES).fold(number), torch.zeros(len(data.y), dtype=torch.int64)
    groups = data.y if agreement.target.classes else torch.zeros_like(picked)
    for label in sorted(set(groups.tolist())):
        own = (groups == label).nonzero().flatten()
        order = own[key.fold(label).permutation(len(own))]
        first, second = round(agreement.choose * len(own)), round(agreement.test * len(own))
        picked[order[:first]] = 1
        picked[order[first : first + second]] = 2
    made = Parts(*(Data(*(leaf[picked == role] for leaf in data)) for role in range(3)))
    if len(made.train.y) < agreement.smallest:
        raise InputError(
            f"{len(made.train.y)} rows are left to train on; the study asks for at least {agreement.smallest}."
        )
    return made


def fingerprint(data: Data) -> str:
    """So that rows that were trained on are never taken for rows set aside; stays at the site."""
    digest = hashlib.sha256()
    for leaf in data:
        digest.update(leaf.contiguous().numpy().tobytes())
    return digest.hexdigest()


def first_message(study: Study) -> Tree:
    """What every site can compute for itself before the first round."""
    agreement = study.agreement
    method = agreement.build_method()
    if method.needs is Needs.INPUTS:
        raise InputError(f"{agreement.method} begins with a message from the coordinator: give it with --message.")
    return method.broadcast(method.init(agreement.build_task(), server_of(agreement, len(study.active))))


def read_message(study: Study, path: Path | None) -> tuple[Tree, int]:
    """The coordinator's message and its round, or the study's own first one."""
    if path is None:
        return first_message(study), 1
    envelope = open_file(study, path, "message", most=2**30)
    if envelope.header.sender != "server":
        raise InputError(f"{path} does not come from the coordinator: it is not used.")
    return envelope.value(types_of(study.agreement.build_method())), envelope.header.round


def fit(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    rows: Parts,
    message: Path | None = None,
    memory: Path | None = None,
) -> Fitted:
    """Run the method's `local` on the training rows and seal what it sends; nothing leaves that the study forbids."""
    agreement = study.agreement
    method, task, number = agreement.build_method(), agreement.build_task(), member.number
    sent, round_ = read_message(study, message)
    if round_ > agreement.rounds:
        raise InputError(f"This message is for round {round_} and the study has {agreement.rounds}.")
    memories = _memories(study, member, memory, round_, rows)
    with torch.no_grad(), using_threads(threads_for(task)):
        turn = Turn(round_ - 1, agreement.key.fold(Stream.LOCAL), (round_ - 1) / agreement.rounds)
        client = client_view(method, sent, rows.train, memories, number, turn)
        try:
            reply = alone(method, task, sent, client, number, turn.round)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise InputError(f"The message does not fit the study's model: {reason}. Ask for it again.") from error
    may_leave(agreement, reply)
    header = Header("reply", agreement.hash, agreement.name, member.name, round_)
    held = {str(round_ - 1): memories[number]} if memories else {}  # so that a lost reply can be made again
    held |= {str(round_): reply.keep}
    kept = header._replace(kind="memory", about={"rows": fingerprint(rows.train), "rounds": [*map(int, held)]})
    made = seal({"send": reply.send, "size": reply.size}, header, key)
    if len(made) > agreement.most_bytes:
        raise InputError(f"The reply has {len(made):,} bytes; the study lets {agreement.most_bytes:,} leave a site.")
    return Fitted(made, seal(held, kept, key), reply.send)


def _memories(study: Study, member: Member, path: Path | None, round_: int, rows: Parts) -> dict[int, Tree]:
    if round_ == 1:
        return {}
    if path is None or not path.exists():
        raise InputError(f"Round {round_} goes on from what round {round_ - 1} left here: give it with --memory.")
    envelope = open_file(study, path, "memory", most=2**30)
    header, held = envelope.header, envelope.value(kept_types_of(study.agreement.build_method()))
    if "rounds" not in header.about:
        held = {str(header.round): held}  # files of older versions hold one round
    if header.sender != member.name or str(round_ - 1) not in held:
        raise InputError(f"{path} is not what '{member.name}' kept in round {round_ - 1}: give the right file.")
    if header.about.get("rows") != fingerprint(rows.train):
        raise InputError(f"The rows are not those of round {round_ - 1}: use the same table in all rounds.")
    return {member.number: held[str(round_ - 1)]}


def may_leave(agreement: Agreement, reply: Reply) -> None:
    """Refuse a reply of another kind than agreed, or that tells about fewer rows than agreed."""
    strange = [kind for kind in kinds_of(reply.send) if kind not in agreement.leaves]
    if strange:
        raise InputError(f"The method would send a '{strange[0]}', which the study does not let leave a site.")
    if 0 < (fewest := int(agreement.build_method().fewest(reply))) < agreement.smallest:
        raise InputError(
            f"{agreement.method} sends sums over no more than {fewest} rows here, and the study shows no count below "
            f"{agreement.smallest}: agree on a smaller count or on another method."
        )
    for path, leaf in leaves_of(reply.send):
        if path.split(".")[-1] == "counts" and bool(((leaf > 0) & (leaf < agreement.smallest)).any()):
            raise InputError(
                f"{agreement.method} sends how often each class was seen, and here one was seen fewer than "
                f"{agreement.smallest} times: agree on a smaller count or on another method."
            )


def own_posterior(send: Any) -> Posterior | None:
    """The site's own model within what it sends, if there is one."""
    if isinstance(send, (Point, Samples, Gaussian, Dense)):
        return send
    return own_posterior(send[0]) if isinstance(send, tuple) and send and not hasattr(send, "counts") else None


def own_scores(agreement: Agreement, send: Tree, rows: Data) -> dict[str, float]:
    """How well the site's own model predicts its test rows; these numbers stay here."""
    posterior = own_posterior(send)
    if posterior is None or not len(rows.y):
        return {}
    return scores(agreement.build_task().predictive(posterior)(rows.x), rows.y)


def check_unseen(study: Study, memory: Path | None, rows: Parts) -> bool:
    """Whether the rows that were trained on are still the same, so that those set aside were not; None was kept: no."""
    if memory is None or not memory.exists():
        return False
    kept = open_file(study, memory, "memory", most=2**30).header.about.get("rows")
    if kept != fingerprint(rows.train):
        raise InputError("The table has changed since `site fit`: rows set aside may have been trained on.")
    return True


def statistics(
    study: Study, member: Member, key: Ed25519PrivateKey, rows: Data, method: Method, state: Tree, of: str
) -> bytes:
    """A site's table of summed log-scores for the model whose checksum is `of`."""
    agreement = study.agreement
    if len(rows.y) < agreement.smallest:
        raise InputError(
            f"Only {len(rows.y)} rows are set aside to choose by and no count below {agreement.smallest} may be shown: "
            "this site sends no statistics."
        )
    task = agreement.build_task()
    with torch.no_grad(), using_threads(threads_for(task)):
        table = log_scores(method, task, state, rows)
    about = {"model": of, "knob": knob_of(method, state).name}
    header = Header("statistics", agreement.hash, agreement.name, member.name, 1, about)
    return seal({"log_scores": table, "count": torch.tensor(len(rows.y))}, header, key)


def ranges(value: Tree) -> list[tuple[str, tuple[int, ...], str, int, float, float]]:
    """Every tensor inside: path, shape, type, bytes, smallest and largest number."""

    def row(path: str, leaf: Tensor) -> tuple[str, tuple[int, ...], str, int, float, float]:
        low, high = (float(f()) for f in (leaf.min, leaf.max)) if leaf.numel() else (0.0, 0.0)
        kind = str(leaf.dtype).removeprefix("torch.")
        return path, tuple(leaf.shape), kind, leaf.numel() * leaf.element_size(), low, high

    return [row(path, leaf) for path, leaf in leaves_of(value)]
