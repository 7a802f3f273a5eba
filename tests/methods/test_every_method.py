"""One suite over all methods; a new file in methods/ is picked up by itself."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.distributions.payload import nbytes
from consilience.distributions.predictive import Distribution
from consilience.key import Key
from consilience.messages import Client, Received, Server
from consilience.method import Bound, is_personal, own_models
from consilience.method.declared import pools_rows
from consilience.method.which import has_common
from consilience.methods import METHODS
from consilience.runs.engines import Parallel, Sequential, Turn, Vectorised
from consilience.runs.identity import citation
from consilience.serialisation.codec import decode, encode, types_of

TURN = Turn(0, Key(3))
Run = Callable[[str, str], co.Result]
# One case after another, so that its checks share its runs.
every = pytest.mark.parametrize(("name", "problem"), tiny.CASES, scope="module")
# What hardly depends on the problem, and takes long: one problem a method, in turn; both in the slow suite.
in_turn = pytest.mark.parametrize(("name", "problem"), tiny.in_turn(), scope="module")


def distance(a: tree.Tree, b: tree.Tree) -> float:
    """The largest difference between two trees' leaves, relative where numbers exceed 1; numbers are leaves too."""
    doubled = [[torch.as_tensor(leaf, dtype=torch.float64) for leaf in tree.leaves(t)] for t in (a, b)]
    gaps = [(x - y).abs() / x.abs().clamp(min=1) for x, y in zip(*doubled, strict=True)]
    return max((float(gap.max()) for gap in gaps if gap.numel()), default=0.0)


def play_round(name: str, problem: str) -> tuple[co.Method, co.Task, co.Sites, object, list[Received], Server]:
    torch.manual_seed(0)
    task, sites = tiny.problem_of(name, problem)
    method = tiny.method(name)
    sites = sites.pooled() if pools_rows(method) else sites
    server = Server(sites.inputs, sites.calibration, Key(2), len(sites))
    state = method.init(task, server)
    replies = Sequential(sites.train).gather(method, task, method.broadcast(state), range(len(sites)), TURN)
    return method, task, sites, state, replies, server


one_round = cache(play_round)  # for all tests: nothing changes what it was given, which is tested too


def count_rounds(name: str) -> int:
    """How many rounds show that a method goes on from where it was."""
    if METHODS[name].about.one_shot:
        return 1
    return 2


def score(name: str, problem: str, rounds: int, out: Path) -> co.Result:
    """A case's rounds one after another, saved, with everything scored."""
    torch.manual_seed(0)
    task, sites = tiny.problem_of(name, problem)
    sites = dataclasses.replace(sites, conformal=sites.test)  # in place of rows set aside
    return co.run(tiny.method(name), task, sites, rounds=rounds, engine="sequential", level=0.5, out=out)


@pytest.fixture(scope="module")
def scored_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A case → its first round, in a folder."""
    folder = tmp_path_factory.mktemp("first")
    return cache(lambda name, problem: score(name, problem, 1, folder / name / problem))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory, scored_run: Run) -> Run:
    """A case → all its rounds, in a folder."""
    folder = tmp_path_factory.mktemp("whole")

    @cache
    def run(name: str, problem: str) -> co.Result:
        rounds = count_rounds(name)
        if rounds == 1:
            return scored_run(name, problem)
        return score(name, problem, rounds, folder / name / problem)

    return run


def prediction(method: co.Method, task: co.Task, state: object, sites: co.Sites) -> list[Distribution]:
    models = own_models(method, task, state, {}, len(sites)) or [method.predictive(task, state)]
    return [model(sites.all_test.x) for model in models]


@every
def test_runs_and_scores(name: str, problem: str, scored_run: Run) -> None:
    _, sites = tiny.problem_of(name, problem)

    result = scored_run(name, problem)

    wanted = {"rmse", "nll", "crps", "coverage95"}
    if problem == "classification":
        wanted = {"accuracy", "nll", "brier", "ece"}
    assert wanted <= set(result.metrics)
    assert all(torch.isfinite(torch.tensor(v)) for v in result.metrics.values())
    assert len(result.report["per_site"]) == len(sites)  # bounds that pool the rows are scored by site too
    assert 0 <= result.report["guarantee"]["overall"]["coverage"] <= 1  # any predictive has prediction sets


@every
def test_parts_of_uncertainty_belong_to_the_number_that_they_stand_beside(
    name: str, problem: str, scored_run: Run
) -> None:
    """Aleatoric + epistemic is the entropy of the probabilities, or the variance, that are returned."""
    result = scored_run(name, problem)
    x = result.sites.all_test.x[:20]
    sites = [None] if has_common(result.method) else []
    if is_personal(result.method):
        sites.append(result.sites.names[0])
    for site in sites:
        for temper in (False, True):
            p = result.predict(x, site=site, temper=temper)
            if p.probs is not None:
                total = torch.special.entr(p.probs.double()).sum(1)
            else:
                assert p.var is not None
                total = p.var.double().reshape(len(x), -1).sum(1)
            assert torch.allclose(p.aleatoric + p.epistemic, total, rtol=1e-5, atol=1e-6)
            assert bool((p.disagreement <= p.epistemic).all()) and float(p.disagreement.min()) >= 0
    for part in result.report.get("uncertainty") or []:
        assert part["aleatoric"] >= 0 and part["within"] >= 0 and part["disagreement"] >= 0


@in_turn
def test_changes_nothing_it_was_given(name: str, problem: str) -> None:
    method, task, sites, state, replies, server = one_round(name, problem)
    message = method.broadcast(state)
    client = Client(sites.train[0], method.memory(message), Key(5))
    before = copy.deepcopy((state, message, client, replies, tuple(task.like.values())))

    method.local(task, message, client)
    method.aggregate(task, state, replies, server)

    assert distance(before, (state, message, client, replies, tuple(task.like.values()))) == 0


@in_turn
def test_same_key_same_result(name: str, problem: str) -> None:
    first = one_round(name, problem)
    second = play_round(name, problem)

    assert distance(first[4], second[4]) == 0
    assert distance(first[0].aggregate(*first[1:2], *first[3:]), second[0].aggregate(*second[1:2], *second[3:])) == 0


@in_turn
def test_order_of_clients_is_irrelevant(name: str, problem: str) -> None:
    method, task, sites, state, replies, server = one_round(name, problem)

    forward = method.aggregate(task, state, replies, server)
    backward = method.aggregate(task, state, replies[::-1], server)

    a, b = prediction(method, task, forward, sites), prediction(method, task, backward, sites)
    b = b if has_common(method) else b[::-1]  # models of their own alone stand in the order of the replies
    assert distance(a, b) < 1e-4  # float32 sums in another order


@in_turn
def test_vectorised_equals_sequential_in_float32(name: str, problem: str) -> None:
    method, task, sites, state, replies, _ = one_round(name, problem)

    again = Vectorised(sites.train).gather(method, task, method.broadcast(state), range(len(sites)), TURN)

    assert [r.client for r in again] == [r.client for r in replies]
    assert distance([r.payload for r in again], [r.payload for r in replies]) <= 1e-5


@in_turn
def test_parallel_equals_sequential(name: str, problem: str) -> None:
    method, task, sites, state, replies, _ = one_round(name, problem)

    again = Parallel(sites.train, workers=3).gather(method, task, method.broadcast(state), range(len(sites)), TURN)

    assert [r.client for r in again] == [r.client for r in replies]
    assert distance([r.payload for r in again], [r.payload for r in replies]) <= 1e-6


@in_turn
def test_flower_equals_sequential_to_the_last_bit(name: str, problem: str, whole_run: Run) -> None:
    pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")
    import loopback

    alone = whole_run(name, problem)
    torch.manual_seed(0)
    task, sites = tiny.problem_of(name, problem)
    method = tiny.method(name)

    over_messages = co.run(
        *(method, task, sites),
        rounds=count_rounds(name),
        engine=lambda data: loopback.flower(method, task, data),
        scored=False,
    )

    assert distance([r.payload for r in alone.replies], [r.payload for r in over_messages.replies]) == 0
    assert distance(alone.state, over_messages.state) == 0


@in_turn
def test_engines_agree_in_float64_over_three_rounds(name: str, problem: str) -> None:
    task, sites = tiny.problem_of(name, problem, torch.float64)
    method = tiny.method(name)
    rounds = 1 if method.about.one_shot else 3

    results = [
        co.run(method, task, sites, rounds=rounds, engine=engine, scored=False)
        for engine in ("sequential", "vectorised")
    ]

    # A scalar fitted by a search (β, a temperature) is exact to the search's tolerance only, so weights are compared.
    payloads = [[r.payload for r in result.replies] for result in results]
    assert distance(*payloads) <= 1e-10
    assert distance(*[result.state.posterior for result in results]) <= 1e-10


@in_turn
def test_groups_of_clients_give_the_same(name: str, problem: str) -> None:
    method, task, sites, state, replies, _ = one_round(name, problem)

    grouped = Vectorised(sites.train, chunk=2).gather(method, task, method.broadcast(state), range(len(sites)), TURN)

    assert distance([r.payload for r in grouped], [r.payload for r in replies]) <= 1e-5


@every
def test_ledger_counts_what_was_sent(name: str, problem: str, scored_run: Run) -> None:
    result = scored_run(name, problem)

    message = result.method.broadcast(result.method.init(result.task, result.server))
    assert result.report["ledger"]["up_bytes"] == sum(nbytes(r.payload) for r in result.replies)
    assert result.report["ledger"]["down_bytes"] == len(result.sites) * nbytes(message)


@in_turn
def test_payload_and_state_survive_the_wire(name: str, problem: str) -> None:
    method, task, _, state, replies, server = one_round(name, problem)
    new = method.aggregate(task, state, replies, server)

    for value in (method.broadcast(state), replies[0].payload, new):
        back = decode(*encode(value), types_of(method))
        assert type(back) is type(value)
        assert distance(back, value) == 0


@in_turn
def test_stopping_and_going_on_changes_nothing(
    name: str, problem: str, scored_run: Run, whole_run: Run, tmp_path: Path
) -> None:
    first = scored_run(name, problem)
    whole = whole_run(name, problem)
    assert first.store is not None and whole.store is not None
    out = Path(shutil.copytree(first.store.folder, tmp_path / "gone on"))

    parts = co.run(
        *(first.method, first.task, first.sites),
        rounds=count_rounds(name),
        engine="sequential",
        level=0.5,
        out=out,
        resume=True,
    )

    assert whole.metrics == parts.metrics
    assert (whole.store.folder / "state.safetensors").read_bytes() == (out / "state.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "problem"),
    [case for case in tiny.in_turn() if case.values[0] not in ("local_only", "server_only")],
    scope="module",
)
def test_a_run_predicts_the_same_from_its_path_alone(name: str, problem: str, whole_run: Run) -> None:
    result = whole_run(name, problem)
    x = result.sites.all_test.x[:5]
    assert result.store is not None

    loaded = co.load(result.store.folder)

    for before, after in zip(result.predict(x), loaded.predict(x), strict=True):
        assert (before is None and after is None) or torch.equal(before, after)
    assert loaded.metrics == result.metrics


@pytest.mark.parametrize("name", sorted(METHODS))
def test_is_documented_in_its_own_file(name: str) -> None:
    kind = METHODS[name]
    title, _ = citation(kind)
    box = inspect.getdoc(kind) or ""

    assert title and "1   " in box, "the docstring holds a sentence and the box with numbered lines"
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert sum(issubclass(base, co.Method) for base in kind.__bases__) == 1
    assert kind.__bases__[-1] in (co.Method, Bound), "no method subclasses another; capabilities stand first"
    attributes = box.partition("Attributes:\n")[2].splitlines()
    for field in dataclasses.fields(kind):
        documented = any(line.startswith(f"    {field.name}: ") for line in attributes)
        assert documented, f"{name}.{field.name} is not listed under Attributes"
    assert kind() == kind(), "can be built without arguments"
