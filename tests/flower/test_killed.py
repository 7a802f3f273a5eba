"""Servers and sites killed with SIGKILL: nothing is left behind, and every study ends. Run with make test-flower."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import torch
from deployed import SCAFFOLD, Deployment

from consilience import tree
from consilience.runs.store import Store

pytestmark = pytest.mark.flower

HANG = 1800.0  # seconds until we say that something hangs; on an idle machine a study takes two minutes
KILLS = 20
SITES = ("north", "south")

Start = Callable[..., Deployment]


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Start]:
    begun: list[Deployment] = []

    def start(name: str, **words: Any) -> Deployment:
        (tmp_path / name).mkdir()
        begun.append(Deployment(tmp_path / name, SITES, **words))
        return begun[-1]

    yield start
    for one in begun:
        one.end()


def children(process: int) -> list[int]:
    """The processes that a process has started; none where the system does not say."""
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        found += [int(number) for number in path.read_text().split()]
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"  # whoever inherits an orphan may not ask for it soon


def kill(d: Deployment, name: str) -> None:
    """Kill a process, and see that what it started ends too."""
    started = children(d.processes[name].pid)
    d.processes[name].kill()
    d.processes[name].wait()
    until(lambda: not any(map(is_running, started)), f"{name} is dead, and {started} still run")


def revive(d: Deployment, name: str) -> None:
    if name == "server":
        d.server("--resume")
    else:
        d.site(name)


def rounds_answered(d: Deployment) -> int:
    return sum(d.said(name).count("answered") for name in SITES)


def wait_for_moment(d: Deployment, draw: random.Random) -> bool:
    """Some time, or the moment after a round was answered somewhere → whether the study still runs."""
    by_time = draw.random() < 0.5
    seconds = draw.uniform(0, 8 if by_time else 3)
    before = rounds_answered(d)
    ended = d.processes["server"].poll
    if not by_time:
        until(lambda: rounds_answered(d) > before or ended() is not None, "no site answers a round")
    end = time.monotonic() + seconds
    while time.monotonic() < end and ended() is None:
        time.sleep(0.05)
    return ended() is None


def same(a: Any, b: Any) -> bool:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(torch.equal(torch.as_tensor(x), torch.as_tensor(y)) for x, y in pairs)


def test_what_a_killed_process_started_ends_too(deployment: Start) -> None:
    """The site's SuperNode, and the server's SuperLink, though it waits for the rest of a request."""
    d = deployment("study", secure=False, **SCAFFOLD)
    d.server()
    d.until("server", "The server listens")
    d.site("north")
    log = d.folder / "north.site" / "supernode.log"
    until(lambda: log.exists() and "SuperNode ID" in log.read_text(), "no SuperNode")
    assert children(d.processes["server"].pid) and children(d.processes["north"].pid)

    kill(d, "north")
    with socket.create_connection(("127.0.0.1", d.port)) as half:
        half.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: here\r\nContent-Length: 99\r\n\r\nnot all")
        kill(d, "server")


def test_every_study_ends_though_server_and_sites_are_killed(deployment: Start) -> None:
    """Twenty kills by a seeded draw, five in a study, with TLS and without; the numbers are as if there were none."""
    draw = random.Random(18)
    story = []
    while len(story) < KILLS:
        number = 1 + (story[-1][0] if story else 0)
        d = deployment(f"study {number}", secure=number % 2 == 0, **{**SCAFFOLD, "rounds": 6})
        d.server()
        for name in SITES:
            d.site(name)
        for _ in range(min(5, KILLS - len(story))):
            if not wait_for_moment(d, draw):
                break
            victim = draw.choice(("server", *SITES))
            story.append((number, victim, rounds_answered(d)))
            print(story[-1])
            kill(d, victim)
            time.sleep(draw.uniform(0, 4))
            revive(d, victim)

        assert d.finish("server", HANG) == 0, (story, d.said("server"))
        done = Store(d.out).load(d.study.agreement.build_method())
        assert done is not None and same(done.state, d.sequential(SITES, calibration=False)), story
        assert (d.out / "study.model").exists() and "finished" in (d.out / "run.json").read_text()
        d.end()


def test_a_study_goes_on_without_a_site_that_died_and_takes_it_back(deployment: Start) -> None:
    """With --min-replies 1 nobody waits for south, which is killed after its first round and comes back later."""
    d = deployment("study", secure=False, **{**SCAFFOLD, "rounds": 20})  # south needs a minute to start anew
    d.server("--min-replies", "1", "--wait", str(HANG))
    for name in SITES:
        d.site(name)
    until(lambda: "Round 1 answered" in d.said("south"), "south answers nothing")
    kill(d, "south")
    until(lambda: "Round 3 answered" in d.said("north"), "north waits for south")
    d.site("south")

    assert d.finish("server", HANG) == 0, d.said("server")
    assert "Round 20 answered" in d.said("north") and "Pooled from north, south" in d.said("server")
