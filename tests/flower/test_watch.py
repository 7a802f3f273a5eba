"""What a coordinator says of its sites: a line for every event, a state for `health`, numbers for Prometheus."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import tiny

from consilience.disk import watch as watching
from consilience.disk.metrics import Metrics
from consilience.disk.watch import ALONE, Watch
from consilience.key import Key
from consilience.runs.engines import Turn

METHOD = tiny.method("fedavg")


class Heard:
    """All that a watch said, and the last thing that `health` would know."""

    def __init__(self, metrics: Metrics | None = None) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.state = self.doubt = ""
        self.watch = Watch(["a", "b", "c", "d"], 2, self.lines.append, self.warnings.append, self.beat, metrics)

    def beat(self, state: str, promise: float, doubt: str) -> None:
        self.state, self.doubt = state, doubt


def test_rounds_and_sites_leave_lines() -> None:
    task, sites = tiny.classification()
    metrics = Metrics()
    heard = Heard(metrics)
    engine = loopback.flower(METHOD, task, sites.train, None, wait=5.0, deadline=60.0, pause=0.01)
    engine.roster.watch = heard.watch
    start = task.init(Key(1))
    for t in range(2):
        engine.gather(METHOD, task, start, range(4), Turn(t, Key(3)))

    assert [line for line in heard.lines if "connected" in line][-1] == "d is connected (4 of 4 sites)."
    assert "Round 1 of 2 begins with 4 of 4 sites." in heard.lines
    assert sum(line.startswith("Round 2: ") and "answered after" in line for line in heard.lines) == 4
    assert heard.lines[-1].startswith("Round 2 of 2: 4 replies in ") and not heard.warnings
    assert heard.state == "pooling round 2 of 2" and not heard.doubt
    assert metrics.values["sites_connected", ""] == 4 and metrics.values["round", ""] == 2
    assert metrics.values["replies_total", "a"] == 2


def test_without_any_site_the_coordinator_is_not_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sites gone was "well" for ten minutes."""
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    heard = Heard()
    heard.watch.look([0, 1])
    heard.watch.begin(1, [0, 1])
    heard.watch.answered(0)
    heard.watch.look([0, 1])
    assert heard.state == "in round 1 of 2, waiting for b (2 of 4 sites are connected)" and not heard.doubt

    heard.watch.look([])
    assert heard.warnings == [
        "a went away (0 of 4 sites are connected).",
        "b went away (0 of 4 sites are connected).",
    ]
    assert not heard.doubt  # for a moment only
    now[0] += ALONE + 1
    heard.watch.look([])
    assert heard.doubt == "no site is connected"
    heard.watch.look([1])
    assert not heard.doubt


def test_a_lost_site_is_named_with_its_reason() -> None:
    metrics = Metrics()
    heard = Heard(metrics)
    heard.watch.begin(2, [0, 1])
    heard.watch.end([0], {1: "it stopped answering."})
    assert heard.warnings == ["Round 2 without b: it stopped answering."]
    assert metrics.values["lost_total", "b"] == 1
