"""A site of a deployed study: a SuperNode that carries messages, and this process, which alone sees the rows.

Every message is held against the study before anything is computed and logged with its size and hash. What is
remembered between rounds lies in a folder of the site, so that neither side's restart changes a number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.supercore.constant import TaskType

from consilience.engines import threads_for
from consilience.engines.exchange import Turn
from consilience.errors import InputError
from consilience.flower.app import pin
from consilience.flower.client import Site, client_app
from consilience.flower.executor import Runtime, answer, new_secret, tasks
from consilience.flower.processes import Child, free_port, reach
from consilience.formats.signature import sign, verifies
from consilience.key import Stream
from consilience.study.agreement import Agreement, Member, Study
from consilience.study.site import may_leave, parts, rows_of

PAUSE = 3.0  # seconds between two attempts to connect


def site_of(
    study: Study, member: Member, key: Ed25519PrivateKey, table: Path, folder: Path, one_class: bool = False
) -> Site:
    """A site as the study knows it: its training rows, and what it agreed to."""
    agreement = study.agreement
    data, _ = rows_of(agreement, table, one_class)
    return Site(
        number=member.number,
        name=member.name,
        method=agreement.build_method(),
        task=agreement.build_task(),
        data=parts(agreement, member.number, data).train,
        study=agreement.hash,
        turns=[Turn(t, agreement.key.fold(Stream.LOCAL), t / agreement.rounds) for t in range(agreement.rounds)],
        permit=lambda reply: may_leave(agreement, reply),
        largest=agreement.most_bytes,
        log=message_log(folder / "messages.jsonl"),
        sign=lambda purpose, message: sign(key, purpose, message),
        verify=lambda purpose, message, signature: verifies(agreement.server, purpose, message, signature),
    )


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
) -> None:
    """Answer the server's messages until interrupted. Without an authority nothing is encrypted: for trials only."""
    reach(server, authority, patience)
    end = time.monotonic() + patience  # until then, the server may still be learning the sites' keys
    folder.mkdir(parents=True, exist_ok=True)
    pinned = pin(agreement)
    secret, port = new_secret(folder / "runtime.secret"), free_port()
    words = [
        *("--superlink", server, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)),
        *("--superexec-auth-secret-file", str(folder / "runtime.secret")),
        *(("--root-certificates", str(authority)) if authority else ("--insecure",)),
        *(("--auth-supernode-private-key", str(node_key)) if node_key else ()),
    ]
    respond, runtime = responder(site, folder, say), Runtime(f"127.0.0.1:{port}", secret)
    torch.set_num_threads(threads_for(site.task))
    say(f"{site.name} waits for {server}. End with Ctrl-C.")
    while not until():
        child = Child("flower-supernode", words, folder / "supernode.log", folder / "flower")
        try:
            for token in tasks(runtime, TaskType.CLIENT_APP, _while(child, until)):
                try:
                    answer(runtime, token, pinned, respond, say)
                except Exception as error:  # the server went away, or the round was over: the next message may be fine
                    say(f"A message could not be answered: {type(error).__name__}: {error}")
        finally:
            child.stop()
        if not until():
            unknown = any(words in child.last_words() for words in ("activate SuperNode", "2004"))
            if unknown and time.monotonic() > end:
                raise InputError(
                    f"The server does not know this site's key: let its operator put {node_key}.pub among its "
                    "certificates and start again."
                )
            say("The server does not know this site's key yet" if unknown else "The connection was lost; trying again.")
            time.sleep(PAUSE)
            reach(server, authority, patience)


def _while(child: Child, until: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: child.alive() and not until()


def responder(site: Site, folder: Path, say: Callable[[str], None]) -> Callable[[Message, Context], Message]:
    """Answers with the site's own code, its memory of this study from and to the folder."""
    app, memory = client_app(lambda context: site), folder / f"memory-{site.study[:16]}.bin"

    def respond(message: Message, context: Context) -> Message:
        context.state = read_state(memory)
        reply = app(message, context)
        if len(context.state):
            write_state(memory, context.state)
        context.state = RecordDict()  # what is remembered is this process's business, not the SuperNode's
        if message.metadata.message_type.startswith("train"):
            how = f"refused: {reply.error.reason}" if reply.has_error() else "answered"
            say(f"Round {message.metadata.group_id} {how}")
        return reply

    return respond


def read_state(path: Path) -> RecordDict:
    return recorddict_from_proto(RecordDictProto.FromString(path.read_bytes())) if path.exists() else RecordDict()


def write_state(path: Path, state: RecordDict) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(recorddict_to_proto(state).SerializeToString())
    part.replace(path)


def message_log(path: Path) -> Callable[[dict[str, Any]], None]:
    """One JSON line for every message, in and out."""

    def log(line: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")

    return log
