"""Every method × run, reloaded, drawn again: what was scored is what is predicted, and the seed alone changes it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

import consilience as co
from consilience import tree
from consilience.method.declared import pools_rows
from consilience.methods import METHODS
from consilience.runs.result import Prediction, Result

FAST = {"fedavg", "hierarchical", "mixture"}
DRAWS_NOTHING = {"exact", "exact_tuned", "glm", "hierarchical"}  # sums, or a mode, from wherever they start
NAMES = [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in sorted(METHODS)]


def problem(name: str) -> str:
    return next(kind for kind in tiny.PROBLEMS if tiny.works_on(name, kind))


def loss(p: Prediction, y: Tensor) -> float:
    """NLL of classes; RMSE of numbers, whose predictive need not be a normal one."""
    if p.probs is not None:
        return float(-p.probs.gather(1, y[:, None]).log().mean())
    assert p.mean is not None
    return float((p.mean - y).square().mean().sqrt())


def rows_held_out(sites: co.Sites, k: int) -> tuple[Tensor, Tensor]:
    """A site's rows held out, in the units that the data came in."""
    rows = sites.test[k]
    x, y = rows.x, rows.y
    if sites.feature_scale is not None and sites.feature_shift is not None:
        x = x.double() * sites.feature_scale + sites.feature_shift
    if not sites.classes:
        y = y.double() * sites.target_scale + sites.target_shift
    return x, y


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [pytest.param("regression", marks=pytest.mark.slow), "classification"])
def test_what_was_scored_is_what_run_and_folder_predict(tmp_path: Path, name: str, kind: str) -> None:
    if not tiny.works_on(name, kind):
        pytest.skip(f"{name} is not for a {kind} problem")
    task, sites = tiny.problem_of(name, kind)
    method = tiny.method(name)
    run = co.run(method, task, sites, rounds=1, effects=False, out=tmp_path / "run")
    key = "nll" if kind == "classification" else "rmse"
    for k, scored in enumerate(run.report["per_site"]):
        site = None if pools_rows(method) else scored["site"]
        x, y = rows_held_out(sites, k)
        for result in (run, co.load(tmp_path / "run")):
            assert loss(result.predict(x, site=site), y) == pytest.approx(scored["metrics"][key], rel=1e-3), site


def drawn(name: str, seed: int, elsewhere: int, **how: Any) -> Result:
    """A run after other generators were left anywhere."""
    torch.manual_seed(elsewhere)
    np.random.seed(elsewhere)  # noqa: NPY002 — the global one is what must not matter
    random.seed(elsewhere)
    task, sites = tiny.problem_of(name, problem(name))
    return co.run(tiny.method(name), task, sites, rounds=1, seed=seed, scored=False, effects=False, **how)


def numbers(result: Result) -> list[Tensor]:
    return [leaf for leaf in tree.leaves(result.state) if isinstance(leaf, Tensor)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_random_changes_with_the_seed_and_only_with_it(name: str) -> None:
    first, again, other = drawn(name, 0, 1), drawn(name, 0, 2), drawn(name, 1, 1)
    assert tiny.equal(numbers(first), numbers(again))
    assert tiny.equal(numbers(first), numbers(other)) == (name in DRAWS_NOTHING)
