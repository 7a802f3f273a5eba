"""What commands do with files: permissions, keys, places that cannot be used, and cells that could be formulas."""

from __future__ import annotations

import csv
import errno
import os
import stat
import sys
from pathlib import Path

import pytest
import studies
import torch
from places import SHORT, Place
from tiny import Invoke

from consilience.cli.predictions import Predictions, Rows, write_csv
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import read
from consilience.study.protocol.signature import new_key, read_key
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import study_text


@pytest.fixture
def place(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, invoke, monkeypatch)


BLOCKED = [
    "run mixture --data moons --out blocked",
    "run mixture --data moons --out blocked/r",
    "run --resume blocked",
    "compare mixture --data moons --out blocked/r",
    "tune mixture --data moons --out blocked/r",
    "reproduce hasan2023/accuracy --out blocked/r",
    "demo --out blocked/r",
    "report blocked/r",
    "pool blocked --method mixture",
    "study new x --folder blocked",
    "study add blocked/x.toml north.join",
    "study deploy sepsis.toml --out blocked",
    "study certs sepsis.toml --out blocked",
    "study serve sepsis.toml --insecure --out blocked --key server.key",
    "site join sepsis.toml east --rows 60 --out blocked/x",
    "site serve sepsis.toml north.csv --insecure --out blocked/x --key north.key",
    "site fit sepsis.toml north.csv --out blocked/x --key north.key",
    "site fit sepsis.toml north.csv --memory blocked/x --key north.key",
]


@pytest.mark.parametrize("words", BLOCKED)
def test_a_file_in_the_way_is_one_sentence(invoke: Invoke, tmp_path: Path, words: str) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")
    (tmp_path / "sepsis.toml").write_text(study_text(studies.study(tmp_path, fewest_sites=1, rows_per_parameter=0.0)))
    studies.table(tmp_path / "north.csv", studies.rows(0))
    (tmp_path / "blocked").write_text("in the way")

    code, _, err = invoke(*words.split())

    said = err.startswith("Error: ") or " ERROR " in err  # whoever serves writes a log
    assert code == 2 and said and "blocked" in err and "Traceback" not in err, err
    assert (tmp_path / "blocked").read_text() == "in the way"


@pytest.mark.parametrize(
    ("words", "number"), [("study new x", errno.EROFS), ("site join sepsis.toml east --rows 60", errno.EACCES)]
)
def test_a_folder_that_may_not_be_written_is_one_sentence(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, number: int
) -> None:
    (tmp_path / "sepsis.toml").write_text(study_text(studies.study(tmp_path)))
    before = sorted(tmp_path.iterdir())
    original = os.open

    def refuse(path: str, flags: int, *mode: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), path)
        return original(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    code, _, err = invoke(*words.split())

    assert code == 2 and os.strerror(number) in err and "Traceback" not in err
    assert sorted(tmp_path.iterdir()) == before


def test_whatever_the_system_refuses_is_one_sentence(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "there/run.json")

    monkeypatch.setattr("consilience.cli._build_commands", lambda: refuse)
    code, _, err = invoke("methods")

    assert code == 2 and err.startswith("Error: there/run.json: Permission denied. Check")


def test_a_full_disk_leaves_no_key_and_an_empty_one_says_what_to_do(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sepsis.toml").write_text(study_text(studies.study(tmp_path, names=())))
    join = ("site", "join", "sepsis.toml", "east", "--rows", "60")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        code, _, err = invoke(*join)
    assert code == 2 and "No space left" in err and not (tmp_path / "east.key").exists()

    (tmp_path / "east.key").touch(0o600)  # as older versions left it
    code, _, err = invoke(*join)
    assert code == 2 and "east.key is empty" in err and "delete it and run the command again" in " ".join(err.split())
    (tmp_path / "east.key").unlink()
    assert invoke(*join)[0] == 0


def test_a_key_that_others_can_read_is_warned_of(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "sepsis.toml").write_text(study_text(studies.study(tmp_path, names=())))
    new_key(tmp_path / "east.key")
    quiet = invoke("site", "join", "sepsis.toml", "east", "--rows", "60")
    (tmp_path / "east.key").chmod(0o640)

    loud = invoke("site", "join", "sepsis.toml", "east", "--rows", "60")

    assert quiet[0] == loud[0] == 0 and quiet[2] == ""
    assert loud[2].startswith("Warning: ") and "`chmod 600 east.key`" in loud[2]
    with pytest.warns(UserWarning, match="Others on this machine can read"):
        read_key(tmp_path / "east.key")


def test_files_of_a_study_are_their_owners_alone(place: Place) -> None:
    before = os.umask(0o022)
    try:
        place.begun("--method", "scaffold", "--rounds", "2", "--set", "inference.epochs=1")
        place.fitted()
        place.at("server", "study", "pool", "sepsis.toml", *place.files)
        place.carry("sepsis.model", "server", "north")
        place.at("north", "predict", "sepsis.model", "data.csv")
    finally:
        os.umask(before)

    made = [path for path in place.root.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    shared = {".toml", ".join", ".csv"}
    assert {path.suffix for path in made} <= shared
    assert "data.predictions.csv" not in {path.name for path in made}
    assert stat.S_IMODE((place.root / "server" / "sepsis.toml").stat().st_mode) == 0o644


@pytest.mark.skipif(sys.platform == "win32", reason="no such permissions there")
def test_what_flower_writes_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")
    from flwr.app import ConfigRecord, RecordDict

    from consilience.study.flower import processes
    from consilience.study.flower.site import read_state, write_state

    monkeypatch.setattr(processes, "find_program", lambda _: "/bin/sh")
    before = os.umask(0o022)
    try:
        child = processes.Child("superlink", ["-c", f"echo > {tmp_path}/superlink.db"], tmp_path / "log", tmp_path)
        child.process.wait()
        write_state(tmp_path / "memory.bin", RecordDict({"x": ConfigRecord({"y": 1})}))
    finally:
        os.umask(before)

    assert read_state(tmp_path / "memory.bin")["x"] == ConfigRecord({"y": 1})
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir() if path.is_file()} == {0o600}


def test_no_decision_is_a_formula(tmp_path: Path) -> None:
    decisions = ["=cmd|' /C calc'!A0", "+ve", "-ve", "@here", "\tx", "-1", "+1.5", "no", "-1.5e-7", "a=b"]
    rows = [["0.5"] for _ in decisions]
    predictions = Predictions(["p(a)"], rows, decisions, [False] * len(rows))
    places = Rows(torch.zeros(0), list(range(len(rows))), {}, len(rows), [])
    text = write_csv(predictions, {"epistemic": [-0.25] * len(rows)}, places, None)

    cells = [row["decision"] for row in csv.DictReader(text.splitlines(keepends=True))]

    assert cells[:5] == [f"'{decision}" for decision in decisions[:5]]
    assert cells[5:] == decisions[5:]
    assert [cell.removeprefix("'") for cell in cells] == decisions  # how a program reads them back
    assert "-0.250000" in text


def test_a_strange_class_is_predicted_without_a_formula(place: Place) -> None:
    formula = "=1+1"
    for name in studies.NAMES:
        table = place.root / name / "data.csv"
        table.write_text(table.read_text().replace("yes", formula))
    place.begun(*SHORT, target=f'name = "died"\nclasses = ["no", "{formula}"]')
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.carry("sepsis.model", "server", "north")
    place.at("north", "predict", "sepsis.model", "data.csv")

    with (place.root / "north" / "data.predictions.csv").open(newline="") as file:
        decisions = {row["decision"] for row in csv.DictReader(file)}
    assert decisions == {"no", f"'{formula}"}


def test_any_character_of_a_level_can_be_written_and_read(invoke: Invoke, tmp_path: Path) -> None:
    control = "".join(map(chr, (*range(1, 32), *range(127, 160)))) + '"\\\u2028\ufeff'
    columns = (*studies.COLUMNS, Column("strange", "category", levels=(control, "\x7f", "plain")))
    target = Target("died", ("no\x7f", "yes"))
    study = studies.study(tmp_path, names=(), columns=columns, target=target)
    (tmp_path / "sepsis.toml").write_bytes(study_text(study).encode())

    assert read(tmp_path / "sepsis.toml").agreement == study.agreement
    assert read(tmp_path / "sepsis.toml").agreement.hash == study.agreement.hash


def test_a_study_is_proposed_from_a_table_with_a_strange_level(invoke: Invoke, tmp_path: Path) -> None:
    rows = [{**row, "ward": row["ward"].replace("a", "a\x7fa")} for row in studies.rows(0)]
    studies.table(tmp_path / "data.csv", rows)

    assert invoke("study", "new", "sepsis", "--like", "data.csv", "--target", "died")[0] == 0
    assert invoke("study", "show", "sepsis.toml")[0] == 0
    assert "a\x7fa" in read(tmp_path / "sepsis.toml").agreement.columns[2].levels
