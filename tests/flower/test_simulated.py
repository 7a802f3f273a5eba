"""Flower's simulation on Ray, in a network of its own: Ray listens on all addresses. Run with make test-flower."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="needs Flower's simulation: pip install 'consilience[flower]'")

import consilience as co
from consilience import tree
from consilience.runs.recipe import Recipe
from consilience.runs.store import Store

pytestmark = pytest.mark.flower

ROOT = Path(__file__).parents[2]


def apart(*words: str) -> subprocess.CompletedProcess[str]:
    """A command in a network namespace with nothing but loopback."""
    allowed = shutil.which("unshare") and not subprocess.run(["unshare", "-n", "true"], check=False).returncode
    if not allowed:
        pytest.skip("Ray listens on all addresses and a network namespace cannot be made here (needs root).")
    inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", sys.executable, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(inside, env=env, capture_output=True, text=True, check=False, timeout=900)


@pytest.mark.parametrize(("method", "sites"), [("fedavg", 12), ("scaffold", 4), ("beta", 4), ("evidence_tuned", 4)])
def test_simulated_sites_give_the_numbers_of_one_process(method: str, sites: int, tmp_path: Path) -> None:
    rounds = 1 if method == "beta" else 2
    short = ("inference.epochs=4", *(("inference.cycles=1", "inference.keep=2") if method == "beta" else ()))
    settings = [word for setting in short for word in ("--set", setting)]

    done = apart(
        *("-m", "consilience.cli", "run", method, "--sites", str(sites), "--rounds", str(rounds), "--no-bounds"),
        *("--split", "iid", "--engine", "flower:2,300000000", "--out", str(tmp_path / "out"), *settings),
    )

    assert done.returncode == 0, done.stderr[-3000:]
    built = Recipe(method, co.Problem("digits", model="mlp", sites=sites, split="iid"), settings=short).build()
    alone = co.run(*built, rounds=rounds, engine="sequential", scored=False)
    found = Store(tmp_path / "out").load(built.method)
    assert found is not None
    gaps = [
        float((torch.as_tensor(a) - torch.as_tensor(b)).abs().max())
        for a, b in zip(tree.leaves(found.state), tree.leaves(alone.state), strict=True)
    ]
    assert max(gaps) == 0
    assert json.loads((tmp_path / "out" / "run.json").read_text())["engine"].startswith("flower")
