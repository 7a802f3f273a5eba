"""The forest plot: well formed, described in words, with every number in its table."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from consilience.biostatistics.effects import Effects, Estimate, Label
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
    picture, *_ = effects_pictures(table().to_json())  # and its meta-analysis
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


def test_a_site_that_cannot_tell_an_effect_says_so() -> None:
    whole = table()
    short = {**whole.by_site, "site 1": whole.by_site["site 1"][:2]}
    picture, *_ = effects_pictures(Effects("died", "no", "logit", 0.95, whole.estimates, short).to_json())
    assert picture.rows[2][4] == "not estimable"
    assert "not estimable" in picture.caption and "not estimable" not in effects_pictures(whole.to_json())[0].caption
    silent = {**whole.by_site, "site 1": ()}
    picture, *_ = effects_pictures(Effects("died", "no", "logit", 0.95, whole.estimates, silent).to_json())
    assert picture.headings[4] == "site 1" and picture.rows[1][4] == "not estimable"


@pytest.mark.parametrize("error", [100.0, 1e4, 1e300])
@pytest.mark.parametrize("link", ["logit", "identity"])
def test_an_effect_that_rows_do_not_tell_does_not_stretch_the_axes(link: str, error: float) -> None:
    """Two columns that depend on each other under a wide prior; with 1e4 the axis ended at 1e±278."""
    whole = table(link)
    vague = tuple(found._replace(error=error) for found in whole.estimates)
    drawn = forest(Effects("died", "no", link, 0.95, vague, whole.by_site))
    root = ElementTree.fromstring(drawn.replace("xlink:", ""))
    texts = [text.replace("−", "-") for text in re.findall(r"<text[^>]*>([^<]*)", drawn)]
    ticks = [float(text) for text in texts if re.fullmatch(r"-?[0-9.e+-]+", text)]
    assert root.attrib["role"] == "img" and ticks
    assert max(map(abs, ticks)) <= 9999  # of a difference, by the sites: five times their half-widths of 0.2


def test_ratios_beyond_reading_are_cut() -> None:
    assert figure(50.0, True) == "> 9999" and figure(-50.0, True) == "< 0.0001"
    assert figure(-0.5, False) == "−0.500"
