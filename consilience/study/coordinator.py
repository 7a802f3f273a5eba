"""What happens at the coordinator: files in, one model out; sites join and leave; nobody trains again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.engines import threads_for, using_threads
from consilience.engines.round import play_round
from consilience.errors import InputError
from consilience.formats.envelope import Header, seal
from consilience.formats.settings import TYPES, types_of
from consilience.formats.signature import public
from consilience.key import Stream
from consilience.method import Method, Needs
from consilience.parties import Received, Server
from consilience.pooling.distil import distil_pool
from consilience.study.account import Judged, account, bytes_crossed, chosen_account
from consilience.study.admission import admit, rehearse, server_of
from consilience.study.agreement import Agreement, Study
from consilience.study.choice import TEMPERATURES, choose_value, knob_of, score_at, without_student
from consilience.study.columns import features, inspect
from consilience.study.files import Collected, collect, from_sites, message_file, open_file
from consilience.study.model import Facts, Model, model_file, select_hand_out
from consilience.tree import Tree


class PooledFiles(NamedTuple):
    """What the coordinator has after pooling a round.

    Attributes:
        model: The model's file.
        state: The state's file, which the coordinator keeps; None after the last round.
        message: The next message's file, for the sites; None after the last round.
        facts: What the model says about itself.
        refused: A sentence for each file left out.
        account: What the report says.
    """

    model: bytes
    state: bytes | None
    message: bytes | None
    facts: Facts
    refused: tuple[str, ...]
    account: dict[str, Any]


class ChosenFiles(NamedTuple):
    """What the coordinator has after choosing by the sites' statistics.

    Attributes:
        model: The model's file.
        facts: What the model says about itself.
        refused: A sentence for each file left out.
        account: What the report says.
    """

    model: bytes
    facts: Facts
    refused: tuple[str, ...]
    account: dict[str, Any]


def inputs_from(agreement: Agreement, path: Path | None) -> Tensor | None:
    """The coordinator's own rows without labels, read by the agreement."""
    return None if path is None else features(agreement.columns, inspect(path, agreement.columns, None))


def start(study: Study, key: Ed25519PrivateKey, inputs: Tensor | None) -> bytes:
    """The first message, for methods that begin with one."""
    agreement = study.agreement
    own_key(agreement, key)
    method = agreement.build_method()
    state = method.init(agreement.build_task(), server_of(agreement, len(study.active), inputs))
    return message_file(agreement, method.broadcast(state), 1, key)


def pool(
    study: Study, paths: Sequence[Path], key: Ed25519PrivateKey, inputs: Tensor | None = None, after: Path | None = None
) -> PooledFiles:
    """One round: check every reply, aggregate those that are sound, and write what the study lets out."""
    agreement = study.agreement
    own_key(agreement, key)
    method, task = agreement.build_method(), agreement.build_task()
    if getattr(method, "distil", None) and inputs is None:
        raise InputError("This study distils a student: give the coordinator's unlabelled rows with --inputs.")
    server = server_of(agreement, len(study.active), inputs)
    with torch.no_grad(), using_threads(threads_for(task)):
        state, done, before = (method.init(task, server), 0, {}) if after is None else _previous(study, after)
        if done >= agreement.rounds:
            raise InputError(f"The study's {agreement.rounds} rounds are done.")
        collected: list[Collected] = []

        def gather(message: Tree) -> list[Received]:
            found = collect(study, paths, done + 1, rehearse(agreement, message, done + 1, inputs))
            if not found.received:
                raise InputError(f"No reply can be used. {' '.join(found.refused)}".strip())
            collected.append(found)
            return found.received

        message, _, state = play_round(method, task, state, server, agreement.key, done, gather)
    (found,) = collected
    replies = dict(zip(found.names, found.received, strict=True))
    rows, about, more = rows_heard(study, before or {}, replies), {}, []
    if before is None:
        more.append(f"Who replied before round {done + 1} is not known: an older version wrote the state.")
    else:
        about["rows"] = rows
    model, facts = write_model(study, method, state, rows, found.names, done + 1, key, more=more)
    left = agreement.rounds - done - 1
    header = Header("state", agreement.hash, agreement.name, "server", done + 1, about)
    kept = seal({"state": state}, header, key) if left else None
    sent = message_file(agreement, method.broadcast(state), done + 2, key) if left else None
    carried = message if done or method.needs is Needs.INPUTS else ()  # the first is as a rule everybody's own
    moved = bytes_crossed(found.received, found.names, carried, done + 1)
    told = account(study, facts, rows, replies, moved, left_out(found.refused))
    return PooledFiles(model, kept, sent, facts, found.refused, told)


def write_model(
    study: Study,
    method: Method,
    state: Tree,
    rows: Mapping[str, int],
    names: Sequence[str],
    rounds: int,
    key: Ed25519PrivateKey,
    labelled: bool = False,
    more: Sequence[str] = (),
) -> tuple[bytes, Facts]:
    """What the study lets out of a state, as a file, and in words.

    `rows` are those of everyone heard in any round, `names` who replied in the last; `labelled` if the coordinator's
    rows fitted β; `more` is to be noted besides.
    """
    agreement = study.agreement
    name, how, out = select_hand_out(agreement, method, state)
    notes = (*method.remarks(state, agreement.hand_out, labelled), *_notes(study, rows, names, rounds), *more)
    together = sum(rows.values()) if all(rows.values()) else 0
    sites = tuple(sorted(rows) if agreement.hand_out == "mixture" else rows)
    facts = Facts(sites, together, rounds, name, notes=notes)
    return model_file(Model(agreement, facts, how, out), key), facts


def rows_heard(study: Study, before: Mapping[str, int], replies: Mapping[str, Received]) -> dict[str, int]:
    """Whose reply of any round is in a model, by number, and how many rows stand behind it (0: not told)."""
    rows = {**before, **{name: int(reply.size) for name, reply in replies.items()}}
    return {name: rows[name] for name in (*(site.name for site in study.sites), *rows) if name in rows}


def senders(ledger: Mapping[str, Any]) -> dict[str, int]:
    """Who sent something in any round of a run, for `heard`: a ledger counts bytes, not rows."""
    return {site["site"]: 0 for site in ledger["per_site"] if site["up_bytes"]}


def _previous(study: Study, path: Path) -> tuple[Tree, int, dict[str, int] | None]:
    """The state, its round, and the rows of everyone heard so far; None where an older version did not say."""
    envelope = open_file(study, path, "state", most=2**30)
    header, state = envelope.header, envelope.value(types_of(study.agreement.build_method()))["state"]
    return state, header.round, header.about.get("rows")


def _notes(study: Study, heard: Mapping[str, int], names: Sequence[str], rounds: int) -> tuple[str, ...]:
    notes = ["The temperature is 1: no site's statistics have chosen it yet."]
    active = [site.name for site in study.active]
    never, late = ([n for n in active if n not in names and (n in heard) == known] for known in (False, True))
    if never:
        notes.append(f"Without a reply of {', '.join(never)}.")
    if late:
        notes.append(f"Without a reply of {', '.join(late)} in round {rounds}.")
    if gone := [name for name in heard if name not in active]:
        notes.append(
            f"It holds earlier replies of {', '.join(gone)}, who left: to be without them, begin with the first round."
        )
    left = [site.name for site in study.sites if site.left]
    if left and study.agreement.scaling == "sums":
        notes.append(f"The scaling constants were found with {', '.join(left)}, who left, and stay as they are.")
    return tuple(notes)


def choose(
    study: Study,
    model: Model,
    paths: Sequence[Path],
    key: Ed25519PrivateKey,
    inputs: Tensor | None = None,
    known: dict[str, Any] | None = None,
) -> ChosenFiles:
    """β, λ and temperature by the sum of the sites' statistics about this model; the student is made again.

    `known` is what was said of the model when it was pooled.
    """
    agreement = study.agreement
    own_key(agreement, key)
    gone = [name for name in model.facts.sites if name not in {site.name for site in study.active}]
    if gone:
        raise InputError(f"This model holds {', '.join(gone)}, who left the study: pool anew, from the first round.")
    knob = knob_of(model.method, model.state)
    expected = {
        "log_scores": torch.zeros(len(knob.values), len(TEMPERATURES), dtype=torch.float64),
        "count": torch.tensor(0),
    }
    envelopes, refused = from_sites(study, paths, "statistics")
    tables, names, rows = [], [], []
    for envelope in envelopes:
        try:
            if envelope.header.about.get("model") != model.checksum:
                raise InputError(
                    f"{envelope.path} is about another model than this one: ask the site for new statistics."
                )
            value = envelope.value(TYPES)
            admit(value, expected, envelope.path)
            if int(value["count"]) < agreement.smallest or bool(
                (value["log_scores"] > 0).any() and agreement.target.classes
            ):
                raise InputError(f"{envelope.path} cannot be a sum of log-probabilities over enough rows: not used.")
        except InputError as error:
            refused.append(str(error))
            continue
        tables.append(value["log_scores"])
        names.append(envelope.header.sender)
        rows.append(int(value["count"]))
    if not tables:
        raise InputError(f"No statistics can be used. {' '.join(refused)}".strip())
    value, temperature = choose_value(torch.stack(tables).sum(0), knob)
    method, state = model.method.turn(model.state, value)
    state = _student(agreement, method, state, inputs)
    missing = [name for name in model.facts.sites if name not in names]
    notes = (f"Chosen without statistics of {', '.join(missing)}.",) if missing else ()
    facts = model.facts._replace(
        knob=knob.name, value=value, temperature=temperature, statistics_from=tuple(names), notes=notes
    )
    judged = []
    for site, count, table in zip(names, rows, tables, strict=True):
        before = score_at(table, knob, knob.value, 1.0) if knob.value in knob.values else None
        judged.append(Judged(site, count, score_at(table, knob, value, temperature), before))
    told = chosen_account(study, facts, known, judged, knob.symbol, left_out(refused))
    return ChosenFiles(model_file(Model(agreement, facts, method, state), key), facts, tuple(refused), told)


def _student(agreement: Agreement, method: Method, state: Any, inputs: Tensor | None) -> Tree:
    distil, pool_ = getattr(method, "distil", None), without_student(method, state)
    if distil is None or pool_ is method:
        return state
    if inputs is None:
        raise InputError("The student is made again after choosing: give the coordinator's rows with --inputs.")
    task = agreement.build_task()
    server = Server(inputs, None, agreement.key.fold(Stream.AGGREGATE).fold(0), 1)
    with torch.no_grad(), using_threads(threads_for(task)):
        return distil_pool(distil, task, state, pool_.predictive(task, state), server)


def left_out(refused: Sequence[str]) -> list[str]:
    return [f"Left out: {sentence}" for sentence in refused]


def own_key(agreement: Agreement, key: Ed25519PrivateKey) -> None:
    if public(key) != agreement.server:
        raise InputError("This is not the key of the study's coordinator: say which file it is with --key.")
