"""Evidence pooling: exact where it can be, invariant where it must be, and honest where it cannot know."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import consilience as co
from consilience.aggregation.evidence import (
    PENALTIES,
    class_log_probs,
    components,
    estimate_penalty,
    fit,
    restricted_log_likelihood,
    solver,
    strengths,
)
from consilience.data import Data
from consilience.distributions.payload import nbytes
from consilience.distributions.posterior import Gaussian, Point, Samples
from consilience.inference import Inference
from consilience.key import Key
from consilience.messages import Client
from consilience.methods.evidence import EvidenceState
from consilience.runs.engines import Sequential, Turn
from consilience.task import label_counts, smooth

CLASSES, FEATURES, ROWS = 4, 3, 60


def discriminant(quadratic: bool, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and log p(x | y) under exact class-conditional Gaussians, with one covariance or one a class."""
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(CLASSES, FEATURES, generator=g, dtype=torch.float64)
    factors = torch.randn(CLASSES, FEATURES, FEATURES, generator=g, dtype=torch.float64)
    covariances = factors @ factors.mT + torch.eye(FEATURES, dtype=torch.float64)
    covariances = covariances if quadratic else covariances[:1].expand_as(covariances)
    x = 2 * torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(means, covariances).log_prob(x.unsqueeze(1))
    return x, evidence


def site_view(evidence: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """What sites send: evidence for the classes they saw, anything for the others, each input shifted at will."""
    g = torch.Generator().manual_seed(9)
    noise = torch.randn(len(counts), *evidence.shape, generator=g, dtype=torch.float64)
    z = torch.where((counts > 0).unsqueeze(1), evidence, 5 * noise)
    return z + torch.randn(len(counts), len(evidence), 1, generator=g, dtype=torch.float64)


CHAIN = [[9.0, 4, 0, 0], [0, 25, 16, 0], [0, 0, 1, 36]]  # no two ends share a class, but all are linked
SKEWED = [[100.0, 1, 1, 1], [1, 100, 1, 1], [1, 1, 50, 60]]


@pytest.mark.parametrize("quadratic", [False, True])
@pytest.mark.parametrize("table", [CHAIN, SKEWED])
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_exact_evidence_gives_the_exact_posterior(quadratic: bool, table: list[list[float]], exponent: float) -> None:
    _, evidence = discriminant(quadratic)
    counts = torch.tensor(table, dtype=torch.float64)
    frequencies = counts.sum(0) / counts.sum()
    z = site_view(evidence, counts)

    pooled = fit(z, strengths(counts, exponent), 0.0)
    found = class_log_probs(pooled.scores, frequencies, counts.sum(0) > 0)

    true = (evidence + frequencies.log()).log_softmax(-1)  # Bayes' rule with p(x|y) and the pooled label frequencies
    torch.testing.assert_close(found.exp(), true.exp(), atol=1e-6, rtol=0)
    assert float(pooled.residuals.abs().max()) < 1e-6


def test_any_target_frequencies_can_be_asked_for() -> None:
    _, evidence = discriminant(True)
    counts = torch.tensor(SKEWED, dtype=torch.float64)
    target = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    scores = fit(site_view(evidence, counts), strengths(counts, 0.5), 0.0).scores
    found = class_log_probs(scores, target, counts.sum(0) > 0)
    torch.testing.assert_close(found.exp(), (evidence + target.log()).softmax(-1), atol=1e-6, rtol=0)


tables = st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=2, max_size=5).filter(
    lambda t: all(sum(row) > 0 for row in t)
)


@given(tables, st.sampled_from([0.0, 0.3, 1.0, 10.0]), st.integers(0, 1000))
@settings(max_examples=60)
def test_the_map_is_the_minimiser(table: list[list[int]], penalty: float, seed: int) -> None:
    counts = torch.tensor(table, dtype=torch.float64)
    r = strengths(counts, 0.5)
    if penalty == 0 and len(components(r)) > 1:
        return
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(len(r), 2, 3, generator=g, dtype=torch.float64)

    found = fit(z, r, penalty)

    def loss(s: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        square = (r.unsqueeze(1) * (s + a.unsqueeze(-1) - z) ** 2).sum()
        return square + penalty * (r.sum(1, keepdim=True) * a**2).sum()

    s, a = found.scores.clone().requires_grad_(), found.offsets.clone().requires_grad_()
    gradients = torch.autograd.grad(loss(s, a), (s, a))
    assert (
        max(float(gradient.abs().max()) for gradient in gradients) < 1e-8
    )  # a convex quadratic: no gradient, the minimum


def test_the_plausibility_of_a_penalty_is_the_restricted_likelihood() -> None:
    counts = torch.tensor([[4.0, 9, 0, 1], [0, 16, 25, 0], [1, 0, 4, 9]], dtype=torch.float64)
    r = strengths(counts, 0.5)
    z = torch.randn(3, 1, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    cells = (r > 0).nonzero()  # one observation a cell that was seen
    x = torch.eye(4, dtype=torch.float64)[cells[:, 1]]
    y, same_site = z[cells[:, 0], 0, cells[:, 1]], cells[:, :1] == cells[:, 0]

    def dense(penalty: float) -> float:
        """Patterson and Thompson (1971): −½ (log|V| + log|XᵀV⁻¹X| + (n − p) log yᵀPy), every matrix written out."""
        site_var = 1 / (penalty * r.sum(1)[cells[:, 0]])
        v = torch.diag(1 / r[cells[:, 0], cells[:, 1]]) + same_site * site_var
        inverse = torch.linalg.inv(v)
        information = x.T @ inverse @ x
        projected = inverse - inverse @ x @ torch.linalg.inv(information) @ x.T @ inverse
        freedom = len(y) - 4
        return -0.5 * float(torch.logdet(v) + torch.logdet(information) + freedom * (y @ projected @ y).log())

    ours = torch.cat([restricted_log_likelihood(fit(z, r, p), r, p) for p in PENALTIES])
    expected = torch.tensor([dense(p) for p in PENALTIES], dtype=torch.float64)
    torch.testing.assert_close(ours - ours[0], expected - expected[0], rtol=1e-8, atol=1e-8)

    weights = (expected - expected.logsumexp(0)).exp()
    by_hand = sum(w * fit(z, r, p).scores for w, p in zip(weights, PENALTIES, strict=True))
    torch.testing.assert_close(estimate_penalty(z, r), by_hand, rtol=1e-8, atol=1e-8)


@given(st.integers(0, 1000), st.sampled_from([0.0, 1.0, 5.0]))
@settings(max_examples=25)
def test_order_of_sites_and_shifts_of_a_site(seed: int, penalty: float) -> None:
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 30, (4, 3), generator=g).double()
    r, z = strengths(counts, 0.5), torch.randn(4, 5, 3, generator=g, dtype=torch.float64)
    order = torch.randperm(4, generator=g)
    scores = fit(z, r, penalty).scores
    torch.testing.assert_close(fit(z[order], r[order], penalty).scores, scores)
    if penalty == 0:  # free offsets absorb any constant a site adds for an input
        shifted = z + torch.randn(4, 5, 1, generator=g, dtype=torch.float64)
        both = [fit(q, r, 0.0).scores.log_softmax(-1) for q in (z, shifted)]
        torch.testing.assert_close(*both)


def test_the_method_does_not_see_a_constant_added_to_a_sites_logits() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("evidence"), task, sites)
    moved = [p._replace(params={**p.params, "2.bias": p.params["2.bias"] + 3.0}) for p in result.state.posteriors]
    before = result.method.predictive(task, result.state)(sites.all_test.x)
    after = result.method.predictive(task, result.state._replace(posteriors=tuple(moved)))(sites.all_test.x)
    torch.testing.assert_close(before[0], after[0], atol=1e-5, rtol=0)  # z̃ is normalised before the fit


def test_equal_frequencies_and_identical_sites_give_back_the_single_site() -> None:
    task = co.classification(co.models.mlp(2, 3, hidden=(4,)))
    posterior = task.init(Key(1))
    x = Key(2).normal((20, 2))
    state = EvidenceState(posterior, (posterior,) * 3, torch.ones(3) / 3, torch.full((3, 3), 10.0))
    for penalty in (0.0, 1.0, 7.0):
        pooled = co.methods.EvidencePooling(penalty=penalty).predictive(task, state)(x)
        # Offsets are shrunk, not scores: with λ > 0 all sites' common shift moves every class alike.
        torch.testing.assert_close(pooled[0].exp(), task.predictive(posterior)(x)[0].exp(), atol=1e-5, rtol=0)


def test_one_site_is_logit_adjustment() -> None:
    task, sites = tiny.classification()
    alone = sites.pooled()
    result = co.run(tiny.method("evidence"), task, alone)
    counts = label_counts(alone.train[0], 2)
    z = task.predictive(result.state.posteriors[0])(alone.all_test.x)[0]
    expected = (z + smooth(counts).log()).softmax(-1)
    torch.testing.assert_close(
        result.method.predictive(task, result.state)(alone.all_test.x)[0].exp(), expected, atol=1e-5, rtol=0
    )


def test_the_adjusted_likelihood_changes_the_target_only() -> None:
    task, sites = tiny.classification()
    data, params = sites.train[0], task.init(Key(0)).params
    offset = torch.tensor([0.3, -1.2])
    adjusted = task.adjusted(offset)
    own = torch.nn.functional.cross_entropy(task.outputs(params, data.x) + offset, data.y)
    prior = -task.prior.log_density(params) / data.size
    torch.testing.assert_close(adjusted.loss(params, data, data.size), own + prior)
    torch.testing.assert_close(
        adjusted.predictive(Point(params))(data.x)[0],
        task.predictive(Point(params))(data.x)[0],
    )


def test_a_class_nobody_has_seen_keeps_its_prior() -> None:
    counts = torch.tensor([[5.0, 3.0, 0.0], [2.0, 9.0, 0.0]])
    z = Key(0).normal((2, 7, 3)).double()
    frequencies = smooth(counts.sum(0))
    found = class_log_probs(fit(z, strengths(counts, 0.5), 1.0).scores, frequencies, counts.sum(0) > 0).exp()
    torch.testing.assert_close(found[:, 2], frequencies[2].double().expand(7))
    torch.testing.assert_close(found.sum(-1), torch.ones(7, dtype=torch.float64))


def test_sites_with_a_single_class_each_fall_back_to_the_penalty() -> None:
    r = strengths(torch.eye(3, dtype=torch.float64) * 10, 0.5)
    assert components(r) == [[0], [1], [2]]
    with pytest.warns(UserWarning, match="groups 0; 1; 2: λ = 1"):
        free = solver(r, 0.0)
    torch.testing.assert_close(free, solver(r, 1.0))


@pytest.mark.parametrize(
    "inference",
    [
        co.SGD(epochs=2, batch=16),
        co.SGLD(epochs=2, burn=0, every=1, batch=16),
        co.CyclicalSGHMC(epochs=2, cycles=1, samples=2, keep=2, batch=16),
    ],
)
def test_works_from_any_posterior(inference: Inference) -> None:
    task, sites = tiny.classification()
    result = co.run(co.methods.EvidencePooling(inference), task, sites)
    assert 0 < result.metrics["nll"] < 2
    gaussians = tuple(
        co.distributions.posterior.moments(p) if isinstance(p, Samples) else Gaussian(p.params, {})
        for p in result.state.posteriors
    )
    p = result.method.predictive(task, result.state._replace(posteriors=gaussians))(sites.all_test.x)
    assert bool(torch.isfinite(p[0]).all())


@pytest.mark.parametrize(("inference", "samples"), [(co.SGD(), 1), (co.CyclicalSGHMC(), 2)])
def test_bytes_are_samples_and_counts(inference: Inference, samples: int) -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.shortened(co.methods.EvidencePooling(inference)), task, sites)
    parameters = sum(v.numel() for v in task.like.values())
    assert all(nbytes(r.payload) == 4 * (samples * parameters + 2) for r in result.replies)  # S·P + C floats


def test_counts_ignore_padding() -> None:
    data = Data(torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]), torch.tensor([1.0, 1, 1, 0]))
    assert label_counts(data, 3).tolist() == [1, 2, 0]


def test_regression_is_refused() -> None:
    task, sites = tiny.regression()
    with pytest.raises(co.InputError, match="classification only"):
        co.run(tiny.method("evidence"), task, sites)


def test_distilled() -> None:
    task, sites = tiny.classification()
    method = dataclasses.replace(tiny.method("evidence"), distil=co.aggregation.Distil(co.Adam(epochs=2)))  # type: ignore[call-arg]
    assert isinstance(co.run(method, task, sites).state.posterior, Point)


def test_label_shift_is_undone_where_it_is_all_that_differs() -> None:
    # Two classes, x | y ~ N(±1, 1), sites with 90 % of one class: Bayes' log-odds are 2x + log(π₁/π₀).
    g = torch.Generator().manual_seed(0)
    data = []
    for share in (0.9, 0.1):
        y = (torch.rand(4000, generator=g) < share).long()
        x = torch.randn(4000, 1, generator=g) + (2 * y - 1).float().unsqueeze(1)
        data.append(Data.of(x, y))
    task = co.classification(co.models.linear(1, 2))
    method = co.methods.EvidencePooling(co.Adam(rate=0.02, epochs=20, batch=200))
    replies = [method.local(task, task.init(Key(0)), Client(d, (), Key(k))) for k, d in enumerate(data)]
    for reply in replies:
        w, b = reply.send.posterior.params["0.weight"][:, 0], reply.send.posterior.params["0.bias"]
        assert float(w[1] - w[0]) == pytest.approx(2, abs=0.25)
        assert float(b[1] - b[0]) == pytest.approx(0, abs=0.25)  # the site's own frequencies are not in it


def test_tuning_by_the_sites_picks_the_best_of_the_grid() -> None:
    from consilience.distributions.predictive import log_prob, tempered
    from consilience.methods.evidence_tuned import GRID, PENALTIES, TEMPERATURES, EvidenceTuned

    task, sites = tiny.classification()
    method = tiny.method("evidence_tuned")
    result = co.run(method, task, sites)
    assert isinstance(method, EvidenceTuned) and result.report["rounds"] == 2
    totals = sum(r.payload for r in result.replies)
    assert totals.shape == (len(PENALTIES) * len(TEMPERATURES),)
    assert result.state.chosen.tolist() == pytest.approx(GRID[int(totals.argmax())])
    # The first site's sum for the first candidate, by hand: its pool's log-score on the rows it set aside.
    engine = Sequential(sites.train)
    first = method.init(task, result.server)
    replies = engine.gather(method, task, method.broadcast(first), range(len(sites)), Turn(0, Key(0).fold(1)))
    aside = engine.memories[0] > 0
    assert int(aside.sum()) == round(0.2 * len(aside) + 0.49)
    state = method.aggregate(task, first, replies, result.server)
    pool = co.methods.EvidencePooling(method.inference, PENALTIES[0]).teacher(task, EvidenceState(*state[:4]))
    by_hand = log_prob(tempered(pool(sites.train[0].x), TEMPERATURES[0]), sites.train[0].y)[aside].sum()
    torch.testing.assert_close(result.replies[0].payload[0], by_hand, atol=1e-4, rtol=1e-4)


def test_rows_set_aside_are_not_trained_on() -> None:
    task, sites = tiny.classification()
    method = tiny.method("evidence_tuned")
    client = Client(sites.train[0], (), Key(3))
    first = method.local(task, task.init(Key(0)), client)
    spoiled = client.data._replace(x=torch.where(first.keep.unsqueeze(1) > 0, 99.0, client.data.x))
    again = method.local(task, task.init(Key(0)), client._replace(data=spoiled))
    for a, b in zip(first.send.posterior.params.values(), again.send.posterior.params.values(), strict=True):
        assert torch.equal(a, b)


def test_scores_instead_of_weights() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("evidence_logits"), task, sites)
    assert sites.inputs is not None
    assert all(nbytes(r.payload) == 4 * (len(sites.inputs) * 2 + 2) for r in result.replies)  # C numbers an input + C
    with pytest.raises(co.InputError, match="unlabelled rows"):
        co.run(tiny.method("evidence_logits"), task, dataclasses.replace(sites, inputs=None))


def test_diagnosis_sees_a_site_whose_classes_look_different() -> None:
    from consilience.aggregation.evidence import diagnosis

    _, evidence = discriminant(True)
    counts = torch.full((3, CLASSES), 10.0, dtype=torch.float64)
    z = site_view(evidence, counts)
    calm = diagnosis(z, counts, 0.5, 0.0)
    z[2] = z[2].roll(1, dims=-1)  # the third site calls every class by its neighbour's name
    with pytest.warns(UserWarning, match=r"name another in \d+ % of cases|name another in \d+% of cases"):
        alarmed = diagnosis(z, counts, 0.5, 0.0)
    assert calm["residual"] < 1e-6
    assert calm["contradiction"] == 0
    assert alarmed["contradiction_by_site"][2] > 0.5
    assert max(range(3), key=lambda k: alarmed["contradiction_by_site"][k]) == 2


def test_a_site_whose_scores_are_not_finite_is_named_and_left_out() -> None:
    counts = torch.tensor(SKEWED, dtype=torch.float64)
    z = site_view(discriminant(True)[1], counts)
    expected = fit(z[:2], strengths(counts[:2], 0.5), 1.0).scores
    z[2, 0, 0] = torch.nan
    with pytest.warns(UserWarning, match="Scores of site 2 are not finite"):
        found = fit(z, strengths(counts, 0.5), 1.0).scores
    torch.testing.assert_close(found, expected)


def test_a_site_left_out_is_left_out_of_the_estimate_of_the_penalty_too() -> None:
    counts = torch.tensor(SKEWED, dtype=torch.float64)
    z = site_view(discriminant(True)[1], counts)
    expected = estimate_penalty(z[:2], strengths(counts[:2], 0.5))
    z[2, 0, 0] = torch.nan
    with pytest.warns(UserWarning, match="Scores of site 2 are not finite"):
        found = estimate_penalty(z, strengths(counts, 0.5))
    torch.testing.assert_close(found, expected)
