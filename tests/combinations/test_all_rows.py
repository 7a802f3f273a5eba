"""No row held out: every row is fitted on, nothing is scored, and every table of effects says what it was fitted on."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from event_studies import COUNTS, make_rows, make_study, play
from tiny import Invoke

import consilience as co
from consilience.data.dataset import Dataset
from consilience.data.sites import Data
from consilience.data.splits.labels import dirichlet, iid, natural
from consilience.data.splits.split import Split
from consilience.disk.data_folder import VARIABLE
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.inference import Laplace, Newton
from consilience.methods.advice import Situation, advise
from consilience.methods.hierarchical import Hierarchical
from consilience.study.coordinator import pool
from consilience.study.proposal import EXAMPLE, proposal
from consilience.study.protocol.signature import read_key
from consilience.study.told import fitted_of, tell_rows

ON_COUNTS = ("inference.mode=Newton", "inference.dense=True")


def clinics(folder: Path, clinics: int = 3, rows: int = 40) -> str:
    """CSV files of clinics, 40 rows each."""
    rng = np.random.default_rng(3)
    for k in range(clinics):
        x = rng.normal(size=rows)
        y = rng.random(rows) < 1 / (1 + np.exp(-x))
        lines = ["x,ill", *(f"{a:.3f},{'yes' if b else 'no'}" for a, b in zip(x, y, strict=True))]
        (folder / f"clinic{k}.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "clinic*.csv")


@pytest.mark.parametrize("split", [natural(), iid(), dirichlet(0.5)])
def test_without_held_out_rows_every_row_is_trained_on_the_official_test_rows_too(split: Split) -> None:
    x = torch.arange(60.0).reshape(30, 2)
    y = torch.arange(30) % 2
    site = torch.arange(30) // 10
    parts = {"x_test": x[24:], "y_test": y[24:], "site_test": site[24:]}
    official = Dataset("d", x[:24], y[:24], 2, site[:24], **parts)
    for data in (Dataset("d", x, y, 2, site), official):
        sites = data.split(split, test=0, calibration=0)
        assert sorted(v for part in sites.train for v in part.x[:, 0].tolist()) == x[:, 0].tolist()
        assert not sites.holds_out


def test_a_run_on_all_rows_has_effects_and_no_scores(tmp_path: Path, invoke: Invoke) -> None:
    """The estimate is statsmodels' on all 120 rows."""
    import statsmodels.api as sm

    pattern = clinics(tmp_path)
    words = ["--data", pattern, "--target", "ill", "--prior-var", "1e6", "--rounds", "9"]
    code, shown, error = invoke("run", "glm", *words, "--test", "0", "--calibration", "0", "--out", str(tmp_path / "r"))
    assert code == 0, error
    assert "nothing is scored" in " ".join(shown.split())
    assert "This run" not in shown  # a table without rows
    report = json.loads((tmp_path / "r" / "run.json").read_text())
    assert not report.get("metrics") and not report["bounds"] and not report["baselines"]
    table = [line.split(",") for f in sorted(tmp_path.glob("*.csv")) for line in f.read_text().split()[1:]]
    design = sm.add_constant(np.array([float(row[0]) for row in table]))
    oracle = sm.Logit(np.array([row[1] == "yes" for row in table], float), design).fit(disp=0)
    slope = report["effects"]["effects"][1]
    assert slope["estimate"] == pytest.approx(oracle.params[1], rel=1e-4)
    assert slope["error"] == pytest.approx(oracle.bse[1], rel=1e-4)
    yes = sum(row[1] == "yes" for row in table)
    basis = f"Fitted on 120 rows at 3 sites (no: {120 - yes}, yes: {yes})."
    assert report["effects"]["notes"] == [basis]
    assert basis in (tmp_path / "r" / "report.html").read_text()
    assert basis in " ".join(invoke("effects", str(tmp_path / "r"))[1].split())


@pytest.mark.parametrize(
    "method", [co.methods.GLM(), co.methods.GaussianProduct(inference=Laplace(Newton(), dense=True)), Hierarchical()]
)
@pytest.mark.parametrize("split", [natural(), iid()])
def test_effects_are_of_all_rows_whatever_is_held_out(tmp_path: Path, method: co.Method, split: Split) -> None:
    """Held out or not, the table of the same rows is the same; the score is of a model that saw fewer."""
    rows = {"target": "ill", "split": split, "sites": 3, "standardise": False}
    held = co.from_csv(clinics(tmp_path), **rows, calibration=10, conformal=0.2, validation=0.1)
    task = co.classification(co.models.linear(1, 2).double(), prior=Isotropic(10.0))
    result = co.run(method, task, held.to(torch.float64), out=tmp_path / "run")
    table = result.effects()
    train = sum(len(part.y) for part in held.train)
    (basis,) = table.notes
    assert basis.startswith(f"Fitted on 120 rows at {len(held)} sites (no: ") and "held out" not in basis
    assert basis.endswith(f"Scores and predictions are of the same model fitted on {train} of them.")
    assert result.report["effects"] == table.to_json()
    if split == natural():  # chance deals the others to other sites where fewer are held out
        every = co.from_csv(clinics(tmp_path), **rows, test=0, calibration=0)
        other = co.run(method, task, every.to(torch.float64)).effects()
        for mine, theirs in zip(table.rows, other.rows, strict=True):
            assert mine.estimate == pytest.approx(theirs.estimate, rel=1e-6)
            assert mine.error == pytest.approx(theirs.error, rel=1e-6)
    alone = co.load(tmp_path / "run")
    copied = pickle.loads(pickle.dumps(result))
    assert alone.effects(0.5).notes == copied.effects(0.5).notes == [basis]
    assert alone.effects(0.5).rows == copied.effects(0.5).rows == result.effects(0.5).rows
    swapped = {"ill": "yes"}
    if table.newcomers:  # whose replies are not what sites say alone: their differences are not known
        own = [[v for row in r.effects(reference=swapped) for v in (row.estimate, row.error)] for r in (alone, result)]
        assert own[0] == pytest.approx(own[1], rel=1e-6)
        return
    assert alone.effects(reference=swapped).rows == result.effects(reference=swapped).rows
    with pytest.raises(InputError, match="Another reference"):
        copied.effects(reference=swapped)
    result.save(tmp_path / "copy")
    assert co.load(tmp_path / "copy").effects(reference=swapped).rows == alone.effects(reference=swapped).rows


def test_where_all_rows_cannot_be_fitted_the_table_says_of_how_many(tmp_path: Path) -> None:
    """Rows that a second release would spend ε on, or that are tested on what was trained on, are not fitted again."""
    sites = co.from_csv(clinics(tmp_path), target="ill", calibration=10)
    task = co.classification(co.models.linear(1, 2), prior=Isotropic(10.0))
    train = sum(len(part.y) for part in sites.train)
    product = co.methods.GaussianProduct(inference=Laplace(Newton(), dense=True))
    (basis,) = co.run(product, task, sites).pool(product).effects().notes
    assert basis.startswith(f"Fitted on {train} of 120 rows at 3 sites (no: ")
    assert f"({110 - train} test, 10 calibration): run with test=0 and calibration=0" in basis
    (basis,) = co.run(co.methods.GLM(), task, replace(sites, test=sites.train, drawn=None), rounds=1).effects().notes
    assert basis.startswith(f"Fitted on {train} of ")


def test_events_are_counted_for_times_and_counts() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 1, generator=draw)
    times = torch.stack([torch.rand(60, generator=draw) + 0.1, (torch.arange(60) % 3 == 0).float()], 1)
    for outcome, y in (("survival", times), ("counts", torch.arange(60.0) % 3)):
        sites = Dataset("d", x, y, site=torch.arange(60) // 20, outcome=outcome).split(natural(), test=0, calibration=0)
        make = {"survival": co.survival, "counts": co.counts}[outcome]
        table = co.run(co.methods.GLM(), make(co.models.linear(1, None)), sites, rounds=2).effects()
        events = {"survival": 20, "counts": 60}[outcome]  # every third row; 0, 1 and 2 in turn
        assert table.notes == [f"Fitted on 60 rows at 3 sites, {events} events."]


def test_a_comparison_without_rows_to_score_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="give test above 0"):
        co.compare(["exact"], co.Problem(clinics(tmp_path), target="ill", test=0))


def test_a_study_of_counts_says_how_many_events_it_was_fitted_on(tmp_path: Path) -> None:
    """In all, as the sites' own tables have them, unless few rows of a site have one."""
    study = make_study(tmp_path, COUNTS, "gaussian_product", rounds=1, settings=ON_COUNTS, test=0.0, roles="content")
    play(study, tmp_path)
    replies = [tmp_path / f"{site.name}.reply" for site in study.sites]
    table = pool(study, replies, read_key(tmp_path / "server.key")).account["effects"]
    events = sum(int(row["visits"]) for site in study.sites for row in make_rows(site.number))
    assert table["notes"][0] == f"Fitted on 240 rows at 3 sites, {events} events."
    few = torch.tensor([[40.0, 1.0]] * 4 + [[0.0, 1.0]] * 60)
    assert tell_rows(study.agreement, Data.of(torch.zeros(64, 2), few), {})["events"] == []


def test_a_study_of_effects_fits_every_row() -> None:
    target, columns = EXAMPLE
    draft = proposal("s", "", target, columns, effects=True)
    assert (draft.test, draft.choose, draft.calibrate) == (0, 0, 0)
    usual = proposal("s", "", target, columns)
    assert usual.test > 0
    linear = Situation(kind="classes", place="study", network="linear", effects=True)
    assert draft.method == advise(linear).method
    assert fitted_of(draft, 90, (), 3).notes() == ["Fitted on 90 rows at 3 sites."]
    assert "keep 30 % of their rows" in fitted_of(usual, 90, (), 3).notes()[0]


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"set {VARIABLE} to the folder with the data files")
def test_no_test_rows_where_a_data_set_comes_with_some(tmp_path: Path, invoke: Invoke) -> None:
    words = ["--data", "tcga_brca", "--test", "0", "--calibration", "0", "--no-bounds", "--out", str(tmp_path / "r")]
    code, _, error = invoke("run", "glm", *words)
    assert code == 0, error
    assert json.loads((tmp_path / "r" / "run.json").read_text())["rows"]["test"] == 0


@pytest.mark.parametrize("missing", ["mean", "impute:5"])
def test_a_table_says_that_cells_filled_by_the_mean_bias_it(tmp_path: Path, missing: str) -> None:
    rng = np.random.default_rng(0)
    for k in range(3):
        dose, age = rng.normal(size=(2, 60))
        ill = rng.random(60) < 1 / (1 + np.exp(-dose - age))
        cells = np.where(rng.random(60) < 0.3, "", np.char.mod("%.3f", dose))
        lines = [f"{d},{a:.3f},{'yes' if y else 'no'}" for d, a, y in zip(cells, age, ill, strict=True)]
        (tmp_path / f"site{k}.csv").write_text("\n".join(["dose,age,ill", *lines]) + "\n")
    sites = co.from_csv(tmp_path / "site*.csv", target="ill", missing=missing)
    method = co.methods.GaussianProduct(inference=Laplace(Newton(), dense=True))
    task = co.classification(co.models.linear(sites.features, sites.classes))
    said = [note for note in co.run(method, task, sites).effects().notes if "biased" in note]
    assert len(said) == (missing == "mean")
    assert all(note.startswith("Missing cells of 'dose' were filled by the mean") for note in said)
