"""Flower's tasks, done by a process of ours: nothing that came over the network is written to disk or imported.

A SuperNode fetches an app from the server, and by default unpacks it and runs it. Started with `--isolation process` it
hands its tasks to whoever asks; we ask, take the message, and answer with the code that is installed here.
This is Flower's own interface between its processes and not part of its public one: hence the narrow range of versions.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import Context, Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, fab_from_proto, run_from_proto
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesRequest,
    PullTaskInputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.runtime.run_clientapp import push_message, push_task_output

from consilience.disk.writing import PRIVATE, write_whole
from consilience.study.flower.app import content_hash

logging.getLogger("flwr").setLevel(logging.ERROR)  # what matters is said by us
PAUSE = 0.2  # seconds between two looks for work
TRIES = 8  # of a call, about a minute; Flower's own programs try for ever
SILENCE = 180.0  # seconds a program that hands out tasks may be silent: it imports for seconds before it listens
PROTECTED = frozenset({"/flwr.proto.Runtime/AcquireTask"})


class Runtime(NamedTuple):
    """Where a SuperLink or SuperNode hands out its tasks.

    Attributes:
        address: `host:port`.
        secret: Shared with it, so that no other process on the machine can take its tasks.
        certificate: Of its authority; None where nothing is encrypted, on loopback only.
    """

    address: str
    secret: bytes
    certificate: bytes | None = None

    def client(self, component: str, *more: Any, tries: int = TRIES) -> RuntimeHttpClient:
        """Connect.

        Args:
            component: Which of Flower's programs this process stands for.
            tries: How often a call is tried.
        """
        again = make_simple_http_retry_invoker()
        bound(again, tries)
        return RuntimeHttpClient.from_server_address(
            server_address=self.address,
            insecure=self.certificate is None,
            root_certificates=self.certificate,
            interceptors=[RuntimeVersionHttpInterceptor(component_name=component), *more],
            retry_invoker=again,
        )


def bound(again: RetryInvoker, tries: int) -> None:
    """Let calls fail in the end; Flower's own rule tries for ever, and on a 401 it interrupts this process.

    Args:
        tries: How often a call is tried.
    """
    again.max_tries = tries
    again.should_giveup = _is_final


def _is_final(error: Exception) -> bool:
    """Whether a call would fail again."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code not in (502, 503, 504)
    return False


def tasks(runtime: Runtime, kind: TaskType, alive: Callable[[], bool], run: int | None = None) -> Iterator[str]:
    """Take tasks of one kind, as they come, while the process that hands them out is alive and answers.

    Args:
        runtime: Where tasks are handed out.
        alive: Tells whether to go on.
        run: The run they must be of; tasks of others are taken and left undone, as anyone who reaches a SuperLink can
            start one.

    Yields:
        A token for each task.
    """
    permit = SuperExecAuthHttpInterceptor(master_secret=runtime.secret, protected_methods=PROTECTED)
    client = runtime.client("SuperExec", permit, tries=1)  # asked again and again anyway
    end = time.monotonic() + SILENCE
    try:
        while alive() and time.monotonic() < end:
            try:
                offer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
            except httpx.HTTPError:
                time.sleep(PAUSE)
                continue
            if offer.HasField("task") and offer.token and run in (None, offer.task.run_id):
                yield offer.token
            end = time.monotonic() + SILENCE
            time.sleep(PAUSE)
    finally:
        client.close()


@contextmanager
def beating(client: RuntimeHttpClient) -> Iterator[None]:
    """Say that a task is being worked on, however long it takes.

    Args:
        client: The connection of that task.
    """

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
        except httpx.HTTPError:
            return False
        return True

    sender = HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def answer(
    runtime: Runtime,
    token: str,
    pinned: str,
    respond: Callable[[Message, Context], Message],
    log: Callable[[str], None],
    patience: float = 600.0,
) -> None:
    """Do one ClientApp's task; the app's bytes are hashed and dropped.

    Args:
        runtime: Where the task is from.
        pinned: The hash of the only app that is answered.
        log: Is given a sentence for people.
        patience: Seconds until the whole message must have come from the server.
    """
    client = runtime.client("flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    try:
        with beating(client):
            message, context, fab = _pull(client, patience)
            sent = content_hash(fab.content)
            if sent == pinned:
                reply = _answer(respond, message, context)
            else:
                why = f"the server's app {sent[:12]} is not the study's {pinned[:12]}; nothing of it was run."
                log(f"Refused: {why}")
                reply = Message(Error(ErrorCode.INVALID_FAB, why), reply_to=message)
            push_message(client, reply, context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
    finally:
        client.close()


def _pull(client: RuntimeHttpClient, patience: float) -> tuple[Message, Context, Fab]:
    """A task's input. A task is offered before its message has come; Flower's own function waits two hours for it."""
    task = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id = task.task_id
    TaskIdentity.run_id = task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    context = context_from_proto(task.context)
    trees = client.PullMessages(PullAppMessagesRequest()).message_object_trees
    if not trees:
        raise ConnectionError("the server took its message back.")
    node = Node(node_id=context.node_id)
    message = pull_and_inflate_object_from_tree(
        trees[0],
        make_pull_object_fn_protobuf(client.PullObject, node, context.run_id),
        make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, context.run_id),
        return_type=Message,
        max_time=patience,
    )
    message.metadata.__dict__["_message_id"] = trees[0].object_id  # its own number is not in it
    return message, context, fab_from_proto(task.fab)


def _answer(respond: Callable[[Message, Context], Message], message: Message, context: Context) -> Message:
    """An answer, whatever happens: a SuperNode that gets none waits for it for ever and answers nobody again."""
    try:
        reply = respond(message, context)
        if isinstance(reply, Message):
            return reply
        why = "it gave no answer"
    except Exception as error:
        why = type(error).__name__
    code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    return Message(Error(code, f"the site's program failed ({why})."), reply_to=message)


@contextmanager
def serving(runtime: Runtime, token: str) -> Iterator[HttpGrid]:
    """Open the grid of a ServerApp's task; how it ends is told to the SuperLink.

    Args:
        runtime: Where the task is from.

    Yields:
        The grid.
    """
    grid = HttpGrid(runtime.address, runtime.certificate is None, runtime.certificate, token=token)
    bound(grid._retry_invoker, TRIES)
    client = grid._runtime_client
    status = SubStatus.FAILED
    details = "The study stopped."
    context: Context | None = None
    try:
        with beating(client):
            task = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id = task.task_id
            TaskIdentity.run_id = task.run.run_id
            TaskIdentity.node_id = task.context.node_id
            context = context_from_proto(task.context)
            fab_from_proto(task.fab)
            grid.set_run(run_from_proto(task.run))
            yield grid
            status = SubStatus.COMPLETED
            details = ""
    finally:
        bound(grid._retry_invoker, 1)
        push_task_output(client, context, status, details)
        grid.close()


def new_secret(path: Path) -> bytes:
    """Write a fresh secret to a file that only its owner may read.

    Args:
        path: The file; an older one is replaced.

    Raises:
        InputError: The file cannot be written.
    """
    secret = os.urandom(32)
    write_whole(path, secret, "Choose another folder with --out.", PRIVATE)
    return secret
