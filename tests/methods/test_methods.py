"""Single methods against steps derived by hand, and the whole of a run against what it promises."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.aggregation.interpolation import choose_beta, step_beta
from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.distributions.predictive import Categorical, geometric, score, temperature, tempered
from consilience.distributions.prior import Flat, Isotropic
from consilience.errors import InputError
from consilience.inference.gradient import full_gradient
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server
from consilience.method import About, State
from consilience.methods.fedpa import Recent, remember
from consilience.methods.scaffold import Controlled
from consilience.runs.engines import Sequential, Turn


def quadratic(centre: float, rows: int = 4) -> tuple[co.Task, Data]:
    """x = 1, y = centre, noise 1: the mean loss is (θ − centre)²/2 + const, its gradient θ − centre (flat prior)."""
    task = co.regression(torch.nn.Linear(1, 1, bias=False), noise=1.0, prior=Isotropic(1e12))
    return task, Data.of(torch.ones(rows, 1), torch.full((rows,), centre))


def theta(posterior: Point) -> float:
    return float(posterior.params["weight"])


def at(value: float) -> Point:
    return Point({"weight": torch.full((1, 1), value)})


def test_fedavg_takes_the_steps_of_its_box() -> None:
    task, first = quadratic(1.0, rows=2)
    second = quadratic(4.0, rows=6)[1]
    method = co.methods.FedAvg(co.SGD(rate=0.5, momentum=0.0, epochs=2, batch=10))

    replies = Sequential([first, second]).gather(method, task, at(0.0), [0, 1], Turn(0, Key(0)))
    state = method.aggregate(task, State(at(0.0)), replies, Server(None, None, Key(0), 2))

    # Two steps of rate ½ towards c from 0 give c·(1 − ½²) = ¾c: ¾ and 3. Weights 2/8 and 6/8: 0.1875 + 2.25.
    assert [theta(r.payload) for r in replies] == pytest.approx([0.75, 3.0])
    assert theta(state.posterior) == pytest.approx(2.4375)


def test_momentum_takes_its_steps() -> None:
    task, data = quadratic(1.0)
    point = co.SGD(rate=0.5, momentum=0.5, epochs=2, batch=10)(task, at(0.0), Client(data, (), Key(0)))
    # v₁ = −1, θ₁ = ½; v₂ = −½ + (½ − 1) = −1, θ₂ = 1.
    assert theta(point) == pytest.approx(1.0)


def test_adam_agrees_with_torch() -> None:
    task, data = quadratic(1.0)
    point = co.Adam(rate=0.1, epochs=5, batch=10)(task, at(0.0), Client(data, (), Key(0)))
    weight = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.Adam([weight], lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        (0.5 * (weight - 1) ** 2).sum().backward()
        optimiser.step()
    assert theta(point) == pytest.approx(weight.item(), abs=1e-6)


def test_scaffold_takes_the_steps_of_its_box() -> None:
    task, first = quadratic(1.0)
    second = quadratic(3.0)[1]
    rate, rounds = 0.25, 2
    method = co.methods.Scaffold(co.SGD(rate=rate, momentum=0.0, epochs=2, batch=10), rate=0.5)
    engine, server = Sequential([first, second]), Server(None, None, Key(0), 2)
    state = method.init(task, server)._replace(posterior=at(0.0))

    for t in range(rounds):
        replies = engine.gather(method, task, method.broadcast(state), [0, 1], Turn(t, Key(0)))
        state = method.aggregate(task, state, replies, server)

    # The same by hand, in plain numbers.
    x, c, own = 0.0, 0.0, [0.0, 0.0]
    for _ in range(rounds):
        ys, changes = [], []
        for k, centre in enumerate((1.0, 3.0)):
            y = x
            for _ in range(2):
                y -= rate * ((y - centre) - own[k] + c)
            new = own[k] - c + (x - y) / (2 * rate)
            ys.append(y)
            changes.append(new - own[k])
            own[k] = new
        x += 0.5 * sum(y - x for y in ys) / 2
        c += sum(changes) / 2
    assert theta(state.posterior) == pytest.approx(x, abs=1e-6)
    assert float(state.control["weight"]) == pytest.approx(c, abs=1e-6)


def test_scaffold_finds_the_common_optimum_where_fedavg_drifts() -> None:
    # Curvatures 1 and 4 (x = 1 and 2), optima 0 and 3: the sum's optimum is (1·0 + 4·3)/5 = 2.4.
    task, flat = quadratic(0.0)
    steep = Data.of(torch.full((4, 1), 2.0), torch.full((4,), 6.0))
    engine, server = Sequential([flat, steep]), Server(None, None, Key(0), 2)
    found = {}
    for method in (co.methods.Scaffold(co.SGD(0.05, 0.0, 10, 10)), co.methods.FedAvg(co.SGD(0.05, 0.0, 10, 10))):
        state = method.init(task, server)
        engine.memories.clear()
        for t in range(60):
            state = method.aggregate(
                task,
                state,
                engine.gather(method, task, method.broadcast(state), [0, 1], Turn(t, Key(0))),
                server,
            )
        found[type(method).__name__] = theta(state.posterior)
    assert found["Scaffold"] == pytest.approx(2.4, abs=1e-3)
    assert abs(found["FedAvg"] - 2.4) > 0.1


def test_beta_is_the_exact_optimum() -> None:
    task, sites = tiny.classification()
    method = tiny.method("beta")
    result = co.run(method, task, sites)
    rows = sites.calibration
    assert rows is not None

    pools = result.method.pools(result.task, result.state, rows.x)  # type: ignore[attr-defined]
    grid = torch.linspace(0, 1, 2001)
    best = max(grid.tolist(), key=lambda b: score(geometric(b, *pools), rows.y))

    assert result.state.beta == pytest.approx(best, abs=1e-3)


def test_centralised_is_a_run_on_pooled_rows() -> None:
    task, sites = tiny.classification()
    inference = co.SGD(epochs=2, batch=16)

    central = co.run(co.methods.Centralised(inference), task, sites, seed=3)
    pooled = co.run(co.methods.FedAvg(inference), task, sites.pooled(), rounds=1, seed=3)

    assert central.metrics == pooled.metrics


def test_local_only_is_scored_with_each_sites_own_model() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("local_only"), task, sites)

    for k, site in enumerate(result.report["per_site"]):
        test = sites.test[k]
        if len(test.x):
            p = task.predictive(result.replies[k].payload)(test.x)
            assert site["metrics"]["nll"] == pytest.approx(-score(p, test.y), abs=1e-6)


def test_pooling_again_trains_nothing_and_equals_a_run() -> None:
    task, sites = tiny.classification()
    sampled = co.run(tiny.method("mixture"), task, sites, seed=5)

    again = sampled.pool(tiny.method("bcm"))
    direct = co.run(tiny.method("bcm"), task, sites, seed=5)

    assert again.metrics == direct.metrics


def test_replies_that_are_not_posteriors_cannot_be_pooled() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("scaffold"), task, sites, rounds=1)
    sampled = co.run(tiny.method("mixture"), task, sites)
    with pytest.raises(co.InputError, match="evidence needs replies of its own, not those of mixture: run it"):
        sampled.pool(tiny.method("evidence"))
    with pytest.raises(co.InputError, match="are not posteriors"):
        result.pool(co.methods.Mixture())


def test_tempering_never_hurts_the_calibration_rows() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("bcm"), task, sites)
    rows = sites.calibration
    assert rows is not None
    p = result.method.predictive(task, result.state)(rows.x)
    t = result.report["tempered"]["temperature"]
    assert score(co.aggregation.tempered(p, t), rows.y) >= score(p, rows.y) - 1e-9


def test_the_papers_pool_of_observations_divides_the_noise() -> None:
    task, sites = tiny.regression()
    observed = co.regression(task.model, latent=False)
    seed = 2
    ours = co.run(tiny.method("bcm"), task, sites, seed=seed)
    papers = co.run(tiny.method("bcm"), observed, sites, seed=seed)
    assert papers.metrics["sharpness"] < ours.metrics["sharpness"]


@dataclasses.dataclass(frozen=True)
class Recorded(co.Method):
    """A user's own method, outside the package.

    1   send the mean of x
    """

    scale: float = 1.0  # a setting

    def local(self, task: co.Task, message: object, client: Client) -> Reply:
        return Reply({"mean": self.scale * client.data.x.mean(0)}, client.data.size)

    def aggregate(self, task: co.Task, state: State, replies: list[Received], server: Server) -> State:
        assert tree.all_finite([r.payload for r in replies])
        return state


def test_a_users_method_runs_without_being_registered() -> None:
    task, sites = tiny.classification()
    result = co.run(Recorded(), task, sites, rounds=2)
    assert result.report["method"] == "recorded"
    assert result.report["ledger"]["up_floats"] == 2 * len(sites) * 2


@pytest.mark.parametrize(
    ("schedule", "decay"),
    [(co.inference.constant, co.inference.stepwise), (co.inference.cosine, co.inference.constant)],
)
def test_scaffolds_control_is_the_gradient_whatever_the_schedule(schedule: object, decay: object) -> None:
    data = Data.of(Key(0).normal((20, 3)).double(), Key(1).normal((20,)).double())
    task = co.regression(torch.nn.Linear(3, 1).double(), noise=1.0, prior=Flat())
    inference = co.SGD(1e-5, momentum=0.0, epochs=4, batch=20, schedule=schedule, decay=decay)  # type: ignore[arg-type]
    method, start = co.methods.Scaffold(inference), task.init(Key(2))
    zero = tree.zeros_like(start.params)
    client = Client(data, zero, Key(3), progress=torch.tensor(0.7))

    control = method.local(task, Controlled(start, zero), client).keep

    # With c = cₖ = 0 and steps too short to change the gradient, option II gives the gradient itself.
    gradient = tree.ravel(full_gradient(task, start.params, data, 20))
    torch.testing.assert_close(tree.ravel(control), gradient, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    "method", [co.methods.EPMCMC(co.SGD(epochs=1)), co.methods.EPMCMC(co.Laplace(co.SGD(epochs=1)))]
)
def test_what_is_no_sample_is_not_pooled_as_samples(method: co.methods.EPMCMC) -> None:
    sites = co.datasets.digits().split(co.splits.iid(), 2)
    with pytest.raises(InputError, match="use a sampler"):
        co.run(method, co.classification(co.models.linear(64, 10)), sites, scored=False)


def test_fedpa_with_points_is_fedavg() -> None:
    sites = co.datasets.digits().split(co.splits.iid(), 2)
    task, sgd = co.classification(co.models.linear(64, 10)), co.SGD(epochs=1)
    ours, theirs = (
        co.run(m, task, sites, scored=False).state.posterior for m in (co.methods.FedPA(sgd), co.methods.FedAvg(sgd))
    )
    torch.testing.assert_close(tree.ravel(ours.params), tree.ravel(theirs.params), atol=1e-6, rtol=1e-5)


def test_local_models_are_tempered_each_by_its_own_temperature() -> None:
    sites = co.datasets.digits().split(co.splits.dirichlet(0.3), 3, calibration=60)
    task = co.classification(co.models.linear(64, 10))
    result = co.run(co.methods.LocalOnly(co.SGD(epochs=2)), task, sites)
    models = [result.model(site) for site in sites.names]
    labelled, test = sites.calibration, sites.all_test
    assert labelled is not None
    each = [tempered(m(test.x), temperature(m(labelled.x), labelled.y)) for m in models]
    found = result.report["tempered"]
    assert found["metrics"]["nll"] == pytest.approx(sum(-score(p, test.y) for p in each) / 3, rel=1e-5)
    assert found["metrics"]["nll"] < result.report["metrics"]["nll"]


def test_scaffolds_control_does_not_look_beyond_the_last_step() -> None:
    sites = co.datasets.digits().split(co.splits.dirichlet(0.3), 3)
    method = co.methods.Scaffold(co.SGD(momentum=0.0, epochs=1, schedule=lambda p: (1 - p) ** 0.5))
    task = co.classification(co.models.linear(64, 10))
    engines = ("sequential", "vectorised")
    alone, together = (co.run(method, task, sites, engine=e, rounds=2, scored=False) for e in engines)
    for a, b in zip(tree.leaves(alone.state), tree.leaves(together.state), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("engine", ["sequential", "vectorised"])
def test_fedpa_takes_the_newest_samples_of_all_rounds_together(engine: str) -> None:
    task, sites = tiny.classification()
    sampler = co.CyclicalSGHMC(rate=0.05, epochs=3, cycles=1, samples=2, keep=2, batch=16)
    method = co.methods.FedPA(sampler, remembered=5)
    compute = co.Compute(engine, threads=1)
    run = lambda method, rounds: co.run(method, task, sites, rounds=rounds, seed=3, scored=False, engine=compute)

    short, first = run(co.methods.FedPA(sampler), 1), run(method, 1)  # of one round there is nothing older
    torch.testing.assert_close(tree.ravel(first.state.posterior.params), tree.ravel(short.state.posterior.params))
    third = run(method, 3)
    assert not torch.allclose(
        tree.ravel(third.state.posterior.params), tree.ravel(run(co.methods.FedPA(sampler), 3).state.posterior.params)
    )

    recent = Recent(torch.zeros(5, 2), torch.zeros((), dtype=torch.int64))
    for value in (1.0, 2.0, 3.0):
        recent = remember(recent, torch.full((2, 2), value))
    assert recent.samples[:, 0].tolist() == [1.0, 2.0, 2.0, 3.0, 3.0] and int(recent.filled) == 5


def test_fedpa_refuses_a_memory_below_zero() -> None:
    with pytest.raises(InputError, match="remembered=-1"):
        co.methods.FedPA(remembered=-1)


def test_yogi_starts_where_it_is_told() -> None:
    task, _ = quadratic(1.0)
    moved = []
    for start in (None, 0.0):
        method = co.methods.FedYogi(co.SGD(rate=1.0, momentum=0.0, epochs=1, batch=10), rate=1.0, tau=0.1, start=start)
        state = method.init(task, Server(None, None, Key(0), 1))._replace(posterior=at(0.0))
        reply = Received(0, torch.tensor(4.0), at(1.0))
        moved.append(theta(method.aggregate(task, state, [reply], Server(None, None, Key(0), 1)).posterior))
    # Δ = 1, m = 0.1; v = 0.01 + 0.01 from τ² and 0.01 from 0; θ = m / (√v + 0.1).
    assert moved == pytest.approx([0.1 / (0.02**0.5 + 0.1), 0.1 / 0.2])


def test_ten_passes_of_adam_end_near_where_they_begin_on_few_rows_and_at_the_optimum_on_many() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (2000,), generator=g)
    sure = Categorical((3 * torch.nn.functional.one_hot(y, 3) + torch.randn(2000, 3, generator=g)).log_softmax(-1))
    vague = Categorical(torch.zeros(2000, 3).log_softmax(-1))
    few = [Categorical(p.log_probs[:90]) for p in (sure, vague)]

    optimum = choose_beta(sure, vague, y)
    assert optimum > 0.95  # the sure predictions are right
    assert step_beta(sure, vague, y, Key(0)) > 0.95
    assert 0.55 < step_beta(*few, y[:90], Key(0)) < 0.61  # ten steps of at most 0.01


def test_beta_is_chosen_as_the_method_says() -> None:
    task, sites = tiny.classification()
    sites = dataclasses.replace(sites, calibration=sites.train[0])
    result = co.run(co.methods.BetaPredictiveBayes(co.CyclicalSGHMC(epochs=10)), task, sites, seed=1, scored=False)
    stepped = result.pool(co.methods.BetaPredictiveBayes(fit="adam"), scored=False)
    assert 0.39 < stepped.state.beta < 0.61 and stepped.state.beta != result.state.beta
    with pytest.raises(InputError, match="Known: adam, optimum"):
        co.methods.BetaPredictiveBayes(fit="newton")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"__annotations__": {"one_shot": "ClassVar[bool]"}, "one_shot": True}, r"about = About\(rounds=ONE_SHOT\)"),
        ({"sends": "its weights"}, r"about = About\(sends=…\)"),
        ({"bound": True}, "derive from `Bound`"),
        ({"at_home": lambda self, task, state, memory: state}, "derive from `Personal`"),
        ({"averages": property(lambda self: True)}, "derive from `Summable`"),
    ],
)
def test_a_class_of_an_earlier_contract_is_refused_in_one_sentence(body: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words) as refused:
        type("Mine", (co.Method,), body)
    assert str(refused.value).startswith("Mine ") and str(refused.value).count(". ") == 0


def test_a_setting_may_have_the_name_of_an_old_class_variable() -> None:
    kind = type("Mine", (co.Method,), {"__annotations__": {"source": "str"}, "source": "here"})
    assert kind.source == "here"


def test_the_contract_is_six_functions_and_nine_facts() -> None:
    functions = {name for name, value in vars(co.Method).items() if callable(value) and not name.startswith("_")}
    assert functions == {"local", "aggregate", "init", "broadcast", "memory", "predictive"}
    assert len(dataclasses.fields(About)) == 9
