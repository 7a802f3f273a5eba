"""A test that hangs is reported by its name, and those after it still run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

SETTINGS = Path(__file__).parents[1] / "pyproject.toml"
HANGING = """
import signal
import time


def test_hangs():
    time.sleep(60)


def test_hangs_and_hears_no_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    time.sleep(60)


def test_comes_after_them():
    pass
"""


@pytest.mark.slow
def test_a_hanging_test_is_named_and_the_next_one_runs(tmp_path: Path) -> None:
    """With the settings of the suite, all but their seconds."""
    (tmp_path / "test_hanging.py").write_text(HANGING)
    sooner = ["-o", "timeout=1", "-o", "faulthandler_timeout=2"]
    words = ["-c", str(SETTINGS), "--rootdir", str(tmp_path), "-n", "1", "-p", "no:cacheprovider", "-rA", *sooner]

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "test_hanging.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 1, ended.stderr
    assert re.search(r"FAILED test_hanging.py::test_hangs - Failed: Timeout", ended.stdout)
    assert "crashed while running 'test_hanging.py::test_hangs_and_hears_no_signal'" in ended.stdout
    assert "PASSED test_hanging.py::test_comes_after_them" in ended.stdout


def test_a_test_has_five_minutes(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout") is None
    assert read_settings()["timeout"] == 300


@pytest.mark.slow
def test_a_slow_test_has_half_an_hour(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("timeout").args == (1800,)
    assert read_settings()["faulthandler_timeout"] > 1800


def read_settings() -> dict[str, Any]:
    """Those of pytest as they are written; a command may change them."""
    found: dict[str, Any] = tomllib.loads(SETTINGS.read_text())["tool"]["pytest"]["ini_options"]
    return found
