"""The rules of disclosure: each has a name, each refusal gives it, and a study agrees on their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from studies import agreement, rows, study, table
from typer.testing import CliRunner

from consilience.cli import app
from consilience.errors import InputError
from consilience.privacy.disclosure.rules import DisclosureRules, by_rule
from consilience.study.protocol.members import read
from consilience.study.protocol.text import agreement_text, study_text
from consilience.study.rows import parts, rows_of, training_rows
from consilience.study.validation.rules import check_release


def test_every_rule_that_holds_is_listed() -> None:
    assert [rule.name for rule in DisclosureRules().listed()] == [
        "smallest cell",
        "rare values",
        "rows per parameter",
        "outcome levels",
        "fewest sites",
        "subtraction",
    ]
    none = DisclosureRules(rare="keep", rows_per_parameter=0, fewest_sites=1).listed()
    assert [rule.name for rule in none] == ["smallest cell", "outcome levels", "subtraction"]
    assert "consent" not in DisclosureRules(named=True).listed()[-1].says


def test_refusals_give_the_rule() -> None:
    rules = DisclosureRules(outcomes="refuse")
    with pytest.raises(InputError, match=r"has 9 rows; .* \(rule: smallest cell\)\.$"):
        rules.check_rows(9, "a.csv")
    with pytest.raises(InputError, match=r"29 rows are left .* 30 rows.* \(rule: rows per parameter\)\.$"):
        rules.check_parameters(29, 10)
    with pytest.raises(InputError, match=r"the class 'no', and .* \(rule: outcome levels\)\.$"):
        rules.check_outcomes({"no": 3, "yes": 30})
    with pytest.raises(InputError, match=r"2 replies can be used.* \(rule: fewest sites\)\.$"):
        rules.check_sites(2, "replies")
    assert rules.check_outcomes({"no": 0, "yes": 30}) == []  # a class that nobody has tells nothing of anybody
    rules.check_parameters(30, 10)
    rules.check_rows(10, "a.csv")
    assert by_rule("x", "No.") == "No (rule: x)."


def test_a_study_may_refuse_classes_of_few_rows(tmp_path: Path) -> None:
    few = [{**record, "died": "yes"} for record in rows(0)[:50]] + [{**record, "died": "no"} for record in rows(1)[:5]]
    path = table(tmp_path / "north.csv", few)
    lenient = agreement(tmp_path, choose=0.0, test=0.0)
    strict = agreement(tmp_path, choose=0.0, test=0.0, few_outcomes="refuse")
    data, _ = rows_of(lenient, path)
    notes = training_rows(lenient, parts(lenient, 0, data).train).notes
    assert any("Fewer than 10 rows are of the class 'no'" in note for note in notes)
    with pytest.raises(InputError, match="rule: outcome levels"):
        training_rows(strict, parts(strict, 0, data).train)


def test_an_agreement_has_the_rule_only_where_it_is_used(tmp_path: Path) -> None:
    plain = agreement(tmp_path)
    strict = agreement(tmp_path, few_outcomes="refuse")
    assert "few_outcomes" not in plain.fields and "few_outcomes" not in agreement_text(plain, "")
    assert 'few_outcomes = "refuse"' in agreement_text(strict, "") and strict.hash != plain.hash
    with pytest.raises(InputError, match="maybe"):
        agreement(tmp_path, few_outcomes="maybe").check()


def test_a_study_shows_its_rules_and_keeps_them(tmp_path: Path) -> None:
    made = study(tmp_path, few_outcomes="refuse", fewest_sites=3)
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(made))
    assert read(path).agreement.disclosure == made.agreement.disclosure
    shown = CliRunner().invoke(app, ["study", "show", str(path)])
    assert "outcome levels: A site with 1 to 9 rows of a class does not fit." in shown.output
    assert "fewest sites: Fewer than 3 replies" in shown.output


def test_pools_name_the_rules_they_break(tmp_path: Path) -> None:
    made = study(tmp_path, fewest_sites=3, method="gaussian_product", settings=())
    with pytest.raises(InputError, match="rule: fewest sites"):
        check_release(made, ("north", "south"), ("north", "south"))
    before = made.recorded("a" * 64, ("north", "south"))
    with pytest.raises(InputError, match="rule: subtraction"):
        check_release(before, ("north", "south", "west"), ("north", "south", "west"))
