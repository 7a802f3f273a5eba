"""What several test files use."""

from __future__ import annotations

import gc
import html
import importlib
import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tiny import Invoke

from consilience import cli
from consilience.cli import screen

pytest_plugins = ["costs"]
FIGURES = ("by_site", "figures", "predictions", "survival_curve", "trends")
PLOTS = [f"consilience.report.plots.{name}" for name in FIGURES]
PLOTS += [f"consilience.report.{name}" for name in ("forest", "prediction_sets", "reproduction_page")]
RESAMPLED = {"metrics", "scoring", "compatibility"}  # tests that look at the intervals of scores
LOOKED_AT = {"report", "experiments", "test_events.py"}  # tests that look at figures

settings.register_profile("repeatable", derandomize=True, deadline=None)  # a red test stays red; no clock decides
settings.load_profile("repeatable")
SLOW_CASES = Path(__file__).parent / "slow_cases.txt"  # single cases of tests whose other cases are quick
SLOW_LIMIT = 1800  # seconds on the clock for a slow test; for others `timeout` in pyproject.toml


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cases that take more than a second are slow; a slow test may take longer before it is given up as hanging."""
    dear = set(SLOW_CASES.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid in dear:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is not None or item.get_closest_marker("flower") is not None:
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))


def pytest_configure() -> None:
    """What is imported stays, so that there is no garbage to look for while tests are collected."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported alone from now on, and look for garbage seldom."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


@pytest.fixture(autouse=True)
def spare_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every test begins with, in one fixture: with thousands of tests each one counts."""
    where = {request.path.name, *request.path.parts}
    torch.default_generator.manual_seed(0)  # networks are the same in every test; `torch.manual_seed` takes longer
    if "disk" not in where:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # no test's folder need survive a loss of power
    if not LOOKED_AT & where:
        leave_blank(request, monkeypatch)
    if not RESAMPLED & where:
        resample_less(request, monkeypatch)


def blank(name: str, alt: str, height: float, draw: object) -> str:
    """A figure that is not drawn: matplotlib takes most of a report's time."""
    return f'<svg viewBox="0 0 340 {height:g}" role="img" aria-label="{html.escape(alt, quote=True)}"></svg>'


@pytest.fixture
def blank_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a test among those that look at figures."""
    leave_blank(request, monkeypatch)


def leave_blank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures of reports stay blank where nobody looks at them."""
    if request.node.get_closest_marker("slow") is not None:
        return
    for module in PLOTS:
        if module in sys.modules:  # matplotlib is not imported for this alone
            monkeypatch.setattr(sys.modules[module], "svg", blank)


def resample_less(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of a run are resampled a few times only, where no test looks at their intervals."""
    if request.node.get_closest_marker("slow") is not None:
        return
    scores = sys.modules.get("consilience.metrics.scores")
    if scores is not None:
        monkeypatch.setattr(scores.intervals, "__defaults__", (40, 0))  # resamples, seed


@pytest.fixture
def hurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training takes one step a pass: for tests of everything around it."""
    if request.node.get_closest_marker("slow") is not None:
        return
    module = importlib.import_module("consilience.inference.chain")
    pace = module._pace
    monkeypatch.setattr(module, "_pace", lambda *words: pace(*words)._replace(steps=1, client_steps=1))
    monkeypatch.setattr(
        "consilience.runs.engines.processes.usual_workers", lambda jobs: 1
    )  # other processes do not hurry


@pytest.fixture
def unhurried() -> None:
    """Commands train as people's do: for tests in which numbers matter, and for slow ones always."""


@pytest.fixture
def invoke(
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Invoke:
    """The command line, run in an empty folder within this process; in a hurry, unless asked otherwise."""
    if "unhurried" not in request.fixturenames:
        request.getfixturevalue("hurried")
    monkeypatch.chdir(tmp_path)
    for console in (screen.out, screen.err):  # wide enough for every table, whichever test made them
        monkeypatch.setattr(console, "_width", screen.PIPED)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["consilience", *words])
        try:
            cli.main()
            code = 0
        except SystemExit as exit:
            code = int(exit.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run
