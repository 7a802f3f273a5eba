"""A study's report says what its coordinator can know, in numbers that are right, and nothing about single rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import studies
import torch
from accounts import EVIDENCE, chosen, shown
from places import SHORT, Place
from reports import read
from rounds import replies, rows, server_key
from tiny import Invoke

from consilience.distributions.predictive import log_prob
from consilience.report.study_page import study_page
from consilience.report.suppression import suppress
from consilience.study.coordinator import pool
from consilience.study.model import read_model
from consilience.study.protocol.envelope import open_envelope


def test_counts_and_bytes_are_those_that_were_sent(tmp_path: Path) -> None:
    study = studies.study(tmp_path, smallest=9, **EVIDENCE)
    files = replies(study, tmp_path)

    told = pool(study, files, server_key(tmp_path)).account

    for site, own, path in zip(told["per_site"], rows(study, tmp_path).values(), files, strict=True):
        assert site["labels"] == torch.bincount(own.train.y, minlength=2).tolist()  # from the site's own table
        assert site["train"] == len(own.train.y)
        held = {k: t for k, t in open_envelope(path).tensors.items() if not k.endswith("size")}
        moved = next(s for s in told["ledger"]["per_site"] if s["site"] == site["site"])
        assert moved["up_bytes"] == sum(t.numel() * t.element_size() for t in held.values())
        assert moved["down_bytes"] == 0  # a first message that sites compute for themselves
    page = study_page(told)
    assert read(page).open == []
    assert "is not known here" in page and "Class counts by site" in page and "Example predictions" not in page


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_scores_are_the_mean_over_the_rows_set_aside(tmp_path: Path, kind: str) -> None:
    target = studies.agreement(tmp_path).target
    if kind == "numbers":
        target = dataclasses.replace(target, classes=(), unit="points", range=(-50.0, 50.0), centre=1.0, spread=2.0)
    study = studies.study(tmp_path, target=target, choose=0.3)

    made, path = chosen(study, tmp_path)

    each = {}  # by the chosen model itself, which answers in the target's own unit
    for name, own in rows(study, tmp_path).items():
        y = own.choose.y if kind == "classes" else own.choose.y * 2.0 + 1.0
        each[name] = -log_prob(read_model(path)(own.choose.x), y)
    told = made.account
    assert told["metrics"]["nll"] == pytest.approx(float(torch.cat(list(each.values())).mean()), abs=1e-5)
    assert told["rows"]["set aside"] == sum(map(len, each.values()))
    for site in told["per_site"]:
        assert site["metrics"]["nll"] == pytest.approx(float(each[site["site"]].mean()), abs=1e-5)
        assert site["train"] == len(rows(study, tmp_path)[site["site"]].train.y)  # from the pool's own account
    assert told["worst_site"]["site"] == max(each, key=lambda name: float(each[name].mean()))
    # T = 1 is on the grid and has no penalty ½ log² t, so what was chosen is better by at least its own.
    least = 0.5 * float(torch.tensor(told["temperature"]).log()) ** 2 / told["rows"]["set aside"]
    assert told["metrics"]["nll"] <= told["pooled"]["metrics"]["nll"] - least + 1e-9
    assert "weakest site" in study_page(told) and "slightly optimistic" in study_page(told)


def test_an_account_that_is_lost_leaves_the_scores(tmp_path: Path) -> None:
    told = chosen(studies.study(tmp_path, choose=0.3), tmp_path, known={})[0].account

    assert [s["train"] for s in told["per_site"]] == [None] * 3 and told["ledger"] is None
    assert read(study_page(told)).open == []


def test_no_small_count_is_shown_or_found_by_subtraction(tmp_path: Path) -> None:
    told = shown(tmp_path)
    told["per_site"][0] |= {"labels": [4321, 7], "train": 4328}
    told["rows"]["train"] = 4328 + 84

    page = study_page(told)

    assert "&lt; 9" in page and "4\u00a0321" in page  # the large cell stays
    assert ">7<" not in page and "4\u00a0328" not in page  # 4328 − 4321 would tell
    assert "4\u00a0412" not in page  # and so would the sum over sites
    assert suppress(told)["rows"] == {"set aside": told["rows"]["set aside"]}
    told["per_site"][1]["test"] = 8
    assert suppress(told)["per_site"][1]["test"] is None and suppress(told)["per_site"][1]["metrics"] == {}
    assert suppress(told)["rows"] == {}  # all rows set aside, less those of the other sites, would be the 8
    told["per_site"][1] |= {"train": 7, "labels": None}
    assert suppress(told)["per_site"][1]["train"] is None


def test_the_commands_write_a_report_beside_the_model(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    place.begun(*SHORT, "--fewest-sites", "2")
    place.fitted()
    (tmp_path / "server" / "west.reply").write_bytes(b"nonsense")
    said = place.at("server", "study", "pool", "sepsis.toml", *place.files)
    place.everybody("sepsis.model")
    for name in ("north", "south"):
        place.at(name, "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")
        place.carry(f"{name}.statistics", name, "server")
    place.at("server", "study", "choose", "sepsis.toml", "sepsis.model", "north.statistics", "south.statistics")

    pooled, final = ((tmp_path / "server" / f"sepsis{end}.html").read_text() for end in ("", "-chosen"))
    assert "Report: sepsis.html" in said
    assert (
        "2 of 3 sites" in pooled and "Left out: west.reply is damaged" in pooled and "Without a reply of west" in pooled
    )
    assert "NLL" in final and "Scores by site" in final and "Training rows by site" in final
    told = json.loads((tmp_path / "server" / "sepsis-chosen.json").read_text())
    assert told["checksum"] == open_envelope(tmp_path / "server" / "sepsis-chosen.model").checksum
    both = ("north", "south")
    assert told["rows"] == {"train": place.dealt("train", *both), "set aside": place.dealt("choose", *both)}
