"""Groups that waste little and fit into memory, the same numbers however clients are grouped, replies folded."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.distributions.posterior import Point
from consilience.inference.fast.compiled import WORTH, has_compiler, worthwhile
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server, fold
from consilience.method import State
from consilience.method.declared import averages, folds
from consilience.methods import METHODS
from consilience.models.cnn import cnn_ozer
from consilience.runs import engines
from consilience.runs.engines import Sequential, Turn, Vectorised, vectorised
from consilience.runs.engines.memory import keep_memory
from consilience.runs.engines.vectorised import WASTE, cut_evenly, even
from consilience.runs.engines.workers import cores

SIZES = (200, 9, 31, 30, 90, 100, 3, 10, 33, 95)
TURN = Turn(0, Key(2))


def problem(sizes: Sequence[int] = SIZES) -> tuple[co.Task, list[Data]]:
    g = torch.Generator().manual_seed(0)
    data = [Data.of(torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in sizes]
    return co.classification(co.models.mlp(6, 3, hidden=(8,))), data


def far(a: Sequence[Received], b: Sequence[Received]) -> float:
    assert [r.client for r in a] == [r.client for r in b]
    pairs = [
        (x, y) for r, s in zip(a, b, strict=True) for x, y in zip(tree.leaves(r[1:]), tree.leaves(s[1:]), strict=True)
    ]
    return max(float((x - y).abs().max()) for x, y in pairs)


def test_groups_hold_everyone_once_and_waste_little() -> None:
    sizes = dict(enumerate(SIZES))
    groups = even(sizes)

    assert sorted(k for group in groups for k in group) == list(range(len(SIZES)))
    for group in groups:
        rows = [sizes[k] for k in group]
        assert len(rows) * max(rows) <= WASTE * sum(rows)
    assert len(even(dict.fromkeys(range(1000), 60))) == 1, "equal clients stay together"


@pytest.mark.parametrize(("count", "most"), [(10, 3), (10, 10), (1, 4), (7, 1), (100, 33)])
def test_parts_are_as_equal_as_they_can_be(count: int, most: int) -> None:
    parts = cut_evenly(range(count), most)
    assert [k for part in parts for k in part] == list(range(count))
    assert max(map(len, parts)) <= most and max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("chunk", [None, 1, 2, 3, 4])
def test_numbers_do_not_depend_on_groups(chunk: int | None) -> None:
    task, data = problem()
    method = co.methods.FedAvg(co.SGD(epochs=2, batch=40))
    start = task.init(Key(1))

    alone = Sequential(data).gather(method, task, start, range(len(data)), TURN)
    grouped = Vectorised(data, chunk).gather(method, task, start, range(len(data)), TURN)

    assert far(alone, grouped) <= 1e-5  # ten steps in float32


def test_a_group_keeps_to_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data = problem([60] * 40)
    row = 6 * 4 + 8 + 4  # float32 features, an int64 label, a float32 weight
    per_client = vectorised.COPIES * 4 * (6 * 8 + 8 + 8 * 3 + 3) + 2 * 60 * row
    monkeypatch.setattr(vectorised, "BUDGET", 7 * per_client)

    groups = Vectorised(data).groups(task, range(40))

    assert len(groups) == 6 and max(map(len, groups)) == 7  # ⌈40 / 7⌉ parts, as equal as they can be


def test_a_large_group_is_shared_by_the_cores() -> None:
    task, data = problem([20] * 100)
    engine, method, start = Vectorised(data), co.methods.FedAvg(co.SGD(epochs=2, batch=10)), task.init(Key(1))
    assert len(engine.groups(task, range(100))) == min(cores(), math.ceil(100 / vectorised.COMPANY))
    assert len(engine.groups(task, range(vectorised.COMPANY))) == 1, "too few to share"

    together = engine.gather(method, task, start, range(100), TURN)
    alone = Sequential(data).gather(method, task, start, range(100), TURN)
    assert far(alone, together) <= 1e-5  # four steps in float32


@dataclasses.dataclass(frozen=True)
class Hungry(co.Method):
    """FedAvg where more than `fits` clients side by side are too many."""

    fits: int = 3

    def local(self, task: co.Task, message: Point, client: Client) -> Reply:
        stacked = torch._C._functorch.get_unwrapped(client.key.seed)
        if len(stacked) > self.fits:
            raise torch.OutOfMemoryError("too much")
        return co.methods.FedAvg(co.SGD(epochs=1)).local(task, message, client)

    def aggregate(self, task: co.Task, state: State, replies: Sequence[Received], server: object) -> State:
        return State(co.aggregation.average(co.messages.payloads(replies), co.messages.weights(replies)))


def test_too_much_for_memory_is_done_in_smaller_groups_and_said() -> None:
    task, data = problem([50] * 10)
    start = task.init(Key(1))
    engine = Vectorised(data)

    with pytest.warns(UserWarning, match="5 sites at a time do not fit into memory; continuing with 2"):
        pieces = engine.gather(Hungry(), task, start, range(10), TURN)
    whole = Vectorised(data).gather(Hungry(fits=10), task, start, range(10), TURN)

    assert far(whole, pieces) <= 1e-6
    assert engine.chunk == 2, "the next round begins with what fits"
    with (
        pytest.raises(co.InputError, match="alone does not fit into memory"),
        pytest.warns(UserWarning, match="continuing with 1"),
    ):
        engine.gather(Hungry(fits=0), task, start, range(10), Turn(1, Key(2)))


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if averages(m())))
def test_folded_replies_give_the_same_state(name: str) -> None:
    task, sites = tiny.classification(torch.float64)
    method = tiny.method(name)
    kept = co.run(method, task, sites, rounds=2)
    server = kept.server

    state = method.init(task, server)
    whole = method.aggregate(task, state, kept.replies, server)
    pairs = [*fold(kept.replies[:3]), *kept.replies[3:]]
    parts = method.aggregate(task, state, fold(pairs), server)

    for a, b in zip(tree.leaves(whole), tree.leaves(parts), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)  # sums in another order, in double precision


def test_a_run_that_folds_ends_where_one_that_keeps_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.runs.engines.participation.PORTION", 2)
    task, sites = tiny.classification(torch.float64)
    method = tiny.method("fedavg")

    kept = co.run(method, task, sites, rounds=3)
    folding = co.run(method, task, sites, rounds=3, keep_replies="none")

    assert folding.replies == [] and len(kept.replies) == 4
    for a, b in zip(tree.leaves(kept.state), tree.leaves(folding.state), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    assert folding.report["ledger"] == kept.report["ledger"]
    with pytest.raises(co.InputError, match="kept no replies"):
        folding.pool(co.methods.FedAvg())


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if folds(m()) and not averages(m())))
def test_sums_that_are_folded_end_where_those_that_are_kept_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.runs.engines.participation.PORTION", 2)
    task, sites = tiny.problem_of(name, "classification", torch.float64)
    method = tiny.method(name)

    kept = co.run(method, task, sites, scored=False)
    folding = co.run(method, task, sites, scored=False, keep_replies="none")

    assert folding.replies == [] and len(kept.replies) == 4
    for a, b in zip(tree.leaves(kept.state), tree.leaves(folding.state), strict=True):
        torch.testing.assert_close(
            torch.as_tensor(a), torch.as_tensor(b), atol=1e-9, rtol=1e-8
        )  # sums in another order
    assert folding.report["ledger"] == kept.report["ledger"]


def test_folded_sums_still_warn_of_rows_that_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.runs.engines.participation.PORTION", 2)
    g = torch.Generator().manual_seed(0)
    parts = tuple(Data.of(torch.randn(3, 6, generator=g), torch.tensor([0, 1, 2])) for _ in range(4))  # 3 < 6 + 1
    sites = co.Sites(parts, parts, None, None, None, 3, 6, "drawn", "iid", tuple("abcd"))
    task = co.classification(co.models.linear(6, 3))

    result = co.run(co.methods.ExactPooling(), task, sites, scored=False, keep_replies="none")

    told = [sentence for sentence in result.report["warnings"] if "fewer rows than the 7 sums" in sentence]
    assert len(told) == 1 and told[0].startswith("Some sites")


def test_an_engine_can_be_given_a_number() -> None:
    task, data = problem()
    assert engines.engine("parallel:2", data).workers == 2
    assert engines.engine("vectorised:3", data).chunk == 3
    assert engines.choose_engine("parallel:2", task, data) == "parallel:2"
    for bad in ("sequential:2", "parallel:0", "parallel:many", "vectorised:"):
        with pytest.raises(co.InputError, match="is not an engine"):
            engines.engine(bad, data)


def test_more_workers_than_cores_are_said() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("fedavg"), task, sites, rounds=1, engine=f"parallel:{cores() + 1}")
    assert result.report["warnings"] == [f"{cores() + 1} workers share {cores()} cores and wait for each other."]


def test_plain_keys_and_tensor_keys_are_the_same_numbers() -> None:
    for seed in (0, 7, -3, 2**62):
        plain, tensor = Key(seed), Key(torch.tensor(seed))
        for i in (0, 1, 5, -1, 10_000):
            plain, tensor = plain.fold(i), tensor.fold(i)
            assert plain.seed == int(tensor.seed)


def test_auto_is_a_rule() -> None:
    small, equal = problem([50] * 6)
    medium, wide = (co.classification(co.models.mlp(6, 3, hidden=(n, n))) for n in (400, 800))
    pictures = co.classification(cnn_ozer((1, 28, 28), 3))
    assert engines.choose_engine("auto", small, equal + equal) == "vectorised"
    assert engines.choose_engine("auto", small, equal[:1]) == "sequential"
    assert engines.choose_engine("auto", small, equal) == "sequential", "six are too few to be worth a vmap"
    assert engines.choose_engine("auto", small, problem([2, 4, 9, 20, 50, 100, 300, 1000])[1]) == "sequential", (
        "too unequal"
    )
    assert engines.choose_engine("auto", medium, equal) == "sequential"
    assert engines.choose_engine("auto", medium, equal + equal) == "vectorised"
    pairs = problem([10, 10, 100, 100, 1000, 1000, 10000, 10000])[1]
    assert engines.choose_engine("auto", small, pairs) == "vectorised"
    assert engines.choose_engine("auto", medium, pairs) == "sequential", "two at a time gain nothing"
    assert engines.choose_engine("auto", wide, equal + equal) == "parallel"
    assert engines.choose_engine("auto", pictures, equal) == "parallel"


def test_rows_are_stacked_once_where_everyone_takes_part_in_every_round() -> None:
    task, data = problem()
    method = co.methods.FedAvg(co.SGD(epochs=2, batch=16))
    engine, reference = Vectorised(data), Sequential(data)
    message = method.broadcast(method.init(task, Server(None, None, Key(0), len(data))))

    for round, cohort in enumerate([range(10), [1, 4, 6], range(10)]):
        came, wanted = (e.gather(method, task, message, cohort, Turn(round, Key(1))) for e in (engine, reference))
        assert far(came, wanted) < 1e-5
    assert sorted(k for group in engine.stacks for k in group) == list(range(10)), "and no group of a part"


def test_freed_memory_is_kept_where_the_c_library_can() -> None:
    assert keep_memory() is hasattr(ctypes.CDLL(None), "mallopt")


def test_compiling_is_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites = tiny.classification()
    engine = Vectorised([sites.train[0]] * 4)
    method = co.methods.FedAvg(co.SGD(epochs=3, batch=10))
    rows = len(sites.train[0].w)
    assert engine.steps(method, task) == 3 * -(-rows // 10)  # one group: epochs times batches
    assert not worthwhile(WORTH - 1)
    assert worthwhile(WORTH) == has_compiler()
    curved = co.classification(co.models.mlp(sites.features, sites.classes, activation=torch.nn.Tanh))
    for count, network, rounds, wanted in (
        (1, curved, WORTH, has_compiler()),
        (1, curved, 1, False),
        (1, task, WORTH, False),  # its gradient is written out
        (2, curved, WORTH, False),  # a compiled step would keep to one core
    ):
        monkeypatch.setattr(vectorised, "cores", lambda count=count: count)
        assert engine.worth_compiling(method, network, rounds) == wanted

    result = co.run(tiny.method("fedavg"), task, sites, rounds=1, engine="vectorised", out=tmp_path / "r")
    assert result.report["compiled"] is False


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="torch.compile needs a C++ compiler (g++ or clang++)")
def test_compiled_steps_agree_with_uncompiled_ones(tmp_path: Path) -> None:
    task, data = problem([50] * 6)
    method, start = co.methods.FedAvg(co.SGD(epochs=5, batch=25)), task.init(Key(1))  # ten steps
    compiled = Vectorised(data)
    compiled.compiled = True

    plain = Vectorised(data).gather(method, task, start, range(6), TURN)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # it must not fall back
        fast = compiled.gather(method, task, start, range(6), TURN)
    assert far(plain, fast) <= 1e-4

    task, sites = tiny.classification()
    for rounds, resume in ((1, False), (2, True)):
        result = co.run(
            *(tiny.method("scaffold"), task, sites),
            rounds=rounds,
            engine=co.Compute("vectorised", compiled=None if resume else True),
            out=tmp_path / "r",
            resume=resume,
        )
        assert result.report["compiled"] is True, "a resumed run keeps it"
    alone = co.run(tiny.method("scaffold"), task, sites, rounds=2, engine="sequential")
    assert result.metrics["nll"] == pytest.approx(alone.metrics["nll"], abs=1e-4)
