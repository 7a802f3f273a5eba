"""The commands of docs/study.md, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from consilience.disk.data_folder import locate

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(
    locate("heart_disease.csv", None) is None, reason="the heart disease table is not in the data folder"
)
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "study.md").read_text()
    script = "\n".join(re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, words in (("consilience", "-m consilience.cli"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        (commands / name).chmod(0o755)
    path = {"PATH": f"{commands}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    words = {"input": script, "cwd": tmp_path, "env": {**os.environ, **path}, "capture_output": True, "text": True}
    done = subprocess.run(["bash", "-e"], check=False, **words)  # type: ignore[call-overload]

    assert done.returncode == 0, done.stderr
    assert "Left out" in done.stdout and "switzerland' has left" in done.stdout
    assert "outdated model: it includes switzerland" in done.stdout
    assert len((tmp_path / "work" / "va" / "predictions.csv").read_text().splitlines()) == 201
