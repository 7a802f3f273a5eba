"""A level that few rows of a site have: nobody is counted as what they are not, and the results say what was merged."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from studies import FREE, study, table
from tiny import Invoke
from uncharged import fit

from consilience.biostatistics.effects import from_json
from consilience.privacy.disclosure.guard import Span, guard
from consilience.report.study_page import study_page
from consilience.study.coordinator import PooledFiles, pool
from consilience.study.effects import model_effects
from consilience.study.model import read_model
from consilience.study.protocol.columns import Column
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import study_text
from consilience.study.rows import parts, rows_of, training_rows
from consilience.study.told import read_told

NAMES = ("north", "south", "west")
COLUMNS = (
    Column("age", "number", "years", (18.0, 100.0), 50.0, 15.0),
    Column("sex", "category", levels=("male", "female")),
    Column("unit", "category", levels=("a", "b", "c")),
)
SETTINGS: dict[str, Any] = {
    "method": "exact",
    "settings": ("share=1e-10",),
    "columns": COLUMNS,
    "target": Target("stay", (), "days", (-20.0, 20.0), 1.0, 4.0),
    "choose": 0.0,
    "test": 0.0,
}


def patients(site: int) -> list[dict[str, str]]:
    """80 patients; in the west four are women, whose stay is two days longer. Nobody is in unit c."""
    draw = random.Random(site)
    made = []
    for i in range(80):
        woman = i < (40, 30, 4)[site]
        age = draw.uniform(30, 90)
        stay = 0.05 * (age - 60) + 2 * woman + 0.5 * site + draw.gauss(0, 0.5)
        sex = ("male", "female")[woman]
        made.append({"age": f"{age:.1f}", "sex": sex, "unit": "ab"[draw.random() < 0.5], "stay": f"{stay:.3f}"})
    return made


def played(folder: Path, **changes: Any) -> PooledFiles:
    """The files after the only round; the replies, the model and the study lie in the folder."""
    made = study(folder, NAMES, **{**SETTINGS, **changes})
    replies = []
    for k, name in enumerate(NAMES):
        data, _ = rows_of(made.agreement, table(folder / f"{name}.csv", patients(k)))
        member = made.member(name)
        own = parts(made.agreement, member.number, data)
        replies.append(folder / f"{name}.reply")
        replies[-1].write_bytes(fit(made, member, read_key(folder / f"{name}.key"), own).reply)
    files = pool(made, replies, read_key(folder / "server.key"))
    (folder / "s.model").write_bytes(files.model)
    (folder / "s.toml").write_text(study_text(made))
    return files


def test_women_of_a_site_with_few_of_them_do_not_become_men(tmp_path: Path) -> None:
    """The effects are those of least squares on all rows, in which the west's rows have a sex of their own, "other"."""
    files = played(tmp_path)
    effects = from_json(files.account["effects"])
    records = [(k, record) for k in range(3) for record in patients(k)]
    other = np.array([k == 2 for k, _ in records])
    woman = np.array([record["sex"] == "female" for _, record in records]) & ~other
    age = np.array([float(record["age"]) for _, record in records])
    b = np.array([record["unit"] == "b" for _, record in records])
    y = np.array([float(record["stay"]) for _, record in records])
    oracle = sm.OLS(y, np.column_stack([np.ones(240), age, woman, other, b]).astype(float)).fit()
    found = {str(estimate.label): estimate for estimate in effects.estimates}
    for place, label in enumerate(("age (years)", "sex: female (against male)", "sex: other (against male)"), 1):
        assert found[label].estimate == pytest.approx(oracle.params[place], rel=1e-3)
    assert found["sex: female (against male)"].estimate == pytest.approx(2, abs=0.25)


def test_what_was_merged_stands_in_reply_report_and_effects_without_counts(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = played(tmp_path)
    about = open_envelope(tmp_path / "west.reply").header.about
    assert about["merged"] == {"sex": ["female", "male"]} and about["events"] == []
    assert open_envelope(tmp_path / "north.reply").header.about["merged"] == {}
    note = "'sex': 'female', 'male' counted as 'other' at 1 site, where few rows have one of them."
    assert note in files.account["warnings"]
    effects = from_json(files.account["effects"])
    assert effects.notes[:2] == ["Fitted on 240 rows at 3 sites.", note]
    assert study_page(files.account).count("counted as &#39;other&#39; at 1 site") == 2  # a warning, and under effects
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.json").write_text(
        json.dumps({**files.account, "checksum": read_model(tmp_path / "s.model").checksum})
    )
    assert note in " ".join(invoke("effects", "s.model", "--study", "s.toml")[1].split())
    again = invoke("effects", "s.model", "--study", "s.toml", "--reference", "sex=female")[1]
    assert "sex: other (against female)" in again and note in " ".join(again.split())


def test_a_level_that_nobody_has_is_not_estimable(tmp_path: Path) -> None:
    """Unit c has no row at any site: least squares cannot say it, and the prior is not printed in its place."""
    files = played(tmp_path)
    effects = from_json(files.account["effects"])
    row = next(row for row in effects if row.level == "c")
    assert np.isnan(row.estimate) and np.isnan(row.error)
    known = next(row for row in effects if row.level == "b")
    assert known.error < 0.2
    assert effects.notes[-1].startswith("Not estimable")
    alone = model_effects(read_model(tmp_path / "s.model"), None)  # without the report beside it
    assert np.isnan(next(row for row in alone if row.level == "c").estimate)
    empty = [line for line in effects.to_csv().splitlines() if ",unit,c," in line]
    assert empty and ",,,," in empty[0] and "nan" not in empty[0]


@pytest.mark.parametrize("method", ["gaussian_product", "glm"])
def test_a_level_that_nobody_has_is_not_estimable_by_other_methods(tmp_path: Path, method: str) -> None:
    target = Target("long", ("no", "yes"))
    settings = {"gaussian_product": ("inference=Laplace", "inference.dense=True"), "glm": ()}[method]
    made = study(tmp_path, NAMES, **{**SETTINGS, "method": method, "settings": settings, "target": target, **FREE})
    replies = []
    for k, name in enumerate(NAMES):
        records = [{**record, "long": ("no", "yes")[float(record.pop("stay")) > 1]} for record in patients(k)]
        data, _ = rows_of(made.agreement, table(tmp_path / f"{name}.csv", records))
        own = parts(made.agreement, made.member(name).number, data)
        replies.append(tmp_path / f"{name}.reply")
        replies[-1].write_bytes(fit(made, made.member(name), read_key(tmp_path / f"{name}.key"), own).reply)
    effects = from_json(pool(made, replies, read_key(tmp_path / "server.key")).account["effects"])
    assert [row.level for row in effects if np.isnan(row.estimate)] == ["c"]
    rows, no, yes = map(int, re.findall(r"(\d+)(?: rows|,|\))", effects.notes[0]))
    assert rows == no + yes <= 240 and "at 3 sites (no: " in effects.notes[0]


def test_studies_of_before_keep_their_rule_and_say_nothing_new(tmp_path: Path) -> None:
    files = played(tmp_path, rare="merge")
    assert set(open_envelope(tmp_path / "west.reply").header.about) == {"number", "message"}
    assert not any("other" in warning for warning in files.account["warnings"])


def test_masked_replies_say_that_it_is_not_known(tmp_path: Path) -> None:
    made = study(tmp_path, NAMES, **{**SETTINGS, "secure": True})
    assert read_told(made.agreement, {"merged": {"sex": ["female"]}}).merged == {}


def test_a_strangers_columns_and_levels_are_not_read(tmp_path: Path) -> None:
    agreed = study(tmp_path, NAMES, **SETTINGS).agreement
    lies = {"merged": {"sex": ["<b>", "female", 3], "salary": ["x"], "age": "all", "": [""]}, "events": [1, 2, 3]}
    assert read_told(agreed, lies).merged == {"sex": ("female",), "": ("",)}
    assert read_told(agreed, {"merged": [], "events": -1}).events == ()


WARDS = Span("ward", 0, ("a", "b", "c"))


@pytest.mark.parametrize(
    ("counts", "after"),
    [
        ((20, 15, 10, 0), (20, 15, 10, 0)),  # nothing is rare
        ((20, 15, 3, 0), (20, 0, 0, 18)),  # three would show: the next rarest level joins them
        ((20, 15, 3, 12), (20, 15, 0, 15)),  # the missing are enough to hide among
        ((20, 6, 5, 0), (20, 0, 0, 11)),
        ((20, 15, 0, 2), (20, 0, 0, 17)),  # a rare missing value
        ((40, 1, 0, 0), (0, 0, 0, 41)),  # of two levels none is left: the column says nothing here
    ],
)
def test_rare_levels_become_other_and_no_row_another_level(counts: tuple[int, ...], after: tuple[int, ...]) -> None:
    codes = torch.repeat_interleave(torch.arange(4), torch.tensor(counts))
    before = torch.nn.functional.one_hot(codes, 4)[:, :3].float()
    guarded = guard(before, [WARDS], 10)
    assert (*guarded.x.sum(0).int().tolist(), int((~guarded.x.any(1)).sum())) == after
    assert bool(((guarded.x == before).all(1) | ~guarded.x.any(1)).all())
    assert guarded.rows.all() and all(finding.column == "ward" for finding in guarded.findings)


def test_few_that_differ_from_a_numbers_commonest_value_are_left_out_and_not_recoded() -> None:
    x = torch.tensor([[0.0]] * 40 + [[1.0]] * 3)  # 0 and 1 for the two sexes
    guarded = guard(x, [Span("sex", 0)], 10)
    assert torch.equal(guarded.x, x) and guarded.rows.tolist() == [True] * 40 + [False] * 3
    assert [finding.level for finding in guarded.findings] == ["unlike the commonest"]


def test_files_and_flower_say_the_same(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from consilience.study.flower.site import site_of

    made = study(tmp_path, NAMES, **SETTINGS)
    path = table(tmp_path / "west.csv", patients(2))
    site = site_of(
        made, made.member("west"), read_key(tmp_path / "west.key"), path, tmp_path / "site", say=lambda _: None
    )
    played(tmp_path)
    about = open_envelope(tmp_path / "west.reply").header.about
    assert {name: about[name] for name in site.said} == site.said
    assert (site.said["merged"], site.said["events"]) == ({"sex": ["female", "male"]}, [])
    assert site.said.keys() == {"merged", "events", "spread"}
    assert training_rows(made.agreement, parts(made.agreement, 2, rows_of(made.agreement, path)[0]).train).merged
