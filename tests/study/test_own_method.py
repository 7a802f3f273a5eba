"""A method in a user's own file goes through a whole study without anything else being touched."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import studies
from places import COLUMNS
from tiny import Invoke

from consilience.methods import METHODS
from consilience.plugins import VARIABLE

OWN = '''"""Median of the clients' weights.  A user's own file."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

import consilience as co
from consilience.inference import Inference
from consilience.messages import Reply
from consilience.method import ONE_SHOT, About
from consilience.distributions.posterior import Point
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

    about = About(rounds=ONE_SHOT)

    inference: Inference = co.SGD(epochs=2)  # how a client trains

    def local(self, task, message, client):
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task, state, replies, server):
        stacked = {k: torch.stack([r.payload.params[k] for r in replies]) for k in task.like}
        middle = Point({k: v.median(0).values for k, v in stacked.items()})  # 2
        return Middle(middle, torch.stack([v.std(0).mean() for v in stacked.values()]))
'''


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The file, named to the command line, and forgotten afterwards."""
    (tmp_path / "fed_median.py").write_text(OWN)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "fed_median.py"))
    yield
    METHODS.pop("fedmedian", None)
    sys.modules.pop("fed_median", None)


@pytest.mark.usefixtures("own_method")
def test_a_users_own_method_from_study_new_to_predict(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "columns.toml").write_text(COLUMNS)

    def consilience(*words: str) -> str:
        code, out, err = invoke(*words)
        assert code == 0, err
        return out

    assert "fedmedian" in consilience("methods")
    consilience("study", "new", "own", "--columns", "columns.toml", "--method", "fedmedian")
    for k, name in enumerate(studies.NAMES):
        studies.table(tmp_path / f"{name}.csv", studies.rows(k, 120))
        consilience("site", "join", "own.toml", name, f"{name}.csv")
    consilience("study", "add", "own.toml", *(f"{name}.join" for name in studies.NAMES))
    for name in studies.NAMES:
        consilience("site", "fit", "own.toml", f"{name}.csv", "--key", f"{name}.key")
    said = consilience("study", "pool", "own.toml", *(f"{name}.reply" for name in studies.NAMES))
    consilience("predict", "own.model", "north.csv", "--out", "p.csv")

    assert "Pooled from north, south, west" in said
    account = json.loads(next(tmp_path.glob("own*.json")).read_text())
    assert account["method"] == "fedmedian" and account["title"] == "Median of the clients' weights"
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 1 + 120  # a head, and a line for every row


def test_without_the_file_the_method_is_unknown(invoke: Invoke) -> None:
    code, _, said = invoke("methods", "fedmedian")
    assert code == 2 and "fedmedian" in said


@pytest.mark.parametrize("named", ["nowhere.py", "no_such_module"])
def test_a_file_that_is_not_there_is_one_sentence(invoke: Invoke, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv(VARIABLE, named)
    code, _, said = invoke("methods")
    assert code == 2 and named in said and "Traceback" not in said
