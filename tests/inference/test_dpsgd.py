"""DP-SGD: its accountant against closed forms, its noise, its engines, and what it refuses."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from scipy.stats import norm

import consilience as co
from consilience.data.sites import Data
from consilience.distributions.prior import Flat
from consilience.errors import InputError
from consilience.inference import DPSGD
from consilience.inference.dpsgd import poisson_batch
from consilience.key import Key
from consilience.messages import Client
from consilience.method import Bound
from consilience.method.declared import sends_inference
from consilience.methods import METHODS
from consilience.methods.bounds import bounds
from consilience.methods.claims import for_rounds, privacy_statement
from consilience.privacy.audit.canaries import corners
from consilience.privacy.dp.subsampled import epsilon_of_steps, noise_for
from consilience.privacy.entropy import secret_draws
from consilience.runs.audit import audit_method


def rows(count: int = 40, features: int = 3) -> Data:
    x = Key(4).normal((count, features))
    return Data.of(x, (x[:, 0] > 0).long())


def client(data: Data, seed: int = 0) -> Client:
    return Client(data, (), Key(seed).tensor)


def test_without_sampling_the_accountant_gives_the_gaussian_closed_form() -> None:
    """T steps on all rows are one Gaussian mechanism with μ = √T/σ: δ(ε) = Φ(−ε/μ + μ/2) − e^ε Φ(−ε/μ − μ/2)."""
    steps, sigma, delta = 50, 10.0, 1e-5
    mu = math.sqrt(steps) / sigma
    epsilon = epsilon_of_steps(sigma, delta, 1.0, steps)
    assert norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2) <= delta
    low = epsilon - 2e-3
    assert norm.cdf(-low / mu + mu / 2) - math.exp(low) * norm.cdf(-low / mu - mu / 2) > delta


def test_sampling_amplifies_and_an_older_accountant_agrees_from_above() -> None:
    """Rényi moments bound the same steps less tightly (Mironov et al. 2019)."""
    rdp = pytest.importorskip("dp_accounting.rdp")
    dpa = pytest.importorskip("dp_accounting")
    step = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.5))
    renyi = rdp.RdpAccountant().compose(step, 100).get_epsilon(1e-5)
    ours = epsilon_of_steps(1.5, 1e-5, 0.1, 100)
    assert 0.85 * renyi < ours < renyi
    assert ours < epsilon_of_steps(1.5, 1e-5, 1.0, 100) / 3


def test_noise_keeps_to_the_budget_and_is_not_wasted() -> None:
    sigma = noise_for(2.0, 1e-5, 0.2, 30)
    assert 1.97 < epsilon_of_steps(sigma, 1e-5, 0.2, 30) <= 2.0


def test_noise_has_the_promised_size() -> None:
    """From all-zero rows the logits' gradient reaches the biases alone; the weights move by rate · σC/(qn) noise."""
    data = Data.of(torch.zeros(50, 200), torch.arange(50) % 2)
    task = co.classification(co.models.linear(200, 2), prior=Flat())
    settings = DPSGD(noise_multiplier=2.0, clip=0.5, share=0.1, steps=1, rate=3.0)
    start = task.init(Key(0))
    moved = settings(task, start, client(data)).params["0.weight"] - start.params["0.weight"]
    expected = 3.0 * 2.0 * 0.5 / (0.1 * 50)
    assert float(moved.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * 400))


def test_with_little_noise_it_descends_as_plain_gradient_descent_does() -> None:
    """All rows in every step, a clip that no gradient reaches, next to no noise."""
    data = rows()
    task = co.classification(co.models.mlp(3, 2, (5,)))
    start = task.init(Key(0))
    private = DPSGD(noise_multiplier=1e-9, clip=1e3, share=1.0, steps=20, rate=0.3)(task, start, client(data))
    plain = co.SGD(rate=0.3, momentum=0.0, epochs=20, batch=40)(task, start, client(data))
    for name, value in private.params.items():
        assert torch.allclose(value, plain.params[name], atol=2e-6)


def test_batches_are_drawn_by_a_coin_a_row_and_hold_no_padding() -> None:
    data = rows(400, 2)
    padded = Data(torch.cat([data.x, torch.full((50, 2), 99.0)]), torch.cat([data.y, data.y[:50]]), torch.ones(450))
    padded = padded._replace(w=(torch.arange(450) < 400).float())
    sizes = []
    for i in range(50):
        alone = poisson_batch(data, 0.2, Key(i))
        beside = poisson_batch(padded, 0.2, Key(i))
        assert torch.equal(alone.x[alone.w > 0], beside.x[beside.w > 0])
        sizes.append(float(alone.size))
    assert sum(sizes) / 50 == pytest.approx(80, abs=3 * (64 / 50) ** 0.5)  # variance 400 · 0.2 · 0.8 each
    assert len(set(sizes)) > 10  # sizes vary: a fixed size would be another mechanism


def test_engines_agree_on_sites_of_unequal_size() -> None:
    sizes = (20, 33, 50)
    data = [Data(*(leaf[:n] for leaf in rows(50))) for n in sizes]
    sites = co.Sites(
        *(tuple(data), tuple(data), None, None, None, 2, 3, "rows", "given", ("a", "b", "c")),
    )
    for model in (
        co.models.mlp(3, 2, (5,)),
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)),
    ):
        task = co.classification(model)
        method = co.methods.FedAvg(DPSGD(noise_multiplier=1.0, share=0.3, steps=6, momentum=0.5))
        results = [
            co.run(method, task, sites, rounds=2, engine=engine, scored=False).state.posterior.params
            for engine in ("sequential", "vectorised")
        ]
        for name, value in results[0].items():
            assert torch.allclose(value, results[1][name], atol=1e-6)


def test_a_run_states_what_it_promises(tmp_path: Path) -> None:
    data = (rows(50),)
    sites = co.Sites(*(data, data, None, None, None, 2, 3, "rows", "given", ("a",)))
    task = co.classification(co.models.linear(3, 2))
    result = co.run(
        co.methods.FedAvg(DPSGD(epsilon=2.0, delta=1e-3, steps=5)), task, sites, rounds=2, out=tmp_path / "run"
    )
    stated = result.report["privacy"]
    assert all(privacy_statement(bound) is None for bound in bounds(result.method.inference, 1, False).values())
    assert {stated[k] for k in ("epsilon", "delta", "unit", "adjacency")} == {2.0, 1e-3, "row", "add or remove"}
    assert stated["simulated"] is True and stated["steps"] == 10
    assert any("number of rows" in part for part in stated["not_covered"])
    assert epsilon_of_steps(stated["noise_multiplier"], 1e-3, 0.1, 10) <= 2.0
    assert co.load(tmp_path / "run").report["privacy"] == stated


def test_bounds_of_a_private_run_infer_as_it_does() -> None:
    data = (rows(50), rows(30))
    sites = co.Sites(*(data, data, None, None, None, 2, 3, "rows", "given", ("a", "b")))
    task = co.classification(co.models.linear(3, 2))
    for method in bounds(DPSGD(noise_multiplier=1.0, steps=3, rounds=4), 2, False).values():
        co.run(method, task, sites, scored=False)


def test_a_given_noise_is_accounted_for() -> None:
    method = for_rounds(co.methods.FedAvg(DPSGD(noise_multiplier=1.5, share=0.1, steps=10)), 10)
    stated = privacy_statement(method)
    assert stated is not None
    assert stated["epsilon"] == pytest.approx(epsilon_of_steps(1.5, 1e-5, 0.1, 100))


def test_next_to_no_noise_promises_nothing() -> None:
    """The accountant would need petabytes for it."""
    assert privacy_statement(for_rounds(co.methods.FedAvg(DPSGD(noise_multiplier=1e-6)), 1)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0.0}, "epsilon=0 is not a privacy budget"),
        ({"epsilon": -1.0}, "epsilon=-1 is not"),
        ({"delta": 0.0}, "delta=0 is not"),
        ({"delta": 0.05}, "publishing one of 40 rows"),
        ({"share": 0.0}, "share=0"),
        ({"steps": 0}, "steps=0"),
        ({"clip": 0.0}, "clip=0"),
        ({"noise_multiplier": 0.0}, "hides nothing"),
        ({"rounds": 2}, "for 2 rounds and there are 3"),
    ],
)
def test_settings_that_promise_nothing_are_refused(changes: dict[str, float], words: str) -> None:
    task = co.classification(co.models.linear(3, 2))
    inference = dataclasses.replace(DPSGD(noise_multiplier=1.0), **changes)
    with pytest.raises(InputError, match=words):
        inference.for_rounds(3)(task, task.init(Key(0)), client(rows()))


def test_methods_that_send_more_than_their_weights_are_refused() -> None:
    sending_more = [m for m in METHODS.values() if "inference" in {f.name for f in dataclasses.fields(m)}]
    for kind in sending_more:
        method = kind(inference=DPSGD())
        if sends_inference(kind) or issubclass(kind, Bound):
            assert for_rounds(method, 1).inference.rounds == 1
        else:
            with pytest.raises(InputError, match="cannot answer for all of that"):
                for_rounds(method, 1)
            assert privacy_statement(method) is None
    with pytest.raises(InputError, match="cannot answer"):
        for_rounds(co.methods.FedBE(inner=co.methods.FedAvg(DPSGD())), 2)


def test_later_rounds_need_a_budget_that_knows_of_them() -> None:
    task = co.classification(co.models.linear(3, 2))
    later = client(rows())._replace(progress=torch.tensor(0.5))
    with pytest.raises(InputError, match="over how many rounds"):
        DPSGD(noise_multiplier=1.0)(task, task.init(Key(0)), later)


def test_noise_of_a_real_site_cannot_be_repeated() -> None:
    task = co.classification(co.models.linear(3, 2))
    settings = DPSGD(noise_multiplier=1.0, steps=2)

    def trained() -> torch.Tensor:
        return settings(task, task.init(Key(0)), client(rows())).params["0.weight"]

    assert torch.equal(trained(), trained())
    with secret_draws():
        assert not torch.equal(trained(), trained())
        stated = settings.privacy_statement()
        assert stated is not None and stated["simulated"] is False


def test_secret_normals_are_standard() -> None:
    from consilience.privacy.entropy import protecting_normal, protecting_uniform

    with secret_draws():
        drawn = protecting_normal(Key(0), torch.empty(20_000, dtype=torch.float64))
        coins = protecting_uniform(Key(0), 20_000, torch.empty(0))
    assert float(drawn.mean()) == pytest.approx(0, abs=5 / math.sqrt(20_000))  # five deviations: 1 in 2 million
    assert float(drawn.var()) == pytest.approx(1, abs=5 * math.sqrt(2 / 20_000))
    assert float((coins < 0.3).double().mean()) == pytest.approx(0.3, abs=5 * math.sqrt(0.21 / 20_000))


def test_an_audit_does_not_refute_the_promise() -> None:
    """The same audit refutes the promise where there is next to no noise."""
    task = co.classification(co.models.linear(20, 2), prior=Flat())
    canaries = corners(-torch.ones(20), torch.ones(20), 2, 120, Key(3))
    bounds = []
    for noise in (noise_for(0.5, 1e-5, 0.5, 4), 1e-3):
        inference = DPSGD(noise_multiplier=noise, share=0.5, steps=4, clip=0.5)
        method = co.methods.FedAvg(inference)
        bounds.append(audit_method(method, task, None, canaries, Key(1), delta=1e-5, runs=6, references=2).bound)
    assert not bounds[0].refutes(0.5)
    assert bounds[1].refutes(0.5)
