"""The report: one page, self-contained, that says only what the numbers support."""

from __future__ import annotations

import functools
import itertools
import json
import re
from importlib import resources
from typing import Any

import pytest
from reports import classification, comparison, read, regression, reliability, text

import consilience.report
from consilience.errors import InputError
from consilience.report.run_page import comparison_page, run_page
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.sentence import sentence
from consilience.report.schema.wording import count, human_bytes, interval, number, percent
from consilience.report.table import comparison_table, run_table

PAGES = {
    "run": lambda: run_page(classification()),
    "rounds": lambda: run_page(classification(rounds=30)),
    "regression": lambda: run_page(regression()),
    "one site": lambda: run_page(classification(sites=1)),
    "100 sites, 62 classes": lambda: run_page(classification(sites=100, classes=62, rounds=200)),
    "comparison": lambda: comparison_page(comparison()),
    "empty run": lambda: run_page({}),
    "bare run": lambda: run_page({"method": "fedavg", "metrics": {"nll": 0.5}, "intervals": {}, "tempered": None}),
    "bare comparison": lambda: comparison_page({"kind": "comparison", "rows": [{"name": "FedAvg"}]}),
}


@functools.cache
def rendered(name: str) -> str:
    return PAGES[name]()


@pytest.mark.parametrize("name", PAGES)
def test_page_is_well_formed_and_loads_nothing(name: str) -> None:
    page = rendered(name)

    reader = read(page)

    assert "http://" not in page
    assert "https://" not in page
    assert len(page.encode()) < 1_000_000
    assert not {"link", "img", "iframe"} & {tag for tag, _ in reader.tags}
    assert [attrs for tag, attrs in reader.tags if tag == "script"] == [{}]  # the one that sorts, written in the page
    ids = [attrs["id"] for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {v for _, attrs in reader.tags for k, v in attrs.items() if k.endswith("href") and v}
    targets = {v[1:] for v in links if not v.startswith("data:")}
    assert targets <= set(ids)


@pytest.mark.parametrize("name", ["run", "rounds", "regression", "one site", "comparison"])
def test_every_figure_has_alternative_text_and_headings_do_not_skip(name: str) -> None:
    reader = read(rendered(name))

    figures = [attrs for tag, attrs in reader.tags if tag == "svg"]
    levels = [int(tag[1]) for tag, _ in reader.tags if re.fullmatch("h[1-6]", tag)]

    assert len(figures) >= 3
    assert all(f["role"] == "img" and len(f["aria-label"] or "") > 20 for f in figures)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))


def test_hostile_names_are_text_everywhere() -> None:
    hostile = '<script>alert("1")</script> & $x^{y$ #c0ffe0 id="q"'
    run = classification(sites=3)
    run |= {
        "title": hostile,
        "summary": hostile,
        "warnings": [hostile],
        "failures": [{"site": hostile}],
        "data": hostile,
    }
    run |= {"worst_site": {"site": hostile, "nll": 1.0}, "settings": {hostile: {hostile: hostile}}}
    run["class_names"] = [hostile] * 10
    for site in [*run["per_site"], *run["ledger"]["per_site"]]:
        site["site"] = hostile
    compared = comparison()
    compared |= {"title": hostile, "sentence": hostile, "site_names": [hostile] * 5, "rows": compared["rows"][:2]}
    for row in compared["rows"]:
        row["name"] = hostile

    for page in (run_page(run), comparison_page(compared)):
        assert [tag for tag, _ in read(page).tags].count("script") == 1  # our own
        assert "&lt;script&gt;" in page
        assert page.count("<script") == 1
    assert "<script>" in text(run_table(run), 100)  # a terminal shows it as it is
    assert "[bold]" in text(comparison_table({"rows": [{"name": "[bold]"}]}), 100)  # no markup is read from names


def test_template_is_found_as_package_data() -> None:
    assert resources.files(consilience.report).joinpath("page.html.jinja").is_file()


def test_page_is_the_same_every_time_and_leaves_its_input_alone() -> None:
    run, compared = json.loads(json.dumps([classification(), comparison()]))  # as read from a file

    pages = [run_page(run), comparison_page(compared)]

    assert pages == [rendered("run"), rendered("comparison")]
    assert [run, compared] == [classification(), comparison()]


def test_text_has_contrast_in_light_dark_and_print() -> None:
    page = rendered("empty run")
    schemes = re.findall(
        r"--paper: (#\w{6}); --ink: (#\w{6}); --muted: (#\w{6}).*?--wash: (#\w{6});\s*--accent: (#\w{6})", page
    )

    assert len(schemes) == 3
    for paper, ink, muted, wash, accent in schemes:
        assert min(contrast(c, paper) for c in (ink, muted, accent)) >= 4.5
        assert contrast(ink, wash) >= 4.5


def contrast(a: str, b: str) -> float:
    """(L₁ + 0.05) / (L₂ + 0.05) of the relative luminances, as WCAG 2.2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_sentence_says_what_the_run_supports() -> None:
    # The fullest bin has 200 rows, confidence 14.6 / 15 = 0.973, right round(200 × (0.973 − 0.02)) = 191 times, 95.5 %.
    # Its Wilson interval: centre (0.955 + 0.0096) / 1.0192 = 0.9464, half-width 0.0297, so 91.7 to 97.6 %.
    assert sentence(read_run(classification())) == (
        "5 sites, 1 round, 1.2 MB sent. Accuracy 94 %; predictions made with 97 % confidence are correct 96 % of the "
        "time (95 % interval 92–98); weakest site: 3; a model trained on the server's 30 rows alone reaches 69 %."
    )


def test_sentence_leaves_out_what_the_run_does_not_support() -> None:
    run = classification(sites=1)
    run["reliability"] = reliability([0, 0, 0, 0, 49])  # one row short of 50
    run["rows"]["calibration"] = 0  # then no server-only model exists
    assert sentence(read_run(run)) == "1 site, 1 round, 1.2 MB sent. Accuracy 94 %."
    assert sentence(read_run({})) == ""


def test_sentence_for_regression() -> None:
    assert sentence(read_run(regression())) == (
        "8 sites, 1 round, 1.2 MB sent. Root mean square error 0.412; the 80 % predictive intervals cover 79 % "
        "of the test rows (95 % interval 75–83); weakest site: 3; a model trained on the server's 30 rows alone has a "
        "root mean square error of 0.830."
    )  # observed 0.8 − 0.012 = 78.8 %, interval 0.8 − 0.05 to 0.8 + 0.03


@pytest.mark.parametrize(("rows", "grey"), [(199, True), (200, False)])
def test_ece_is_grey_below_200_rows(rows: int, grey: bool) -> None:
    scores = {"metrics": {"ece": 0.034, "ece_debiased": 0.017}}
    page = run_page({**scores, "rows": {"test": rows}, "ece_if_calibrated": 0.03})
    compared = {"rows": [{"name": "FedAvg", **scores}], "rows_of_data": {"test": rows}}

    assert ('<tr class="grey"><th scope="row">ECE</th>' in page) == grey
    assert ("is unreliable" in page) == grey
    assert ('<td class="grey">' in comparison_page(compared)) == grey
    assert f"{rows} test rows" in page.replace("\u00a0", " ")
    assert "ECE, debiased" in page


def test_page_shows_plain_tempered_and_bounds_side_by_side() -> None:
    row = re.search(r'<th scope="row">NLL.*?</tr>', rendered("run"), re.DOTALL)

    assert row is not None
    assert re.findall(r"<td>([\d.]+)", row[0]) == ["0.231", "0.219", "3.100", "1.120", "0.110"]
    assert "0.181–0.284" in row[0]


def test_comparison_groups_rows_and_marks_the_best_of_each_group() -> None:
    page = rendered("comparison")

    groups = re.findall(r'scope="rowgroup"[^>]*>([^<]*)', page)
    best = re.findall(r"<strong>([\d.]+)</strong>", page)

    assert groups == [
        "The server needs no data",
        "The server needs unlabelled inputs",
        "The server needs labelled rows",
        "Bounds, for reference",
    ]
    # 'nothing': FedAvg with 10 rounds, NLL 0.552, tempered 0.552 × (1 − 0.12 × 0.6) = 0.512, Brier 1.45 × 0.129 = 0.187
    # and 1.38 × 0.129 = 0.178. 'inputs' has one row: nothing to win. 'labels': 0.462, 0.462 × (1 − 0.012) = 0.456,
    # 1.45 × 0.1 and 1.38 × 0.1. Bounds do not compete.
    assert best == ["0.552", "0.512", "0.187", "0.178", "0.462", "0.456", "0.145", "0.138"]


def test_wrong_input_says_what_to_do() -> None:
    with pytest.raises(InputError, match="comparison_page"):
        run_page(comparison())
    with pytest.raises(InputError, match="at least one method"):
        comparison_page({"kind": "comparison", "rows": []})


def test_missing_and_infinite_numbers_are_dashes() -> None:
    run = classification(rounds=3)
    run["metrics"] |= {"nll": float("nan"), "brier": float("inf"), "accuracy": None}
    run["intervals"] = {"nll": [None, None], "brier": None}
    run["per_site"][0]["metrics"] = {"nll": float("inf"), "accuracy": None}
    run["history"][1] |= {"nll": float("nan"), "accuracy": None}
    compared = comparison()
    compared["rows"] = compared["rows"][:3]
    compared["rows"][0]["metrics"]["nll"] = float("nan")
    compared["rows"][0]["intervals"]["nll"] = [None, None]
    compared["rows"][1]["tempered"] = None

    pages = run_page(run) + comparison_page(compared) + text(run_table(run), 80) + text(comparison_table(compared), 80)

    assert not re.search(r"\b(nan|inf|None)\b", pages)


def test_numbers_are_written_for_people() -> None:
    assert [human_bytes(n) for n in (0, 999, 1000, 1_234_567, 999_999, 2.5e9, None)] == [
        *("0 B", "999 B", "1.0 kB", "1.2 MB", "1.0 MB", "2.5 GB", "–"),
    ]
    assert [percent(x) for x in (0.942, 0.999, 1.0, 0.0, 0.0004)] == ["94 %", "99.9 %", "100 %", "0 %", "0.04 %"]
    assert [number(x) for x in (-0.2314, 12.345, 1234.56, 0.0)] == ["−0.231", "12.35", "1\u00a0234.6", "0.000"]
    assert interval("accuracy", [0.913, 0.962]) == "91.3–96.2"
    assert interval("nll", [-0.31, 0.2]) == "−0.310 to 0.200"
    assert [count(1, "site"), count(17510)] == ["1 site", "17\u00a0510"]


@pytest.mark.parametrize("width", [80, 100])
def test_terminal_tables_fit(width: int) -> None:
    run, compared = text(run_table(classification()), width), text(comparison_table(comparison()), width)

    assert all(len(line) <= width for line in (run + compared).splitlines())
    assert "…" not in run + compared  # nothing is cut off
    for words in ("0.181–0.284", "Server only", "69.1 %", "Weakest site: 3 (NLL 0.710)", "1.2 MB up, 350.2 kB down"):
        assert words in run
    assert re.search(r"FedAvg, 1 round +1 +350.2 kB +29.2 % +4.441 +3.428 +1.027 +0.977 +8.7 %", compared)
    assert compared.index("Needs nothing") < compared.index("Needs labels") < compared.index("Bounds")


@pytest.mark.parametrize("run", [{}, {"metrics": {"nll": 1.0}}, regression()], ids=["empty", "bare", "regression"])
def test_terminal_table_of_partial_runs(run: dict[str, Any]) -> None:
    assert text(run_table(run), 80).strip()


def test_the_acceptance_of_hmc_is_told_where_it_sampled(blank_figures: None) -> None:
    run = {**classification(), "diagnostics": {"accepted": 0.784}}
    assert "HMC acceptance rate" not in run_page(run)  # an optimiser rejects nothing
    run["settings"] = {"type": "CoresetFL", "downstream": {"type": "HMC", "rate": 0.01}}
    assert "HMC acceptance rate" in run_page(run) and "78\u00a0% of proposals" in run_page(run)
    assert "HMC acceptance rate" not in run_page({**run, "diagnostics": {}})


@pytest.mark.parametrize("width", range(40, 131, 6))
def test_no_column_of_a_run_is_cut_by_the_edge_of_the_terminal(width: int) -> None:
    run = classification()
    alone = run["bounds"]["local_only"]
    run["bounds"]["local_only"] = {**alone, "own_rows": alone}  # two columns with long headings

    shown = text(run_table(run), width)

    assert "…" not in shown
    headings, _, rows = shown.partition("───")
    assert ("Centra" in headings) == ("Centralised" in headings)
    (accuracy,) = [line for line in rows.splitlines() if line.startswith("Accuracy")]
    assert accuracy.count(" %") == len(re.findall(r"\d+\.\d", accuracy))  # every number with its unit
