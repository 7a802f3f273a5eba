"""A site's audit of itself: through the study's own guards, and with nothing sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import studies
import torch
from typer.testing import CliRunner
from uncharged import fit

from consilience.cli import app
from consilience.errors import InputError
from consilience.key import Key
from consilience.privacy.audit.one_run import Bound
from consilience.study.audit import audit_site, far_rows, meaning
from consilience.study.protocol.signature import read_key
from consilience.study.rows import parts, rows_of, training_rows

LINEAR = {"model": "linear", "method": "exact", "settings": ()}
PRIVATE = ("inference=DPSGD", "inference.noise_multiplier=1.0", "inference.steps=3")


def prepared(folder: Path, **changes: object) -> Path:
    """A study's file and a table beside it."""
    study = studies.study(folder, **{**LINEAR, **changes})
    (folder / "sepsis.toml").write_text(study.text)
    return studies.table(folder / "north.csv", studies.rows(0, 90))


def test_sums_are_found_to_leak_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    result = CliRunner().invoke(app, ["site", "audit", "sepsis.toml", "north.csv", "--canaries", "60"])
    assert result.exit_code == 0, result.output
    assert "Nothing was sent." in result.output
    assert "times surer" in result.output
    assert set(tmp_path.iterdir()) == before  # and nothing was written


def test_results_are_written_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ["site", "audit", "sepsis.toml", "north.csv", "--canaries", "40", "-o", "audit.json"]
    assert CliRunner().invoke(app, words).exit_code == 0
    written = json.loads((tmp_path / "audit.json").read_text())
    assert {audit["kind"] for audit in written["audits"]} == {"wrong outcome", "far out"}
    assert all(audit["canaries"] == 40 for audit in written["audits"])


def test_too_few_canaries_and_a_wrong_delta_are_refused(tmp_path: Path) -> None:
    study = studies.study(tmp_path, **LINEAR)
    data, _ = rows_of(study.agreement, prepared(tmp_path))
    with pytest.raises(InputError, match="use at least 20"):
        audit_site(study.agreement, data, canaries=5)
    with pytest.raises(InputError, match="not a probability"):
        audit_site(study.agreement, data, delta=2.0)


def test_canaries_lie_at_the_ends_of_the_agreed_ranges(tmp_path: Path) -> None:
    agreement = studies.agreement(tmp_path, **LINEAR)
    data, _ = rows_of(agreement, prepared(tmp_path))
    rows = far_rows(agreement, data, 50, Key(0))
    assert sorted(set(rows.x[:, 0].tolist())) == pytest.approx([(18 - 50) / 15, (100 - 50) / 15])
    assert rows.x.shape[1] == len(agreement.feature_names)
    assert rows.x[:, -3:].sum(1).tolist() == [1.0] * 50  # one level of the ward each


def test_a_bound_is_put_in_plain_words() -> None:
    nothing = Bound(0.0, 1e-5, 0.95, 100, 90, 45, 3.0)
    assert "no proof that nothing leaks" in meaning(nothing)
    assert "7.4 times surer" in meaning(nothing._replace(epsilon=2.0))  # e² = 7.389


def test_a_private_round_is_answered_once(tmp_path: Path) -> None:
    """Noise is drawn anew, so that a second answer would be a second release."""
    study = studies.study(tmp_path, model="linear", method="fedavg", settings=PRIVATE, rounds=2)
    data, _ = rows_of(study.agreement, prepared(tmp_path))
    member = study.active[0]
    rows = parts(study.agreement, member.number, data)
    key = read_key(tmp_path / f"{member.name}.key")
    memory = tmp_path / "north.memory"
    first = fit(study, member, key, rows, memory=memory)
    again = fit(study, member, key, rows, memory=memory)  # nothing was kept: a first answer
    assert first.reply != again.reply
    memory.write_bytes(first.memory)
    with pytest.raises(InputError, match="twice the privacy budget"):
        fit(study, member, key, rows, memory=memory)


def test_rows_of_a_private_study_are_not_merged_by_what_other_rows_hold(tmp_path: Path) -> None:
    """With one row of ward c more, nine would become ten and all ten stay: one row would change ten."""
    records = [{**record, "ward": "ab"[i % 2]} for i, record in enumerate(studies.rows(0, 80))]
    for record in records[:9]:
        record["ward"] = "c"
    table = studies.table(tmp_path / "north.csv", records)
    merged = studies.agreement(tmp_path, **LINEAR)
    private = studies.agreement(tmp_path, model="linear", method="fedavg", settings=PRIVATE)
    data, _ = rows_of(merged, table)
    assert not torch.equal(training_rows(merged, data).data.x, data.x)
    assert torch.equal(training_rows(private, data).data.x, data.x)


def test_a_site_is_shown_what_is_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(tmp_path, method="fedavg", settings=PRIVATE)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["site", "check", "sepsis.toml", "north.csv"])
    assert result.exit_code == 0, result.output
    assert "Differential privacy: ε = " in result.output
    assert "Not covered: the number of rows of each site" in result.output


def test_private_sums_can_be_audited(tmp_path: Path) -> None:
    """One number more leaves than was summed, the share of noise: the audit looks at sums alone."""
    agreed = studies.agreement(tmp_path, method="exact", settings=(), epsilon=3.0, delta=1e-3)
    data, _ = rows_of(agreed, studies.table(tmp_path / "x.csv", studies.rows(0)))
    assert all(found.bound.epsilon <= 3.0 for found in audit_site(agreed, data, canaries=100, runs=1))
