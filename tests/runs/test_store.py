"""A run's folder: whole after any kill, readable by people and programs, refused when damaged."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from safetensors import safe_open
from tiny import Invoke

import consilience as co
from consilience.metrics.evaluate import Scorer

RUN = ["scaffold", "--data", "moons", "--sites", "3", "--rounds", "3", "--no-bounds", "--model", "mortal:Net"]
RUN += ["--set", "inference.epochs=2", "--set", "inference.batch=1000"]
MORTAL = """
import os, shutil, signal
from torch import nn
class Net(nn.Linear):
    def forward(self, x):
        if os.path.exists(os.environ.get("DEADLY", "")):
            os.kill(os.getpid(), signal.SIGKILL)
        last = os.environ.get("COPIED", "")
        if os.path.exists(last) and not os.path.exists("killed"):
            shutil.copytree(os.path.dirname(last), "killed")  # what a kill would leave behind
        return super().forward(x)
"""


def consilience(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "consilience.cli", *words]
    return subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, check=False)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    (tmp_path / "mortal.py").write_text(MORTAL)
    assert invoke("run", *RUN, "--out", "whole")[0] == 0
    died = consilience(tmp_path, "run", *RUN, "--out", "killed", DEADLY=str(killed / "state.safetensors"))
    assert died.returncode == -signal.SIGKILL
    check_resumed(whole, killed, invoke)


def test_what_a_kill_leaves_behind_ends_with_the_same_bytes(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder as it was while the second round trained."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COPIED", str(tmp_path / "whole" / "state.safetensors"))
    (tmp_path / "mortal.py").write_text(MORTAL)
    assert invoke("run", *RUN, "--out", "whole")[0] == 0
    monkeypatch.delenv("COPIED")
    check_resumed(tmp_path / "whole", tmp_path / "killed", invoke)


def check_resumed(whole: Path, killed: Path, invoke: Invoke) -> None:
    unfinished = json.loads((killed / "run.json").read_text())
    (killed / "state.safetensors.part").write_bytes(b"half a file")  # what a kill in mid-write leaves behind

    code, _, err = invoke("run", "--resume", "killed", "--model", "mortal:Net")

    assert unfinished["finished"] is False
    assert code == 0, err
    assert (killed / "state.safetensors").read_bytes() == (whole / "state.safetensors").read_bytes()
    assert (killed / "history.csv").read_bytes() == (whole / "history.csv").read_bytes()
    metrics = [json.loads((folder / "run.json").read_text())["metrics"] for folder in (whole, killed)]
    assert metrics[0] == metrics[1]


def test_keep_replies(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    for keep, expected in (("last", ["round-0003"]), ("all", ["round-0001", "round-0002", "round-0003"]), ("none", [])):
        co.run(tiny.method("fedavg"), task, sites, rounds=3, out=tmp_path / keep, keep_replies=keep)
        folders = sorted(p.name for p in (tmp_path / keep / "replies").glob("*")) if expected else []
        assert folders == expected
    assert not (tmp_path / "none" / "replies").exists()


def test_files_can_be_read_by_others(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path / "run")

    with safe_open(tmp_path / "run" / "state.safetensors", framework="np") as file:
        weights = file.get_tensor("tree.state.posterior.params.0.weight")
        assert list(file.metadata()) == ["consilience"]
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    lines = (tmp_path / "run" / "history.csv").read_text().splitlines()

    assert weights.shape == (5, 2)
    assert report["metrics"] == result.metrics
    assert len(lines) == 3 and lines[0].startswith("round,accuracy,")


def test_loading_a_finished_run_trains_nothing(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    method = tiny.method("mixture")
    result = co.run(method, task, sites, out=tmp_path / "run")

    loaded = co.load(tmp_path / "run", method, task, sites)

    assert loaded.pool(tiny.method("bcm")).metrics == result.pool(tiny.method("bcm")).metrics


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")
    with pytest.raises(co.InputError, match="already holds a run"):
        co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")


def test_resuming_with_something_else_is_refused(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")
    with pytest.raises(co.InputError, match="another method, model, data, seed or engine"):
        co.run(tiny.method("fedavg"), task, sites, rounds=2, seed=9, out=tmp_path / "run", resume=True)


def test_resuming_with_fewer_rounds_than_there_are_is_refused(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=3, out=tmp_path)
    before = (tmp_path / "run.json").read_bytes()

    with pytest.raises(co.InputError, match="already holds 3 rounds; ask for as many or more, not 2"):
        co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path, resume=True)

    assert (tmp_path / "run.json").read_bytes() == before


def test_a_run_stopped_while_it_is_scored_keeps_its_warnings_and_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, sites = tiny.classification()
    method = co.methods.Mixture(co.HMC(rate=50.0, burn=2, samples=1, every=2, chains=1, leapfrogs=2, aim=0.0))
    whole = co.run(method, task, sites, engine="sequential")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            co.run(method, task, sites, engine="sequential", out=tmp_path)
    stopped = json.loads((tmp_path / "run.json").read_text())
    del stopped["checksum"]
    (tmp_path / "run.json").write_text(json.dumps({**stopped, "seconds": 1000.0}))
    resumed = co.run(method, task, sites, engine="sequential", out=tmp_path, resume=True)

    assert any("HMC accepted" in said for said in whole.report["warnings"])
    assert resumed.report["warnings"] == whole.report["warnings"]
    assert stopped["seconds"] > 0 and resumed.report["seconds"] > 1000


@pytest.mark.parametrize("damage", [b"", b"not a safetensors file", None])
def test_a_damaged_state_is_named(tmp_path: Path, damage: bytes | None) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-7] if damage is None else damage)

    with pytest.raises(co.InputError, match=r"state\.safetensors is damaged or not ours"):
        co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path / "run", resume=True)


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")
    before = (tmp_path / "run" / "state.safetensors").read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(co.InputError, match="No space left on device"):
        co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path / "run", resume=True)

    assert (tmp_path / "run" / "state.safetensors").read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.part"))
