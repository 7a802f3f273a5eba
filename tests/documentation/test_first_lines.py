"""The first lines a user writes, as printed in the README, and what they show."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tiny import hospitals

import consilience as co


@pytest.fixture
def in_hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hospitals(tmp_path / "hospitals")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_hospitals")
def test_first_lines(capsys: pytest.CaptureFixture[str]) -> None:
    sites = co.from_csv("hospitals/*.csv", target="disease", test=0.2, calibration=30, seed=0)
    task = co.classification(co.models.mlp(sites.features, sites.classes))
    result = co.run(co.methods.BetaPredictiveBayes(), task, sites, seed=0)
    print(result)
    p = result.predict([[55.0, 0.5], [30.0, 0.1]])
    mixed = result.pool(co.methods.Mixture()).metrics

    shown = capsys.readouterr().out
    for word in ("NLL", "Brier", "ECE", "Weakest site", "Bytes"):
        assert word in shown
    assert p.probs is not None and p.probs.shape == (2, 2)
    assert float(p.probs[0, 1]) > float(p.probs[1, 1])  # the older patient, in the files' own units
    assert p.epistemic.shape == p.disagreement.shape == (2,)
    assert 0 < mixed["nll"] < 2


def test_public_names_are_all_there_is() -> None:
    assert all(hasattr(co, name) for name in co.__all__)
    imported = {n for n, v in vars(co).items() if not n.startswith("_") and not isinstance(v, ModuleType)}
    assert imported <= {*co.__all__, "Any"}, "type checkers see only the names that are listed"
    names = [name for name in co.__all__ if not isinstance(getattr(co, name), ModuleType)]
    assert len(names) <= 66, "the rest belongs in namespaces"
