"""A site's ledger is charged to people, whatever a study makes of their rows, and no question is answered twice."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import studies
import torch
import uncharged
from rounds import pooled_model, replies
from tiny import Invoke

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.study.budget import hash_rows, read_budget
from consilience.study.protocol.members import Study, read
from consilience.study.protocol.rehearsal import server_of
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import study_text
from consilience.study.reply import Fit
from consilience.study.rows import parts, rows_of
from consilience.study.site import Site as AtHome
from consilience.study.spending import derive_secret
from consilience.study.statistics import Statistics
from consilience.study.table_one import Description

PRIVATE: dict[str, Any] = {"method": "exact", "settings": (), "epsilon": 3.0, "delta": 1e-3}
PLAIN: dict[str, Any] = {"method": "exact", "settings": ()}
TRAINED = ("inference=DPSGD", "inference.epsilon=1", "inference.delta=1e-3", "inference.steps=2")
AGE, *OTHERS = studies.COLUMNS
Records = list[dict[str, str]]


class Site:
    """One site's folder, in which it takes part in one study after another."""

    def __init__(self, folder: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.invoke, self.monkeypatch = folder, invoke, monkeypatch
        monkeypatch.chdir(folder)
        self.table("data.csv", studies.rows(0, 90))

    def table(self, name: str, records: Records) -> None:
        studies.table(self.folder / name, [{**row, "id": row.get("id", f"{i}")} for i, row in enumerate(records)])

    def study(self, name: str, **changes: Any) -> Study:
        made = studies.study(self.folder, seed=len(name), **changes)
        (self.folder / f"{name}.toml").write_text(study_text(made))
        return made

    def run(self, *words: str, key: str = "north.key") -> str:
        """What a command of the site says where it refuses; nothing where something leaves."""
        code, _, err = self.invoke("site", *words, "--key", key)
        assert code in (0, 2)
        return err if code else ""


@pytest.fixture
def site(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, invoke, monkeypatch)


def older(records: Records) -> Records:
    """The same people, as they were seen later."""
    return [{**row, "age": f"{float(row['age']) + 0.5:.1f}"} for row in records]


ENCODINGS: dict[str, dict[str, Any]] = {
    "another centre": {"columns": (dataclasses.replace(AGE, centre=50.5), *OTHERS)},
    "one column less": {"columns": studies.COLUMNS[:-1]},
    "classes in another order": {"target": Target("died", ("yes", "no"))},
    "features": {"features": "fourier:8"},
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_same_people_in_another_encoding_have_no_budget_of_their_own(name: str, site: Site) -> None:
    """The attack: each of these studies had left with ε = 3 beside the first, and the ledger said 3 so far."""
    site.study("a", **PRIVATE)
    site.study("bb", **{**PRIVATE, **ENCODINGS[name]})

    assert site.run("fit", "a.toml", "data.csv", "-o", "a.reply") == ""
    assert "Nothing is sent: ε would become" in site.run("fit", "bb.toml", "data.csv", "--memory", "b.memory")
    assert not (site.folder / "north.reply").exists()


def test_another_ledger_is_none_of_this_key(site: Site) -> None:
    """The attack: a command that names an empty ledger had the whole budget again."""
    site.study("a", **PRIVATE)
    site.study("bb", **PRIVATE)
    assert site.run("fit", "a.toml", "data.csv") == ""

    said = site.run("fit", "bb.toml", "data.csv", "--memory", "b.memory", "--ledger", "other.ledger")

    assert "This key's ledger is north.ledger" in said and not (site.folder / "other.ledger").exists()


def test_a_key_where_nothing_can_be_written_needs_a_folder_for_what_must_not_be_forgotten(site: Site) -> None:
    """A mounted secret, say. The key's own folder stays as it was, and no second folder begins an empty account."""
    for name in ("a", "bb"):
        site.study(name, **PRIVATE)
    secret = site.folder / "secret"
    secret.mkdir()
    (site.folder / "north.key").rename(secret / "north.key")
    fit_a = ("fit", "a.toml", "data.csv")
    writable = os.access
    with site.monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: Path(path).name != "secret" and writable(path, mode))

        refused = site.run(*fit_a, key="secret/north.key")
        patch.setenv("CONSILIENCE_STATE", "state")
        left = site.run(*fit_a, key="secret/north.key")
        again = site.run("fit", "bb.toml", "data.csv", "--memory", "b.memory", key="secret/north.key")

    assert "cannot be written" in refused and "set CONSILIENCE_STATE to a folder that lasts" in refused
    assert left == "" and {file.name for file in secret.iterdir()} == {"north.key"}
    assert {"north.ledger", "north.memory"} <= {file.name for file in (site.folder / "state").iterdir()}
    assert "Nothing is sent: ε would become" in again


def test_a_folder_that_does_not_know_the_ledger_is_refused(site: Site) -> None:
    for name in ("a", "bb"):
        site.study(name, **PRIVATE)
    assert site.run("fit", "a.toml", "data.csv") == ""
    site.monkeypatch.setenv("CONSILIENCE_STATE", "elsewhere")

    said = site.run("fit", "bb.toml", "data.csv", "--memory", "b.memory")

    assert "This key's ledger is north.ledger, and CONSILIENCE_STATE names another folder" in said


def test_another_visit_of_the_same_patients_has_no_budget_of_its_own(site: Site) -> None:
    """And other patients have, where the column that both studies agreed on names them."""
    words = {**PRIVATE, "patient": "id", "choose": 0.0, "test": 0.0}
    for name in ("a", "bb", "ccc"):
        site.study(name, **words)
    site.table("visit.csv", older(studies.rows(0, 90)))
    site.table("others.csv", [{**row, "id": f"new {i}"} for i, row in enumerate(studies.rows(5, 90))])

    assert site.run("fit", "a.toml", "data.csv") == ""
    assert "Nothing is sent: ε would become" in site.run("fit", "bb.toml", "visit.csv", "--memory", "b.memory")
    assert site.run("fit", "ccc.toml", "others.csv", "--memory", "c.memory") == ""


@pytest.mark.parametrize("first", ["fit", "describe"])
def test_after_a_release_without_noise_no_private_study_of_these_people(first: str, site: Site) -> None:
    site.study("a", **PLAIN)
    site.study("bb", **PRIVATE)

    assert site.run(first, "a.toml", "data.csv", "-o", "a.file") == ""
    assert "released without noise before (sepsis)" in site.run("fit", "bb.toml", "data.csv", "--memory", "b.memory")


def test_registered_tables_have_budgets_of_their_own_as_long_as_they_share_no_row(site: Site) -> None:
    for name in ("a", "bb", "ccc", "dddd"):
        site.study(name, **PRIVATE)
    here = studies.rows(0, 90)
    site.table("there.csv", there := studies.rows(5, 90))
    site.table("edited.csv", older(there))
    site.table("both.csv", [*there[:-1], here[-1]])  # row 89 of either has the same id

    assert site.run("register", "data.csv") == "" == site.run("register", "there.csv")
    assert site.run("fit", "a.toml", "data.csv") == ""
    assert "ε would become" in site.run("fit", "bb.toml", "edited.csv", "--memory", "b.memory")  # nobody knows whose
    assert "ε would become" in site.run("fit", "ccc.toml", "both.csv", "--memory", "c.memory")
    assert site.run("fit", "dddd.toml", "there.csv", "--memory", "d.memory") == ""
    shown = site.invoke("site", "ledger", "north.ledger")[1]
    assert "there.csv, 90 rows whose people are in no other table" in shown
    assert site.run("register", "both.csv") == "" and len(read_budget(site.folder / "north.ledger").tables) == 1


def test_a_ledger_of_an_older_version_is_about_everybody(site: Site) -> None:
    """Its hashes of encoded rows tell nobody whom they are of; only the same reply again costs nothing."""
    agreed = site.study("a", **PRIVATE).agreement
    site.study("bb", **PRIVATE)
    assert site.run("fit", "a.toml", "data.csv") == ""
    path = site.folder / "north.ledger"
    train = parts(agreed, 0, rows_of(agreed, site.folder / "data.csv")[0]).train
    hashes = np.unique(hash_rows((train.x, train.y), derive_secret(read_key(site.folder / "north.key"))))
    entry = json.loads(path.read_text())["releases"][0]
    entry = {name: entry[name] for name in ("study", "agreement", "what", "round", "when", "whole", "mu")}
    entry["rows"] = base64.b64encode(hashes.astype("<u8").tobytes()).decode()
    path.write_text(json.dumps({"format": 1, "epsilon": 3.0, "delta": 1e-3, "releases": [entry]}))
    site.table("others.csv", studies.rows(5, 90))

    assert site.run("fit", "a.toml", "data.csv") == ""  # lost on its way, and handed over again
    assert len(read_budget(path).releases) == 1
    assert "Nothing is sent: ε would become" in site.run("fit", "bb.toml", "others.csv", "--memory", "b.memory")


def test_a_study_with_privacy_sends_no_table_one(site: Site) -> None:
    """Exact counts, means and histograms of all rows left beside a promise of ε."""
    site.study("a", **PRIVATE)
    site.study("bb", method="fedavg", settings=TRAINED)

    for name in ("a", "bb"):
        assert "promises differential privacy: none is sent" in site.run("describe", f"{name}.toml", "data.csv")
    assert not (site.folder / "north.table").exists()


def without_one(site: Site, place: int = 0) -> None:
    records = studies.rows(0, 90)
    site.table("fewer.csv", [*records[:place], *records[place + 1 :]])


def forget(site: Site) -> None:
    """A site whose memory was moved away knows by its ledger alone what it has answered."""
    for path in site.folder.glob("north.*"):
        if path.suffix in (".memory", ".rows"):
            path.unlink()


EXCHANGES: dict[str, tuple[str, ...]] = {  # the role of the rows that it is made from → the command
    "train": ("fit", "a.toml", "TABLE"),
    "": ("describe", "a.toml", "TABLE"),
    "choose": ("statistics", "a.toml", "sepsis.model", "TABLE"),
    "calibrate": ("calibrate", "a.toml", "sepsis.model", "TABLE"),
    "test": ("evaluate", "sepsis.model", "TABLE", "--study", "a.toml", "-o", "e.evaluation"),
}


@pytest.mark.parametrize("role", EXCHANGES)
def test_a_question_is_answered_from_one_table(role: str, site: Site) -> None:
    """The attack: asked twice, once without a row, the difference is that row."""
    sets = {
        "level": 0.8,
        "calibrate": 0.2,
        "choose": 0.2,
        "test": 0.3,
        "evaluation": True,
        "smallest": 2,
        "roles": "content",
    }
    study = site.study("a", **PLAIN, **sets)
    pooled_model(study, site.folder, replies(study, site.folder))
    site.table("data.csv", studies.rows(0, 90))
    data, _ = rows_of(study.agreement, site.folder / "data.csv")
    own = getattr(parts(study.agreement, 0, data), role or "train").x[0]
    without_one(site, int((data.x == own).all(1).nonzero()[0]))

    def asked(table: str) -> str:
        return site.run(*(table if word == "TABLE" else word for word in EXCHANGES[role]))

    for _ in range(2):  # the same again, should it be lost
        forget(site)
        assert asked("data.csv") == ""
    forget(site)
    assert "in this study from other rows" in asked("fewer.csv")


def test_sums_for_the_scaling_are_given_once(site: Site) -> None:
    made = studies.agreement(site.folder, **PLAIN, scaling="sums")
    (site.folder / "a.toml").write_text(study_text(Study(made, text=studies.agreement_text(made, ""))))
    without_one(site)
    (site.folder / "north.key").unlink(missing_ok=True)
    for table, code in (("data.csv", 0), ("data.csv", 0), ("fewer.csv", 2)):
        found, _, err = site.invoke("site", "sums", "a.toml", table, "--site", "north")
        assert found == code, err
    assert "in this study from other rows" in err


def test_the_same_command_in_another_folder_has_the_same_ledger_book_and_memory(site: Site) -> None:
    """The attack: in an empty folder masks were used again for other rows, and 44 of 46 differences lay open."""
    site.study("a", **PLAIN, secure=True, fewest_sites=3)
    without_one(site)
    elsewhere = site.folder / "elsewhere"
    elsewhere.mkdir()
    assert site.run("fit", "a.toml", "data.csv") == ""
    site.monkeypatch.chdir(elsewhere)

    refused = site.run("fit", "../a.toml", "../fewer.csv", key="../north.key")
    again = site.run("fit", "../a.toml", "../data.csv", key="../north.key")

    assert "The rows are not those that this site has answered with" in refused
    assert again == "" and [path.name for path in elsewhere.iterdir()] == ["north.reply"]
    assert (elsewhere / "north.reply").read_bytes() == (site.folder / "north.reply").read_bytes()
    assert len(read_budget(site.folder / "north.ledger").releases) == 1


def test_what_older_versions_left_in_the_working_folder_is_taken_over(site: Site) -> None:
    site.study("a", **PLAIN, secure=True, fewest_sites=3)
    without_one(site)
    assert site.run("fit", "a.toml", "data.csv") == ""
    elsewhere = site.folder / "elsewhere"
    elsewhere.mkdir()
    for path in (*site.folder.glob("north*.ledger"), *site.folder.glob("north*.masks"), *site.folder.glob("*.memory")):
        path.rename(elsewhere / path.name)
    site.monkeypatch.chdir(elsewhere)

    for _ in range(2):
        assert site.run("fit", "../a.toml", "../data.csv", key="../north.key") == ""
    assert len(read_budget(site.folder / "north.ledger").releases) == 1
    assert "The rows are not those" in site.run("fit", "../a.toml", "../fewer.csv", key="../north.key")
    (elsewhere / next(site.folder.glob("*.masks")).name).write_bytes(b"")
    assert site.run("fit", "../a.toml", "../data.csv", key="../north.key") != ""


def test_equal_rows_of_a_table_count_one_by_one(site: Site) -> None:
    """A copy more or less is a row more or less, for the ledger too."""
    agreed = site.study("a", **PLAIN).agreement
    data, _ = rows_of(agreed, site.folder / "data.csv")
    twice = Data(*(torch.cat([leaf, leaf[:1]]) for leaf in data))
    hashes = [hash_rows((each.x, each.y), b"") for each in (data, twice)]

    assert not np.array_equal(*hashes)
    assert read(site.folder / "a.toml").agreement == agreed


class FromPython:
    """A script at a site: no command, its own folder."""

    def __init__(self, folder: Path, **words: Any) -> None:
        self.study = studies.study(folder, **words)
        self.folder, self.member = folder, self.study.member("north")
        self.key = read_key(folder / "north.key")
        data, inspection = rows_of(self.study.agreement, studies.table(folder / "a.csv", studies.rows(0, 150)))
        own = parts(self.study.agreement, 0, data)
        words = {"ledger": folder / "north.ledger", "memory": folder / "north.memory", "inspection": inspection}
        self.site: AtHome = uncharged.site_of(self.study, self.member, self.key, own, **words)

    @property
    def entered(self) -> list[str]:
        return [release.what for release in read_budget(self.site.ledger).releases]


def test_a_script_that_fits_charges_the_ledger_and_stops_where_the_budget_ends(tmp_path: Path) -> None:
    """The attack: a fit from Python gave one reply after another, and the ledger never heard of them."""
    site = FromPython(tmp_path, **{**PRIVATE, "delta": 1e-4}, committed=400)

    site.site.answer(Fit(site.study))
    assert (tmp_path / "north.memory").exists() and (tmp_path / "north.rows").exists()  # kept without being asked to
    (tmp_path / "north.memory").unlink()
    with pytest.raises(InputError, match="Nothing is sent: ε would become"):
        site.site.answer(Fit(site.study))  # other noise

    assert site.entered == ["reply"]
    assert read_budget(site.site.ledger).epsilon == 3.0


def test_a_script_describes_and_sums_scores_past_the_ledger_about_one_model(tmp_path: Path) -> None:
    site = FromPython(tmp_path, **PLAIN, committed=400)
    method = site.study.agreement.build_method()
    state = method.init(site.study.agreement.build_task(), server_of(site.study.agreement, 2))

    def ask(model: str) -> bytes:
        return site.site.answer(Statistics(site.study, uncharged.about(model, method, state))).content

    site.site.answer(Description(site.study))
    first = ask("a" * 64)
    assert ask("a" * 64) == first  # the same question has the same answer

    with pytest.raises(InputError, match="from other rows or about another model"):
        ask("b" * 64)
    assert site.entered == ["table one", f"statistics about {'a' * 12}"]


def test_a_ledger_begun_elsewhere_is_the_keys_own_from_then_on(site: Site) -> None:
    """The attack: each command named a new ledger, or none after one was named, and each had the whole budget."""
    for name in ("a", "bb", "ccc", "dddd"):
        site.study(name, **PRIVATE)
    (site.folder / "books").mkdir()

    assert site.run("fit", "a.toml", "data.csv", "--ledger", "books/one.ledger") == ""
    assert "This key's ledger is" in site.run("fit", "bb.toml", "data.csv", "--memory", "b", "--ledger", "two.ledger")
    assert "ε would become" in site.run("fit", "ccc.toml", "data.csv", "--memory", "c")
    assert "This key's ledger is" in site.run("register", "data.csv", "--ledger", "three.ledger")
    (site.folder / "books" / "one.ledger").rename(site.folder / "moved.ledger")
    assert "ε would become" in site.run("fit", "dddd.toml", "data.csv", "--memory", "d", "--ledger", "moved.ledger")
    assert [path.name for path in site.folder.glob("*.ledger")] == ["moved.ledger"]


def test_sums_for_the_scaling_are_given_once_whatever_ledger_is_named(site: Site) -> None:
    made = studies.agreement(site.folder, **PLAIN, scaling="sums")
    (site.folder / "a.toml").write_text(study_text(Study(made, text=studies.agreement_text(made, ""))))
    without_one(site)
    (site.folder / "north.key").unlink(missing_ok=True)
    asked = ("site", "sums", "a.toml", "--site", "north")

    assert site.invoke(*asked, "data.csv")[0] == 0
    code, _, err = site.invoke(*asked, "fewer.csv", "--ledger", "other.ledger")

    assert code == 2 and "This key's ledger is north.ledger" in err


@pytest.mark.parametrize("second", ["fit", "describe"])
def test_what_has_no_noise_is_refused_where_a_budget_was_promised(second: str, site: Site) -> None:
    """The attack: after ε = 3 over all studies, a study without noise told all of it, and only the table said so."""
    site.study("a", **PRIVATE)
    site.study("bb", **PLAIN)
    ask = (second, "bb.toml", "data.csv", "-o", "b.file", *(("--memory", "b.memory") if second == "fit" else ()))

    assert site.run("fit", "a.toml", "data.csv") == ""
    assert "it has no noise, and of these people no more than ε = 3" in site.run(*ask)
    assert not (site.folder / "b.file").exists()
    assert site.invoke("site", "ledger", "north.ledger", "--epsilon", "inf")[0] == 0  # the site's people agreed
    assert site.run(*ask) == ""
    assert "no bound" in site.invoke("site", "ledger", "north.ledger")[1]


def test_private_training_and_draws_of_sites_own_models_are_no_one_study(tmp_path: Path) -> None:
    """The attack: beside a promise of ε = 1, a thousand draws left without noise."""
    with pytest.raises(InputError, match=r"posteriors\] and private training"):
        studies.agreement(tmp_path, method="fedavg", settings=TRAINED, posteriors=("b ~ normal(0, 1)",)).check()
