"""Prediction sets as people make them: files from folder to folder, sets in the table of predictions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import studies
from places import SHORT, Place
from tiny import Invoke

WITH_SETS = ("--level", "0.8")


@pytest.fixture
def place(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, invoke, monkeypatch)


def pooled(place: Place, *words: str) -> None:
    place.begun(*SHORT, "--rows-per-parameter", "0", *words)
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")


def counted(place: Place) -> list[str]:
    for name in studies.NAMES:
        place.at(name, "site", "calibrate", "sepsis.toml", "sepsis.model", "data.csv")
        place.carry(f"{name}.calibration", name, "server")
    return [f"{name}.calibration" for name in studies.NAMES]


def test_sets_from_counts_to_predictions(place: Place) -> None:
    pooled(place, *WITH_SETS, "--guarantee", "pooled")
    before = place.tried("west", "predict", "sepsis.model", "data.csv", "--set", "0.8")
    files = counted(place)
    said = place.at("server", "study", "calibrate", "sepsis.toml", "sepsis.model", *files)
    place.everybody("sepsis-calibrated.model")
    on_test_rows = ("sepsis-calibrated.model", "data.csv", "--study", "sepsis.toml", "--report", "own.html")
    judged = place.at("west", "site", "evaluate", *on_test_rows)
    wrong = place.tried("west", "predict", "sepsis-calibrated.model", "data.csv", "--set", "0.9")
    shown = place.at("west", "predict", "sepsis-calibrated.model", "data.csv", "--set", "0.8", "-o", "p.csv")

    assert before[0] == 2 and "holds no thresholds" in before[2]
    assert "At least 80 % of rows that come from the sites" in said
    assert "Prediction sets for 80 % hold" in judged and f"of {place.dealt('test', 'west')} rows" in judged
    page = (place.root / "west" / "own.html").read_text()
    assert "Prediction sets for 80 %, by site" in page and "by pooled counts, from" in page
    assert wrong[0] == 2 and "--set 0.8, not for 0.9" in wrong[2]
    assert "if each site's new rows are like its calibration rows" in shown
    with (place.root / "west" / "p.csv").open() as file:
        sets = [row["set80"] for row in csv.DictReader(file)]
    assert len(sets) == 120 and set(sets) <= {"", "no", "yes", "no | yes"} and "no | yes" in sets
    report = json.loads((place.root / "server" / "sepsis-calibrated.json").read_text())
    count = place.dealt("calibrate")
    assert report["guarantee"]["kind"] == "pooled" and report["guarantee"]["rows"] == [count]
    page = (place.root / "server" / "sepsis-calibrated.html").read_text()
    assert f"80 % by pooled counts, from {count} rows held out" in page.replace("\u00a0", " ").replace("\u202f", " ")


def test_a_site_keeps_its_own_thresholds(place: Place) -> None:
    pooled(place, *WITH_SETS, "--guarantee", "own")
    place.at("north", "site", "calibrate", "sepsis.toml", "sepsis.model", "data.csv")
    words = ("predict", "sepsis.model", "data.csv", "--set", "0.8")
    shown = place.at("north", *words, "--thresholds", "north.thresholds", "-o", "p.csv")
    lonely = place.tried("north", "predict", "sepsis.model", "data.csv", "--thresholds", "north.thresholds")

    assert "At each site, at least 80 % of its own rows" in shown
    assert not (place.root / "north" / "north.calibration").exists()
    assert lonely[0] == 2 and "--set 0.9" in lonely[2]


def test_masked_counts_go_from_folder_to_folder(place: Place) -> None:
    place.begun("--method", "exact", "--rows-per-parameter", "0", "--secure", *WITH_SETS, "--guarantee", "pooled")
    preview = place.at("west", "site", "check", "sepsis.toml", "data.csv")
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")
    files = counted(place)
    lacking = place.tried("server", "study", "calibrate", "sepsis.toml", "sepsis.model", *files[:2])
    lonely = place.tried("server", "study", "drop", "sepsis.toml", "west", "--counts")
    said = place.at("server", "study", "calibrate", "sepsis.toml", "sepsis.model", *files)

    assert "1,001 counts of scores" in preview.replace("\n", " ") and "no site's own" in preview.replace("\n", " ")
    assert lacking[0] == 2 and "Nothing of west is here" in lacking[2]
    assert lonely[0] == 2 and "give it with --model" in lonely[2]
    assert "At least 80 % of rows that come from the sites" in said
    report = json.loads((place.root / "server" / "sepsis-calibrated.json").read_text())
    assert report["guarantee"]["rows"] == [place.dealt("calibrate")] and "masked" in report["guarantee"]["leaves"]
    assert "1,001 counts of scores" in (place.root / "server" / "sepsis-calibrated.html").read_text()
    ledger = json.loads((place.root / "west" / "west.ledger").read_text())
    assert [entry["what"][:6] for entry in ledger["releases"]] == ["reply", "counts"]


def test_counts_with_noise_are_kept_charged_and_too_few_are_refused(place: Place) -> None:
    place.begun("--method", "exact", "--rows-per-parameter", "0", "--epsilon", "1", "--delta", "0.001", *WITH_SETS)
    assert "grid = 30" in (place.root / "server" / "sepsis.toml").read_text()
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")
    files = counted(place)
    first = (place.root / "north" / "north.calibration").read_bytes()
    again = counted(place)
    refused = place.tried("server", "study", "calibrate", "sepsis.toml", "sepsis.model", *files)

    assert files == again and (place.root / "north" / "north.calibration").read_bytes() == first
    ledger = json.loads((place.root / "north" / "north.ledger").read_text())
    assert [entry["what"][:6] for entry in ledger["releases"]] == ["reply", "counts"]
    assert refused[0] == 2 and "noise is too large for sets of 80 %" in refused[2].replace("\n", " ")


def test_a_study_without_sets_calibrates_none(place: Place) -> None:
    place.begun(*SHORT)
    code, _, error = place.tried("north", "site", "calibrate", "sepsis.toml", "sepsis.model", "data.csv")

    assert code == 2 and "agreed on no prediction sets" in error


def test_a_run_with_a_level_reports_its_sets(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("run", "exact", "--data", "digits", "--features", "conv:16", "--no-bounds", "--out", "one")
    code, out, error = invoke(*words, "--level", "0.8")
    assert code == 0, error
    again, _, refused = invoke(*words[:-1], "two", "--level", "80")
    report = json.loads((tmp_path / "one" / "run.json").read_text())

    assert "Prediction sets for 80 %" in out.replace("\u00a0", " ").replace("\u202f", " ")
    assert report["guarantee"]["level"] == report["level"] == 0.8 and report["recipe"]["conformal"] == 0.2
    assert again == 2 and "not between 0 and 1" in refused and not (tmp_path / "two" / "run.json").exists()
