"""Rows are known by their content: none that was trained on is scored, and no second reply is made from others."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
import studies
from places import SHORT, Place
from rounds import replies
from tiny import Invoke

from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.members import read
from consilience.study.protocol.signature import read_key
from consilience.study.recall import marks_file, marks_of, recall
from consilience.study.rows import fingerprint, parts, rows_of


@pytest.fixture
def place(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path, invoke, monkeypatch)
    made.begun(*SHORT)
    return made


def shuffle(path: Path) -> None:
    head, *lines = path.read_text().splitlines()
    random.Random(5).shuffle(lines)
    path.write_text("\n".join([head, *lines, ""]))


def pooled(place: Place) -> None:
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")


def test_a_table_in_another_order_is_scored_on_the_same_rows(place: Place) -> None:
    """By position, two thirds of the rows called unseen had been trained on."""
    pooled(place)
    words = ("site", "evaluate", "sepsis.model", "data.csv")
    before = [place.at("north", *words, "--study", "sepsis.toml"), place.at("north", *words)]
    statistics = ("site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")
    place.at("north", *statistics)
    sums = (place.root / "north" / "north.statistics").read_bytes()
    shuffle(place.root / "north" / "data.csv")

    after = [place.at("north", *words, "--study", "sepsis.toml"), place.at("north", *words)]
    place.at("north", *statistics)

    assert after == before
    assert all(f"{place.dealt('test', 'north')} test rows of this site" in said for said in after)
    assert (place.root / "north" / "north.statistics").read_bytes() == sums


def test_rows_that_were_trained_on_alone_are_not_scored(place: Place, tmp_path: Path) -> None:
    pooled(place)
    path = place.root / "north" / "data.csv"
    agreement = read_agreement(place)
    data, _ = rows_of(agreement, path)
    train = {tuple(row) for row in parts(agreement, 0, data).train.x.tolist()}
    head, *lines = path.read_text().splitlines()
    kept = [line for line, row in zip(lines, data.x.tolist(), strict=True) if tuple(row) in train]
    (place.root / "north" / "trained.csv").write_text("\n".join([head, *kept, ""]))

    code, _, err = place.tried("north", "site", "evaluate", "sepsis.model", "trained.csv")

    assert code == 2 and "Every row of trained.csv was trained on" in err


def read_agreement(place: Place) -> Agreement:
    return read(place.root / "north" / "sepsis.toml").agreement


def test_rows_of_later_are_scored_and_said_to_be_new(place: Place) -> None:
    pooled(place)
    studies.table(place.root / "north" / "later.csv", studies.rows(7, 40))

    said = place.at("north", "site", "evaluate", "sepsis.model", "later.csv", "--study", "sepsis.toml")

    assert "40 test rows" in said and "40 of them were not in the table of `site fit`" in said
    assert "120 rows of then are missing" in said


def test_what_is_not_known_is_said(place: Place) -> None:
    pooled(place)
    (place.root / "north" / "north.memory").unlink()
    (place.root / "north" / "north.rows").unlink()
    (place.root / "south" / "south.key").unlink()
    words = ("site", "evaluate", "sepsis.model", "data.csv")

    by_study = place.at("north", *words, "--study", "sepsis.toml")
    alone = place.at("north", *words)
    code, _, err = place.tried("south", *words)

    assert "cannot be checked" in by_study and "used neither" not in by_study
    assert "All 120 rows" in alone and "is not known here" in alone
    assert code == 2 and "give it with --key" in err


def test_a_memory_of_before_knows_the_table_and_not_its_rows(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    replies(study, tmp_path)
    key, path = read_key(tmp_path / "north.key"), tmp_path / "north.memory"
    table = tmp_path / "north.csv"

    same = recall(study.agreement, 0, key, path, rows_of(study.agreement, table)[0])
    shuffle(table)
    other = recall(study.agreement, 0, key, path, rows_of(study.agreement, table)[0])

    assert same.known and not same.difference
    assert other.mixed and "an older version" in other.difference


def test_a_second_reply_from_other_rows_must_be_asked_for(place: Place) -> None:
    place.fitted()
    folder = place.root / "north"
    kept = {name: (folder / name).read_bytes() for name in ("north.reply", "north.memory", "north.rows")}
    lines = (folder / "data.csv").read_text().splitlines()
    (folder / "fewer.csv").write_text("\n".join([*lines[:-1], ""]))

    code, _, err = place.tried("north", "site", "fit", "sepsis.toml", "fewer.csv")
    unchanged = {name: (folder / name).read_bytes() for name in kept}
    said = place.at("north", "site", "fit", "sepsis.toml", "fewer.csv", "--replace")

    assert code == 2 and "1 of the rows of then are missing or changed" in err and "--replace" in err
    assert unchanged == kept
    assert "never both" in said and (folder / "north.reply").read_bytes() != kept["north.reply"]


def test_a_table_in_another_order_gives_the_same_reply(place: Place) -> None:
    place.fitted()
    before = (place.root / "north" / "north.reply").read_bytes()
    shuffle(place.root / "north" / "data.csv")

    place.at("north", "site", "fit", "sepsis.toml", "data.csv")

    assert (place.root / "north" / "north.reply").read_bytes() == before


def test_equal_rows_are_counted(tmp_path: Path) -> None:
    """Two patients may be alike: one trained on leaves the other unseen."""
    study = studies.study(tmp_path)
    records = studies.rows(0, 30)
    studies.table(tmp_path / "north.csv", [*records, *records])
    for name, number in (("south", 1), ("west", 2)):
        studies.table(tmp_path / f"{name}.csv", studies.rows(number, 60))
    data, _ = rows_of(study.agreement, tmp_path / "north.csv")
    own = parts(study.agreement, 0, data)
    key = read_key(tmp_path / "north.key")
    (tmp_path / "north.rows").write_bytes(marks_file(study.agreement, "north", 0, key, own))

    recalled = recall(study.agreement, 0, key, tmp_path / "north.memory", data)

    assert [len(part.y) for part in recalled.rows] == [len(part.y) for part in own]
    assert fingerprint(recalled.rows.train) == fingerprint(own.train)


def test_marks_cannot_be_computed_without_the_key(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    data, _ = rows_of(study.agreement, studies.table(tmp_path / "t.csv", studies.rows(0)))
    own = parts(study.agreement, 0, data)
    keys = [read_key(tmp_path / f"{name}.key") for name in ("north", "south")]

    mine, theirs = (marks_of(own, key, study.agreement)["train"] for key in keys)

    plain = {
        hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).digest()[:16]
        for x, y, _ in zip(*own.train, strict=True)
    }
    assert not {bytes(mark.tolist()) for mark in mine} & plain
    assert not {bytes(mark.tolist()) for mark in mine} & {bytes(mark.tolist()) for mark in theirs}
