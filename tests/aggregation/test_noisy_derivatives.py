"""Derivatives with noise: what one row can change, and how rounds are joined."""

from __future__ import annotations

import pytest
import torch
from noisy_rows import PRIVACY, itself, make_rows

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.glm.derivatives import Quadratic, differentiate
from consilience.glm.noisy_derivatives import (
    NoisyDerivatives,
    as_weights,
    combine_rounds,
    contrast_prior,
    contrasts,
    join_rounds,
    length_of,
    read_derivatives,
    scale_of,
    sum_derivatives,
)
from consilience.glm.sums import square_matrix
from consilience.key import Key
from consilience.privacy.dp.mechanisms import Released


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("bias", [True, False])
def test_no_row_moves_the_release_by_more_than_1(classes: int, bias: bool) -> None:
    """Neighbours: each row removed, and rows along axes added, at weights from 0 to where probabilities are 0 and 1."""
    data = make_rows(8, 3, classes, 10.0)
    axes = torch.cat([torch.eye(3), -torch.eye(3), torch.zeros(1, 3)]).double() * 1e6
    added = Data.of(axes.repeat(classes, 1), torch.arange(classes).repeat_interleave(len(axes)))
    largest = 0.0
    for seed, size in enumerate((0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 1e3)):
        weights = size * Key(seed).normal((classes, 3 + bias), torch.zeros(0).double())
        whole = sum_derivatives(itself, data, weights, PRIVACY).values
        for i in range(len(data.y)):
            without = Data(*(torch.cat([leaf[:i], leaf[i + 1 :]]) for leaf in data))
            largest = max(largest, float((whole - sum_derivatives(itself, without, weights, PRIVACY).values).norm()))
        for i in range(len(added.y)):
            one = Data(*(leaf[i : i + 1] for leaf in added))
            more = Data(*(torch.cat([a, b]) for a, b in zip(data, one, strict=True)))
            largest = max(largest, float((sum_derivatives(itself, more, weights, PRIVACY).values - whole).norm()))
    assert largest <= 1 + 1e-9
    assert largest > 0.95  # so that no more noise is added than is needed


@pytest.mark.parametrize("classes", [2, 3, 4])
def test_the_bound_holds_for_every_probability(classes: int) -> None:
    """‖p − y‖²/2 + 4g‖S‖² ≤ 1, by brute force over the simplex, also near its corners and edges."""
    generator = torch.Generator().manual_seed(classes)
    p = torch.cat(
        [torch.rand(20_000, classes, generator=generator, dtype=torch.float64) ** power for power in (1, 4, 20)]
    )
    p = p / p.sum(1, keepdim=True)
    p = torch.cat([p, torch.eye(classes, dtype=torch.float64)])
    spread = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    g = 2 / 3 if classes == 2 else 1 / 4
    for y in range(classes):
        mark = torch.eye(classes, dtype=torch.float64)[y]
        length = ((p - mark) ** 2).sum(1) / 2 + 4 * g * (spread**2).sum((1, 2))
        assert float(length.max()) <= 1 + 1e-12


def test_a_heavy_row_counts_once_and_without_clipping_the_attack_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_rows(1, 3, 3, 1e6)
    weights = torch.zeros(3, 4).double()
    heavy = sum_derivatives(itself, data._replace(w=torch.tensor([50.0])), weights, PRIVACY)
    assert float(heavy.values.norm()) <= 1 + 1e-9
    monkeypatch.setattr("consilience.glm.noisy_derivatives.shorten", lambda x: x.double())
    assert float(sum_derivatives(itself, data, weights, PRIVACY).values.norm()) > 1e3


def test_a_release_without_noise_is_that_of_a_softmax() -> None:
    """The same gradient and Hessian as `differentiate`, which statsmodels checks, in contrasts of bounded rows."""
    data = make_rows(30, 3, 3, 0.3)
    data = data._replace(x=data.x / data.x.norm(dim=1, keepdim=True).clamp(min=1))
    weights = Key(1).normal((3, 4), torch.zeros(0).double())
    plain = differentiate(itself, data, weights)
    scale = scale_of(4, True, PRIVACY)
    q = contrasts(3)
    point = (q.mT @ (weights / scale)).flatten()

    values = sum_derivatives(itself, data, weights, PRIVACY).values
    read = read_derivatives(Released(values, torch.ones(())), point, 3, PRIVACY, 1.0)

    assert len(values) == length_of(8)
    assert torch.allclose(read.gradient.reshape(2, 4), q.mT @ plain.gradient * scale)
    change = torch.kron(q, torch.diag(scale))
    assert torch.allclose(read.hessian, change.mT @ square_matrix(plain.curvature, 12) @ change)
    with pytest.raises(InputError, match="agreed"):
        read_derivatives(Released(values[1:], torch.ones(())), point, 3, PRIVACY, 1.0)


def test_rounds_are_weighted_by_their_budget_and_have_its_noise_together() -> None:
    """Without noise on a quadratic, gradients at two points are that at the point between, whoever holds which rows."""
    hessian = torch.tensor([[9.0, 2.0], [2.0, 7.0]]).double()
    points = torch.tensor([[0.4, -0.2], [2.0, 1.0]]).double()
    rounds = None
    for point, var in zip(points, (9.0, 1.0), strict=True):
        noise = torch.tensor(var).double()
        rounds = join_rounds(rounds, NoisyDerivatives(point, hessian @ point, hessian, noise, noise / 4))
    assert rounds is not None
    found = combine_rounds(rounds)
    assert torch.allclose(found.point, torch.tensor([1.84, 0.88]).double())  # a tenth and nine tenths
    assert torch.allclose(found.gradient, hessian @ found.point)
    assert torch.allclose(found.hessian, hessian)
    assert float(found.gradient_var) == pytest.approx(0.9)  # 1/(1/9 + 1)
    assert float(found.hessian_var) == pytest.approx(0.225)


def test_weights_are_written_back_with_the_prior_along_what_classes_share() -> None:
    """With nothing learned, the Gaussian over θ is the prior itself."""
    prior = Quadratic(torch.tensor([[1.0, 2.0], [3.0, 1.0], [0.5, 0.0]]).double(), torch.full((3, 2), 4.0).double())
    scale = scale_of(2, True, PRIVACY)
    mean, precision = as_weights(contrast_prior(prior, scale), prior, scale)
    assert torch.allclose(mean, prior.mean)
    assert torch.allclose(precision, 4 * torch.eye(6).double())
