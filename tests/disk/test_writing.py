"""Files are whole or not there, reach the disk, follow no planted link, and are read by whom they are meant for."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest
import tiny

import consilience as co
from consilience.disk import writing
from consilience.disk.writing import (
    PART,
    PRIVATE,
    STALE,
    append_line,
    make_folder,
    remove_parts,
    write_new,
    write_whole,
)
from consilience.errors import InputError
from consilience.runs.store import Store


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def fail_with(number: int) -> None:
    raise OSError(number, os.strerror(number))


@pytest.fixture
def open_umask() -> object:
    """A careless user's."""
    before = os.umask(0)
    yield None
    os.umask(before)


def test_a_run_is_not_written_through_planted_links(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    for name in ("state.safetensors", "run.json", "task.json", "history.csv"):
        (tmp_path / "run" / f"{name}.part").symlink_to(tmp_path / "precious")
        if name != "run.json":
            (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    (tmp_path / "run" / "state.safetensors").unlink()
    task, sites = tiny.classification()

    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "run")

    assert (tmp_path / "precious").read_text() == "precious"


def test_names_of_parts_cannot_be_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = []
    replace = os.replace

    def note(part: Path, path: Path) -> None:
        names.append(part.name)
        replace(part, path)

    monkeypatch.setattr(os, "replace", note)
    for _ in range(3):
        write_whole(tmp_path / "x", b"", "")

    assert len({*names}) == 3 and all(PART.fullmatch(name) for name in names)


def test_content_reaches_the_disk_before_the_name_and_the_name_before_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = []
    replace = os.replace
    fsync = os.fsync

    def note_sync(descriptor: int) -> None:
        kind = "file"
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            kind = "folder"
        events.append(kind)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", lambda *words: (events.append("name"), replace(*words)))
    write_whole(tmp_path / "x", b"1", "")
    write_whole(tmp_path / "new" / "x", b"1", "")

    assert events == ["file", "name", "folder", "folder", "file", "name", "folder"]


def test_replies_of_a_round_share_one_sync_of_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("consilience.runs.store.sync_folder", synced.append)
    task, sites = tiny.classification()

    co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path)

    assert [path.name for path in synced] == ["round-0001", "round-0002"]


@pytest.mark.parametrize("when", ["open", "fsync", "replace"])
def test_what_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    write_whole(tmp_path / "x", b"old", "")

    with monkeypatch.context() as patched:
        patched.setattr(os, when, lambda *words: fail_with(errno.ENOSPC))
        with pytest.raises(InputError, match=r"Cannot write .*x: No space left on device\. Do this\."):
            write_whole(tmp_path / "x", b"new", "Do this.")

    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"old"


def test_a_key_is_whole_or_not_there_and_never_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "north.key"
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: fail_with(errno.ENOSPC))
        with pytest.raises(InputError, match="No space left on device"):
            write_new(path, b"secret", PRIVATE, "careful")
    assert not list(tmp_path.iterdir())

    write_new(path, b"secret", PRIVATE, "careful")
    with pytest.raises(InputError, match="already exists: careful"):
        write_new(path, b"other", PRIVATE, "careful")
    assert path.read_bytes() == b"secret" and permissions(path) == 0o600


def test_a_memory_stick_without_hard_links_takes_keys_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", lambda *_: fail_with(errno.EPERM))
    write_new(tmp_path / "north.key", b"secret", PRIVATE, "careful")

    with pytest.raises(InputError, match="already exists"):
        write_new(tmp_path / "north.key", b"other", PRIVATE, "careful")
    assert (tmp_path / "north.key").read_bytes() == b"secret" and len(list(tmp_path.iterdir())) == 1


def test_a_file_where_a_folder_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("in the way")
    task, sites = tiny.classification()

    for folder in (tmp_path / "blocked", tmp_path / "blocked" / "run", tmp_path / "blocked" / "deep" / "run"):
        with pytest.raises(InputError, match=r"Cannot write .*Not a directory"):
            co.run(tiny.method("fedavg"), task, sites, rounds=1, out=folder)
        with pytest.raises(InputError, match=r"Cannot write .*Not a directory"):
            write_whole(folder / "x", b"", "")


def test_a_folder_that_may_not_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites = tiny.classification()
    monkeypatch.setattr(os, "open", lambda *_: fail_with(errno.EACCES))

    with pytest.raises(InputError, match=r"Cannot write .*Permission denied"):
        co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path)


@pytest.mark.usefixtures("open_umask")
def test_what_a_study_knows_is_its_owners_alone(tmp_path: Path) -> None:
    write_whole(tmp_path / "a" / "b" / "state", b"", "", PRIVATE)
    append_line(tmp_path / "log" / "messages.jsonl", "{}")
    Store(tmp_path / "study.run", private=True).write(Path("replies") / "round-0001" / "site", b"")
    Store(tmp_path / "run").write("run.json", b"")

    private = [path for name in ("a", "log", "study.run") for path in (tmp_path / name, *(tmp_path / name).rglob("*"))]
    assert {permissions(path) for path in private if path.is_dir()} == {0o700}
    assert {permissions(path) for path in private if path.is_file()} == {0o600}
    assert permissions(tmp_path / "run" / "run.json") == 0o666  # as the umask says


def test_a_line_is_not_added_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "log").symlink_to(tmp_path / "precious")

    with pytest.raises(OSError, match="symbolic link"):
        append_line(tmp_path / "log", "line")
    assert (tmp_path / "precious").read_text() == "precious"


def test_folders_that_were_made_are_named_from_outside_in(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a" / "b") == [tmp_path / "a", tmp_path / "a" / "b"]
    assert make_folder(tmp_path / "a" / "b") == []


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".0123456789abcdef.part", "mine.part", ".hidden"):
        (tmp_path / name).write_text("x")
    remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "mine.part"]


def test_the_next_writer_removes_parts_of_yesterday_and_none_that_may_be_written_now(tmp_path: Path) -> None:
    old, new = tmp_path / ".0123456789abcdef.part", tmp_path / ".fedcba9876543210.part"
    for path, age in ((old, 2 * STALE), (new, 0)):
        path.write_text("x")
        os.utime(path, (time.time() - age, time.time() - age))

    write_whole(tmp_path / "a.txt", b"x", "")

    assert not old.exists() and new.exists() and (tmp_path / "a.txt").exists()


def test_a_folder_that_cannot_be_synced_is_no_failure_and_a_broken_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, fails in ((errno.EINVAL, False), (errno.EIO, True)):
        monkeypatch.setattr(os, "fsync", lambda _, number=number: fail_with(number))
        if fails:
            with pytest.raises(OSError, match="Input/output"):
                writing.sync_folder(tmp_path)
        else:
            writing.sync_folder(tmp_path)


def test_a_history_that_a_kill_left_behind_is_made_again(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path)
    whole = (tmp_path / "history.csv").read_bytes()
    (tmp_path / "history.csv").write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))  # killed after the state

    co.run(tiny.method("fedavg"), task, sites, rounds=2, out=tmp_path, resume=True)

    assert (tmp_path / "history.csv").read_bytes() == whole
