"""The command line as a person uses it: what it prints, its exit codes, and one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tiny
from tiny import Invoke

import consilience as co
from consilience.models import MODELS
from consilience.runs.store import Store

FAST = ["--set", "inference.epochs=2", "--set", "inference.batch=100"]
ONE_SAMPLE = [*FAST, "--set", "inference.cycles=1", "--set", "inference.samples=1"]


def test_advice_repeats_what_was_typed(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    code, out, _ = invoke("recommend", "--data", "digits", "--sites", "3")
    assert code == 0 and out.strip().endswith("--data digits --sites 3")


def test_run_writes_everything_and_says_where(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke("run", "fedavg", "--rounds", "2", *FAST)

    assert code == 0
    folder = tmp_path / "runs" / "fedavg-digits-1"
    assert {p.name for p in folder.iterdir()} == {
        "run.json",
        "task.json",
        "state.safetensors",
        "replies",
        "history.csv",
        "report.html",
    }
    assert "report.html" in out and "NLL" in out


def test_json_has_the_promised_keys(tmp_path: Path, invoke: Invoke) -> None:
    code, out, err = invoke("run", "beta", "--json", "--no-bounds", "--out", "r", *ONE_SAMPLE)

    assert code == 0, err
    value = json.loads(out)  # run.json alone on standard output

    keys = "method data split sites rounds seed engine settings metrics intervals per_site worst_site history ledger"
    assert set(keys.split()) | {"seconds", "failures", "versions"} <= set(value)
    assert {"accuracy", "nll", "brier", "ece", "ece_debiased", "auroc"} <= set(value["metrics"])
    assert all(isinstance(v, float) for v in value["metrics"].values())
    assert {"up_bytes", "down_bytes", "up_floats", "down_floats"} <= set(value["ledger"])
    assert value["sites"] == 5 and value["method"] == "beta"
    assert value == Store(tmp_path / "r").read_report()  # without what tells damage
    assert err == ""


def test_regression_scores(invoke: Invoke) -> None:
    code, out, _ = invoke("run", "mixture", "--data", "sine", "--json", "--no-bounds", *ONE_SAMPLE)
    assert code == 0
    assert {"rmse", "nll", "crps", "coverage95"} <= set(json.loads(out)["metrics"])


def test_both_engines_print_the_same_numbers(invoke: Invoke) -> None:
    words = [
        "run",
        "scaffold",
        "--data",
        "digits",
        "--split",
        "heterogeneous:0.9",
        "--sites",
        "10",
        "--rounds",
        "3",
        "--no-bounds",
        "--json",
    ]
    metrics = [
        json.loads(invoke(*words, "--set", "inference.epochs=1", "--engine", engine, "--out", engine)[1])["metrics"]
        for engine in ("sequential", "vectorised")
    ]
    assert metrics[0]["nll"] == pytest.approx(metrics[1]["nll"], abs=1e-4)
    assert metrics[0]["accuracy"] == pytest.approx(metrics[1]["accuracy"], abs=1e-2)


def test_pool_uses_saved_replies(invoke: Invoke) -> None:
    invoke("run", "mixture", "--no-bounds", "--out", "r", *ONE_SAMPLE)
    code, out, _ = invoke("pool", "r", "--method", "beta", "--json")
    assert code == 0
    assert json.loads(out)["method"] == "beta"


def test_bounds_stand_beside_the_result(invoke: Invoke) -> None:
    code, out, _ = invoke("run", "mixture", "--json", *ONE_SAMPLE)
    assert code == 0
    assert set(json.loads(out)["bounds"]) == {"local_only", "server_only", "centralised"}


def test_csv_files_one_per_site(invoke: Invoke, tmp_path: Path) -> None:
    for site in range(3):
        rows = [f"{i * 0.1},{(i * 7 + site) % 5},{'yes' if i % 2 else 'no'}" for i in range(40)]
        (tmp_path / f"hospital-{site}.csv").write_text("\n".join(["age,dose,disease", *rows]))
    code, out, _ = invoke(
        "run", "mixture", "--data", "*.csv", "--target", "disease", "--json", "--no-bounds", *ONE_SAMPLE
    )
    assert code == 0
    value = json.loads(out)
    assert [s["site"] for s in value["per_site"]] == ["hospital-0", "hospital-1", "hospital-2"]


def test_csv_files_are_dealt_as_asked(invoke: Invoke, tmp_path: Path) -> None:
    tiny.hospitals(tmp_path / "h")
    words = ["run", "mixture", "--target", "disease", "--json", "--no-bounds", *ONE_SAMPLE]

    dealt = invoke(*words, "--data", "h/*.csv", "--split", "dirichlet:0.5", "--sites", "4")
    alone = invoke(*words, "--data", "h/north.csv", "--sites", "4", "--calibration", "5")
    first = invoke(*words, "--data", "h/*.csv", "--sites", "2")

    told = [json.loads(out) for _, out, _ in (dealt, alone, first)]
    assert [(t["split"], t["sites"]) for t in told] == [("dirichlet:0.5", 4), ("dirichlet:0.5", 4), ("natural", 2)]
    assert [s["site"] for s in told[2]["per_site"]] == ["north", "south"]


def test_older_runs_that_ignored_the_split_are_still_read(invoke: Invoke, tmp_path: Path) -> None:
    tiny.hospitals(tmp_path / "h")
    invoke("run", "mixture", "--data", "h/*.csv", "--target", "disease", "--no-bounds", "--out", "r", *ONE_SAMPLE)
    saved = json.loads((tmp_path / "r" / "run.json").read_text())
    del saved["checksum"]  # which older runs do not have
    saved["recipe"] |= {"split": "dirichlet:0.1", "sites": 5}
    (tmp_path / "r" / "run.json").write_text(json.dumps(saved))

    code, out, _ = invoke("pool", "r", "--method", "beta", "--json")

    assert code == 0
    assert json.loads(out)["split"] == "natural"


def test_a_users_model(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = "nn.Linear(features, 7), nn.Tanh(), nn.Linear(7, outputs)"
    text = f"from torch import nn\ndef net(features, outputs):\n    return nn.Sequential({layers})\n"
    (tmp_path / "users_nets.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    code, out, _ = invoke("run", "fedavg", "--model", "users_nets:net", "--rounds", "1", "--json", "--no-bounds", *FAST)
    assert code == 0
    assert json.loads(out)["parameters"] == 64 * 7 + 7 + 70 + 10


def test_methods_are_listed_and_shown_from_their_files(invoke: Invoke) -> None:
    _, listed, _ = invoke("methods")
    _, shown, _ = invoke("methods", "beta")
    assert {"fedavg", "scaffold", "mixture", "bcm", "beta"} <= set(listed.split())
    assert "Hasan et al., AAAI 2024" in shown and "argmax of" in shown
    assert "inference.temperature" in shown and "the posterior" in shown
    assert "labelled rows" in shown and "samples of its posterior" in shown


def test_models_are_listed_with_their_sizes(invoke: Invoke) -> None:
    code, out, _ = invoke("models")
    assert code == 0 and all(name in out for name in MODELS)
    assert "30 730" in out  # linear: 3·32·32·10 weights and 10 biases
    assert "318 410" in out  # mlp: 3072·100 + 100 + 100·100 + 100 + 100·10 + 10


def test_datasets_are_listed(invoke: Invoke) -> None:
    code, out, _ = invoke("datasets")
    assert code == 0 and "digits" in out and "1797" in out


@pytest.mark.parametrize("words", ["--data-dir here get wine", "get wine --data-dir here"])
def test_data_are_fetched_into_the_folder_named(invoke: Invoke, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONSILIENCE_DATA", "elsewhere")
    monkeypatch.setattr("consilience.data.datasets.fetch", lambda name, data_dir: f"{data_dir}/{name}")

    _, out, _ = invoke("datasets", *words.split())

    assert out == "wine: here/wine\n"


def test_report_can_be_made_again(invoke: Invoke, tmp_path: Path) -> None:
    invoke("run", "fedavg", "--rounds", "1", "--no-bounds", "--out", "r", *FAST)
    (tmp_path / "r" / "report.html").unlink()
    assert invoke("report", "r")[0] == 0
    assert (tmp_path / "r" / "report.html").exists()


DROPOUT = "from torch import nn\ndef net(f, o):\n    return nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(f, o))\n"
NARROW = "from torch import nn\ndef net(f, o):\n    return nn.Linear(f, o - 1)\n"
NORMED = "from torch import nn\ndef net(f, o):\n    return nn.Sequential(nn.BatchNorm1d(f), nn.Linear(f, o))\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run fedavgg", "Did you mean 'fedavg'?"),
        ("run fedavg --data digit", "Did you mean 'digits'?"),
        ("run fedavg --split dirichle:0.1", "Did you mean 'dirichlet'?"),
        ("run fedavg --split heterogeneous:1.5", "h=1.5"),
        ("run fedavg --split dirichlet:0", "alpha=0.0 is not a positive number"),
        ("run fedavg --split dirichlet:-1", "alpha=-1.0 is not a positive number"),
        ("run fedavg --sites 5000", "sites"),
        ("run fedavg --sites 0", "at least one site"),
        ("run fedavg --data sine --sites 0", "ask for 1 to 5, not for 0"),
        ("run fedavg --engine gpu", "Known: auto"),
        ("run fedavg --model resnet9000", "model"),
        ("compare fedavg --split iid,,", "a comma has no split beside it"),
        ("study new a/b", "cannot name a study's file"),
        ("study new .", "cannot name a study's file"),
        ("run fedavg --model os:getpid", "cannot be made for"),
        ("run fedavg --inputs nan", "inputs=nan is neither a count nor a fraction"),
        ("run fedavg --inputs 2.5", "inputs=2.5 is neither a count nor a fraction"),
        ("run fedavg --model nowhere:net", "The model 'nowhere:net' cannot be imported: No module"),
        ("run fedavg --set inference.epoch=3", "Did you mean 'epochs'?"),
        ("run fedavg --set inference.epochs=many", "of type int"),
        ("run fedavg --set epochs", "field=value"),
        ("run fedavg --rounds 0", "at least one"),
        ("run mixture --rounds 3", "one-round"),
        ("run beta --calibration 0", "methods that need nothing there: bcm, "),
        ("run fedavg --rounds 1 --set inference.rate=1e9", "Site 0, round 1"),
        ("run fedavg --data *.csv", "name it as target"),
        ("run fedavg --data *.csv --target y", "*.csv"),
        ("run fedavg --data moons --target y", "target is for CSV files, and moons knows what it predicts"),
        ("run --resume nowhere", "not a run's folder"),
        ("pool nowhere --method bcm", "not a run's folder"),
        ("report nowhere", "not a run's folder"),
        ("methods bta", "Did you mean 'beta'?"),
        ("run fedavg --model dropping:net", "no key controls"),
        ("run fedavg --model narrow:net", "10 classes need (10,)"),
        ("run ep_mcmc --model normed:net", "cannot move the running statistics"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    invoke: Invoke, words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dropping.py").write_text(DROPOUT)
    (tmp_path / "narrow.py").write_text(NARROW)
    (tmp_path / "normed.py").write_text(NORMED)
    monkeypatch.syspath_prepend(tmp_path)

    code, out, err = invoke(*words.split())

    assert code == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err and out == ""
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("state.safetensors"))


RESUMED = (
    ("fedprox", "the method fedavg, not fedprox"),
    ("--seed 5", "--seed 0, not 5"),
    ("--set inference.rate=0.5", "--set inference.rate=0.05, not inference.rate=0.5"),
    ("--set inference.epochs=10", "--set inference.epochs=1, not inference.epochs=10"),
    ("--data wine --seed 0", "--data digits, not wine"),
    ("--sites 4", "--sites 2, not 4"),
    ("--split iid", "--split dirichlet:0.5, not iid"),
    ("--model mlp", "--model linear, not mlp"),
    ("--features relu", "--features none, not relu"),
    ("--dropout 0.1", "--dropout 0.0, not 0.1"),
    ("--participation 1", "--participation none, not 1.0"),
    ("--keep-replies all", "--keep-replies last, not all"),
    ("--bounds", "--bounds False, not True"),
    ("--out other", "--out r, not other"),
    ("--rounds 1", "already holds 2 rounds"),
)


def test_a_resumed_run_refuses_what_differs_and_takes_more_rounds(invoke: Invoke, tmp_path: Path) -> None:
    words = "fedavg --data digits --model linear --sites 2 --set inference.epochs=1 --rounds 2 --no-bounds --out r"
    made = ["run", *words.split()]
    assert invoke(*made)[0] == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file()}

    for words, sentence in RESUMED:
        code, _, err = invoke("run", "--resume", "r", *words.split())
        assert code == 2 and sentence in " ".join(err.split()) and "Traceback" not in err, words
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir() if path.is_file()}

    code, _, err = invoke(*made[:-2], "--resume", "r", "--rounds", "3", "--min-replies", "1")
    assert code == 0, err
    assert len(Store(tmp_path / "r").read_json()["history"]) == 3


def test_a_foreign_run_folder_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "run.json").write_text('{"something": "else"}')
    code, _, err = invoke("run", "--resume", "r")
    assert code == 2 and "not written by this version" in " ".join(err.split())


def test_a_run_from_python_is_resumed_there(invoke: Invoke, tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(tiny.method("fedavg"), task, sites, rounds=1, out=tmp_path / "r")
    code, _, err = invoke("run", "--resume", "r")
    assert code == 2 and "started from Python, resume it there" in " ".join(err.split()) and "Traceback" not in err

    report = Store(tmp_path / "r").read_json()
    (tmp_path / "r" / "run.json").write_text(json.dumps({**report, "finished": False}))
    code, _, err = invoke("report", "r")
    assert code == 2 and "has not finished: continue it with `co.run(…, resume=True)`" in " ".join(err.split())
