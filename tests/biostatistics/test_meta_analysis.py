"""Meta-analyses of the sites' estimates: metafor's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from consilience.biostatistics.effects import Effects, Estimate, Label, from_json
from consilience.biostatistics.meta_analysis import Meta, meta_analyse
from consilience.cli import app
from consilience.errors import InputError
from consilience.report.forest import effects_pictures

R = json.loads((Path(__file__).parents[1] / "references" / "meta_analysis.json").read_text())
CASES = [(case, method, test) for case in R for method in ("REML", "PM", "DL") for test in ("z", "knha")]


def analyse(case: str, method: str, test: str) -> Meta:
    numbers = R[case]
    names = [f"h{i}" for i in range(len(numbers["y"]))]
    found = meta_analyse(numbers["y"], numbers["s"], method, test == "knha", names=names)
    assert found is not None
    return found


@pytest.mark.parametrize(("case", "method", "test"), CASES)
def test_every_number_is_metafor_s(case: str, method: str, test: str) -> None:
    found = analyse(case, method, test)
    wanted: dict[str, Any] = R[case]["fits"][f"{method} {test}"]
    left = wanted.pop("left_out")
    for name, value in wanted.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-6), name
    for name in ("mean", "low", "high", "i2"):
        assert [getattr(line, name) for line in found.left_out] == pytest.approx(left[name], rel=1e-6, abs=1e-6)
    assert [line.tau**2 for line in found.left_out] == pytest.approx(left["tau2"], rel=1e-6, abs=1e-6)
    wanted["left_out"] = left


def test_small_sites_are_tested_from_ten_on() -> None:
    assert analyse("twelve", "REML", "z").small_p == pytest.approx(R["twelve"]["egger"], rel=1e-6)
    assert analyse("differ", "REML", "z").small_p is None


def test_two_sites_have_no_new_one_and_one_site_has_nothing() -> None:
    found = meta_analyse([0.1, 0.5], [0.2, 0.3], names=["a", "b"])
    assert found is not None and found.new_low is None and found.left_out == ()
    assert meta_analyse([0.1], [0.2]) is None
    with pytest.raises(InputError, match="'REM'"):
        meta_analyse([0.1, 0.2], [0.1, 0.1], "REM")
    with pytest.raises(InputError, match="between 0 and 1"):
        meta_analyse([0.1, 0.2], [0.1, 0.1], level=95)


def table(sites: int) -> Effects:
    """A table of two effects at so many sites, the first with the estimates of the case `twelve`."""
    labels = [Label("yes", name, "", "", "") for name in ("(Intercept)", "age", "dose")]
    y, s = R["twelve"]["y"], R["twelve"]["s"]
    by_site = {f"h{k}": tuple(Estimate(label, y[k] + i, s[k]) for i, label in enumerate(labels)) for k in range(sites)}
    return Effects("ill", "no", "logit", 0.95, tuple(Estimate(label, 0.3, 0.1) for label in labels), by_site)


def test_tables_without_names_keep_one_analysis_from_seven_sites_on() -> None:
    whole = table(8)
    hidden = from_json(whole.without_sites().to_json())
    for with_names, without in zip(whole.meta_analysis(), hidden.meta_analysis(), strict=True):
        assert without == with_names._replace(meta=with_names.meta._replace(left_out=()))
    assert [line.label.column for line in hidden.meta_analysis()] == ["age", "dose"]
    with pytest.raises(InputError, match="Here only the meta-analysis by REML"):
        hidden.meta_analysis("DL")
    with pytest.raises(InputError, match="from seven sites on"):
        table(6).without_sites().meta_analysis()
    assert "meta_analysis" not in table(6).without_sites().to_json()


def test_the_report_has_the_analysis_and_funnels() -> None:
    effects = table(12)
    pictures = effects_pictures(effects.to_json())
    assert [picture.title for picture in pictures] == ["Effects", "Meta-analysis"]
    assert "Funnel plots" in pictures[1].svg and "restricted likelihood" in pictures[1].caption
    assert pictures[1].rows[0][:2] == ["age", "12"]
    assert not effects_pictures(table(8).without_sites().to_json())[1].svg


def test_the_command_shows_and_writes_the_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = "age,ill\n" + "\n".join(f"{30 + (7 * i) % 41},{'ny'[(i * i) % 7 > 2 + (i % 3)]}" for i in range(90))
    for name in ("a", "b", "c"):
        Path(f"{name}.csv").write_text(made.replace("30,", f"{ord(name) - 60},"))
    run = ["run", "glm", "--data", "*.csv", "--target", "ill", "--test", "0", "--calibration", "0", "--out", "out"]
    assert CliRunner().invoke(app, [*run, "--no-bounds"]).exit_code == 0
    shown = CliRunner().invoke(app, ["effects", "out", "--meta", "--leave-one-out", "--csv", "m.csv"])
    assert shown.exit_code == 0, shown.output
    assert "restricted likelihood" in shown.output and "without each site in turn" in shown.output
    lines = Path("m.csv").read_text().splitlines()
    assert len(lines) == 5 and [line.split(",")[5] for line in lines[1:]] == ["", "a", "b", "c"]
    other = CliRunner().invoke(app, ["effects", "out", "--meta", "--tau", "dl", "--interval", "normal", "--json"])
    assert json.loads(other.output)["meta_analysis"][0]["method"] == "DL"
    for words, said in (
        (["--tau", "DL"], "give --meta too"),
        (["--meta", "--tau", "XX"], "'XX'"),
        (["--meta", "--interval", "t"], "'t'"),
    ):
        assert said in str(CliRunner().invoke(app, ["effects", "out", *words]).exception)
