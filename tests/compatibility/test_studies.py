"""Studies that an earlier version signed are read, gone on with and made again; see helpers/before.py."""

from __future__ import annotations

import csv
import io
import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from before import BEFORE, LOADED, PARTS, TRAINED, adds_up, copied, entropy, kept, ran, same, same_file
from tiny import Invoke

pytestmark = pytest.mark.usefixtures("unhurried")
PRINTED = 2e-6  # predictions in a table have six digits behind the point
NAMES = ("north", "south", "west")
REPLIES = [f"{name}.reply" for name in NAMES]
KINDS = {  # of files that are signed, in each study
    "default": ("reply", "memory", "model", "statistics"),
    "beta": ("reply", "memory", "model", "statistics"),
    "numbers": ("reply", "memory", "model", "sums"),
    "pvi": ("reply", "memory", "model", "message", "state"),
    "scaffold": ("reply", "memory", "model", "message", "state"),
}


class Study:
    """A copy of a study's folders, and commands that are typed in them."""

    def __init__(self, root: Path, name: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.before = copied(f"studies/{name}", root / name), BEFORE / "studies" / name
        self.expected = kept("studies", name, "expected.json")
        self.invoke, self.monkeypatch = invoke, monkeypatch
        for site in NAMES:  # whose copy of the study only lacks the list of models made since
            self.carry("sepsis.toml", site)

    def at(self, where: str, *words: str) -> str:
        """A command that works; what it printed."""
        self.monkeypatch.chdir(self.root / where)
        return ran(self.invoke, *words)

    def carry(self, name: str, taker: str) -> None:
        shutil.copy(self.root / "server" / name, self.root / taker / name)

    def fitted(self, *words: str) -> None:
        """Every site's reply, made anew and handed over."""
        for site in NAMES:
            (self.root / "server" / f"{site}.reply").unlink()
            self.at(site, "site", "fit", "sepsis.toml", "data.csv", "-o", f"../server/{site}.reply", *words)

    def predicts(self, model: str, before: str, tolerance: float) -> None:
        """What a model says of five new patients."""
        self.at(".", "predict", model, "new.csv", "--study", "server/sepsis.toml", "-o", "p.csv")
        found, expected = (
            list(csv.DictReader(io.StringIO(text)))
            for text in ((self.root / "p.csv").read_text(), self.expected["predictions"][before])
        )
        assert len(found) == len(expected) == 5
        for row, old in zip(found, expected, strict=True):
            assert row.keys() == old.keys()
            left_out = set()  # parts that did not add up to the uncertainty beside them were wrong, and now do
            if "aleatoric" in old and not _adds_up(old):
                assert _adds_up(row)
                left_out = PARTS
            for name in old.keys() - left_out:
                numbers = name not in ("row", "decision") or (name == "decision" and "." in old[name])
                same(*(float(r[name]) if numbers else r[name] for r in (row, old)), tolerance + PRINTED, name)


def _adds_up(row: dict[str, str]) -> bool:
    if "low95" in row:
        total = ((float(row["high95"]) - float(row["low95"])) / (2 * 1.959964)) ** 2
    else:
        total = entropy([float(value) for name, value in row.items() if name.startswith("p(")])
    return adds_up({name: [row[name]] for name in ("aleatoric", "epistemic")}, [total], 1e-5)  # of six digits


@pytest.fixture
def studied(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Study]:
    return lambda name: Study(tmp_path, name, invoke, monkeypatch)


@pytest.mark.parametrize("name", KINDS)
def test_a_study_is_still_the_one_that_was_signed(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)

    told = study.at("server", "study", "show", "sepsis.toml")

    assert study.expected["hash"] in told
    listed = [line.split() for line in told.splitlines()]
    for number, site, key in study.expected["sites"]:
        assert [site, str(number), f"{key[8:20]}…", "signed"] in listed
    files = {path.suffix[1:]: path.relative_to(study.root) for path in sorted(study.root.rglob("*.*"))}
    assert files.keys() == {"csv", "toml", "key", "json", "join", *KINDS[name]}
    for kind in KINDS[name]:  # one of each; the other tests use the rest
        shown = study.at(".", "site", "show", str(files[kind]))
        assert "its signature fits the key it names" in shown, files[kind]
        assert f"a {kind} of '" in shown and "in the study 'sepsis'" in shown
        assert kind == "sums" or f"Study {study.expected['hash'][:12]}" in shown  # sums are made before it is known


def test_a_signature_is_for_one_agreement(studied: Callable[[str], Study]) -> None:
    study = studied("default")
    path = study.root / "server" / "sepsis.toml"
    assert path.read_text(encoding="utf-8").count("smallest = 10") == 1
    path.write_text(path.read_text(encoding="utf-8").replace("smallest = 10", "smallest = 11"), encoding="utf-8")

    study.monkeypatch.chdir(study.root / "server")
    code, _, err = study.invoke("study", "show", "sepsis.toml")

    assert code == 2 and "The signature of 'north' is not for this agreement" in " ".join(err.split())


@pytest.mark.parametrize("name", KINDS)
def test_the_models_of_a_study_predict(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    assert study.expected["predictions"]
    for model in study.expected["predictions"]:
        study.predicts(model, model, LOADED)


def without_comments(text: str) -> dict[str, Any]:
    """What a study's file says; comments may be worded differently."""
    return tomllib.loads(text)


@pytest.mark.parametrize("name", ["default", "numbers"])
def test_sites_sign_the_same_agreement_again(name: str, studied: Callable[[str], Study]) -> None:
    """With the same key the same words give the same signature, and who signed before is taken in again."""
    study = studied(name)
    path = study.root / "server" / "sepsis.toml"
    signed = path.read_text(encoding="utf-8")
    path.write_text(signed.split("# Sites, written")[0], encoding="utf-8")
    for site in NAMES:
        study.carry("sepsis.toml", site)
        study.at(site, "site", "join", "sepsis.toml", site)
        made = json.loads((study.root / site / f"{site}.join").read_text())
        assert made == json.loads((study.before / "server" / f"{site}.join").read_text())

    study.at("server", "study", "add", "sepsis.toml", *(f"{site}.join" for site in NAMES))

    assert without_comments(path.read_text(encoding="utf-8")) == without_comments(signed.split("[[models]]")[0])


@pytest.mark.parametrize("name", ["default", "beta", "numbers"])
def test_replies_are_pooled_and_made_again(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    before = study.before / "server"

    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "again.model")
    study.predicts("server/again.model", "server/sepsis.model", LOADED)
    same_file(study.root / "server" / "again.model", before / "sepsis.model", LOADED)

    study.fitted()
    for reply in REPLIES:
        same_file(study.root / "server" / reply, before / reply, TRAINED)
    for site in NAMES:
        same_file(study.root / site / f"{site}.memory", study.before / site / f"{site}.memory", TRAINED)
    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "new.model")
    study.predicts("server/new.model", "server/sepsis.model", TRAINED)


@pytest.mark.parametrize("name", ["default", "beta"])
def test_statistics_choose_the_same(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    files = [f"{site}.statistics" for site in NAMES]

    told = study.at("server", "study", "choose", "sepsis.toml", "sepsis.model", *files, "-o", "again.model")

    assert "Chosen by statistics of north, south, west" in told
    same_file(study.root / "server" / "again.model", study.before / "server" / "sepsis-chosen.model", LOADED)
    study.predicts("server/again.model", "server/sepsis-chosen.model", LOADED)
    for site, file in zip(NAMES, files, strict=True):  # what 'site fit' kept then says that the rows are the same
        study.carry("sepsis.model", site)
        told = study.at(site, "site", "statistics", "sepsis.toml", "sepsis.model", "data.csv")
        assert "nobody can tell" not in told
        same_file(study.root / site / file, study.before / "server" / file, LOADED)


@pytest.mark.parametrize("name", ["pvi", "scaffold"])
def test_a_study_stopped_after_its_first_round_goes_on(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)
    for site in NAMES:
        study.carry("one.message", site)

    study.fitted("--message", "one.message")
    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "two.model", "--after", "one.state")

    for file in (*REPLIES, "two.model"):
        same_file(study.root / "server" / file, study.before / "second" / file, TRAINED)
    study.predicts("server/two.model", "second/two.model", TRAINED)


@pytest.mark.parametrize("name", ["pvi", "scaffold"])
def test_the_first_round_of_a_study_is_pooled_again(name: str, studied: Callable[[str], Study]) -> None:
    study = studied(name)

    study.at("server", "study", "pool", "sepsis.toml", *REPLIES, "-o", "again.model")

    for kind in ("model", "message", "state"):
        same_file(study.root / "server" / f"again.{kind}", study.before / "server" / f"one.{kind}", LOADED)


def test_scales_are_found_again_from_sums(studied: Callable[[str], Study]) -> None:
    study = studied("numbers")
    path = study.root / "server" / "sepsis.toml"
    agreed = path.read_text(encoding="utf-8").split("# Sites, written")[0]
    path.write_text(agreed, encoding="utf-8")
    for site in NAMES:
        study.at(site, "site", "sums", "sepsis.toml", "data.csv", "--site", site)
        same_file(study.root / site / f"{site}.sums", study.before / "server" / f"{site}.sums", LOADED)

    study.at("server", "study", "scale", "sepsis.toml", *(f"{site}.sums" for site in NAMES))

    assert without_comments(path.read_text(encoding="utf-8")) == without_comments(agreed)
