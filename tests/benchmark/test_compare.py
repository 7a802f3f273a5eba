"""Comparing: the same numbers as separate runs, trained once, resumed anywhere, and told the same way everywhere."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience.aggregation.distil import Distil
from consilience.benchmark import Comparison
from consilience.benchmark import compare as compare_methods
from consilience.benchmark.cells import Cell, Described
from consilience.benchmark.export import csv_text, markdown
from consilience.benchmark.outcomes import outcomes
from consilience.benchmark.pairing import pair
from consilience.benchmark.plan import Plan, parse_seeds
from consilience.benchmark.row_summary import RowSummary, join_seeds, over_seeds, summarise_row
from consilience.benchmark.row_words import PRESETS, Row, changed_settings, has, method_row, read_settings, row
from consilience.benchmark.running import compare_plan
from consilience.distributions.posterior import Point, Posterior, centre
from consilience.errors import InputError
from consilience.inference import chain
from consilience.messages import Client
from consilience.methods import METHODS
from consilience.metrics.paired import difference, holm
from consilience.report.plots.trends import degrees
from consilience.report.run_page import comparison_page
from consilience.runs.engines import processes
from consilience.runs.problem import Problem
from consilience.runs.store import Store, as_json
from consilience.serialisation.settings import describe

MOONS = Problem("moons", model="linear", sites=3, calibration=10)
SHORT = ("inference.epochs=2", "inference.batch=200", "inference.cycles=1", "inference.samples=1")
CALLS: list[int] = []
CELLS = "cells/dirichlet-0.5"


@dataclass(frozen=True)
class Counting:
    """An inference that only counts how often it is asked."""

    shift: float = 0.0

    def __call__(self, task: co.Task, start: Posterior, client: Client) -> Point:
        CALLS.append(1)
        return Point({name: value + self.shift for name, value in centre(start, task.like).params.items()})


def plan(*words: str, **changes: Any) -> Plan:
    made = Plan(words, MOONS, ("dirichlet:0.5",), (0,), common=SHORT, bounds=False)
    return replace(made, **changes)


def compare(*args: Any, **settings: Any) -> dict[str, Any]:
    """What compare.json holds."""
    return compare_plan(*args, **settings).to_json()


def without_times(found: dict[str, Any]) -> Any:
    """What should be equal in two comparisons of the same plan."""
    text = json.loads(as_json(found))

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {k: strip(v) for k, v in node.items() if k != "seconds"}
        return [strip(v) for v in node] if isinstance(node, list) else node

    return strip(text)


def test_rows_that_share_an_inference_train_once() -> None:
    task, sites = tiny.classification()  # four sites
    one, other = Counting(), Counting(0.1)
    rows = [
        Row("mixture", "", co.methods.Mixture(one), 1),
        Row("bcm", "", co.methods.BCM(one), 1),
        Row("beta", "", co.methods.BetaPredictiveBayes(one), 1),
        Row("local_only", "", co.methods.LocalOnly(one), 1),
        Row("fedavg[rounds=1]", "", co.methods.FedAvg(one), 1),
        Row("fedavg", "", co.methods.FedAvg(one), 2),
        Row("mixture[shift]", "", co.methods.Mixture(other), 1),
    ]
    CALLS.clear()
    list(outcomes(rows[:5], task, sites, 0, "sequential"))
    assert len(CALLS) == 4  # four sites, once
    list(outcomes(rows, task, sites, 0, "sequential"))
    assert len(CALLS) == 4 + 4 + 8 + 4  # again, two rounds that cannot be shared, another inference


def test_rows_whose_replies_differ_share_the_training_they_begin_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"common": SHORT[:2]}
    alone = [compare(plan(word, **short), tmp_path / word)["rows"][0] for word in ("regmean", "fedlpa")]
    trained = []
    pace = chain._pace  # which every chain that runs asks for
    monkeypatch.setattr(chain, "_pace", lambda *inputs: trained.append(1) or pace(*inputs))

    together = compare(plan("regmean", "fedlpa", **short), tmp_path / "both")["rows"]

    assert len(trained) == 3  # three sites, once
    assert [row["metrics"] for row in together] == [row["metrics"] for row in alone]


@dataclass(frozen=True)
class Exploding:
    """An inference whose weights are finite, and whose predictions are not."""

    def __call__(self, task: co.Task, start: Posterior, client: Client) -> Point:
        return Point({name: torch.full_like(value, 1e38) for name, value in centre(start, task.like).params.items()})


@dataclass(frozen=True)
class Singular(Counting):
    """An inference that fails as a matrix of huge numbers does."""

    def __call__(self, task: co.Task, start: Posterior, client: Client) -> Point:
        raise torch.linalg.LinAlgError("the input is not positive-definite")


def test_a_row_whose_teacher_or_matrix_is_not_finite_is_lost_and_the_others_are_kept() -> None:
    task, sites = tiny.classification()
    student = tiny.shortened(Distil())
    rows = [
        Row("beta", "", co.methods.BetaPredictiveBayes(Exploding(), distil=student), 1),
        Row("singular", "", co.methods.Mixture(Singular()), 1),
        Row("mixture", "", co.methods.Mixture(Counting()), 1),
    ]
    taught, singular, mixture = outcomes(rows, task, sites, 0, "sequential")
    assert taught.result is None and "teacher's predictions are not finite" in taught.failure
    assert singular.result is None and "leave some weights open" in singular.failure
    assert mixture.result is not None


def test_shared_replies_give_the_numbers_of_separate_runs() -> None:
    task, sites = tiny.classification()
    short = tiny.shortened(co.CyclicalSGHMC())
    student = tiny.shortened(Distil())
    methods = [
        co.methods.LocalOnly(short),
        co.methods.Mixture(short),
        co.methods.BetaPredictiveBayes(short, distil=student),
    ]
    rows = [Row(str(i), "", method, 1) for i, method in enumerate(methods)]
    for r, result, _ in outcomes(rows, task, sites, 3):
        alone = co.run(r.method, task, sites, seed=3)
        assert result is not None
        for key in ("metrics", "tempered", "ledger", "engine", "settings", "history"):
            assert result.report[key] == alone.report[key], key


def test_a_comparison_holds_the_numbers_of_separate_runs(tmp_path: Path) -> None:
    found = compare(plan("mixture", "fedavg[rounds=2]", seeds=(0, 4)), tmp_path)
    for r in found["splits"][0]["rows"]:
        values = []
        for seed in (0, 4):
            task, sites = replace(MOONS, split="dirichlet:0.5").build(seed)
            made = row(r["row"], None, dict(text.split("=") for text in SHORT))
            values.append(co.run(made.method, task, sites, rounds=made.rounds, seed=seed).metrics["nll"])
        assert r["values"]["nll"] == values
        assert r["metrics"]["nll"] == pytest.approx(sum(values) / 2)
        rows = found["rows_of_data"]
        shared = (0.5 + rows["test"] / rows["train"]) ** 0.5  # both seeds split one table: Nadeau and Bengio
        assert r["errors"]["nll"] == pytest.approx(statistics.stdev(values) * shared)


def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path) -> None:
    made = plan("mixture", "beta", "fedavg[rounds=1]", seeds=(0, 1))
    whole = compare(made, tmp_path / "whole")
    heard = []

    def stop(now: Comparison) -> None:
        heard.append(now)
        if len(heard) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(made, tmp_path / "cut", on_row=stop)
    cells = sorted((tmp_path / "cut" / "cells").rglob("*.json"))
    before = {c: (c.stat().st_mtime_ns, c.read_bytes()) for c in cells}
    resumed = compare(made, tmp_path / "cut")

    assert len([c for c in cells if c.name != "problem.json"]) < 6
    assert all((c.stat().st_mtime_ns, c.read_bytes()) == kept for c, kept in before.items())  # not run again
    assert without_times(resumed) == without_times(whole)
    assert without_times(compare(made, tmp_path / "cut")) == without_times(whole)  # nothing left to do
    assert len(list((tmp_path / "cut" / "cells" / "dirichlet-0.5" / "1").iterdir())) == 4  # three rows, one problem


def test_another_plan_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    compare(plan("mixture"), tmp_path)
    for other in (plan("mixture", seeds=(1,)), plan("bcm"), plan("mixture", common=(*SHORT, "inference.rate=0.1"))):
        with pytest.raises(InputError, match="holds another comparison"):
            compare(other, tmp_path)
    compare(plan("mixture"), tmp_path, reference="mixture")  # who is paired with whom decides no number of a cell


def test_a_row_that_diverges_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    comparison = compare_plan(plan("fedavg[rounds=1,inference.rate=1e30]", "mixture", seeds=(0, 1)), tmp_path)
    found = comparison.to_json()
    bad, good = found["rows"]
    assert bad["metrics"] == {} and bad["tempered"] is None
    assert good["metrics"]["nll"] > 0
    assert len([w for w in found["warnings"] if "seed 0" in w or "seed 1" in w]) == 2
    assert "mixture" in markdown(comparison) and comparison_page(found)


def test_a_row_whose_sites_all_diverge_is_told_too(tmp_path: Path) -> None:
    forgiving = co.Participation(min_replies=1)
    found = compare(plan("fedavg[rounds=1,inference.rate=1e30]", "mixture", participation=forgiving), tmp_path)
    bad, good = found["rows"]
    assert bad["metrics"] == {} and good["metrics"]["nll"] > 0
    (warning,) = found["warnings"]
    assert "0 of 3 sites replied, and at least 1 must; training failed: Site 0, round 1" in warning


def test_json_csv_and_markdown_agree(tmp_path: Path) -> None:
    made = plan("beta", "mixture", splits=("dirichlet:0.5", "iid"), seeds=(0, 1), bounds=True)
    comparison = compare_plan(made, tmp_path)
    found = comparison.to_json()
    lines = list(csv.DictReader(io.StringIO(csv_text(comparison))))
    text = markdown(comparison)

    assert [part["split"] for part in found["splits"]] == ["dirichlet:0.5", "iid"]
    names = ["beta", "mixture", "local_only", "server_only", "centralised"]
    for part in found["splits"]:
        assert [r["row"] for r in part["rows"]] == names
        section = text.split(f"## {part['split']}\n")[1].split("\n## ")[0]
        for r in part["rows"]:
            own = [x for x in lines if (x["split"], x["row"], x["score"]) == (part["split"], r["row"], "nll")]
            plain = [float(x["value"]) for x in own if x["tempered"] == "no"]
            assert plain == r["values"]["nll"]
            assert [int(x["seed"]) for x in own[:2]] == [0, 1]
            rows = part["rows_of_data"]
            mean, error = statistics.fmean(plain), statistics.stdev(plain) * (0.5 + rows["test"] / rows["train"]) ** 0.5
            line = next(x for x in section.splitlines() if x.startswith(f"| {r['row']} |"))
            assert f"{mean:.3f} ± {error:.3f}" in line
            soft = [float(x["value"]) for x in own if x["tempered"] == "yes"]
            assert soft == (r["tempered"]["values"]["nll"] if r["tempered"] else [])
    assert found["rows"] == found["splits"][0]["rows"]  # what pages of one split read
    assert {r["passes"] for r in found["rows"] if r["row"] in ("beta", "mixture", "local_only")} == {2}
    assert "fixed test set" not in found["leaves_out"]  # moons have no official test part
    page = comparison_page(found)
    assert "dirichlet:0.5" in page and "± " in page and "standard errors" in page


def rows_of(*values: list[float]) -> list[RowSummary]:
    return [
        RowSummary(
            f"r{i}", f"r{i}", "", "nothing", 1, seeds=tuple(range(len(v))), scores=over_seeds([{"nll": x} for x in v])
        )
        for i, v in enumerate(values)
    ]


def test_differences_are_paired_with_the_reference_and_adjusted_over_rows() -> None:
    a = [1.0, 1.1, 0.9, 1.2, 1.05, 1.3, 0.8, 1.15]
    better, same = [x - 0.2 - 0.01 * i for i, x in enumerate(a)], [x + 0.01 * (-1) ** i for i, x in enumerate(a)]
    summaries = [*rows_of(a, better, same), replace(rows_of(better)[0], row="bound", needs="bound")]
    rows = [summary.to_json() for summary in pair(summaries, "r0")]

    p = [difference(better, a).p, difference(same, a).p]
    assert "differences" not in rows[0]
    d = rows[1]["differences"]["nll"]
    # The differences are −0.20 … −0.27: mean −0.235. All eight have one sign: p = 2/2⁸, times two rows.
    assert d["mean"] == pytest.approx(-0.235)
    assert d["p"] == pytest.approx(2 / 2**8) and d["p_holm"] == pytest.approx(4 / 2**8)
    assert [r["differences"]["nll"]["p_holm"] for r in rows[1:3]] == holm(p)
    assert d["arrow"] == "↑" and rows[2]["differences"]["nll"]["arrow"] == ""
    assert "p" not in rows[3]["differences"]["nll"]  # bounds are no competitors


def test_a_reference_may_be_typed_with_blanks(tmp_path: Path) -> None:
    rows = ("fedavg[rounds=1,inference.rate=0.1]", "fedavg[rounds=1,inference.rate=0.2]")
    made = plan(*rows, seeds=tuple(range(6)), common=SHORT[:2])
    found = compare(made, tmp_path, reference="fedavg[rounds=1, inference.rate=0.2]")
    assert found["reference"] == rows[1]
    assert [bool(r.get("differences")) for r in found["rows"]] == [True, False]


def test_below_six_seeds_nothing_is_paired() -> None:
    rows = pair(rows_of([1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 2.0, 3.0, 4.0]), "r0")
    assert not any("differences" in r.to_json() for r in rows)


def test_reliability_bins_of_seeds_are_joined_by_their_counts() -> None:
    def one(n: int, confidence: float | None, accuracy: float | None) -> list[dict[str, Any]]:
        return [{"low": 0, "high": 1, "count": n, "confidence": confidence, "accuracy": accuracy, "interval": [0, 1]}]

    both = join_seeds([one(10, 0.5, 0.4), one(30, 0.7, 0.8), one(0, None, None)])[0]
    assert both["count"] == 40 and both["interval"] is None
    assert both["confidence"] == pytest.approx(0.65)  # (10·0.5 + 30·0.7) / 40
    assert both["accuracy"] == pytest.approx(0.7)  # (10·0.4 + 30·0.8) / 40


def test_bounds_infer_as_the_first_one_round_row() -> None:
    rows = {r.word: r for r in plan("fedavg", "beta", bounds=True).rows(None)}
    assert list(rows) == ["fedavg", "beta", "local_only", "server_only", "centralised"]
    assert rows["local_only"].method.inference == rows["centralised"].method.inference == rows["beta"].method.inference
    assert rows["server_only"].method == co.methods.ServerOnly()  # few rows need their many passes
    unlabelled = replace(MOONS, calibration=0)
    words = [r.word for r in plan("mixture", "local_only", problem=unlabelled, bounds=True).rows(None)]
    assert words == ["mixture", "local_only", "centralised"]


def test_settings_come_in_layers() -> None:
    tuned = {"inference": "SGD", "inference.rate": 0.3, "inference.momentum": 0.5, "rounds": 4}
    made = row("fedavg[inference.rate=0.7]", tuned, {"inference.epochs": "3", "inference.temperature": "0"})
    assert made.method == co.methods.FedAvg(co.SGD(rate=0.7, momentum=0.5, epochs=3)) and made.rounds == 4
    # another inference loses what the file says of the old one
    assert row("fedavg[inference=Adam,rounds=2]", tuned).method == co.methods.FedAvg(co.Adam())
    assert row("fedavg", tuned, None, 7).rounds == 7 and row("mixture", None, None, 7).rounds == 1
    # settings of something that is switched off wait until it is on
    student = {"distil.inference.rate": 0.5}
    assert row("beta", student).method == co.methods.BetaPredictiveBayes()
    assert row("beta[distil=Distil]", student).method.distil.inference.rate == 0.5
    assert row("fedavg[rounds=1]").name == "Federated averaging, 1 round"


@pytest.mark.parametrize("preset", sorted(p.name for p in PRESETS.iterdir() if p.name.endswith(".json")))
def test_every_preset_fits_the_methods(preset: str) -> None:
    tables = json.loads((PRESETS / preset).read_text())["data"]
    for data, split in [(d, s) for d in tables for s in ("iid", "heterogeneous:0.6")]:
        for name, settings in read_settings(preset.removesuffix(".json"), data, split).items():
            word = f"{name}[distil=Distil]" if has(METHODS[name](), "distil") else name
            made = row(word, settings).method
            assert all(has(made, path) for path in settings if path != "rounds"), (data, name)


def test_the_papers_values_arrive() -> None:
    # Hasan 2023, Table B.2: MNIST, h = 0; Table B.3: CIFAR10, h > 0; Table B.4: wine
    even = read_settings("hasan2024", "mnist", "heterogeneous:0")
    assert row("beta", even["beta"]).method.inference.rate == 0.5
    assert row("fedavg", even["fedavg"]).method.inference == co.SGD(0.1, 0.9, 25, 100)
    uneven = read_settings("hasan2024", "cifar10", "heterogeneous:0.3")
    assert row("fedprox", uneven["fedprox"]).method.inference == co.SGD(0.01, 0.9, 50, 100)
    wine = row("bcm", read_settings("hasan2024", "wine@hasan2023", None)["bcm"]).method.inference
    # T = 0.05 there; n_k/N = 0.8/5 here
    assert wine == co.CyclicalSGHMC(0.2, 0.9, 20, 4, 2, 4, 100, 0.05 * 0.16)


def test_seeds_in_words() -> None:
    assert parse_seeds("0-3") == (0, 1, 2, 3) and parse_seeds("0,3, 7") == (0, 3, 7) and parse_seeds("5") == (5,)
    assert parse_seeds("1-2,9") == (1, 2, 9)


def test_splits_that_differ_in_one_number() -> None:
    assert degrees(["heterogeneous:0", "heterogeneous:0.9"]) == ("h", [0.0, 0.9])
    assert degrees(["iid", "heterogeneous:0.3@hasan2023"]) == ("h", [0.0, 0.3])
    assert degrees(["dirichlet:10", "dirichlet:0.1"]) == ("α", [10.0, 0.1])
    assert degrees(["iid"]) is None and degrees(["natural", "iid"]) is None
    assert degrees(["dirichlet:1", "heterogeneous:0.3"]) is None


FAST = ["--data", "moons", "--model", "linear", "--no-bounds", *(w for s in SHORT for w in ("--set", s))]


def test_the_command_writes_everything(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke("compare", "beta", "fedavg[rounds=1]", *FAST, "--seeds", "0-5", "--reference", "beta")
    folder = tmp_path / "runs" / "compare-moons-1"
    assert code == 0 and "NLL" in out and "report.html" in out
    assert {p.name for p in folder.iterdir()} == {
        *("plan.json", "cells", "baselines", "compare.json", "compare.csv", "curves.csv", "compare.md", "report.html")
    }
    found = json.loads((folder / "compare.json").read_text())
    demo = "kind format title sentence data split sites seed rows labels site_names rows_of_data seconds"
    assert set(demo.split()) <= set(found)
    other = next(r for r in found["rows"] if r["row"] != "beta")
    assert other["differences"]["nll"]["n"] == 6 and other["settings"] == describe(
        row("fedavg", None, dict(s.split("=") for s in SHORT)).method
    )
    assert "reference" in (folder / "report.html").read_text()
    assert invoke("report", str(folder))[0] == 0


def test_json_alone_on_standard_output(invoke: Invoke) -> None:
    code, out, err = invoke("compare", "mixture", *FAST, "--json", "--out", "c")
    assert code == 0 and json.loads(out)["kind"] == "comparison" and err == ""
    assert invoke("compare", "bcm", *FAST, "--out", "c")[0] == 2


def test_the_data_sets_are_still_listed(invoke: Invoke) -> None:
    code, out, _ = invoke("datasets")
    assert code == 0 and "digits" in out
    assert invoke("datasets", "get", "digits")[0] == 2  # built in: nothing to fetch


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("compare", "Say what to compare"),
        ("compare bta", "Did you mean 'beta'?"),
        ("compare beta[rounds=x]", "whole number"),
        ("compare beta[inference.epoch=3]", "Did you mean 'epochs'?"),
        ("compare beta[inference.epochs]", "field=value"),
        ("compare beta[", "is not a row"),
        ("compare beta beta", "Two rows are the same"),
        ("compare mixture[rounds=3]", "one-round"),
        ("compare beta --set inference.epoch=3", "Did you mean 'inference.epochs'?"),
        ("compare beta --seeds 3-1", "is not a list of seeds"),
        ("compare beta --seeds a", "is not a list of seeds"),
        ("compare beta --seeds 1,1", "a seed twice"),
        ("compare beta --split iid,iid", "named twice"),
        ("compare beta --split dirichle:1", "Did you mean 'dirichlet'?"),
        ("compare beta --reference bcm", "There is no row called 'bcm'"),
        ("compare beta --engine gpu", "There is no engine"),
        ("compare beta --calibration 0", "needs labelled rows"),
        ("compare beta --settings nowhere", "no preset of that name; presets:"),
        ("compare beta --settings hasan2024", "holds nothing for digits"),
        ("compare beta --settings wrong.json", "should hold"),
        ("datasets get digit", "Did you mean 'digits'?"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(invoke: Invoke, tmp_path: Path, words: str, sentence: str) -> None:
    (tmp_path / "wrong.json").write_text("[1]")
    code, out, err = invoke(*words.split())
    assert code == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err and out == ""
    assert not list(tmp_path.rglob("cells"))


STOPPING = """
from pathlib import Path
from torch import nn
stopped = []
class Net(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.layer = nn.Linear(features, outputs)
    def forward(self, x):
        if not stopped and list(Path("c").rglob("mixture.json")):
            stopped.append(True)
            raise KeyboardInterrupt
        return self.layer(x)
"""


def test_ctrl_c_says_how_to_go_on(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stopping.py").write_text(STOPPING)  # a network that presses Ctrl-C once the first row is there
    monkeypatch.syspath_prepend(tmp_path)
    words = ["compare", "mixture", "fedavg[rounds=1]", *FAST, "--model", "stopping:Net", "--out", "c"]
    code, _, err = invoke(*words)
    assert code == 130 and "--out c" in err
    assert [p.name for p in (tmp_path / "c").rglob("*.json") if p.parent.name == "0"].count("mixture.json") == 1
    assert not (tmp_path / "c" / "compare.json").exists()
    assert invoke(*words)[0] == 0
    assert len(json.loads((tmp_path / "c" / "compare.json").read_text())["rows"]) == 2


def test_regression_rows_compare_too(tmp_path: Path) -> None:
    made = plan("beta", "mixture", problem=Problem("sine", model="linear", calibration=10), splits=(None,))
    comparison = compare_plan(made, tmp_path)
    found = comparison.to_json()
    assert {"rmse", "nll", "crps"} <= set(found["rows"][0]["metrics"])
    assert found["labels"] is None and found["split"] == "natural"
    assert "CRPS" in markdown(comparison) and "RMSE" in comparison_page(found)
    assert torch.isfinite(torch.tensor(found["rows"][0]["metrics"]["nll"]))


def test_python_compares_words_and_objects_without_a_folder(tmp_path: Path) -> None:
    short = co.SGD(epochs=2, batch=200)
    problem = replace(MOONS, split="iid")
    settings = dict(text.split("=") for text in SHORT)
    methods = ["mixture", "fedavg[rounds=2]", co.methods.FedAvg(short)]
    table = compare_methods(methods, problem, seeds=range(2), rounds=1, settings=settings, bounds=False)
    assert [r.row for r in table.rows] == ["mixture", "fedavg[rounds=2]", method_row(co.methods.FedAvg(short)).word]
    assert "NLL" in str(table) and "\x1b" not in str(table) and table.to_json()["seeds"] == [0, 1]
    kept = compare_methods(
        methods, problem, seeds="0-1", rounds=1, settings=[settings], bounds=False, out=tmp_path / "c"
    )
    assert without_times(kept.to_json()) == without_times(table.to_json())
    assert (tmp_path / "c" / "compare.json").exists()


@pytest.mark.parametrize(
    "method",
    [
        co.methods.FedAvg(),
        co.methods.FedAvg(co.Adam(rate=0.5)),
        co.methods.Mixture(co.CyclicalSGHMC(epochs=3)),
        co.methods.BetaPredictiveBayes(distil=Distil(co.SGD(rate=0.25))),
        co.methods.FedBE(co.methods.FedAvg(co.SGD(epochs=7))),
        co.methods.FedAdam(rate=0.03),
    ],
)
def test_an_object_is_written_as_words_that_make_it(method: co.Method) -> None:
    written = method_row(method)
    assert row(written.word).method == method
    assert row(written.word).word == written.word
    assert bool(changed_settings(method)) == (method != type(method)())


def test_cells_and_problems_survive_their_files(tmp_path: Path) -> None:
    compare_plan(plan("fedavg[rounds=1,inference.rate=1e30]", "mixture"), tmp_path)
    place = tmp_path / "cells" / "dirichlet-0.5" / "0"
    for file in place.iterdir():
        value = Store(place).read_json(file.name)
        kind = Described if file.name == "problem.json" else Cell
        assert json.loads(as_json(kind.from_json(value).to_json())) == value


def test_a_dash_in_a_table_is_explained() -> None:
    def cell(nll: float | None) -> Cell:
        return Cell("mixture", "", "mixture", "mixture", "nothing", 1, metrics={"rmse": 1.0, "nll": nll})

    summary = summarise_row(row("mixture"), {0: cell(1.0), 1: cell(None), 2: cell(math.inf)})
    assert summary.scores.metrics["nll"] is None
    explained = [warning for warning in summary.warnings if "NLL not finite" in warning]
    assert [warning.split(":")[0].split(", ")[1] for warning in explained] == ["seed 1", "seed 2"]
    assert "Set a smaller rate" in explained[0]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_seeds_side_by_side_give_what_seeds_in_turn_give(
    real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes, or one that takes the last seed first; an earlier start left a seed half finished."""
    if not real:
        jump = lambda work, jobs, workers: ((job, work(*job)) for job in reversed(jobs))
        monkeypatch.setattr("consilience.benchmark.running.run_in_processes", jump)
    made = plan("mixture", "bcm", seeds=(0, 1, 2))
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    expected = compare(made, alone)
    shutil.copytree(alone, beside)
    shutil.rmtree(beside / CELLS / "0")
    shutil.rmtree(beside / CELLS / "2")
    (beside / CELLS / "1" / "mixture.json").unlink()
    seeds: list[tuple[int, ...]] = []

    found = compare_plan(made, beside, on_row=lambda now: seeds.append(now.parts[0].rows[0].seeds), workers=2)

    assert without_times(found.to_json()) == without_times(expected)
    assert [len(known) for known in seeds] == [1, 2, 3] and seeds[-1] == (0, 1, 2)


def test_few_seeds_stay_in_one_process_and_many_get_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "cores", lambda: 3)
    assert [processes.usual_workers(jobs) for jobs in (1, 3, 4, 100)] == [1, 1, 3, 3]


def test_rounds_of_other_processes_cannot_be_told() -> None:
    with pytest.raises(InputError, match="leave out `on_round`, or `workers`"):
        co.compare("mixture", co.Problem("moons"), engine=co.Compute(workers=2), on_round=print)
