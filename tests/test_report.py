"""The report: one page, self-contained, that says only what the numbers support."""

from __future__ import annotations

import functools
import io
import itertools
import json
import random
import re
from html.parser import HTMLParser
from importlib import resources
from typing import Any

import pytest
from rich.console import Console

import consilience.report
from consilience.errors import InputError
from consilience.report.html import comparison_page, run_page
from consilience.report.table import comparison_table, run_table
from consilience.report.words import count, human_bytes, interval, number, percent, sentence

VOID = {"meta", "br", "hr", "img", "input", "link"}


def wilson(right: int, n: int) -> list[float]:
    """The 95 % Wilson interval, so that the samples look like what a run writes."""
    z, p = 1.96, right / n
    middle, half = p + z * z / (2 * n), z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    return [(middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)]


def reliability(counts: list[int], shift: float = 0.0) -> list[dict[str, Any]]:
    width, bins = 1 / len(counts), []
    for i, n in enumerate(counts):
        confidence = (i + 0.6) * width
        right = max(0, min(n, round(n * (confidence + shift))))
        seen = {"confidence": confidence, "accuracy": right / n, "interval": wilson(right, n)} if n else {}
        empty = {"confidence": None, "accuracy": None, "interval": None}
        bins.append({"low": i * width, "high": (i + 1) * width, "count": n, **empty, **seen})
    return bins


def classification(sites: int = 5, classes: int = 10, rounds: int = 1, seed: int = 0) -> dict[str, Any]:
    draw = random.Random(seed)
    labels = [[int(280 / classes * 10 * draw.random() ** 6) for _ in range(classes)] for _ in range(sites)]
    metrics = {
        "accuracy": 0.942,
        "nll": 0.231,
        "brier": 0.091,
        "ece": 0.034,
        "ece_debiased": 0.017,
        "ece_adaptive": 0.031,
    }
    spans = {"accuracy": [0.913, 0.962], "nll": [0.181, 0.284], "brier": [0.069, 0.114], "ece": [0.022, 0.055]}
    soft = {"accuracy": 0.942, "nll": 0.219, "brier": 0.088, "ece": 0.025, "ece_debiased": 0.008, "ece_adaptive": 0.024}

    def bound(accuracy: float, nll: float, brier: float) -> dict[str, Any]:
        return {"metrics": {"accuracy": accuracy, "nll": nll, "brier": brier, "ece": 0.08, "ece_debiased": 0.06}}

    def site(i: int) -> dict[str, Any]:
        worst = i == 3
        scores = {
            "accuracy": 0.81 if worst else 0.9 + 0.08 * draw.random(),
            "nll": 0.71 if worst else 0.1 + 0.3 * draw.random(),
        }
        return {"site": str(i), "train": sum(labels[i]), "test": 72, "labels": labels[i], "metrics": scores}

    return {
        "consilience": "0.1.0", "format": 1, "method": "beta", "title": "β-Predictive Bayes",
        "summary": "Hasan et al., AAAI 2024: pool the predictions, then let a few labelled rows say how sure to be.",
        "needs": "labels", "data": "digits", "split": "dirichlet:0.1", "sites": sites, "rounds": rounds, "seed": 0,
        "engine": "vectorised", "threads": 2, "model": "mlp", "parameters": 17510, "task": "classification",
        "classes": classes, "class_names": None,
        "settings": {"inference": {"name": "CyclicalSGHMC", "epochs": 40, "temperature": 1.0}, "distil": None},
        "rows": {"train": 1407, "calibration": 30, "inputs": 0, "validation": 0, "test": 360},
        "metrics": metrics, "intervals": spans,
        "tempered": {"temperature": 1.31, "metrics": soft, "intervals": {"nll": [0.175, 0.262]}},
        "per_site": [site(i) for i in range(sites)], "worst_site": {"site": "3", "nll": 0.71},
        "bounds": {"local_only": bound(0.412, 3.1, 0.91), "server_only": bound(0.691, 1.12, 0.44),
                   "centralised": bound(0.972, 0.11, 0.045)},
        "history": [{"round": r + 1, "accuracy": 0.95 - 0.5 / (r + 1), "nll": 0.2 + 1 / (r + 1), "up_bytes": 240_000,
                     "down_bytes": 70_000} for r in range(rounds)],
        "ledger": {"up_bytes": 1_234_567, "down_bytes": 350_200, "up_floats": 308_641, "down_floats": 87_550,
                   "per_site": [{"site": str(i), "up_bytes": 240_000 + 900 * i, "down_bytes": 70_040}
                                for i in range(sites)]},
        "seconds": 3.2, "failures": [], "warnings": ["Site 4 has 3 classes of 10; its own score is over those."],
        "versions": {"python": "3.12.3", "torch": "2.13.0"},
        "reliability": reliability([0, 0, 0, 2, 4, 7, 9, 8, 11, 13, 14, 19, 26, 47, 200], -0.02),
        "ece_if_calibrated": 0.021,
    }  # fmt: skip


def regression() -> dict[str, Any]:
    run = classification(sites=8)
    run |= {"task": "regression", "classes": None, "data": "bike", "reliability": None, "ece_if_calibrated": None}
    run["metrics"] = {"rmse": 0.412, "nll": -0.231, "crps": 0.208, "coverage50": 0.48, "coverage80": 0.79,
                      "coverage95": 0.94, "sharpness": 0.39}  # fmt: skip
    run["intervals"] = {"rmse": [0.39, 0.44], "nll": [-0.31, -0.15], "coverage80": [0.76, 0.82]}
    run["tempered"] = {"temperature": 1.12, "metrics": {**run["metrics"], "nll": -0.236}, "intervals": {}}
    run["bounds"] = {
        "server_only": {"metrics": {"rmse": 0.83, "nll": 1.4}},
        "centralised": {"metrics": {"rmse": 0.35, "nll": -0.4}},
    }
    run["coverage"] = [
        {"level": q / 10, "observed": q / 10 - 0.012, "interval": [q / 10 - 0.05, q / 10 + 0.03]} for q in range(1, 10)
    ]
    for i, site in enumerate(run["per_site"]):
        site |= {"labels": None, "metrics": {"rmse": 0.35 + 0.03 * i, "nll": -0.3 + 0.05 * i}}
    return run


def comparison() -> dict[str, Any]:
    def row(
        name: str, needs: str, rounds: int, up: int | None, accuracy: float, nll: float, t: float
    ) -> dict[str, Any]:
        scores = {
            "accuracy": accuracy,
            "nll": nll,
            "brier": 1.45 * (1 - accuracy),
            "ece": 0.03 * t,
            "ece_debiased": 0.02 * t,
        }
        soft = {
            **scores,
            "nll": nll - 0.12 * abs(t - 1) * nll,
            "brier": 1.38 * (1 - accuracy),
            "ece": 0.025,
            "ece_debiased": 0.01,
        }
        spans = {
            "nll": [0.8 * nll, 1.2 * nll],
            "accuracy": wilson(round(360 * accuracy), 360),
            "ece": [0.02 * t, 0.05 * t],
        }
        return {"name": name, "needs": needs, "rounds": rounds, "up_bytes": up, "down_bytes": up, "metrics": scores,
                "intervals": spans, "tempered": {"temperature": t, "metrics": soft}, "seconds": 4.0,
                "reliability": reliability([0, 0, 3, 9, 12, 15, 21, 30, 60, 210], 0.1 - 0.1 * t)}  # fmt: skip

    rows = [
        row("FedAvg, 1 round", "nothing", 1, 350_200, 0.292, 4.441, 2.9),
        row("FedAvg, 10 rounds", "nothing", 10, 3_502_000, 0.871, 0.552, 1.6),
        row("Mixture of samples", "nothing", 1, 2_101_200, 0.61, 1.285, 0.5),
        row("FedBE, distilled on the server's inputs", "inputs", 1, 2_101_200, 0.642, 1.141, 0.7),
        row("β-Predictive Bayes", "labels", 1, 2_101_200, 0.9, 0.462, 1.1),
        row("β-Predictive Bayes, distilled", "labels", 1, 2_101_200, 0.886, 0.489, 1.2),
        row("Local only, averaged", "bound", 1, None, 0.367, 3.98, 3.1),
        row("Server only, 30 rows", "bound", 0, None, 0.691, 1.12, 1.4),
        row("Centralised", "bound", 1, None, 0.967, 0.133, 1.1),
    ]
    run = classification()
    return {
        "kind": "comparison", "title": "One round against ten on digits", "data": "digits", "split": "dirichlet:0.1",
        "sentence": "With one round and 30 labelled rows, β-Predictive Bayes is ahead of ten rounds of FedAvg here; "
                    "the intervals overlap and one seed decides nothing.",
        "sites": 5, "seed": 0, "rows": rows, "labels": [s["labels"] for s in run["per_site"]],
        "site_names": ["Aberdeen", "Basel", "Coimbra", "Dresden", "Espoo"], "rows_of_data": run["rows"],
        "versions": run["versions"], "settings": run["settings"], "seconds": 41.0,
    }  # fmt: skip


class Reader(HTMLParser):
    """Checks that tags nest, and keeps what the tests ask about."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def text(renderable: Any, width: int) -> str:
    out = io.StringIO()
    Console(width=width, file=out).print(renderable)
    return out.getvalue()


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
    assert sentence(classification()) == (
        "5 sites, 1 round, 1.2 MB sent. 94 % accurate; when it says 97 % it is right 96 % of the time (92–98); "
        "weakest site: 3; a model from the server's 30 rows alone would reach 69 %."
    )


def test_sentence_leaves_out_what_the_run_does_not_support() -> None:
    run = classification(sites=1)
    run["reliability"] = reliability([0, 0, 0, 0, 49])  # one row short of 50
    run["rows"]["calibration"] = 0  # then no server-only model exists
    assert sentence(run) == "1 site, 1 round, 1.2 MB sent. 94 % accurate."
    assert sentence({}) == ""


def test_sentence_for_regression() -> None:
    assert sentence(regression()) == (
        "8 sites, 1 round, 1.2 MB sent. Root mean square error 0.412; its 80 % intervals hold 79 % of the test rows "
        "(75–83); weakest site: 3; a model from the server's 30 rows alone would be off by 0.830."
    )  # observed 0.8 − 0.012 = 78.8 %, interval 0.8 − 0.05 to 0.8 + 0.03


@pytest.mark.parametrize(("rows", "grey"), [(199, True), (200, False)])
def test_ece_is_grey_below_200_rows(rows: int, grey: bool) -> None:
    scores = {"metrics": {"ece": 0.034, "ece_debiased": 0.017}}
    page = run_page({**scores, "rows": {"test": rows}, "ece_if_calibrated": 0.03})
    compared = {"rows": [{"name": "FedAvg", **scores}], "rows_of_data": {"test": rows}}

    assert ('<tr class="grey"><th scope="row">ECE</th>' in page) == grey
    assert ("says little" in page) == grey
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
        "The server needs nothing",
        "The server needs unlabelled inputs",
        "The server needs labelled rows",
        "Bounds, for reference",
    ]
    # «nothing»: FedAvg with 10 rounds, NLL 0.552, tempered 0.552 × (1 − 0.12 × 0.6) = 0.512, Brier 1.45 × 0.129 = 0.187
    # and 1.38 × 0.129 = 0.178. «inputs» has one row: nothing to win. «labels»: 0.462, 0.462 × (1 − 0.012) = 0.456,
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


def test_the_acceptance_of_hmc_is_told_where_it_sampled() -> None:
    run = {**classification(), "diagnostics": {"accepted": 0.784}}
    assert "HMC accepted" not in run_page(run)  # an optimiser rejects nothing
    run["settings"] = {"type": "CoresetFL", "downstream": {"type": "HMC", "rate": 0.01}}
    assert "HMC accepted" in run_page(run) and "78\u00a0% of its proposals" in run_page(run)
    assert "HMC accepted" not in run_page({**run, "diagnostics": {}})
