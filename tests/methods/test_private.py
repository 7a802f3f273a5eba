"""Private methods on every engine: the same noise, none left out, and refusals by name."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.prior import Flat
from consilience.errors import InputError
from consilience.glm.noisy_posterior import Effort
from consilience.inference import Laplace
from consilience.key import Key
from consilience.messages import Client, Server
from consilience.methods.exact import ExactPooling
from consilience.methods.exact_tuned import ExactTuned
from consilience.methods.gaussian_product import GaussianProduct
from consilience.methods.glm import GLM
from consilience.models.bounded import Bounded
from consilience.models.maps import RandomReLU
from consilience.privacy.dp.mechanisms import Clipped, Privacy, Released
from consilience.privacy.entropy import Simulated

BRIEF = Effort(1, 2, 8)  # draws whose moments are not looked at


def problem(sites: int = 4, classes: int | None = 3) -> tuple[co.Task, co.Sites]:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for k in range(sites):
        x = torch.randn(150 + 10 * k, 4, generator=generator)
        y = (x[:, :3] + 0.3 * torch.randn(len(x), 3, generator=generator)).argmax(1)
        if classes is None:
            y = x.sum(1)
        parts.append(Data.of(x, y))
    network = nn.Sequential(nn.Flatten(), Bounded(2.0), nn.Linear(4, classes or 1))
    task = co.regression(network) if classes is None else co.classification(network)
    names = tuple(str(k) for k in range(sites))
    return task, co.Sites(tuple(parts), tuple(parts), None, None, None, classes, 4, "made", "made", names)


@pytest.mark.parametrize("method", [ExactPooling, ExactTuned, GLM])
def test_every_engine_adds_the_same_noise(
    method: type[ExactPooling] | type[ExactTuned] | type[GLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consilience.glm.noisy_posterior.LAST", BRIEF)  # moments are not looked at
    monkeypatch.setattr("consilience.glm.private.SEARCH", BRIEF)
    task, sites = problem()
    private = method(privacy=Privacy(3.0, 1e-4))
    results = [co.run(private, task, sites, engine=engine) for engine in ("sequential", "parallel", "vectorised")]
    sent = [[reply.payload for reply in result.replies] for result in results]
    assert all(isinstance(payload, Released) for payloads in sent for payload in payloads)
    for other in sent[1:]:
        assert all(torch.allclose(a.values, b.values, atol=1e-6) for a, b in zip(sent[0], other, strict=True))
    assert all(float(reply.size) == 0 for reply in results[0].replies)
    assert results[0].report["privacy"]["simulated"] is True
    assert results[0].report["privacy"]["adjacency"] == "add or remove"


def test_what_has_no_noise_yet_cannot_be_stored_or_sent() -> None:
    from consilience.serialisation.codec import decode, encode, types_of

    task, sites = problem()
    private = ExactPooling(privacy=Privacy(3.0, 1e-4))
    reply = private.local(task, (), Client(sites.train[0], (), Key(0).tensor))
    assert isinstance(reply.send, Clipped)
    with pytest.raises(InputError, match="Clipped"):
        decode(*encode(reply.send), types_of(private))


def test_much_budget_is_nearly_no_noise() -> None:
    task, sites = problem(classes=None)
    private = co.run(ExactPooling(privacy=Privacy(500.0, 1e-4, bound=10.0)), task, sites)
    plain = co.run(ExactPooling(), task, sites)
    x = sites.train[0].x
    a, b = (r.method.predictive(task, r.state)(x).mean for r in (private, plain))
    assert float((a - b).abs().max()) < 0.1


def test_much_budget_makes_glm_nearly_that_without_noise() -> None:
    """Both find the posterior of all rows; slices miss its moments by their own error, a tenth of a deviation."""
    task, sites = problem()
    shuffled = [rows._replace(y=torch.where(torch.arange(len(rows.y)) % 2 == 0, rows.y, 0)) for rows in sites.train]
    sites = dataclasses.replace(sites, train=tuple(shuffled))
    private = co.run(GLM(privacy=Privacy(500.0, 1e-4)), task, sites).state.posterior
    plain = co.run(GLM(), task, sites).state.posterior
    deviation = torch.linalg.inv(plain.precision).diagonal().sqrt()
    assert float(((private.mean - plain.mean) / deviation).abs().max()) < 0.5
    ratio = torch.linalg.inv(private.precision).diagonal().sqrt() / deviation
    assert float(ratio.min()) > 0.8 and float(ratio.max()) < 1.25


def test_much_budget_makes_a_product_of_gaussians_nearly_that_without_noise() -> None:
    """Moments make the posterior that `glm` finds of all rows, under the same prior and with the same learned noise."""
    task, sites = problem(classes=None)
    noisy = [rows._replace(y=rows.y + Key(k).normal(rows.y.shape, rows.y)) for k, rows in enumerate(sites.train)]
    sites = dataclasses.replace(sites, train=tuple(noisy))
    private = co.run(GaussianProduct(privacy=Privacy(5000.0, 1e-4, bound=10.0)), task, sites, scored=False)
    plain = co.run(GLM(), task, sites, scored=False).state.posterior
    found = private.state.posterior
    assert all(isinstance(reply.payload, Released) and float(reply.size) == 0 for reply in private.replies)
    deviation = torch.linalg.inv(plain.precision).diagonal().sqrt()
    assert float(((found.mean - plain.mean) / deviation).abs().max()) < 0.5
    ratio = torch.linalg.inv(found.precision).diagonal().sqrt() / deviation
    assert float(ratio.min()) > 0.8 and float(ratio.max()) < 1.25


@pytest.mark.parametrize(
    ("method", "classes", "word"),
    [(GaussianProduct(privacy=Privacy(3.0, 1e-4)), 3, "use glm"),
     (GaussianProduct(cap=3.0, privacy=Privacy(3.0, 1e-4)), None, "leave inference and cap"),
     (GaussianProduct(Laplace(dense=True), privacy=Privacy(3.0, 1e-4)), None, "leave inference and cap")],
)  # fmt: skip
def test_refuses_what_a_product_of_gaussians_cannot_keep_private(
    method: GaussianProduct, classes: int | None, word: str
) -> None:
    with pytest.raises(InputError, match=word):
        co.run(method, *problem(classes=classes))


def test_the_rounds_of_glm_spend_all_of_the_budget() -> None:
    spent = [GLM().spends(t) for t in range(1, 5)]
    assert sum(spent) == pytest.approx(1.0) and spent[3] == 0.7


def test_refuses_what_glm_cannot_keep_private() -> None:
    """Numbers, flat priors, many weights and too few rounds; each in one sentence, before anything is computed."""
    private = GLM(privacy=Privacy(3.0, 1e-4))
    task, sites = problem()
    numbers, other = problem(classes=None)
    wide = co.classification(nn.Sequential(RandomReLU(4, 64), Bounded(2.0), nn.Linear(64, 3)))
    for bad, rows, rounds, word in (
        (numbers, other, None, "learned by `exact`"),
        (dataclasses.replace(task, prior=Flat()), sites, None, "flat prior"),
        (wide, sites, None, "130"),
        (task, sites, 3, "use rounds=4"),
        (task, sites, 5, "use rounds=4"),
    ):
        with pytest.raises(InputError, match=word):
            co.run(private, bad, rows, rounds=rounds)


@pytest.mark.parametrize("outcome", ["counts", "survival"])
def test_rates_and_hazards_have_no_private_form(outcome: str) -> None:
    """A row's part of the gradient is its rate's error times its features: it grows with the rate, without end."""
    layer = nn.Sequential(nn.Flatten(), Bounded(2.0), nn.Linear(4, 1, bias=outcome == "counts"))
    task = {"counts": co.counts, "survival": co.survival}[outcome](layer)
    with pytest.raises(InputError, match=f"glm has no private form for {outcome}.*no largest value"):
        GLM(privacy=Privacy(3.0, 1e-4)).init(task, Server(None, None, Key(0), 4))


def test_a_sum_that_does_not_fit_its_steps_is_refused_and_nothing_wraps() -> None:
    """2⁵³ rows of the largest part, in steps of 2⁻²⁰."""
    huge = Clipped(torch.full((2,), 2.0**53, dtype=torch.float64))
    with pytest.raises(InputError, match="does not fit into fixed point"):
        Privacy(3.0, 1e-4).add_noise(huge, Simulated(Key(0)))


@pytest.mark.parametrize(("method", "classes"), [(ExactPooling, 3), (GLM, 3), (GaussianProduct, None)])
def test_noisy_sums_that_are_folded_end_where_those_that_are_kept_do(
    method: type[ExactPooling] | type[GLM] | type[GaussianProduct], classes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many shares of the noise are counted; the posterior would be too sure of itself with fewer."""
    monkeypatch.setattr("consilience.runs.engines.participation.PORTION", 2)
    monkeypatch.setattr("consilience.glm.noisy_posterior.LAST", BRIEF)
    monkeypatch.setattr("consilience.glm.private.SEARCH", BRIEF)
    task, sites = problem(classes=classes)
    private = method(privacy=Privacy(3.0, 1e-4, noise="once", honest=4))
    kept = co.run(private, task, sites, scored=False)
    folded = co.run(private, task, sites, scored=False, keep_replies="none")
    assert folded.replies == [] and len(kept.replies) == 4
    for a, b in zip(tree.leaves(kept.state), tree.leaves(folded.state), strict=True):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("method", "word"),
    [(ExactPooling(head=co.glm.heads.Dirichlet(), privacy=Privacy()), "leave head"),
     (ExactPooling(share=0.1, privacy=Privacy()), "leave head"),
     (ExactTuned(candidates=(co.glm.heads.OneHot(),), privacy=Privacy()), "candidates"),
     (ExactPooling(privacy=Privacy(delta=0.01)), "one of the 660 rows"),
     (ExactPooling(privacy=Privacy(noise="once", honest=5)), "relied on")],
)  # fmt: skip
def test_refuses_what_has_no_private_form(method: co.Method, word: str) -> None:
    task, sites = problem()
    with pytest.raises(InputError, match=word):
        co.run(method, task, sites)


def test_refuses_features_that_are_not_clipped_and_two_sites() -> None:
    _, sites = problem()
    open_task = co.classification(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    with pytest.raises(InputError, match="not clipped"):
        co.run(ExactPooling(privacy=Privacy(delta=1e-4)), open_task, sites)
    task, two = problem(2)
    with pytest.raises(InputError, match="With 2 sites"):
        co.run(ExactPooling(privacy=Privacy(delta=1e-4, noise="once", honest=2)), task, two)


@pytest.mark.parametrize("length", [-1.0, float("inf"), float("nan")])
def test_refuses_a_length_that_bounds_nothing(length: float) -> None:
    with pytest.raises(InputError, match="not clipped"):
        Bounded(length)


def test_bounded_features_are_no_longer_than_1_and_lose_what_groups_share() -> None:
    x = 100 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    assert float(Bounded(0.0)(x).norm(dim=1).sub(1).abs().max()) < 1e-6
    assert float(Bounded(5.0)(x).norm(dim=1).max()) <= 1 + 1e-6
    assert torch.allclose(Bounded(5.0)(x / 1000), x / 5000)
    moved = x + torch.tensor([1.0, 2.0]).repeat(3) * 7
    assert torch.allclose(Bounded(0.0, 2)(x), Bounded(0.0, 2)(moved), atol=1e-5)
