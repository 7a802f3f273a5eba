"""What several test files use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from tiny import Invoke

from consilience import cli

settings.register_profile("repeatable", derandomize=True, deadline=None)  # a red test stays red; no clock decides
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Networks are made with torch's own numbers: the same ones in every test, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are not synced: a test's folder need not survive a loss of power, and a sync takes milliseconds."""
    if "disk" not in request.path.parts:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """The command line, run in an empty folder within this process."""
    monkeypatch.chdir(tmp_path)

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
