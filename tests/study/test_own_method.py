"""A method in a user's own file goes through a whole study without anything else being touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import studies
from places import COLUMNS

OWN = '''"""Median of the clients' weights.  A user's own file."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

import consilience as co
from consilience.inference import Inference
from consilience.parties import Reply
from consilience.posterior import Point
from consilience.data.sites import Data  # imported, and still kept off the wire


class Middle(NamedTuple):
    posterior: Point
    spread: torch.Tensor  # how far the clients' weights lie apart


@dataclass(frozen=True)
class FedMedian(co.Method):
    """Take the median of the clients' weights.

    1   theta_k <- training at every client
    2   theta <- their median, weight by weight
    """

    one_shot: ClassVar[bool] = True

    inference: Inference = co.SGD(epochs=2)  # how a client trains

    def local(self, task, message, client):
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task, state, replies, server):
        stacked = {k: torch.stack([r.payload.params[k] for r in replies]) for k in task.like}
        middle = Point({k: v.median(0).values for k, v in stacked.items()})  # 2
        return Middle(middle, torch.stack([v.std(0).mean() for v in stacked.values()]))
'''


def test_a_users_own_method_from_study_new_to_predict(tmp_path: Path) -> None:
    (tmp_path / "fed_median.py").write_text(OWN)
    (tmp_path / "columns.toml").write_text(COLUMNS)
    environment = {**os.environ, "CONSILIENCE_METHODS": "fed_median.py"}

    def consilience(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "consilience.cli", *words],
            cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "fedmedian" in consilience("methods")
    consilience("study", "new", "own", "--columns", "columns.toml", "--method", "fedmedian")
    for k, name in enumerate(studies.NAMES):
        studies.table(tmp_path / f"{name}.csv", studies.rows(k, 120))
        consilience("site", "join", "own.toml", name)
    consilience("study", "add", "own.toml", *(f"{name}.join" for name in studies.NAMES))
    for name in studies.NAMES:
        consilience("site", "fit", "own.toml", f"{name}.csv", "--key", f"{name}.key")
    said = consilience("study", "pool", "own.toml", *(f"{name}.reply" for name in studies.NAMES))

    assert "Pooled from north, south, west" in said
    account = json.loads(next(tmp_path.glob("own*.json")).read_text())
    assert account["method"] == "fedmedian" and account["title"] == "Median of the clients' weights"


def test_without_the_file_the_method_is_unknown(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "consilience.cli", "methods", "fedmedian"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "fedmedian" in done.stderr
