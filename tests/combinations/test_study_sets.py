"""Own models × sets × files: a study's thresholds are of the models that its sites predict with."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import studies
import torch
from places import Place
from tiny import Invoke

from consilience.method import is_made_at_home
from consilience.prediction_sets.kinds import site_table
from consilience.prediction_sets.sets import prediction_sets
from consilience.study.counting import score_rows
from consilience.study.model import Model, read_model
from consilience.study.protocol.columns import inspect
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.guarantees import read_calibration
from consilience.study.protocol.members import read
from consilience.study.reply import read_memory
from consilience.study.rows import parts, rows_of

OPTIONS = ("--method", "hierarchical", "--rows-per-parameter", "0", "--level", "0.8")


@pytest.fixture
def place(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, invoke, monkeypatch)


def at_home(place: Place, name: str, file: str = "sepsis.model") -> Model:
    study = read(place.root / "server" / "sepsis.toml")
    return read_model(place.root / "server" / file, study).at_home(
        read_memory(study, place.root / name / f"{name}.memory", 1)
    )


def begun(place: Place, *words: str) -> None:
    place.begun(*OPTIONS, *words)
    place.fitted()
    place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")


def written(path: Path) -> list[str]:
    with path.open() as file:
        return [row["set80"] for row in csv.DictReader(file)]


def sets_of(model: Model, place: Place, name: str) -> list[str]:
    found = inspect(place.root / name / "data.csv", model.agreement.columns, None)
    columns = [c.features(found.cells[c.name]) for c in model.agreement.columns]
    assert model.guarantee is not None
    sets = prediction_sets(model.on_network_scale(torch.cat(columns, 1).float()), model.guarantee, None)
    return [" | ".join(c for c, inside in zip(("no", "yes"), row, strict=True) if inside) for row in sets.tolist()]


def test_counts_are_of_the_models_that_predict_at_home(place: Place) -> None:
    begun(place, "--guarantee", "pooled")
    lost = place.tried("north", "site", "calibrate", "sepsis.toml", "sepsis.model", "data.csv", "--memory", "x.memory")
    for name in studies.NAMES:
        place.at(name, "site", "calibrate", "sepsis.toml", "sepsis.model", "data.csv")
        place.carry(f"{name}.calibration", name, "server")
    said = place.at(
        "server", "study", "calibrate", "sepsis.toml", "sepsis.model", *(f"{n}.calibration" for n in studies.NAMES)
    )
    place.everybody("sepsis-calibrated.model")
    words = ("predict", "sepsis-calibrated.model", "data.csv", "--set", "0.8", "--study", "sepsis.toml")
    place.at("north", *words, "--memory", "north.memory", "-o", "own.csv")
    newcomer = place.tried("north", *words, "-o", "new.csv")
    judged = place.at("north", "site", "evaluate", "sepsis-calibrated.model", "data.csv", "--study", "sepsis.toml")
    place.at("server", "predict", "sepsis-calibrated.model", "../north/data.csv", "-o", "p.csv")  # without sets

    study = read(place.root / "server" / "sepsis.toml")
    plan = read_calibration(study.agreement)
    data, _ = rows_of(study.agreement, place.root / "north" / "data.csv")
    rows = parts(study.agreement, 0, data).calibrate
    home = at_home(place, "north")
    assert is_made_at_home(home.method) and home.own and plan.own_models
    table = site_table(plan, score_rows(home, plan, 0, rows), rows.y)
    sent = open_envelope(place.root / "north" / "north.calibration").tensors
    common = site_table(plan, score_rows(read_model(place.root / "server" / "sepsis.model"), plan, 0, rows), rows.y)
    counts = next(t for t in sent.values() if t.shape == table.shape)
    assert not torch.equal(table, common)
    assert int((counts.cumsum(1) > table.cumsum(1)).sum()) == 0  # merged upwards, which only enlarges sets
    assert int((counts.cumsum(1) > common.cumsum(1)).sum()) > 0  # and not those of the newcomer's model
    assert lost[0] == 2 and "x.memory" in lost[2]
    assert "--memory SITE.memory" in said
    assert written(place.root / "north" / "own.csv") == sets_of(
        at_home(place, "north", "sepsis-calibrated.model"), place, "north"
    )
    with (place.root / "north" / "own.csv").open() as file:
        for row in csv.DictReader(file):
            p = torch.tensor([float(row["p(no)"]), float(row["p(yes)"])], dtype=torch.float64)
            together = float(row["aleatoric"]) + float(row["epistemic"])
            assert together == pytest.approx(float(torch.special.entr(p).sum()), abs=2e-5)  # printed to six digits
    assert newcomer[0] == 2 and "thresholds are of the sites' own models" in newcomer[2]
    assert "Prediction sets for 80 % hold" in judged
    (place.root / "north" / "north.memory").rename(place.root / "north" / "away")
    (place.root / "north" / "north.rows").unlink(missing_ok=True)
    silent = place.at("north", "site", "evaluate", "sepsis-calibrated.model", "data.csv", "--study", "sepsis.toml")
    assert "its sets are not looked at" in silent and "hold" not in silent.partition("not looked at")[2]


@pytest.mark.slow
def test_a_sites_own_threshold_is_of_the_model_that_it_predicts_with(place: Place) -> None:
    begun(place, "--guarantee", "own")
    told = place.at("north", "site", "calibrate", "sepsis.toml", "sepsis.model", "data.csv")
    words = ("predict", "sepsis.model", "data.csv", "--set", "0.8", "--thresholds", "north.thresholds")
    own = ("--study", "sepsis.toml", "--memory", "north.memory")
    shown = place.at("north", *words, *own, "-o", "own.csv")
    code, _, error = place.tried("north", *words)

    assert "--study sepsis.toml --memory north.memory" in told
    assert "At each site, at least 80 %" in shown and len(written(place.root / "north" / "own.csv")) == 120
    assert code == 2 and "a site that took part gives --study and --memory" in error
