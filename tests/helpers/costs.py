"""What the tests cost, printed after every run: processor seconds of all processes, and the files that took most.

Time on the clock says little on a busy machine. A fixture that several tests share is charged to the first of them.
`CONSILIENCE_TEST_COSTS=FILE` also writes the seconds of every test into a file, dearest first.
"""

from __future__ import annotations

import os
import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BUDGET = 360  # processor seconds of the fast suite: three minutes on two quiet cores
FILES_SHOWN = 10

tests: Counter[str] = Counter()  # the name of a test → its seconds
workers: list[float] = []  # the seconds of each worker of xdist that has ended
reported: list[float] = []  # what this process had used at its last report


def own_seconds() -> float:
    """What this process used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def all_seconds() -> float:
    """What this process used, and its children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own_seconds() + usage.ru_utime + usage.ru_stime


def pytest_runtest_logstart() -> None:
    """Before the first test: what collection used belongs to none."""
    if not reported:
        reported.append(all_seconds())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Note in a report what was used since the one before; it travels with the report from a worker."""
    report = yield
    now = all_seconds()
    report.costs = now - reported[0]
    reported[0] = now
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Add the seconds of setting up, calling and tearing down to their test."""
    tests[report.nodeid] += getattr(report, "costs", 0.0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells what it used."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["costs"] = all_seconds()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended."""
    workers.append(getattr(node, "workeroutput", {}).get("costs", 0.0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the dearest files and the total."""
    if not tests:
        return
    files: Counter[str] = Counter()
    for name, seconds in tests.items():
        files[name.split("::")[0]] += seconds
    if workers:
        total = own_seconds() + sum(workers)
    else:
        total = all_seconds()
    terminalreporter.section("processor seconds")
    for name, seconds in files.most_common(FILES_SHOWN):
        terminalreporter.line(f"{seconds:7.1f}  {name}")
    in_tests = sum(tests.values())
    terminalreporter.line(f"{total:7.1f}  in all, {in_tests:.1f} of them in tests")
    terminalreporter.line(f"the fast suite's budget: {BUDGET} s, used {total:.0f} s")
    if "CONSILIENCE_TEST_COSTS" in os.environ:
        lines = [f"{seconds:9.3f}  {name}\n" for name, seconds in tests.most_common()]
        Path(os.environ["CONSILIENCE_TEST_COSTS"]).write_text("".join(lines))
