"""What happens at the coordinator: files in, one model out; sites join and leave; nobody trains again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor

from consilience.aggregation.distil import distil_pool
from consilience.errors import InputError, refuse_damage
from consilience.key import Stream
from consilience.messages import Received, Server
from consilience.method import Method
from consilience.method.declared import remarks, shows_inputs, turn
from consilience.report.schema.wording import privacy_note
from consilience.runs.engines import computing
from consilience.runs.engines.influence import Influence, measure_influence
from consilience.runs.engines.round import Round, play_round, server_in_round
from consilience.runs.engines.soundness import UNSOUND, holds_finite, predicts_finite
from consilience.runs.loop import collect_warnings
from consilience.serialisation.codec import types_of
from consilience.study.account import account, baseline_account, bytes_crossed, chosen_account, influence_warnings
from consilience.study.baseline import find_baseline
from consilience.study.choice import choose_value, without_student
from consilience.study.effects import pooled_effects
from consilience.study.exchange import add, hear
from consilience.study.files import Collected, collect, message_file, open_file
from consilience.study.masked_round import Masking
from consilience.study.model import Facts, Model, model_file, select_hand_out
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import features, inspect
from consilience.study.protocol.envelope import Header, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.promise import describe_promise
from consilience.study.protocol.rehearsal import probe_rows, server_of
from consilience.study.protocol.signature import public
from consilience.study.spread import spread_warnings
from consilience.study.statistics import Statistics, judge
from consilience.study.told import fitted_of, read_told
from consilience.study.validation.rules import check_release, gate_of
from consilience.tree import Tree

SUMMED = "Replies were summed under masks: nobody saw a single one, nor who has how many rows."


class PooledFiles(NamedTuple):
    """What the coordinator has after pooling a round.

    Attributes:
        model: The model's file.
        state: The state's file, which the coordinator keeps; None after the last round.
        message: The next message's file, for the sites; None after the last round.
        facts: What the model says about itself.
        refused: A sentence for each file left out.
        account: What the report says.
        remarks: What to say about the sites' influence on the model.
    """

    model: bytes
    state: bytes | None
    message: bytes | None
    facts: Facts
    refused: tuple[str, ...]
    account: dict[str, Any]
    remarks: tuple[str, ...] = ()


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
    """Read the coordinator's own rows without labels.

    Args:
        agreement: The agreement, which says what its columns are.
        path: The table; None if there is none.

    Returns:
        Features as the network sees them; None if there is no table.

    Raises:
        InputError: The table does not fit the agreement.
    """
    if path is None:
        return None
    return features(agreement.columns, inspect(path, agreement.columns, None))


def start(study: Study, key: Ed25519PrivateKey, inputs: Tensor | None) -> bytes:
    """Write the first message, for methods that begin with one.

    Args:
        inputs: The coordinator's unlabelled rows.

    Returns:
        The message's file, for the sites.

    Raises:
        InputError: The key is not the coordinator's, or the method needs unlabelled rows.
    """
    agreement = study.agreement
    own_key(agreement, key)
    method = agreement.build_method()
    state = method.init(agreement.build_task(), server_of(agreement, len(study.active), inputs))
    return message_file(agreement, method.broadcast(state), 1, key)


def pool(
    study: Study,
    paths: Sequence[Path],
    key: Ed25519PrivateKey,
    inputs: Tensor | None = None,
    after: Path | None = None,
    accept_difference: bool = False,
) -> PooledFiles:
    """Play one round: check every reply, aggregate those that are sound, and write what the study lets out.

    Args:
        inputs: The coordinator's unlabelled rows.
        after: The state that the round before left; None for the first round.
        accept_difference: Whether what this model and an earlier one show together of single sites is accepted.

    Returns:
        The files to keep and to distribute.

    Raises:
        InputError: The key is not the coordinator's, too few replies can be used, all rounds are done, or the model
            would show by subtraction what a site sent.
    """
    agreement = study.agreement
    own_key(agreement, key)
    method = agreement.build_method()
    if method.distil and inputs is None:
        raise InputError("This study distils a student: give the coordinator's unlabelled rows (inputs).")
    before, played, collected, influence, total, heard = _play(study, method, paths, inputs, after)
    number = before.done + 1
    replies = dict(zip(collected.names, collected.received, strict=True))
    carried: Tree = ()  # as a rule every site computes the first message for itself
    if before.done or shows_inputs(method):
        carried = played.message
    shares = {
        name: influence.shares[reply.client] for name, reply in replies.items() if reply.client in influence.shares
    }
    ended = Ended(
        method,
        played.state,
        number,
        rows_heard(study, before.rows, replies),
        replies,
        collected.about,
        bytes_crossed(collected.received, collected.names, carried, number),
        shares,
        influence.unknown,
        total,
        collected.refused,
        notes=heard,
    )
    pooled = finish(study, key, ended, accept_difference)
    if number == agreement.rounds:
        return pooled
    header = Header("state", agreement.hash, agreement.name, "server", number, {"rows": ended.rows})
    state = seal({"state": played.state}, header, key)
    message = message_file(agreement, method.broadcast(played.state), number + 1, key)
    return pooled._replace(state=state, message=message)


class Ended(NamedTuple):
    """Where rounds ended, by files or over Flower.

    Attributes:
        method: The study's method.
        state: The pool.
        rounds: How many rounds are done.
        rows: Rows of everyone who replied in any round; 0 where a site withheld their number.
        replies: The last round's replies, by site.
        about: What each of them says of itself, by site.
        ledger: The bytes that crossed.
        shares: How much of the pool is each site's, by name, where that was measured.
        unknown: Why it was not; empty where it was.
        total: How many rows stand behind a masked sum; 0 where each site says its own.
        refused: A sentence for each file that was left out.
        losses: A sentence for each site that a round went on without.
        notes: What the method warned of.
        labelled: Whether the coordinator's labelled rows fitted β.
    """

    method: Method
    state: Tree
    rounds: int
    rows: dict[str, int]
    replies: Mapping[str, Received]
    about: Mapping[str, Mapping[str, Any]]
    ledger: dict[str, Any]
    shares: Mapping[str, float]
    unknown: str = ""
    total: int = 0
    refused: tuple[str, ...] = ()
    losses: Sequence[str] = ()
    notes: Sequence[str] = ()
    labelled: bool = False


def finish(study: Study, key: Ed25519PrivateKey, ended: Ended, accept_difference: bool = False) -> PooledFiles:
    """Write the model of what was pooled, and its account: the one end of rounds, by files and over Flower.

    Args:
        ended: Where the rounds ended.
        accept_difference: Whether what this model and an earlier one show together of single sites is accepted.

    Returns:
        The files to distribute.

    Raises:
        InputError: Too few sites replied, or the model would show by subtraction what a site sent.
    """
    agreement = study.agreement
    names = tuple(ended.replies)
    accepted = check_release(study, names, ended.rows, accept_difference, ended.refused)
    notes = [*ended.notes]
    if agreement.secure:
        notes.append(SUMMED)
    model, facts = write_model(
        study, ended.method, ended.state, ended.rows, names, ended.rounds, key, ended.labelled, notes, ended.total
    )
    remarks = influence_warnings(agreement, ended.shares, ended.unknown)
    told = [read_told(agreement, ended.about.get(name, {})) for name in names]
    fitted = fitted_of(agreement, facts.rows, told, len(facts.sites))
    spreads = {name: said.spread for name, said in zip(names, told, strict=True)}
    noise = spread_warnings(agreement, spreads, ended.rows)
    warnings = [*left_out(ended.refused), *ended.losses, *accepted, *remarks, *noise, *fitted.merges()]
    report = account(study, facts, ended.rows, ended.replies, ended.ledger, warnings, ended.shares)
    effects = pooled_effects(agreement, ended.state, names, [*ended.replies.values()], fitted)
    if effects is not None:
        report["effects"] = effects.to_json()
    return PooledFiles(model, None, None, facts, ended.refused, report, tuple(remarks))


class _Before(NamedTuple):
    """Where a round begins."""

    state: Tree
    done: int  # rounds
    rows: dict[str, int]  # of everyone who replied so far


class _Played(NamedTuple):
    """A round that was played."""

    before: _Before
    round: Round
    collected: Collected  # the replies that were pooled
    influence: Influence  # by the sites' numbers
    rows: int = 0  # behind a masked sum, of which no site's own are known
    heard: tuple[str, ...] = ()  # what the method warned of


def _play(study: Study, method: Method, paths: Sequence[Path], inputs: Tensor | None, after: Path | None) -> _Played:
    """Play a round with the replies that are admitted, and leave out whose reply would spoil the model."""
    agreement = study.agreement
    task = agreement.build_task()
    server = server_of(agreement, len(study.active), inputs)
    with torch.no_grad(), computing(task):
        if after is None:
            before = _Before(method.init(task, server), 0, {})
        else:
            before = _read_state(study, after)
        if before.done >= agreement.rounds:
            raise InputError(f"All of the study's {agreement.rounds} rounds are done.")
        collections: list[Collected] = []
        masking = Masking(study, method, task, inputs)

        def gather(message: Tree) -> list[Received]:
            gate = gate_of(agreement, message, before.done + 1, inputs)
            if agreement.secure:
                collected = masking.collect(gate, message, paths)
                collections.append(collected)
                return masking.replies
            collected = collect(study, paths, gate)
            if not collected.received:
                raise InputError(f"No reply can be used. {' '.join(collected.refused)}".strip())
            collections.append(collected)
            return collected.received

        probes = probe_rows(agreement)
        is_sound = partial(predicts_finite, method, task, x=probes)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            played = play_round(method, task, before.state, server, agreement.key, before.done, gather, is_sound)
        numbers = {site.number: site.name for site in study.active}
        heard = collect_warnings((), caught, numbers)
        collected = _without(collections[0], played.left_out)
        influence = Influence({})
        if agreement.secure:
            influence = Influence({}, "replies are summed before anybody can look at one.")
        else:
            drawing = server_in_round(server, agreement.key, before.done)
            influence = measure_influence(method, task, before.state, drawing, played.replies, probes)
    return _Played(before, played, collected, influence, masking.rows, heard)


def _without(collected: Collected, clients: Sequence[int]) -> Collected:
    """The replies without those that would have spoilt the model."""
    pairs = list(zip(collected.received, collected.names, strict=True))
    kept = [(reply, name) for reply, name in pairs if reply.client not in clients]
    spoilt = [f"The reply of {name} is not used: {UNSOUND}" for reply, name in pairs if reply.client in clients]
    refused = (*collected.refused, *spoilt)
    return Collected([reply for reply, _ in kept], tuple(name for _, name in kept), refused, collected.about)


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
    total: int = 0,
) -> tuple[bytes, Facts]:
    """Write what the study lets out of a state.

    Args:
        rows: Rows of everyone who replied in any round; 0 where a site withheld their number.
        names: Who replied in the last round.
        rounds: How many rounds are done.
        labelled: Whether the coordinator's labelled rows fitted β.
        total: How many rows stand behind a masked sum; 0 where each site says its own.

    Returns:
        The model's file, and what it says about itself.

    Raises:
        InputError: The method cannot be released as the study says.
    """
    agreement = study.agreement
    predictor, how, out = select_hand_out(agreement, method, state)
    notes = (*remarks(method, state, agreement.hand_out, labelled), *_notes(study, rows, names, rounds), *more)
    if all(rows.values()):
        total = sum(rows.values())
    sites = tuple(rows)
    if agreement.hand_out == "mixture":
        sites = tuple(sorted(rows))
    facts = Facts(sites, total, rounds, predictor, notes=notes)
    return model_file(Model(agreement, facts, how, out), key), facts


def rows_heard(study: Study, before: Mapping[str, int], replies: Mapping[str, Received]) -> dict[str, int]:
    """List whose reply of any round is in a model, and how many rows stand behind it.

    Args:
        before: Rows of those who replied in earlier rounds.
        replies: The last round's replies, by site.

    Returns:
        Rows by site, in the order of the sites' numbers; 0 where a site withheld their number.
    """
    rows = dict(before)
    for name, reply in replies.items():
        rows[name] = int(reply.size)
    order = [site.name for site in study.sites if site.name in rows]
    return {name: rows[name] for name in (*order, *rows)}


def senders(ledger: Mapping[str, Any]) -> dict[str, int]:
    """List who sent something in any round of a run, for `rows_heard`: a ledger counts bytes, not rows.

    Args:
        ledger: The run's ledger, summed up.

    Returns:
        0 for each such site.
    """
    return {site["site"]: 0 for site in ledger["per_site"] if site["up_bytes"]}


def _read_state(study: Study, path: Path) -> _Before:
    """Where the last round ended."""
    envelope = open_file(study, path, "state", most=2**30)
    with refuse_damage(f"{path} does not hold what a state holds: use another copy of it."):
        state = envelope.value(types_of(study.agreement.build_method()))["state"]
        rows = envelope.header.about["rows"]
        if any(type(count) is not int for count in rows.values()):
            raise TypeError("rows")
    if not holds_finite(state):
        raise InputError(f"{path} holds numbers that are not finite: go on from the state of an earlier round.")
    return _Before(state, envelope.header.round, rows)


def _notes(study: Study, rows: Mapping[str, int], names: Sequence[str], rounds: int) -> tuple[str, ...]:
    """Whose replies a model lacks, and whose it still holds."""
    notes = ["The temperature is 1: no site's statistics have chosen it yet."]
    if study.agreement.target.event:
        notes = ["It predicts how hazards compare: no site's sums have given a baseline for survival curves yet."]
    promise = privacy_note(describe_promise(study.agreement))
    if study.agreement.privacy is not None:
        notes = []  # no statistics will choose a temperature
    if promise:
        notes.append(promise)
    active = [site.name for site in study.active]
    missing = [name for name in active if name not in names]
    never = [name for name in missing if name not in rows]
    late = [name for name in missing if name in rows]
    if never:
        notes.append(f"Without a reply of {', '.join(never)}.")
    if late:
        notes.append(f"Without a reply of {', '.join(late)} in round {rounds}.")
    if gone := [name for name in rows if name not in active]:
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
    """Choose β or λ, and the temperature, by the sum of the sites' statistics about a model; train its student again.

    Args:
        model: The model that the statistics are about.
        inputs: The coordinator's unlabelled rows, for the student.
        known: The account of the model when it was pooled.

    Returns:
        The files to distribute.

    Raises:
        InputError: The key is not the coordinator's, the model holds a site that left, or no statistics can be used.
    """
    agreement = study.agreement
    own_key(agreement, key)
    gone = [name for name in model.facts.sites if name not in {site.name for site in study.active}]
    if gone:
        raise InputError(f"This model holds {', '.join(gone)}, who left the study: pool anew, from the first round.")
    if agreement.target.event:
        return _choose_baseline(study, model, paths, key, known)
    asked = Statistics(study, model)
    knob = asked.knob
    statistics, refused = hear(asked, paths)
    if not statistics:
        raise InputError(f"No statistics can be used. {' '.join(refused)}".strip())
    value, temperature = choose_value(add(statistics), knob)
    method, state = turn(model.method, model.state, value)
    state = _train_student(agreement, method, state, inputs)
    names = tuple(name for s in statistics for name in s.sites)
    notes: tuple[str, ...] = ()
    missing = [name for name in model.facts.sites if name not in names]
    if missing:
        notes = (f"Chosen without statistics of {', '.join(missing)}.",)
    facts = model.facts._replace(
        knob=knob.name, value=value, temperature=temperature, statistics_from=names, notes=notes
    )
    judgements = [judge(s, knob, value, temperature) for s in statistics]
    report = chosen_account(study, facts, known, judgements, knob.symbol, left_out(refused))
    return ChosenFiles(model_file(Model(agreement, facts, method, state), key), facts, tuple(refused), report)


def _choose_baseline(
    study: Study, model: Model, paths: Sequence[Path], key: Ed25519PrivateKey, known: dict[str, Any] | None
) -> ChosenFiles:
    """The model with a baseline of the sites' sums; curves are not tempered, so that nothing else is chosen."""
    found = find_baseline(study, model, paths)
    notes = ["One baseline hazard of all sites, by Breslow: at a site whose hazard is another, risks are off by it."]
    missing = [name for name in model.facts.sites if name not in found.sites]
    if missing:
        notes.append(f"The baseline is without sums of {', '.join(missing)}.")
    facts = model.facts._replace(statistics_from=found.sites, notes=tuple(notes))
    report = baseline_account(study, facts, known, found.curve, left_out(found.refused))
    finished = Model(study.agreement, facts, model.method, model.state, baseline=found.baseline)
    return ChosenFiles(model_file(finished, key), facts, found.refused, report)


def _train_student(agreement: Agreement, method: Method, state: Any, inputs: Tensor | None) -> Tree:
    """The state with a student of the pool as it is now; as it is, where there is none to train."""
    distil = method.distil
    teacher = without_student(method, state)
    if distil is None or teacher is method:
        return state
    if inputs is None:
        raise InputError("The student is trained again after choosing: give the coordinator's unlabelled rows.")
    task = agreement.build_task()
    server = Server(inputs, None, agreement.key.fold(Stream.AGGREGATE).fold(0), 1)
    with torch.no_grad(), computing(task):
        return distil_pool(distil, task, state, teacher.predictive(task, state), server)


def left_out(refused: Sequence[str]) -> list[str]:
    """Turn sentences about refused files into warnings.

    Args:
        refused: A sentence for each file.
    """
    return [f"Left out: {sentence}" for sentence in refused]


def own_key(agreement: Agreement, key: Ed25519PrivateKey) -> None:
    """Refuse a key that is not the coordinator's.

    Raises:
        InputError: It is another one.
    """
    if public(key) != agreement.server:
        raise InputError("This is not the key of the study's coordinator: give the file that holds it (key).")
