"""Sites that go away and come back, and programs that never answer. No Flower process runs, and no clock decides."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import httpx
import loopback
import tiny
from flwr.app import Error, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullAppMessagesResponse,
    PullTaskInputResponse,
    SendTaskHeartbeatRequest,
)
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError

from consilience.errors import InputError
from consilience.key import Key
from consilience.runs.engines import Turn
from consilience.study.flower import asking, executor, launch, roster
from consilience.study.flower.executor import Runtime, answer, tasks
from consilience.study.flower.processes import free_port

METHOD = tiny.method("fedavg")


class Clock:
    """Time that passes only while somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (asking, roster, executor):
        monkeypatch.setattr(module, "time", made)
    return made


class Study:
    """Three sites behind a grid, of which some may be away."""

    def __init__(self, forgiving: bool, fewest: int = 0, spoil: loopback.Spoil | None = None) -> None:
        self.task, self.sites = tiny.PROBLEMS["classification"]()
        self.start = self.task.init(Key(1))
        words: dict[str, Any] = {"wait": 600.0, "deadline": 3600.0, "pause": 0.5}
        self.engine = loopback.flower(METHOD, self.task, self.sites.train, spoil, **words)
        self.engine.forgiving, self.engine.fewest = forgiving, fewest
        self.grid = self.engine.grid
        self.count = len(self.sites)
        self.away: set[int] = set()
        everybody = self.grid.get_node_ids
        self.grid.get_node_ids = lambda: [n for n in everybody() if n not in self.away]  # type: ignore[method-assign]

    def round(self, t: int = 0) -> list[int]:
        """Who was heard in a round."""
        received = self.engine.gather(METHOD, self.task, self.start, range(self.count), Turn(t, Key(3)))
        return [reply.client for reply in received]


def test_a_site_that_is_missing_is_waited_for_once_and_takes_part_when_it_is_back(clock: Clock) -> None:
    study = Study(forgiving=True)
    study.away = {101}
    everybody = list(range(study.count))
    others = [k for k in everybody if k != 1]
    times = []
    for t in range(3):
        assert study.round(t) == others
        times.append(clock.now)
    study.away = set()

    assert times[0] >= 600 and times[2] == times[0], "later rounds wait for nobody"
    assert study.round(3) == everybody


def test_a_missing_site_is_waited_for_where_too_few_are_there(clock: Clock) -> None:
    study = Study(forgiving=True, fewest=99)
    study.away = {101}
    study.round()
    before = clock.now

    study.round(1)

    assert clock.now - before >= 600


def test_a_node_that_never_says_who_it_is_holds_nobody_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger, or what is left of a site that was killed: the real sites are asked at once."""
    study = Study(forgiving=False)
    silent = 50  # asked first
    push, everybody = study.grid.push_messages, study.grid.get_node_ids
    monkeypatch.setattr(study.grid, "get_node_ids", lambda: [silent, *everybody()])

    def push_to_others(messages: Any) -> list[str]:
        return [
            "unanswered" if m.metadata.dst_node_id == silent else next(iter(push([m])))  # type: ignore[union-attr]
            for m in messages
        ]

    monkeypatch.setattr(study.grid, "push_messages", push_to_others)

    assert study.round() == list(range(study.count)) and clock.now < 60


@pytest.mark.parametrize("code", [3, 4, 5])
def test_a_site_that_dies_while_it_is_asked_is_asked_again_when_it_is_back(clock: Clock, code: int) -> None:
    asked = []

    def die_once(k: int, reply: Message) -> list[Message]:
        asked.append(k)
        if k == 1 and asked.count(1) == 1:
            study.away = {101}
            return [_error(reply, code)]
        return [reply]

    study = Study(forgiving=False, spoil=die_once)
    study.engine.roster.pause = 0.5
    look = study.engine.roster.look

    def come_back() -> None:
        if clock.now > 100:
            study.away = set()
        look()

    study.engine.roster.look = come_back  # type: ignore[method-assign]

    assert study.round() == list(range(study.count))
    assert asked.count(1) == 2 and 100 < clock.now < 600


def test_a_site_whose_connection_is_another_is_asked_again(clock: Clock) -> None:
    """The question went to a SuperNode that was ended; nobody says that it is lost."""
    asked = []

    def swallow_once(k: int, reply: Message) -> list[Message]:
        asked.append(k)
        if k == 1 and asked.count(1) == 1:
            study.away = {101}
            return []
        return [reply]

    study = Study(forgiving=False, spoil=swallow_once)
    look = study.engine.roster.look

    def come_back() -> None:
        look()
        study.away = set()

    study.engine.roster.look = come_back  # type: ignore[method-assign]

    assert study.round() == list(range(study.count)) and asked.count(1) == 2


def test_a_site_that_dies_and_stays_away_costs_one_sentence_after_the_wait(clock: Clock) -> None:
    def die(k: int, reply: Message) -> list[Message]:
        if k == 1:
            study.away = {101}
            return [_error(reply, 5)]
        return [reply]

    study = Study(forgiving=False, spoil=die)

    with pytest.raises(InputError, match="it stopped answering: its machine or its program died"):
        study.round()
    assert 600 <= clock.now < 700


def test_who_dies_is_left_out_at_once_where_the_others_suffice(clock: Clock) -> None:
    def die(k: int, reply: Message) -> list[Message]:
        return [_error(reply, 5)] if k == 1 else [reply]

    study = Study(forgiving=True, fewest=2, spoil=die)

    assert study.round() == [k for k in range(study.count) if k != 1]
    assert clock.now < 60 and "it stopped answering" in study.engine.lost[1]


def _error(reply: Message, code: int) -> Message:
    """What Flower says instead of a reply."""
    question = Message(RecordDict(), reply.metadata.src_node_id, "train", group_id=reply.metadata.group_id)
    question.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return Message(Error(code, "Flower's word"), reply_to=question)


@pytest.fixture
def refusing() -> Iterator[str]:
    """A program that answers every call with 401 → its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(401)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_program_that_refuses_us_does_not_interrupt_this_process(refusing: str) -> None:
    """Flower's own rule sends SIGINT to the process that was refused."""
    client = Runtime(refusing, b"secret").client("flwr-clientapp")

    with pytest.raises(httpx.HTTPStatusError):
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def test_a_program_that_is_gone_is_not_called_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Runtime(f"127.0.0.1:{free_port()}", b"secret").client("flwr-clientapp")
    again = client._retry_invoker
    assert again is not None
    monkeypatch.setattr(again, "wait_function", lambda seconds: None)

    with pytest.raises(httpx.ConnectError):
        client.AcquireTask(AcquireTaskRequest())


class Stuck:
    """A SuperNode that offers a task whose message never comes."""

    def PullTaskInput(self, request: Any) -> PullTaskInputResponse:  # noqa: N802 — Flower's name
        response = PullTaskInputResponse(task_id=1)
        response.run.run_id = response.context.run_id = response.context.node_id = 1
        return response

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        response = PullAppMessagesResponse()
        response.message_object_trees.add(object_id="never")
        return response

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        return PullObjectResponse(object_found=True, object_available=False)

    def SendTaskHeartbeat(self, request: Any) -> None:  # noqa: N802
        pass

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        pass


def test_a_message_that_never_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower itself waits two hours."""
    monkeypatch.setattr(Runtime, "client", lambda *words, **named: Stuck())

    with pytest.raises(ObjectPullError):
        answer(Runtime("", b""), "token", "hash", lambda message, context: message, print, patience=0.0)


def test_a_program_that_says_nothing_is_not_asked_for_tasks_for_ever(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent:
        def AcquireTask(self, request: Any) -> None:  # noqa: N802 — Flower's name
            raise httpx.ConnectError("nobody there")

        def close(self) -> None:
            pass

    monkeypatch.setattr(Runtime, "client", lambda *words, **named: Silent())

    assert list(tasks(Runtime("", b""), TaskType.CLIENT_APP, lambda: True)) == []


PROGRAM = """
import runpy, signal, sys, threading, time
launch = runpy.run_path(sys.argv[1])
launch["end"].__globals__["PATIENCE"] = 0.1
signal.signal(signal.SIGTERM, signal.SIG_IGN)
threading.excepthook = launch["end_with_thread"]
threading.Thread(target=launch["watch"], daemon=True).start()
if sys.argv[2] == "thread":
    threading.Thread(target=lambda: 1 / 0).start()
time.sleep(600)
"""


@pytest.mark.parametrize("why", ["parent", "thread"])
def test_a_program_that_will_not_end_ends_with_its_parent_or_a_thread_of_its_own(why: str) -> None:
    words = [sys.executable, "-c", PROGRAM, launch.__file__, why]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    if why == "parent":
        process.stdin.close()  # as when it dies

    assert process.wait(300) == 1
