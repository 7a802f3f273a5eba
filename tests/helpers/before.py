"""What the tests of tests/compatibility share: files that an earlier version wrote, and how near numbers must be.

What is in tests/before was written once, by the code of one day (README.md there says how), and is never made
again: if one of these tests is red, files that people keep can no longer be used as they were.

Whatever is no computed number (names, counts, hashes, seeds, what has which shape) must be equal. Numbers may differ by
what other processors round otherwise: see `LOADED` and `TRAINED`. With CONSILIENCE_EXACT=1, on the machine and with the
torch that wrote the files, every bit must be the same.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tiny import Invoke

import consilience as co

BEFORE = Path(__file__).parents[1] / "before"
EXACT = bool(os.environ.get("CONSILIENCE_EXACT"))
LOADED = 1e-5  # nothing is trained: one pass through a small network in float32, whose rounding is 6e-8 a number
TRAINED = 1e-4  # up to a few hundred steps in float32, each of which carries on what the steps before it rounded
PARTS = {"aleatoric", "epistemic", "disagreement"}  # of a prediction's uncertainty
JUMPING = {  # scores that move by a whole row, or without bound, where a probability or a rank turns on its last digit
    "accuracy", "balanced_accuracy", "auroc", "ece", "ece_adaptive", "ece_classwise", "ece_debiased",
    "calibration_intercept", "calibration_slope", "concordance",
}  # fmt: skip
HIDDEN = {  # hazards at risk, where few rows that leave on a day of their own count as leaving with the others since
    f"again.statistics tree.times[3][{step}]" for step in (0, 1)
}
ABOUT = 0.01  # how far they may be from what they were
VARYING = {
    "seconds",
    "date",
    "consilience",
    "versions",
    "version",
    "checksum",
    "signature",
    "spread",
    "matmul",
}  # when, by what, on which processor; signed numbers; what replies say since of the noise of their rows


def kept(*path: str) -> Any:
    return json.loads(BEFORE.joinpath(*path).read_text(encoding="utf-8"))


INPUTS = kept("inputs.json")


def same(found: Any, before: Any, tolerance: float, where: str = "") -> None:
    """Equal, but for the rounding of numbers that are not whole and for what varies from run to run."""
    if isinstance(before, dict):
        assert found.keys() - VARYING == before.keys() - VARYING, (where, (found.keys() ^ before.keys()) - VARYING)
        for name in before.keys() - VARYING:
            if name in JUMPING and not EXACT:
                assert type(found[name]) is type(before[name]), f"{where}.{name}"
            elif name in ("notes", "warnings"):  # more is warned of since
                assert all(sentence in found[name] for sentence in before[name] or ()), f"{where}.{name}"
            else:
                same(found[name], before[name], tolerance, f"{where}.{name}")
    elif isinstance(before, (list, tuple)):
        assert len(found) == len(before), where
        for i, (a, b) in enumerate(zip(found, before, strict=True)):
            same(a, b, tolerance, f"{where}[{i}]")
    elif where in HIDDEN:
        assert found == pytest.approx(before, rel=ABOUT), where
    elif isinstance(before, float) and not EXACT:
        assert found == pytest.approx(before, rel=tolerance, abs=tolerance), where
    else:
        assert found == before, where


def adds_up(parts: dict[str, Any], total: list[float], tolerance: float) -> bool:
    """Whether aleatoric and epistemic uncertainty are the entropy, or the variance, of the prediction beside them."""
    sums = [float(a) + float(e) for a, e in zip(parts["aleatoric"], parts["epistemic"], strict=True)]
    return all(abs(s - t) <= tolerance * max(abs(t), 1) for s, t in zip(sums, total, strict=True))


def same_predictions(found: dict[str, Any], before: dict[str, Any], tolerance: float) -> None:
    """Equal, but for parts of uncertainty that were wrong: those of a pool's members, which is no mixture of them.

    They did not add up to the entropy or the variance of the prediction beside them. Now they do. Nor were sites that
    differ without disagreement, as a newcomer's model of partial pooling had it.
    """
    total = lambda p: p["var"] if "var" in p else [entropy(row) for row in p["probs"]]
    known = before.keys() >= PARTS
    silent = known and not any(before["disagreement"]) and any(found["disagreement"])
    if silent or (known and not adds_up(before, total(before), 1e-6)):
        assert adds_up(found, total(found), 1e-6)
        found, before = ({k: v for k, v in p.items() if k not in PARTS} for p in (found, before))
    same(found, before, tolerance)


def entropy(probabilities: list[float]) -> float:
    """In nats."""
    return sum(-p * math.log(p) for p in probabilities if p > 0)


def same_file(found: Path, before: Path, tolerance: float) -> None:
    """Two files of tensors: the same header, names, types and shapes, and numbers that are near."""
    contents = []
    for path in (found, before):
        with safe_open(path, framework="pt") as file:
            head = json.loads(file.metadata()["consilience"])
            contents.append((head, {name: file.get_tensor(name) for name in file.keys()}))  # noqa: SIM118 — not a dict
    (head, tensors), (head_before, tensors_before) = contents
    same(head, head_before, tolerance, found.name)
    assert tensors.keys() == tensors_before.keys(), found.name
    for name, t in tensors_before.items():
        assert (tensors[name].dtype, tensors[name].shape) == (t.dtype, t.shape), name
        same(tensors[name].tolist(), t.tolist(), tolerance, f"{found.name} {name}")


def predicted(result: co.Result, problem: str) -> dict[str, Any]:
    p = result.predict(torch.tensor(INPUTS[problem]))
    return {name: value.tolist() for name, value in p._asdict().items() if value is not None}


def copied(what: str, to: Path) -> Path:
    """A copy that may be changed, without what is expected of it."""
    return Path(shutil.copytree(BEFORE / what, to, ignore=shutil.ignore_patterns("expected.json")))


def ran(invoke: Invoke, *words: str) -> str:
    """A command that works; what it printed."""
    code, out, err = invoke(*words)
    assert code == 0, err
    return out


def scores(metrics: dict[str, float]) -> dict[str, float]:
    """Smooth ones: an ECE's bins and an accuracy jump where a probability crosses a line by its last digit."""
    return {name: metrics[name] for name in ("nll", "brier")}


def moons() -> tuple[co.Task, co.Sites]:
    sites = co.datasets.moons(n=120).split(
        co.splits.dirichlet(0.8), sites=3, test=0.25, calibration=12, inputs=10, seed=1
    )
    return co.classification(co.models.mlp(2, 2, hidden=(4,))), sites


def many() -> tuple[co.Task, co.Sites]:
    sites = co.datasets.moons(n=160).split(co.splits.iid(), sites=8, test=0.25, calibration=12, seed=2)
    return co.classification(co.models.mlp(2, 2, hidden=(4,))), sites


def sine() -> tuple[co.Task, co.Sites]:
    sites = co.datasets.sine(n_per_site=20).split(
        co.splits.natural(), sites=3, test=0.25, calibration=6, inputs=8, seed=1
    )
    return co.regression(co.models.mlp(1, hidden=(4,))), sites


def digits() -> tuple[co.Task, co.Sites]:
    every = co.datasets.digits()
    few = co.data.Dataset("digits", every.x[:200], every.y[:200], classes=10, public=True)
    sites = few.split(co.splits.heterogeneous(0.7), sites=3, test=0.2, calibration=10, seed=3)
    return co.classification(co.models.mlp(64, 10, hidden=(6,))), sites


def tables() -> tuple[co.Task, co.Sites]:
    files = str(BEFORE / "hospitals" / "*.csv")
    sites = co.from_csv(files, target="disease", test=0.2, calibration=12, seed=0)
    return co.classification(co.models.linear(sites.features, sites.classes)), sites


PROBLEMS: dict[str, Callable[[], tuple[co.Task, co.Sites]]] = {
    f.__name__: f for f in (moons, many, sine, digits, tables)
}
