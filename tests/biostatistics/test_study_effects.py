"""Effects of a study's model: in the agreed units, with sites named only where the study hands out what each sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.stats import t
from studies import NAMES, rows, study, table
from typer.testing import CliRunner
from uncharged import fit

from consilience.biostatistics.effects import Effects, from_json
from consilience.cli import app
from consilience.study.coordinator import pool
from consilience.study.effects import model_effects
from consilience.study.model import read_model
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import study_text
from consilience.study.rows import parts, rows_of

LEAST_SQUARES: dict[str, Any] = {
    "method": "exact",
    "settings": ("share=1e-10",),
    "target": Target("died", (), "days", (-20.0, 20.0), 1.0, 4.0),
    "choose": 0.0,
    "test": 0.0,
}


def pooled(folder: Path, names: tuple[str, ...] = NAMES, **changes: Any) -> tuple[Any, Path]:
    """The files after one round of a study of numbers, and the model's path."""
    made = study(folder, **{**LEAST_SQUARES, **changes})
    replies = []
    for k, name in enumerate(names):
        data, _ = rows_of(made.agreement, table(folder / f"{name}.csv", rows(k, number=True)))
        member = made.member(name)
        sealed = fit(made, member, read_key(folder / f"{name}.key"), parts(made.agreement, member.number, data))
        path = folder / f"{name}.reply"
        path.write_bytes(sealed.reply)
        replies.append(path)
    files = pool(made, replies, read_key(folder / "server.key"))
    path = folder / "sepsis.model"
    path.write_bytes(files.model)
    (folder / "sepsis.toml").write_text(study_text(made))
    return files, path


def least_squares(records: list[dict[str, str]]) -> Any:
    """Age in years, lactate in mmol/l with 1 for a gap and a mark of it, wards against a."""
    gap = np.array([record["lactate"] == "?" for record in records])
    lactate = np.array([1.0 if record["lactate"] == "?" else float(record["lactate"]) for record in records])
    age = np.array([float(record["age"]) for record in records])
    wards = [np.array([record["ward"] == ward for record in records]) for ward in "bc"]
    y = np.array([float(record["died"]) for record in records])
    return sm.OLS(y, np.column_stack([np.ones(len(y)), age, lactate, gap, *wards]).astype(float)).fit()


def test_a_study_has_the_effects_of_all_rows_in_the_agreed_units(tmp_path: Path) -> None:
    files, path = pooled(tmp_path, hand_out="ensemble", smallest=1)  # no few gaps are merged into known values
    effects = from_json(files.account["effects"])
    oracle = least_squares([record for k in range(3) for record in rows(k, number=True)])
    found = [row.estimate for row in effects]
    np.testing.assert_allclose(found[:-1], oracle.params, rtol=1e-4)  # rows are sent through single precision
    assert [str(estimate.label) for estimate in effects.estimates] == [
        "(Intercept)",
        "age (years)",
        "lactate (mmol/l)",
        "lactate: missing (against known)",
        "ward: b (against a)",
        "ward: c (against a)",
        "ward: missing (against a)",
    ]
    own = least_squares(rows(1, number=True))
    south = [estimate.estimate for estimate in effects.by_site["south"]]
    np.testing.assert_allclose(south, own.params, rtol=1e-3)
    assert model_effects(read_model(path), files.account).to_csv() == effects.to_csv()


def test_sites_are_not_named_where_the_study_hands_out_no_site_by_name(tmp_path: Path) -> None:
    files, path = pooled(tmp_path)
    effects = from_json(files.account["effects"])
    assert not effects.by_site and "sites" in files.account["effects"]
    assert effects.rows[1].sites == 3 and effects.rows[1].tau is not None
    alone = model_effects(read_model(path), None)  # a site that has the model and no report
    assert [row.estimate for row in alone] == pytest.approx([row.estimate for row in effects], nan_ok=True)
    assert alone.rows[1].sites == 0


def test_two_sites_are_not_compared(tmp_path: Path) -> None:
    """With two, the pooled effect and how much they differ would tell both."""
    files, _ = pooled(tmp_path, NAMES[:2])
    assert from_json(files.account["effects"]).rows[1].sites == 0


def test_the_command_shows_and_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooled(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["effects", "sepsis.model", "--csv", "e.csv", "--to-json", "e.json"])
    assert shown.exit_code == 0, shown.output
    assert "ward: c (against a)" in shown.output and "coordinator's report" in shown.output
    assert (tmp_path / "e.csv").read_text().startswith("outcome,column,level,reference,unit,estimate,error,low,high")
    other = CliRunner().invoke(app, ["effects", "sepsis.model", "--reference", "ward=b", "--json"])
    assert '"reference": "b"' in other.output
    wrong = CliRunner().invoke(app, ["effects", "sepsis.model", "--reference", "ward"])
    assert "COLUMN=LEVEL" in str(wrong.exception)


def test_a_report_that_is_no_table_is_refused(tmp_path: Path) -> None:
    files, path = pooled(tmp_path)
    broken = {**files.account, "effects": {"target": "died"}}
    with pytest.raises(Exception, match="does not hold what a table of effects holds"):
        model_effects(read_model(path), broken)


def test_levels_of_intervals_change_with_the_report_alone(tmp_path: Path) -> None:
    files, path = pooled(tmp_path)
    half: Effects = model_effects(read_model(path), files.account, 0.5)
    whole = model_effects(read_model(path), files.account)
    row, wide = half.rows[1], whole.rows[1]
    freedom = whole.freedom
    assert freedom is not None
    assert wide.high - wide.low == pytest.approx((row.high - row.low) * t.ppf(0.975, freedom) / t.ppf(0.75, freedom))
    assert dataclasses.asdict(half)["level"] == 0.5
    assert row.newcomer_low is not None and wide.newcomer_low is not None and row.newcomer_low > wide.newcomer_low
