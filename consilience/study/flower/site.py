"""A site of a deployed study: a SuperNode that carries messages, and this process, which alone sees the rows.

Every message is held against the study before anything is computed and logged with its size and hash. What is
remembered between rounds lies in a folder of the site, so that neither side's restart changes a number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.constant import TaskType

from consilience.disk.writing import PRIVATE, append_line, make_folder, write_whole
from consilience.errors import InputError
from consilience.key import Stream
from consilience.messages import Reply
from consilience.method import Method
from consilience.runs.engines import threads_for
from consilience.runs.engines.arithmetic import choose_matmul
from consilience.runs.engines.client_turn import Turn
from consilience.serialisation.codec import kept_types_of
from consilience.study import site as home
from consilience.study.counting import Counts
from consilience.study.flower.app import pin
from consilience.study.flower.client import COUNTS, UNMASK, Site, client_app
from consilience.study.flower.executor import Runtime, answer, new_secret, tasks
from consilience.study.flower.processes import Child, Unreachable, free_port, reach, split_address
from consilience.study.flower.wire import unpack
from consilience.study.masking import MaskBook, book_path
from consilience.study.model import read_model
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.guarantees import describe_counts
from consilience.study.protocol.members import Member, Study
from consilience.study.protocol.signature import sign, verifies
from consilience.study.recall import check_same, marks_file, marks_path, recall
from consilience.study.reply import Asked, check_commitment, first_message
from consilience.study.rows import fingerprint, parts, rows_of, training_rows
from consilience.study.spending import find_people
from consilience.study.told import tell_rows
from consilience.study.validation.rules import begins_alone, rules_of
from consilience.tree import Tree

PAUSE = 3.0  # seconds between two attempts to connect
SILENT = 90.0  # seconds that a site which only waits may say nothing of itself
ANSWERING = "answering"  # a state that `health` shows
LONGEST = 24 * 3600.0  # seconds that an answer may take


def site_of(
    study: Study,
    member: Member,
    key: Ed25519PrivateKey,
    table: Path,
    folder: Path,
    one_class: bool = False,
    say: Callable[[str], None] = print,
    replace: bool = False,
    book: Path | None = None,
    ledger: Path | None = None,
    without: Collection[str] = (),
) -> Site:
    """Make a site as the study knows it: its training rows, and what it agreed to.

    Args:
        table: Its rows, a CSV file.
        folder: Where it keeps its log.
        one_class: Whether all rows may be of one class.
        say: Is given a sentence for each rare value that was merged.
        replace: Whether other rows than those of an earlier start are taken.
        book: Its book of masks, in a study that masks; by default in the folder. It outlives folders of single runs.
        ledger: What it ever released about its rows; by default in the folder. Replies and counts are entered into it.
        without: Sites that this site's people asked on another channel, and that sent nothing: the masks shared with
            them are told when the coordinator asks.

    Raises:
        InputError: The table does not fit the study, is another than before, or leaves too few rows to train on.
    """
    agreement = study.agreement
    data, inspection = rows_of(agreement, table, one_class)
    people = find_people(agreement, data, inspection, key)
    memory = folder / f"{member.name}.memory"
    recalled = recall(agreement, member.number, key, memory, data)
    rows = recalled.rows
    if recalled.difference and not replace:
        check_same(recalled, memory)
    if recalled.difference:
        say(f"Not the table of before, and two replies show where they differ: {recalled.difference}.")
        rows = parts(agreement, member.number, data)
    check_commitment(member, rows)
    training = training_rows(agreement, rows.train)
    for note in training.notes:
        say(note)
    local = agreement.key.fold(Stream.LOCAL)
    first = None
    if begins_alone(agreement, 1):
        first = first_message(study)
    make_folder(folder, private=True)
    marks = marks_file(agreement, member.name, member.number, key, rows)
    write_whole(
        marks_path(memory), marks, "Make room, and start the site again.", PRIVATE
    )  # before anything is answered
    book = book or book_path(study, member, folder)
    ledger = ledger or folder / f"{member.name}.ledger"
    files = (ledger, memory, book, folder)
    own = home.Site(study, member, key, *files, rows, inspection, people)
    tell = None
    count = None
    if agreement.privacy is not None:
        agreement.privacy.check(len(study.active), sum(site.rows for site in study.active))
    if describe_counts(agreement):
        count = partial(_count, own, folder)
    if agreement.secure:
        tell = partial(_tell, own.masks, folder / "asked.drop", without)
    return Site(
        number=member.number,
        name=member.name,
        method=agreement.build_method(),
        task=agreement.build_task(),
        data=training.data,
        said=tell_rows(agreement, training.data, training.merged),
        study=agreement.hash,
        turns=[Turn(t, local, t / agreement.rounds) for t in range(agreement.rounds)],
        rules=rules_of(agreement, member.rows),
        log=message_log(folder / "messages.jsonl"),
        sign=lambda purpose, message: sign(key, purpose, message),
        verify=lambda purpose, message, signature: verifies(agreement.server, purpose, message, signature),
        first=first,
        count=count,
        tell=tell,
        release=partial(_release, own, fingerprint(training.data), folder / f"{member.name}.sent"),
    )


def _release(own: home.Site, rows: str, kept: Path, round: int, question: str, run: Callable[[], Reply]) -> Reply:
    """What leaves in answer to a question, past the ledger and under its mask."""
    return own.answer(Asked(own.study, round, question, rows, kept, run)).content


def _tell(book: MaskBook, path: Path, without: Collection[str], request: bytes) -> bytes:
    """The masks shared with sites that this site's people agreed to go on without."""
    write_whole(path, request, "Make room, and let the server ask again.", PRIVATE)
    return book.tell(path, without)


def _count(own: home.Site, folder: Path, model: bytes) -> bytes:
    """The file of counts about a model."""
    path = folder / "counted.model"
    write_whole(path, model, "Make room, and let the server ask again.", PRIVATE)
    pooled = read_model(path, own.study)
    memory = memory_path(folder, own.study.agreement.hash)
    if pooled.is_personal and memory.exists():
        pooled = pooled.at_home(read_kept(memory, pooled.method, pooled.facts.rounds))
    return own.answer(Counts(own.study, pooled)).content


def serve(
    site: Site,
    agreement: Agreement,
    server: str,
    folder: Path,
    authority: Path | None = None,
    node_key: Path | None = None,
    patience: float = 60.0,
    say: Callable[[str], None] = print,
    until: Callable[[], bool] = lambda: False,
    warn: Callable[[str], None] | None = None,
    beat: Callable[[str, float], None] = lambda state, promise: None,
) -> None:
    """Answer the server's messages until interrupted.

    A SuperNode remembers nothing we need: whenever it ends, or a message cannot be answered, another takes its place.

    Args:
        server: The server's address, `host:port`.
        folder: Where the site keeps its log, its memory and Flower's files.
        authority: The server's root certificate; without it nothing is encrypted: for trials only.
        node_key: The site's key for Flower's own authentication.
        patience: Seconds until the server must be there and know this site's key, and until a message must have come.
        say: Is given a sentence for people.
        until: Tells when to stop.
        warn: Is given a sentence for people where something went wrong; `say` if None.
        beat: Is told what the site does, and within how many seconds it is told again.

    Raises:
        InputError: The server cannot be reached or trusted, or does not know this site's key.
    """
    warn = warn or say
    make_folder(folder, private=True)
    beat("looking for the server", patience + SILENT)
    reach(server, authority, patience)
    end = time.monotonic() + patience  # until then, the server may still be learning the sites' keys
    pinned = pin(agreement)
    respond = responder(site, folder, say)
    torch.set_num_threads(threads_for(site.task))
    torch.set_float32_matmul_precision(choose_matmul(task=site.task))  # in a process of its own, to its end
    say(f"{site.name} waits for {server}. End with Ctrl-C.")
    while not until():
        runtime = Runtime(f"127.0.0.1:{free_port()}", new_secret(folder / "runtime.secret"))
        words = _supernode_words(server, runtime.address, folder / "runtime.secret", authority, node_key)
        child = Child("flower-supernode", words, folder / "supernode.log", folder / "flower")
        try:
            for token in tasks(runtime, TaskType.CLIENT_APP, _while(child, until, beat)):
                beat(ANSWERING, LONGEST)
                answer(runtime, token, pinned, respond, say, patience)
        except Exception as error:  # the server went away, or the SuperNode: without an answer it would wait for ever
            warn(f"A message could not be answered: {type(error).__name__}: {error}")
        finally:
            child.stop()
        if until():
            return
        if not _is_unknown(child):
            warn("The connection was lost; trying again.")
            end = time.monotonic() + patience
        elif time.monotonic() > end:
            raise InputError(
                f"The server does not know this site's key: let its operator put {node_key}.pub among its "
                "certificates and start again."
            )
        else:
            warn("The server does not know this site's key yet; trying again.")
        _reach_again(server, authority, _beating(until, beat, "looking for the server"))


def _reach_again(server: str, authority: Path | None, until: Callable[[], bool]) -> None:
    """Wait for a server that was there before; it may be away for days."""
    time.sleep(PAUSE)
    while not until():
        try:
            return reach(server, authority, PAUSE)
        except Unreachable:
            continue


def _supernode_words(
    server: str, address: str, secret: Path, authority: Path | None, node_key: Path | None
) -> list[str]:
    """What a SuperNode is started with."""
    host, port = split_address(address)
    words = ["--superlink", server, "--isolation", "process", "--host", host, "--port", str(port)]
    words += ["--superexec-auth-secret-file", str(secret)]
    if authority is None:
        words.append("--insecure")
    else:
        words += ["--root-certificates", str(authority)]
    if node_key is not None:
        words += ["--auth-supernode-private-key", str(node_key)]
    return words


def _is_unknown(child: Child) -> bool:
    """Whether a SuperNode ended because the server does not know its key."""
    last_words = child.last_words()
    return "activate SuperNode" in last_words or "code: 2004" in last_words


def _while(child: Child, until: Callable[[], bool], beat: Callable[[str, float], None]) -> Callable[[], bool]:
    end = _beating(until, beat, "waiting for messages")
    return lambda: child.alive() and not end()


def _beating(until: Callable[[], bool], beat: Callable[[str, float], None], state: str) -> Callable[[], bool]:
    """The question when to stop, with a beat each time it is asked."""

    def ask() -> bool:
        beat(state, SILENT)
        return until()

    return ask


def responder(site: Site, folder: Path, say: Callable[[str], None]) -> Callable[[Message, Context], Message]:
    """Answer with the site's own code, its memory of this study from and to a folder.

    Args:
        folder: Where its memory lies.
        say: Is given a sentence for people.

    Returns:
        A function that answers a message.
    """
    app = client_app(lambda context: site)
    memory = memory_path(folder, site.study)

    def respond(message: Message, context: Context) -> Message:
        context.state = read_state(memory)
        reply = app(message, context)
        if len(context.state):
            write_state(memory, context.state)
        context.state = RecordDict()  # what is remembered is this process's business, not the SuperNode's
        kind = message.metadata.message_type
        if kind.startswith("train"):
            say(f"Round {message.metadata.group_id} {_outcome(reply)}")
        if kind.endswith(COUNTS):
            say(f"Counts for prediction sets {_outcome(reply)}")
        if kind.endswith(UNMASK):
            say(f"A request to go on without a site {_outcome(reply)}")
        return reply

    return respond


def _outcome(reply: Message) -> str:
    if reply.has_error():
        return f"refused: {reply.error.reason}"
    return "answered"


def read_state(path: Path) -> RecordDict:
    """Read what a site remembers; nothing if there is no file."""
    if not path.exists():
        return RecordDict()
    return recorddict_from_proto(RecordDictProto.FromString(path.read_bytes()))


def memory_path(folder: Path, study: str) -> Path:
    """Say where a deployed site keeps what it remembers."""
    return folder / f"memory-{study[:16]}.bin"


def read_kept(path: Path, method: Method, round: int) -> Tree:
    """Read what a deployed site kept in a round.

    Args:
        path: The site's memory, `memory-STUDY.bin` in its folder.
        round: The round, from 1 on.

    Returns:
        The memory.

    Raises:
        InputError: Nothing was kept in that round.
    """
    state = read_state(path)
    arrays = state.get(f"memory {round - 1}")
    outline = state.get(f"outline {round - 1}")
    if not isinstance(arrays, ArrayRecord) or not isinstance(outline, ConfigRecord):
        raise InputError(f"{path} does not hold what was kept in round {round}, which the model was made in.")
    return unpack(arrays, str(outline["outline"]), kept_types_of(method))


def write_state(path: Path, state: RecordDict) -> None:
    """Write what a site remembers, whole or not at all.

    Raises:
        InputError: The file cannot be written.
    """
    content = recorddict_to_proto(state).SerializeToString()
    write_whole(path, content, "Make room, and let the site answer again.", PRIVATE)


def message_log(path: Path) -> Callable[[dict[str, Any]], None]:
    """Write one JSON line for every message, in and out.

    Returns:
        A function that writes a line.
    """

    def log(line: dict[str, Any]) -> None:
        append_line(path, json.dumps(line, ensure_ascii=False))

    return log
