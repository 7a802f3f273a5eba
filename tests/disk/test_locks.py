"""Two commands at once lose nothing: the second waits or is refused, and is told who was first."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rivals
import studies
import tiny
from tiny import Invoke

import consilience as co
from consilience.disk.locks import lock_file, lock_folder
from consilience.errors import InputError
from consilience.study.joining import join_text
from consilience.study.protocol.members import read
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A folder with a study that no site is in yet, and what two sites wrote to join."""
    studies.study(tmp_path, fewest_sites=1, rows_per_parameter=0.0)
    study = studies.study(tmp_path, names=(), fewest_sites=1, rows_per_parameter=0.0)
    (tmp_path / "sepsis.toml").write_text(study_text(study))
    for name in studies.NAMES:
        text = join_text(study.agreement, name, read_key(tmp_path / f"{name}.key"), 60)
        (tmp_path / f"{name}.join").write_text(text)
    return tmp_path


def from_another_thread(action: Callable[[], Any]) -> list[str]:
    """What goes wrong with an action there; here, locks are held already."""
    errors: list[str] = []

    def act() -> None:
        try:
            action()
        except InputError as error:
            errors.append(str(error))

    thread = threading.Thread(target=act)
    thread.start()
    thread.join()
    return errors


@pytest.mark.parametrize("tries", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_two_sites_added_at_once_are_both_there(signed: Path, tries: int) -> None:
    folders = []
    for i in range(tries):
        folders.append(signed / f"try-{i}")
        folders[-1].mkdir()
        for file in (*signed.glob("*.join"), signed / "sepsis.toml"):
            shutil.copy(file, folders[-1])

    commands = [["study", "add", "sepsis.toml", f"{name}.join"] for name in ("north", "south")]
    north, south = rivals.race(*[[(str(folder), words) for folder in folders] for words in commands])

    for folder, *codes in zip(folders, north, south, strict=True):
        there = {site.name for site in read(folder / "sepsis.toml").sites}
        added = {name for name, (code, _) in zip(("north", "south"), codes, strict=True) if code == 0}
        assert there == added and added
        assert all(code in (0, 2) and "Traceback" not in err for code, err in codes)
        assert not list(folder.glob(".*"))


def test_two_resumes_of_one_run_do_not_collide(tmp_path: Path) -> None:
    words = ["--data", "moons", "--model", "linear", "--sites", "3", "--no-bounds", "--rounds", "2"]
    words += ["--set", "inference.epochs=1"]
    run = (str(tmp_path), ["run", "fedavg", *words, "--out", "r"])
    resume = (str(tmp_path), ["run", "--resume", "r"])

    outcomes = rivals.race([run, resume], [run, resume])

    first, second = ([code for code, _ in each] for each in zip(*outcomes, strict=True))
    assert sorted(first) == [0, 2] and min(second) == 0
    for code, err in (outcome for each in outcomes for outcome in each):
        assert code == 0 or "in use by process" in err or "already holds a run" in err
    assert json.loads((tmp_path / "r" / "run.json").read_text())["finished"]


def test_whoever_holds_a_folder_is_named_and_a_dead_one_blocks_nobody(invoke: Invoke, tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "r")
    with rivals.holder("folder", tmp_path / "r") as process:
        code, out, err = invoke("report", "r")
        assert code == 2 and not out and "Traceback" not in err
        host = re.escape(socket.gethostname())
        expected = rf"r is in use by process {process.pid} on {host} since \d+-\d+-\d+ [\d:]+ UTC \(0:0\d:\d\d ago\):"
        assert re.search(expected, " ".join(err.split())), err
        assert not (tmp_path / "r" / "report.html").exists()

    assert (tmp_path / "r" / ".lock").exists()  # what the killed process left
    assert invoke("report", "r")[0] == 0
    assert not (tmp_path / "r" / ".lock").exists()


RUN = "run mixture --data moons --model linear --sites 3 --no-bounds --out r"
POOL = "pool r --method mixture --out held"
COMMANDS = [
    "run fedavg --data moons --out held",
    "compare fedavg --data moons --out held",
    "tune fedavg --data moons --out held",
    "reproduce hasan2023/accuracy --out held",
    "demo --out held",
    POOL,
    "study deploy sepsis.toml --out held",
    "study serve sepsis.toml --insecure --out held --key server.key",
    "site serve sepsis.toml north.csv --insecure --out held --key north.key",
    "study add study.toml north.join",
    "study leave sepsis.toml north",
    "study scale study.toml north.sums",
    "site fit sepsis.toml north.csv --key north.key",
]


@pytest.fixture
def crowded(signed: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """The command line in a folder where everything is in use by others, and nobody waits for long."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")
    for name in ("FILE_WAIT", "FOLDER_WAIT"):
        monkeypatch.setattr(f"consilience.disk.locks.{name}", 0.05)
    (signed / "sepsis.toml").write_text(study_text(studies.study(signed, fewest_sites=1, rows_per_parameter=0.0)))
    studies.table(signed / "north.csv", studies.rows(0))
    return invoke


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_that_writes_is_refused_what_another_holds(crowded: Invoke, signed: Path, words: str) -> None:
    if words == POOL:
        assert crowded(*RUN.split())[0] == 0
    before = {path: path.read_bytes() for path in signed.glob("*.toml")}
    outcomes: list[tuple[int, str, str]] = []
    files = [signed / name for name in ("sepsis.toml", "study.toml", "north.memory")]
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_folder(signed / "held"), lock_file(files[0]), lock_file(files[1]), lock_file(files[2]):
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        held.wait()
        outcomes.append(crowded(*words.split()))
        inside = [path.name for path in (signed / "held").iterdir()]
    finally:
        done.set()
        holder.join()

    code, _, err = outcomes[0]
    assert code == 2 and f"in use by process {os.getpid()} on" in " ".join(err.split()), err
    assert inside == [".lock"] and {path: path.read_bytes() for path in before} == before


def test_a_model_is_recorded_by_one_at_a_time(signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from consilience.cli.commands.study import record

    monkeypatch.setattr("consilience.disk.locks.FILE_WAIT", 0.05)
    monkeypatch.setattr("consilience.study.protocol.envelope.open_envelope", lambda *_: Named("0" * 64))
    with lock_file(signed / "sepsis.toml"):
        errors = from_another_thread(lambda: record(signed / "sepsis.toml", signed / "sepsis.model", ("north",)))
    record(signed / "sepsis.toml", signed / "sepsis.model", ("north",))

    assert len(errors) == 1 and "in use by" in errors[0]
    assert len(read(signed / "sepsis.toml").models) == 1


class Named:
    """As far as a model is recorded."""

    def __init__(self, checksum: str) -> None:
        self.checksum = checksum


def test_a_thread_may_lock_what_it_holds_and_no_other_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.disk.locks.FOLDER_WAIT", 0.05)

    def lock() -> None:
        with lock_folder(tmp_path / "r"):
            pass

    with lock_folder(tmp_path / "r"):
        lock()
        assert len(from_another_thread(lock)) == 1  # what it asked for again is still held
    assert from_another_thread(lock) == []


def test_a_folder_in_which_nothing_was_written_is_gone_again(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())
    with lock_folder(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "run.json").write_text("")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run.json"]


def test_a_lock_follows_no_planted_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock").symlink_to(tmp_path / "precious")

    with pytest.raises(InputError, match=r"Cannot write .*symbolic link"), lock_folder(tmp_path):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_damaged_note_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.disk.locks.FOLDER_WAIT", 0.05)

    def lock() -> None:
        with lock_folder(tmp_path):
            pass

    for note in ("", "{", "[]", '{"since": 3}', '{"since": "2026-01-01", "process": 1, "host": "x"}'):
        with lock_folder(tmp_path):
            (tmp_path / ".lock").write_text(note)
            assert "in use by another process" in from_another_thread(lock)[0]


def test_a_file_system_without_locks_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning, match="without locks"), lock_folder(tmp_path):
        pass
    assert not list(tmp_path.iterdir())
