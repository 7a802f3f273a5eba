"""Feature maps on the command line: `--features` of run, compare, tune and study new, and their list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import Invoke

from consilience.models import FEATURES

FAST = ["--set", "inference.epochs=2", "--set", "inference.batch=100"]
RUN = ["run", "fedavg", "--no-bounds", "--rounds", "1", *FAST]


def test_feature_maps_are_listed(invoke: Invoke) -> None:
    code, out, _ = invoke("features")
    assert code == 0
    assert all(name in out for name in FEATURES)
    assert "1 024" in out


def test_a_run_on_features_is_kept_resumed_pooled_and_used_for_prediction(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke(*RUN, "--features", "conv:64", "--out", "r")
    assert code == 0
    assert "Features:" not in out  # nobody chose for the user
    report = json.loads((tmp_path / "r" / "run.json").read_text())
    assert report["recipe"]["features"] == "conv:64"
    assert report["model"] == "linear on conv:64"
    assert report["parameters"] == 10 * 65
    assert invoke("run", "--resume", "r")[0] == 0
    assert invoke("pool", "r", "--method", "mixture")[0] == 0


def test_a_runs_network_is_a_map_for_the_next(invoke: Invoke, tmp_path: Path) -> None:
    assert invoke(*RUN, "--out", "first")[0] == 0
    assert invoke(*RUN, "--features", "first", "--out", "second")[0] == 0
    plan = json.loads((tmp_path / "second" / "task.json").read_text())
    assert len(plan["network"]["Sequential"]["0"]["Frozen"]["sha256"]) == 64
    assert json.loads((tmp_path / "second" / "run.json").read_text())["parameters"] == 10 * 101
    (tmp_path / "first").rename(tmp_path / "moved")
    code, _, err = invoke("run", "--resume", "second", "--rounds", "2")  # its own folder is enough
    assert code == 0, err
    assert json.loads((tmp_path / "second" / "run.json").read_text())["rounds"] == 2
    code, _, err = invoke("run", "mixture", "--features", "nowhere")
    assert code == 2
    assert err.count("\n") == 1


def test_comparisons_and_searches_take_features(invoke: Invoke, tmp_path: Path) -> None:
    words = ["--features", "relu:40", "--data", "moons", *FAST]
    assert invoke("compare", "fedavg[rounds=1]", "fedprox[rounds=1]", "--no-bounds", "--out", "c", *words)[0] == 0
    assert json.loads((tmp_path / "c" / "compare.json").read_text())["model"] == "linear on relu:40"
    assert json.loads((tmp_path / "c" / "plan.json").read_text())["recipe"]["features"] == "relu:40"
    (tmp_path / "grid.json").write_text('{"inference.rate": [0.1]}')
    tuned = ["tune", "fedavg", "--rounds", "1", "--grid", "grid.json", "--out", "t", "--model", "mlp"]
    assert invoke(*tuned, *words)[0] == 0
    assert json.loads((tmp_path / "t" / "plan-fedavg.json").read_text())["recipe"]["model"] == "mlp"


def test_a_study_takes_features(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke("study", "new", "sepsis", "--features", "fourier:50")
    assert code == 0
    assert "102 parameters" in out
    assert 'features = "fourier:50"' in (tmp_path / "sepsis.toml").read_text()
    assert "linear on fourier:50" in invoke("study", "show", "sepsis.toml")[1]
    code, _, err = invoke("study", "new", "other", "--features", "conv")
    assert code == 2
    assert "is for images" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--features kov", "Did you mean 'conv'?"),
        ("--features relu:0", "take 1 to 16,384"),
        ("--features conv:512 --data moons", "are not images"),
    ],
)
def test_mistakes_get_one_sentence(invoke: Invoke, words: str, sentence: str) -> None:
    code, _, err = invoke(*RUN, *words.split())
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
