"""Two doors to a study's coordinator, files and Flower, and a site that lies at either."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import studies
from rounds import replies, server_key

from consilience.errors import InputError
from consilience.messages import Received
from consilience.serialisation.codec import types_of
from consilience.study.files import collect
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import new_key, read_key, sign
from consilience.study.reply import first_message
from consilience.study.validation.gate import Rules
from consilience.study.validation.rules import gate_of

LIAR = "west"


class Lie(NamedTuple):
    """What one site does wrong, and the sentence it is refused with at either door."""

    sentence: str
    base: str = "samples"  # the study it lies in
    change: Callable[[dict[str, Any]], dict[str, Any]] = dict  # what is in the reply
    site: str = LIAR  # who it says it is
    round: int = 1  # the round it says it answers
    signature: str = "own"  # or none, or forged
    honest: str = ""  # whether the honest answer comes too: before or after the lie
    message: str = ""  # the hash of the message it says it answers, where that is another
    number: int | None = None  # the number it says it was made under; None for its own


class Outcome(NamedTuple):
    """Who was let in, what is said about the others, and what was let in."""

    names: tuple[str, ...]
    refused: str
    received: Sequence[Received] = ()


def by_files(study: Study, home: Path, folder: Path, lie: Lie | None) -> Outcome:
    """Reply files, the liar's among them."""
    paths = [home / f"{name}.reply" for name in studies.NAMES]
    if not all(path.exists() for path in paths):
        with mock.patch("consilience.study.reply.may_leave"):  # a site that lies checks nothing
            paths = replies(study, home)
    own = home / f"{LIAR}.reply"
    if lie is not None:
        told = folder / "lie.reply"
        told.write_bytes(_lying_file(study, home, folder, own, lie))
        others = [path for path in paths if path != own]
        beside = {"before": [own, told], "after": [told, own]}
        paths = [*others, *beside.get(lie.honest, [told])]
    found = collect(study, paths, gate_of(study.agreement, first_message(study)))
    return Outcome(found.names, " ".join(found.refused), found.received)


def _lying_file(study: Study, home: Path, folder: Path, own: Path, lie: Lie) -> bytes:
    envelope = open_envelope(own)
    value = lie.change(envelope.value(types_of(study.agreement.build_method())))
    about = {**envelope.header.about, "number": _number(study, lie)}
    if lie.message:
        about["message"] = lie.message
    header = envelope.header._replace(sender=lie.site, round=lie.round, about=about)
    if lie.signature == "none":
        with mock.patch("consilience.study.protocol.envelope.sign", return_value=""):
            return seal(value, header, _key(home, folder, lie))
    return seal(value, header, _key(home, folder, lie))


def _number(study: Study, lie: Lie) -> int:
    return study.member(lie.site).number if lie.number is None else lie.number


def _key(home: Path, folder: Path, lie: Lie) -> Any:
    return new_key(folder / "stranger.key") if lie.signature == "forged" else read_key(home / f"{LIAR}.key")


def by_flower(study: Study, home: Path, folder: Path, lie: Lie | None) -> Outcome:
    """Messages over a grid that calls the sites directly, the liar's changed before they come back."""
    import loopback
    from flwr.app import Message

    from consilience.study.flower import client
    from consilience.study.flower.server import rounds
    from consilience.study.flower.site import site_of
    from consilience.study.flower.wire import digest, open_record, pack, record, signed_text, unpack

    types = types_of(study.agreement.build_method())
    sites = []
    for member in study.active:
        number = not study.agreement.target.classes
        table = studies.table(home / f"{member.name}.csv", studies.rows(member.number, number=number))
        site = site_of(study, member, read_key(home / f"{member.name}.key"), table, folder / member.name)
        sites.append(dataclasses.replace(site, rules=Rules()))  # a site that lies checks nothing
    liar = study.member(LIAR).number
    questions: dict[int, Message] = {}

    class Grid(loopback.Loopback):
        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            listed = list(messages)
            questions.update({message.metadata.dst_node_id: message for message in listed})
            return super().push_messages(listed)

    def spoil(k: int, reply: Message) -> list[Message]:
        if lie is None or k != liar:
            return [reply]
        question = questions[100 + k]
        arrays, outline, about = open_record(reply.content, 2**30)
        value = lie.change(unpack(arrays, outline, types))
        about |= {"site": _number(study, lie), "round": lie.round - 1}
        about["message"] = lie.message or about["message"]
        content = record(*pack(value, types), about)
        text = signed_text(study.agreement.hash, digest(question.content), digest(content))
        if lie.signature != "none":
            content.config_records["header"]["signature"] = sign(_key(home, folder, lie), "reply", text)
        told = Message(content, reply_to=question)
        beside = {"before": [reply, told], "after": [told, reply]}
        return beside.get(lie.honest, [told])

    received: Sequence[Received] = ()
    fitted = mock.patch("consilience.study.flower.client._run", _fit_once(client._run))
    with fitted, contextlib.suppress(InputError):  # where nobody's reply is let in
        grid = Grid(sites, spoil)
        played = rounds(study, server_key(home), grid, folder / "run", min_replies=1, wait=0.2, deadline=5.0)
        received = played.replies
    report = json.loads((folder / "run" / "run.json").read_text())
    lost = {failure["site"]: failure["why"] for failure in report["failures"]}
    return Outcome(tuple(name for name in studies.NAMES if name not in lost), lost.get(LIAR, ""), received)


FITTED: dict[tuple[str, int, int], Any] = {}  # the honest reply is the same, whatever lie takes its place


def _fit_once(run: Callable[..., Any]) -> Callable[..., Any]:
    def fit(site: Any, request: Any, context: Any, turn: Any) -> Any:
        place = (site.study, site.number, turn.round)
        if place not in FITTED:
            FITTED[place] = run(site, request, context, turn)
        return FITTED[place]

    return fit
