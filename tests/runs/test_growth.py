"""Work is counted, not timed: what would grow with the square of sites, columns or steps does not."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import tiny
import torch
from torch._subclasses.fake_tensor import FakeTensor

import consilience as co
from consilience.data import cells
from consilience.data.tables import from_csv
from consilience.disk.typed import plain
from consilience.distributions.predictive import Predictive
from consilience.inference import Adam, Laplace, Newton
from consilience.inference.coreset import BPCfKL
from consilience.inference.unrolled import Distillation
from consilience.messages import Client
from consilience.metrics.evaluate import Scorer, in_units
from consilience.metrics.scores import scores
from consilience.runs.engines.soundness import PROBES
from consilience.study.protocol import rehearsal
from consilience.study.protocol.columns import Column, inspect, labelled_rows
from consilience.study.protocol.rehearsal import rehearsal_of, rehearse, would_leave
from consilience.study.protocol.target import Target
from consilience.study.validation.form import form_of
from consilience.task import Task

WORK: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    WORK.clear()


@dataclasses.dataclass(frozen=True)
class CountedMixture(co.methods.Mixture):
    """A mixture that counts how often it predicts, and for how many rows."""

    def predictive(self, task: Task, state: Any) -> Predictive:
        model = super().predictive(task, state)

        def predict(x: torch.Tensor) -> Any:
            WORK["predictions"] += 1
            WORK["rows"] += len(x)
            return model(x)

        return predict


def run(sites: int) -> tuple[Any, co.Sites]:
    """A finished round, not yet scored."""
    rows = co.datasets.moons(n=20 * sites).split(co.splits.iid(), sites=sites, calibration=0)
    task = co.classification(co.models.mlp(rows.features, rows.classes, hidden=()))
    method = CountedMixture(co.CyclicalSGHMC(epochs=4, cycles=1, samples=2, keep=2))
    return co.run(method, task, rows, scored=False), rows


def test_every_site_is_scored_from_one_prediction_of_all_test_rows() -> None:
    for count in (3, 12):
        WORK.clear()
        result, sites = run(count)
        found = plain(Scorer(result.method, result.task, sites).evaluate(result.state, result.memories))
        assert dict(WORK) == {"predictions": 2, "rows": len(sites.all_test.x) + PROBES}  # the probes: is it finite?
        model = co.methods.Mixture.predictive(result.method, result.task, result.state)
        for entry, test in zip(found["per_site"], sites.test, strict=True):
            assert entry["metrics"] == pytest.approx(scores(*in_units(model(test.x), test, sites)), rel=1e-4)


def test_sites_with_models_of_their_own_are_scored_from_one_prediction_of_each() -> None:
    task, sites = tiny.regression()
    result = co.run(tiny.method("local_only"), task, sites, scored=False)
    models = [result.model(site) for site in sites.names]
    found = plain(Scorer(result.method, task, sites).evaluate(result.state, result.memories))
    for entry, model, test in zip(found["per_site"], models, sites.test, strict=True):
        assert entry["metrics"] == pytest.approx(scores(*in_units(model(test.x), test, sites)), rel=1e-5)


def write_rows(path: Path, rows: int, columns: int) -> Path:
    lines = [",".join([*(f"x{j}" for j in range(columns)), "y"])]
    for i in range(rows):
        lines.append(",".join([*(f"{(i * 7 + j) % 101 / 8}" for j in range(columns)), str(i % 2)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_sound_table_is_read_without_an_object_for_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "a.csv", rows=300, columns=4)

    class Counted(cells.Cell):
        def __new__(cls, *words: Any) -> Any:
            WORK["cells"] += 1
            return super().__new__(cls, *words)

    monkeypatch.setattr(cells, "Cell", Counted)
    from_csv(path, "y", sites=3)
    columns = [Column(f"x{j}", range=(0.0, 20.0)) for j in range(4)]
    target = Target("y", ("0", "1"))
    labelled_rows(columns, target, inspect(path, columns, target).sound())
    assert WORK["cells"] <= 1  # the first, for the name of its file


def count_passes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Fail once the network has been passed more often than this."""
    outputs = Task.outputs

    def counted(task: Task, params: Any, x: torch.Tensor) -> torch.Tensor:
        WORK["passes"] += 1
        if WORK["passes"] > most:
            pytest.fail(f"more than {most} passes of the network in a rehearsal")
        return outputs(task, params, x)

    monkeypatch.setattr(Task, "outputs", counted)


def test_a_rehearsal_takes_few_passes_whatever_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("coreset", "dosfl", "fedavg"):
        agreed = studies.agreement(tmp_path, method=name, settings=(), model="mlp", leaves=("any",))
        WORK.clear()
        with monkeypatch.context() as patch:
            count_passes(patch, 120)
            rehearse(agreed)


ABRIDGED: dict[str, Callable[[], Any]] = {
    "newton": lambda: Laplace(mode=Newton(steps=3), dense=True),
    "sgd": lambda: co.SGD(epochs=3, fewest=2),
    "adam": lambda: Adam(epochs=3),
    "coreset": lambda: BPCfKL(3, 2, 4, 1, 5, 2, 2, 2, 2, 2),
    "distillation": lambda: Distillation(3, 2, 2, 2),
}


@pytest.mark.parametrize("name", ABRIDGED)
@torch.no_grad()
def test_an_abridged_inference_gives_a_value_of_the_same_form(name: str) -> None:
    task, sites = tiny.classification()
    whole = ABRIDGED[name]()
    short = co.method.settings.abridge(whole)
    assert short != whole
    key = co.key.Key(2).tensor
    start: Any = task.init(co.key.Key(0))
    if name in ("coreset", "distillation"):
        start = torch.as_tensor(co.key.Key(1).seed)
    forms = [form_of(inference(task, start, Client(sites.train[0], (), key))) for inference in (whole, short)]
    assert forms[0] == forms[1]


def wide_agreement(folder: Path, columns: int) -> Any:
    """A linear study with the default method, which sends a whole precision matrix."""
    named = tuple(Column(f"c{i}") for i in range(columns))
    settings = ("inference.mode=Newton", "inference.dense=True")
    return studies.agreement(folder, method="gaussian_product", settings=settings, columns=named, leaves=("Dense",))


def test_many_columns_are_rehearsed_without_the_matrix_that_would_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.func, "hessian", lambda _: pytest.fail("a matrix of all pairs of weights was computed"))
    agreed = wide_agreement(tmp_path, 3000)
    reply = rehearsal_of(agreed).outline(agreed.build_method(), agreed.build_task(), 1, rehearsal.INVENTED)
    assert isinstance(reply.send.precision, FakeTensor)
    assert reply.send.precision.shape == (6002, 6002)
    assert would_leave(agreed) == (("Dense",), 4 * (6002**2 + 6002))


@pytest.mark.parametrize("name", ["gaussian_product", "mixture", "mime", "scaffold", "coreset"])
def test_what_would_leave_is_the_same_without_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    agreed = studies.agreement(tmp_path, method=name, settings=(), leaves=("any",))
    computed = would_leave(agreed)
    monkeypatch.setattr(rehearsal, "MANY_WEIGHTS", 0)
    assert would_leave(agreed) == computed
