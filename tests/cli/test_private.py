"""Privacy on the command line: said in run.json and on the screen, continued, and refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import Invoke

RUN = ("run", "exact_tuned", "--data", "moons", "--features", "fourier:12", "--no-bounds", "--epsilon", "3")


def test_a_private_run_says_so_and_can_be_continued(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke(*RUN, "--noise", "once", "--sites", "4", "--delta", "1e-4", "--out", "r")
    assert code == 0
    assert "ε = 3" in out and "simulated" in out
    report = json.loads((tmp_path / "r" / "run.json").read_text())
    assert report["privacy"]["epsilon"] == 3 and report["privacy"]["honest_sites"] == 4
    assert report["privacy"]["unit"] == "row" and report["privacy"]["simulated"]
    assert "ε = 3" in (tmp_path / "r" / "report.html").read_text()
    assert "Bounded" in (tmp_path / "r" / "task.json").read_text()
    assert invoke("run", "--resume", "r")[0] == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [(("run", "fedavg", "--epsilon", "3"), "fedavg has no private form"),
     (("compare", "exact", "fedavg", "--epsilon", "3"), "fedavg has no private form"),
     (("run", "gaussian_product", "--data", "moons", "--epsilon", "3", "--delta", "1e-4"), "use glm"),
     (("run", "exact", "--epsilon", "0"), "epsilon=0"),
     (("run", "exact", "--epsilon", "-1"), "epsilon=-1"),
     (("run", "exact", "--delta", "1e-5"), "belongs to --epsilon"),
     (("run", "exact", "--epsilon", "1", "--unit", "patient"), "do not say whose"),
     ((*RUN, "--delta", "0.1"), "delta=0.1"),
     ((*RUN, "--delta", "1e-4", "--rounds", "3"), "spent in 2"),
     ((*RUN, "--delta", "1e-4", "--noise", "once", "--sites", "2"), "With 2 sites"),
     (("study", "new", "s", "--method", "exact", "--epsilon", "1", "--unit", "patient"), "belong together"),
     (("site", "ledger", "nowhere.ledger"), "no ledger")],
)  # fmt: skip
def test_refusals_are_one_sentence(invoke: Invoke, words: tuple[str, ...], part: str) -> None:
    code, _, err = invoke(*words)
    assert code == 2
    assert part in err and "Traceback" not in err
