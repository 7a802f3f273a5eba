"""Own models × sets × predict × export × files × reload: what the report scored is what is handed out for its rows."""

from __future__ import annotations

import csv
import json
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tiny import Invoke
from torch import Tensor

import consilience as co
from consilience.distributions.penalties import proximal
from consilience.distributions.posterior import Point, average
from consilience.inference import Inference
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import Personal, State
from consilience.methods.hierarchical import Hierarchical
from consilience.runs.result import Prediction, Result
from consilience.task import Task
from consilience.tree import Tree

NAMES = ("north", "south", "west")


@dataclass(frozen=True)
class Ditto(Personal, co.Method):
    """Ditto.  Li, Hu, Beirami and Smith, ICML 2021, Algorithm 1; sites have models of their own.

        for each round
            for each client k, in parallel
    1           θₖ ← training on client k's data, started at θ
    2           vₖ ← training on client k's data of its loss + (λ/2)‖v − θ‖², started at vₖ;  it stays
    3       θ ← Σₖ (nₖ / n) θₖ
    4   client k predicts with vₖ

    Attributes:
        inference: How a client trains.
        pull: λ.
    """

    inference: Inference = co.SGD(epochs=3, rate=0.3)
    pull: float = 0.01

    def memory(self, message: Tree) -> Tree:
        return message

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        shared = self.inference(task, message, client)  # 1
        own = self.inference(task.tilted(proximal(message.params, self.pull)), client.memory, client)  # 2
        return Reply(shared, client.data.size, keep=own)

    def aggregate(self, task: Task, state: State, replies: list[Received], server: Server) -> State:
        return State(average(payloads(replies), weights(replies)))  # 3

    def at_home(self, task: Task, state: State, memory: Tree) -> State:
        if memory == ():
            return state
        return State(memory)  # 4


def write_hospitals(folder: Path, kind: str) -> None:
    """Three sites whose effects differ, one of them by its sign."""
    folder.mkdir()
    draws = torch.Generator().manual_seed(3)
    for k, name in enumerate(NAMES):
        x = torch.randn(150, 2, generator=draws)
        score = x @ torch.tensor([(3.0, -3.0, 1.0)[k], 1.0])
        if kind == "classes":
            y = ["yes" if hit else "no" for hit in torch.rand(150, generator=draws) < torch.sigmoid(score)]
        else:
            y = [f"{v:.4f}" for v in (10 + 5 * score + torch.randn(150, generator=draws)).tolist()]
        lines = [f"{a:.4f},{b:.4f},{v}" for (a, b), v in zip(x.tolist(), y, strict=True)]
        (folder / f"{name}.csv").write_text("\n".join(["age,dose,outcome", *lines, ""]))


def made(folder: Path, kind: str, method: co.Method) -> Result:
    write_hospitals(folder / "data", kind)
    sites = co.from_csv(str(folder / "data" / "*.csv"), "outcome", conformal=0.3, calibration=30, test=0.3, seed=1)
    problem = {"classes": co.classification, "numbers": co.regression}[kind]
    task = problem(co.models.linear(sites.features, sites.classes))
    rounds = 2 if isinstance(method, Ditto) else None
    return co.run(method, task, sites, rounds=rounds, engine="sequential", out=folder / "run")


CASES = {"classes": Hierarchical(), "numbers": Hierarchical(), "ditto": Ditto()}


@pytest.fixture(scope="module", params=list(CASES))
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Result:
    kind = request.param.replace("ditto", "classes")
    return made(tmp_path_factory.mktemp(request.param), kind, CASES[request.param])


def raw(result: Result, k: int) -> tuple[Tensor, Tensor]:
    """A site's test rows and their truth, in the units the data came in."""
    sites = result.sites
    rows = sites.test[k]
    assert sites.feature_scale is not None and sites.feature_shift is not None
    y = rows.y if sites.classes else rows.y.double() * sites.target_scale + sites.target_shift
    return rows.x.double() * sites.feature_scale + sites.feature_shift, y


def nll(p: Prediction, y: Tensor) -> float:
    if p.probs is not None:
        return float(-p.probs.gather(1, y[:, None]).log().mean())
    assert p.mean is not None and p.var is not None
    return float(-torch.distributions.Normal(p.mean.double(), p.var.double().sqrt()).log_prob(y).mean())


def covered(p: Prediction, y: Tensor) -> Tensor:
    if p.sets is not None:
        return p.sets.gather(1, y[:, None]).squeeze(1)
    assert p.low is not None and p.high is not None
    return (y >= p.low) & (y <= p.high)


def held(entries: list[dict[str, float]]) -> dict[str, float]:
    return {str(entry["name"]): entry["coverage"] for entry in entries}


def same(a: Prediction, b: Prediction) -> bool:
    pairs = zip(a, b, strict=True)
    return all((x is None) == (y is None) and (x is None or torch.equal(x, y)) for x, y in pairs)


def test_what_the_report_scored_is_what_predict_returns_for_the_same_rows(run: Result) -> None:
    report, new = run.report, run.report["newcomer"]
    every = []
    for k, name in enumerate(NAMES):
        x, y = raw(run, k)
        own, common = run.predict(x, level=0.9, site=name), run.predict(x, level=0.9)
        assert nll(own, y) == pytest.approx(report["per_site"][k]["metrics"]["nll"], rel=1e-4)
        assert nll(common, y) == pytest.approx(new["per_site"][k]["metrics"]["nll"], rel=1e-4)
        assert float(covered(own, y).double().mean()) == held(report["guarantee"]["by_site"])[name]
        assert float(covered(common, y).double().mean()) == held(report["newcomer_guarantee"]["by_site"])[name]
        every.append(abs(nll(own, y) - nll(common, y)))
    assert min(every) > 1e-3  # else nothing would tell the models apart


def test_a_reloaded_run_hands_out_the_same_models_sets_and_temperatures(run: Result) -> None:
    assert run.store is not None
    method = run.method if isinstance(run.method, Ditto) else None
    loaded = co.load(run.store.folder, method=method)
    for site in (None, *NAMES):
        for temper in (False, True):
            options = {"level": 0.9, "site": site, "temper": temper}
            assert same(loaded.predict(raw(run, 0)[0], **options), run.predict(raw(run, 0)[0], **options))


def test_thresholds_of_one_model_are_not_used_with_another(run: Result) -> None:
    x, _ = raw(run, 0)
    own, common = co.conformal(run, 0.8, "own"), co.conformal(run, 0.8, "pooled", newcomer=True)

    assert own.own_models and not common.own_models
    assert (
        run.predict(x, level=own, site="north").var is not None
        or run.predict(x, level=own, site="north").sets is not None
    )
    with pytest.raises(co.InputError, match="say whose rows"):
        run.predict(x, level=own)
    with pytest.raises(co.InputError, match="leave site= out"):
        run.predict(x, level=common, site="north")


def test_a_copy_without_what_sites_keep_says_so_and_still_has_the_newcomers(run: Result) -> None:
    copy = pickle.loads(pickle.dumps(run))
    x, _ = raw(run, 0)

    assert same(copy.predict(x, level=0.9), run.predict(x, level=0.9))
    with pytest.raises(co.InputError, match="holds nothing that sites keep"):
        copy.predict(x, site="north")


def test_pooled_again_and_saved_sites_have_the_same_models(run: Result, tmp_path: Path) -> None:
    again = run.pool(run.method)
    saved = co.load(again.save(tmp_path / "again"), method=run.method)
    x, _ = raw(run, 1)

    for result in (again, saved):
        assert same(result.predict(x, site="south"), run.predict(x, site="south"))
    assert again.report["per_site"] == run.report["per_site"]
    if isinstance(run.method, Ditto):
        with pytest.raises(co.InputError, match="run it"):
            co.run(co.methods.FedAvg(), run.task, run.sites, rounds=1, scored=False).pool(run.method)


def test_an_exported_model_is_that_of_the_site_that_is_named(run: Result) -> None:
    x, _ = raw(run, 2)
    for site in (None, "west"):
        out = run.to_module(site)(x)
        p = run.predict(x, site=site)
        expected = p.probs if p.probs is not None else torch.stack([p.mean, p.var], 1)  # type: ignore[list-item]
        assert torch.allclose(out.double(), expected.double(), rtol=1e-5, atol=1e-5)


def test_the_command_writes_what_predict_returns(run: Result, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(run.method, Ditto):
        pytest.skip("a folder alone does not name a user's own method")
    assert run.store is not None
    monkeypatch.chdir(run.store.folder.parent)
    x, _ = raw(run, 1)
    Path("new.csv").write_text("\n".join(["age,dose", *(f"{a!r},{b!r}" for a, b in x.tolist()), ""]))

    for site in (None, "south"):
        words = () if site is None else ("--site", site)
        code, out, err = invoke("predict", "run", "new.csv", "--set", "0.9", "-o", "p.csv", *words)
        assert code == 0, err
        assert ("newcomer" in out) == (site is None)
        expected = run.predict(x, level=0.9, site=site)
        with open("p.csv") as file:
            rows = list(csv.DictReader(file))
        if expected.probs is not None:
            found = torch.tensor([[float(row["p(no)"]), float(row["p(yes)"])] for row in rows])
            assert torch.allclose(found, expected.probs.float(), atol=2e-6)
            assert expected.sets is not None
            written = [[c in row["set90"].split(" | ") for c in ("no", "yes")] for row in rows]
            assert written == expected.sets.tolist()
        else:
            assert expected.low is not None and expected.high is not None
            ends = torch.tensor([[float(row["set_low90"]), float(row["set_high90"])] for row in rows])
            assert torch.allclose(ends, torch.stack([expected.low, expected.high], 1).float(), rtol=1e-4, atol=1e-4)
    code, _, err = invoke("predict", "run", "new.csv", "--site", "east")
    assert code == 2 and "no site called 'east'" in err


def test_local_models_alone_can_be_predicted_with_by_name(tmp_path: Path) -> None:
    result = made(tmp_path, "classes", co.methods.LocalOnly(co.SGD(epochs=2)))
    for k, name in enumerate(NAMES):
        x, y = raw(result, k)
        p = result.predict(x, level=0.9, site=name)
        assert nll(p, y) == pytest.approx(result.report["per_site"][k]["metrics"]["nll"], rel=1e-4)
        assert same(co.load(tmp_path / "run").predict(x, level=0.9, site=name), p)
    with pytest.raises(co.InputError, match="a model for each site"):
        result.predict(x, level=0.9)
    assert "newcomer_guarantee" not in json.loads((tmp_path / "run" / "run.json").read_text())


@pytest.mark.parametrize("engine", ["vectorised", "parallel"])
def test_engines_agree_about_what_sites_keep(tmp_path: Path, engine: str) -> None:
    write_hospitals(tmp_path / "data", "classes")
    sites = co.from_csv(str(tmp_path / "data" / "*.csv"), "outcome", seed=1)
    task = co.classification(co.models.linear(sites.features, sites.classes))
    each = [co.run(Ditto(), task, sites, rounds=2, engine=name).report for name in ("sequential", engine)]
    assert each[0]["metrics"]["nll"] == pytest.approx(each[1]["metrics"]["nll"], rel=1e-4)
    assert each[0]["metrics"]["nll"] < each[0]["newcomer"]["metrics"]["nll"] - 0.05  # opposite sites


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_own_sets_cover_what_they_promise_over_worlds(kind: str) -> None:
    """Ten worlds of eight sites whose slopes are N(0, 2²): about 90 test and 90 calibration rows a site, promise 90 %.

    Calibration of 90 rows a site has a deviation of 0.031 (beta), tests of 90 as many: 0.5 % over 80 sites, and the
    rank of 82 of 91 adds 0.1 %. With the common model's sets, on other draws of such worlds, 89.1 and 96.2 % were
    covered, and 0 and 67 % at the worst site.
    """
    inside = []
    for world in range(10):
        draws = torch.Generator().manual_seed(world)
        x = torch.randn(2400, 3, generator=draws)
        site = torch.arange(2400) % 8
        score = (x * (2 * torch.randn(8, 3, generator=draws))[site]).sum(1)
        y = score + 0.5 * torch.randn(2400, generator=draws)
        if kind == "classes":
            y = (torch.rand(2400, generator=draws) < torch.sigmoid(score)).long()
        sites = co.from_arrays(x, y, site).split(
            co.splits.natural(), conformal=0.3, test=0.3, calibration=0, seed=world
        )
        problem = {"classes": co.classification, "numbers": co.regression}[kind]
        task = problem(co.models.linear(sites.features, sites.classes))
        result = co.run(Hierarchical(), task, sites, seed=world, scored=False)
        guarantee = co.conformal(result, 0.9, "own")
        for k, name in enumerate(sites.names):
            rows, truth = raw(result, k)
            inside.append(float(covered(result.predict(rows, level=guarantee, site=name), truth).double().mean()))
    assert abs(sum(inside) / len(inside) - 0.902) < 4 * 0.005
    assert min(inside) > 0.902 - 4.5 * 0.044
