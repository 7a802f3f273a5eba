"""The forest plot: well formed, described in words, with every number in its table."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from consilience.effects.effects import Effects, Estimate, Label
from consilience.report.forest import effects_pictures, figure, forest


def table(link: str = "logit", sites: int = 3) -> Effects:
    labels = [Label("yes", "(Intercept)", "", "", ""), Label("yes", "age", "", "", "years")]
    labels.append(Label("yes", "ward <b>", "b", "a", ""))
    estimates = tuple(Estimate(label, 0.1 * i - 0.1, 0.05) for i, label in enumerate(labels))
    by_site = {}
    for k in range(sites):
        by_site[f"site {k}"] = tuple(Estimate(label, 0.1 * i + 0.05 * k, 0.1) for i, label in enumerate(labels))
    return Effects("died", "no", link, 0.95, estimates, by_site)


@pytest.mark.parametrize("link", ["logit", "identity", "hazard"])
def test_a_forest_plot_is_well_formed_and_has_an_alternative_text(link: str) -> None:
    root = ElementTree.fromstring(forest(table(link)).replace("xlink:", ""))
    assert root.attrib["role"] == "img"
    assert "ward <b> b" in root.attrib["aria-label"]


def test_the_table_has_sites_and_their_differences() -> None:
    (picture,) = effects_pictures(table().to_json())
    assert list(picture.headings) == [
        "Effect", "Odds ratio", "95 % interval", "site 0", "site 1", "site 2", "τ", "I²", "p (Q)", "New site",
    ]  # fmt: skip
    assert picture.rows[1][:3] == ["age (years)", "1.000", "0.907 to 1.103"]  # exp(±1.96 · 0.05)
    assert "own estimates" in picture.caption


def test_without_sites_the_pooled_effects_are_shown_alone() -> None:
    (picture,) = effects_pictures(table().without_sites().to_json())
    assert "site 0" not in picture.headings and "New site" in picture.headings
    assert "own estimates" not in picture.caption
    assert effects_pictures(None) == []


def test_a_site_that_lacks_an_effect_has_a_dash() -> None:
    whole = table()
    short = {**whole.by_site, "site 1": whole.by_site["site 1"][:2]}
    (picture,) = effects_pictures(Effects("died", "no", "logit", 0.95, whole.estimates, short).to_json())
    assert picture.rows[2][4] == "–"


def test_ratios_beyond_reading_are_cut() -> None:
    assert figure(50.0, True) == "> 9999" and figure(-50.0, True) == "< 0.0001"
    assert figure(-0.5, False) == "−0.500"
