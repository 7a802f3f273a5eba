"""The posterior of weights of which noisy gradients and Hessians are known: `noisy_derivatives` says what is released.

Round r asks at tᵣ and sees ĝᵣ = gᵣ + eᵣ and Aᵣ = Hᵣ + Eᵣ, e of variance ρᵣ², E symmetric of variance τᵣ² (twice that on
its diagonal). With the truth at t, u the rows' own score there and p̂(s) = Σ p(s)⊗a,

    ĝᵣ = p̂(tᵣ) − p̂(t) − u + eᵣ

so that all rounds tell about the same p̂(t) + u, and differ by what depends on the rows' features alone. The mean of all
releases, weighted by the budget c that each took (Σ c = 1), has the noise of one release with the whole budget. It
stands for a gradient ĝ at t₀ = Σ cᵣtᵣ and a Hessian A of H = Σ cᵣHᵣ there:

    ĝ − F(t) ~ N(0, H(t) + ρ²I + K),   F(t) = Σ cᵣp̂(tᵣ) − p̂(t)

Taking the last round alone, as if tᵣ had come from nowhere, would leave out what the earlier ones tell.

**Rows that stand for the rows.** How F and H change with t is told by `ROWS` Gaussian rows with the moments of the Gram
matrix, which the first round's Hessian holds (at t = 0, S is known): p̃, H̃(t) and H̃ = Σ cᵣH̃(tᵣ). The step that they
take from the points asked to t, in units of w = t − t₀, is

    w̃(t) = H̃⁻¹(p̃(t) − Σ cᵣp̃(tᵣ)) = w + …,   F(t) = −Hw̃,   H(t) = H½H̃⁻½ H̃(t) H̃⁻½H½

exact where rows are those, and to first order for any. w̃ ends where probabilities are 0 and 1, and w does not: with
F = −Hw + (F̃ + H̃w), as it once was, an error of H counted for ever more the larger the weights, so that far away nothing
was refuted, and the posterior's mean lay there.

**What is known of H.** A = H + E, where E can drown H. H̃ tells more than that its directions could be any: along t,
where outcomes are nearly certain, curvature is least. So it is the eigenvalues λ of A − H̃ that are shrunk to f(λ), as
`noisy` does those of A, and H = H̃ + what is left. Where rows are as assumed that is nothing; where they are not, A
says so. What is still unknown is less than E: the covariance of a mean given noisy numbers is the noise's variance
times the slope of that mean (Tweedie's formula, to second order), and the slope of a matrix with shrunk eigenvalues is
known in the eigenbasis (Daleckiĭ and Kreĭn):

    var Hᵢⱼ = τ²·(f(λᵢ) − f(λⱼ))/(λᵢ − λⱼ),   var Hᵢᵢ = 2τ²·∂f(λᵢ)/∂λᵢ

Where noise drowns a spectrum, all f(λ) are alike and little is unknown; where eigenvalues stand apart, it is all of τ².
K(w̃) is the covariance of what is not known of Hw̃.

**The score is no Gaussian.** r, the mean of H over H plus noise, is how much of ĝ − F(t) is u, whose third cumulant,
the change of H, is that of an exponential family. To first order (Edgeworth's expansion) it takes r/3 of that change
away, and r of what the change makes of the log-determinant. With no noise, r = 1, this is the likelihood of the rows to
third order, and with much noise the Gaussian above.

The posterior, with the task's prior, is drawn from by `slices`: at first around the Gaussian that F = −Hw makes
(`fit_line`), then around the moments of the draws before. Every round asks at its mean, and after the last one its
moments are kept.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.glm.noisy import shrink_eigenvalues
from consilience.glm.noisy_derivatives import NoisyDerivatives, Normal, combine_rounds, contrasts, round_weights
from consilience.glm.slices import disagreement, draw_slices
from consilience.key import Key

ROWS = 400  # that stand for the features' distribution
RIDGE = 1e-6  # of these rows' mean curvature: along what they do not tell, w̃ = w
STEPS = 40  # of the Gaussian posterior's fixed point
WIDER = 1.5  # than the last draws' variance, around which slices are taken
CHAINS = 32
DISAGREE = 1.2  # of chains, from which on intervals are not to be relied on


class Effort(NamedTuple):
    """How long a posterior is drawn from.

    Attributes:
        passes: How often, each time around the moments of the last.
        warm_up: Draws of a chain that are thrown away, in each pass.
        draws: Those that are kept.
    """

    passes: int
    warm_up: int
    draws: int


SEARCH = Effort(2, 12, 30)  # for a point
LAST = Effort(3, 40, 60)


def unknown_variances(values: Tensor, shrunk: Tensor, noise_var: Tensor, least: float = 0.0) -> Tensor:
    """Find how much is not known of a matrix's entries in the eigenbasis of itself with noise.

    Args:
        values: λ, eigenvalues with noise, ascending [P].
        shrunk: f(λ), ascending [P].
        least: What no f(λ) is below.

    Returns:
        Variances, symmetric, from 0 to what the noise has: τ² off the diagonal and 2τ² on it [P, P].
    """
    same = torch.eye(len(values), dtype=torch.bool)
    apart = values.unsqueeze(1) - values
    slopes = (shrunk.unsqueeze(1) - shrunk) / torch.where(same, torch.ones_like(apart), apart)
    slopes = torch.where(apart == 0, torch.zeros_like(slopes), slopes).clamp(0, 1)
    near = (noise_var - apart**2) / (apart**2 + noise_var).clamp(min=1e-300) ** 2
    own = 1 - 2 * noise_var * torch.where(same, torch.zeros_like(near), near).sum(1)
    own = torch.where(shrunk > least, own.clamp(0, 1), torch.zeros_like(own))
    return noise_var * (slopes + 2 * torch.diag(own))


def fit_line(seen: NoisyDerivatives, prior: Normal) -> Normal:
    """Find the Gaussian posterior for F = −Hw."""
    values, basis = torch.linalg.eigh(seen.hessian)
    known = shrink_eigenvalues(values, seen.hessian_var)
    unknown = unknown_variances(values, known, seen.hessian_var)
    score = -basis.mT @ seen.gradient
    begun = prior.mean - seen.point
    precision, step = prior.precision, begun
    for _ in range(STEPS):
        spread = (basis.mT @ torch.linalg.inv(precision) @ basis).diagonal()
        square = spread + (basis.mT @ step) ** 2
        noise = known + seen.gradient_var + unknown @ square
        precision = (basis * (known**2 / noise)) @ basis.mT + prior.precision
        step = torch.linalg.solve(precision, basis @ (known / noise * score) + prior.precision @ begun)
    return Normal(seen.point + step, precision)


def gram_of(seen: NoisyDerivatives, classes: int) -> Tensor:
    """Estimate Σ aaᵀ from the release at t = 0, where QᵀSQ = I/C.

    Returns:
        A positive semi-definite matrix [K, K].
    """
    width = len(seen.point) // (classes - 1)
    blocks = seen.hessian.reshape(classes - 1, width, classes - 1, width)
    mean = torch.stack([blocks[j, :, j, :] for j in range(classes - 1)]).mean(0)
    values, basis = torch.linalg.eigh(classes * mean)
    known = shrink_eigenvalues(values, seen.hessian_var * classes**2 / (classes - 1))
    gram: Tensor = (basis * known) @ basis.mT
    return gram


class Population:
    """Gaussian rows with the moments of a Gram matrix, each counted so often that they are as many as the rows are.

    Args:
        gram: Σ aaᵀ [K, K].
        scale: From θ to its weights of a [K].
    """

    def __init__(self, gram: Tensor, classes: int, scale: Tensor) -> None:
        self.q = contrasts(classes)
        bias = int(bool(scale[0] < 1))
        if bias:
            size = (gram[0, 0] / scale[0] ** 2).clamp(min=1)
        else:
            size = gram.trace().clamp(min=1)  # of rows as long as 1
        mean = torch.zeros(len(gram) - bias, dtype=torch.float64)
        if bias:
            mean = gram[0, 1:] / scale[0] / size
        values, basis = torch.linalg.eigh(gram[bias:, bias:] / size - torch.outer(mean, mean))
        half = Key(0).normal((ROWS // 2, len(mean)), mean)
        drawn = mean + (torch.cat([half, -half]) * values.clamp(min=0).sqrt()) @ basis.mT
        longest = float(scale[-1])
        drawn = drawn / (drawn.norm(dim=1, keepdim=True) / longest).clamp(min=1)
        constant = scale[:bias].expand(ROWS, bias)
        self.rows = torch.cat([constant, drawn], 1)
        self.squares = (self.rows.unsqueeze(2) * self.rows.unsqueeze(1)).reshape(ROWS, -1)
        self.count = size / ROWS
        self.ridge = RIDGE * gram.trace().clamp(min=1) / len(gram)

    def differentiate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Add up p⊗a and the Hessian, at several points, and a ridge that makes it positive definite.

        Args:
            points: t [S, P].

        Returns:
            Σ Qᵀp⊗a [S, P], and H̃ [S, P, P].
        """
        width, contrasts_ = self.rows.shape[1], self.q.shape[1]
        t = points.reshape(-1, contrasts_, width)
        p = torch.softmax(self.rows @ t.mT @ self.q.mT, 2)
        inside = p @ self.q
        hessian = points.new_empty(len(points), contrasts_, width, contrasts_, width)
        for j in range(contrasts_):
            for k in range(contrasts_):
                spread = p @ (self.q[:, j] * self.q[:, k]) - inside[:, :, j] * inside[:, :, k]
                hessian[:, j, :, k, :] = (spread @ self.squares).reshape(-1, width, width)
        means = (inside.mT @ self.rows).reshape(points.shape)
        ridge = self.ridge * torch.eye(points.shape[1], dtype=torch.float64)
        return self.count * means + self.ridge * points, self.count * hessian.reshape(*points.shape, -1) + ridge


class Target:
    """The log-density of t, given all releases.

    Args:
        population: Rows that stand for the features' distribution.
    """

    def __init__(self, rounds: NoisyDerivatives, prior: Normal, population: Population) -> None:
        self.seen = combine_rounds(rounds)
        self.prior, self.population = prior, population
        means, curvatures = population.differentiate(rounds.point)
        weights = round_weights(rounds)
        self.means = weights @ means
        assumed = torch.tensordot(weights, curvatures, 1)  # H̃
        values, self.basis = torch.linalg.eigh(self.seen.hessian - assumed)
        known = shrink_eigenvalues(values, self.seen.hessian_var, -torch.inf)
        self.unknown = unknown_variances(values, known, self.seen.hessian_var, -torch.inf)
        self.shared = self.unknown - torch.diag(self.unknown.diagonal())
        half = root(assumed + (self.basis * known) @ self.basis.mT)
        self.hessian = half @ half
        self.inverse = torch.linalg.inv(assumed)
        self.turn = half @ root(self.inverse)
        self.noise = self.seen.gradient_var * torch.eye(len(values), dtype=torch.float64)
        self.own = float(torch.linalg.solve(self.hessian + self.noise, self.hessian).trace()) / len(values)  # r

    def steps(self, means: Tensor) -> Tensor:
        """Find the steps from the points that were asked about to others.

        Args:
            means: p̃(t) of these [S, P].

        Returns:
            w̃ [S, P].
        """
        steps: Tensor = (means - self.means) @ self.inverse
        return steps

    def uncertainty(self, steps: Tensor) -> Tensor:
        """Find the covariance of what is not known of Hw̃.

        Args:
            steps: w̃ [S, P].

        Returns:
            K(w̃), positive semi-definite [S, P, P]; τ²(‖w̃‖²I + w̃w̃ᵀ), were nothing known but A.
        """
        w = steps @ self.basis
        inside = torch.diag_embed(w**2 @ self.unknown) + self.shared * w.unsqueeze(2) * w.unsqueeze(1)
        covariance: Tensor = self.basis @ inside @ self.basis.mT
        return covariance

    def __call__(self, points: Tensor) -> Tensor:
        """Evaluate it.

        Args:
            points: t [S, P].

        Returns:
            The logarithms, up to a constant [S].
        """
        means, curvatures = self.population.differentiate(points)
        steps = self.steps(means)
        change = self.turn @ curvatures @ self.turn.mT - self.hessian
        score = self.hessian + (1 - self.own / 3) * change + self.noise
        factors = torch.linalg.cholesky(score + self.uncertainty(steps))
        errors = (self.seen.gradient + steps @ self.hessian).unsqueeze(2)
        scaled = torch.linalg.solve_triangular(factors, errors, upper=False)
        fit = log_determinant(factors) - self.own * log_determinant(torch.linalg.cholesky(score))
        away = points - self.prior.mean
        squares = scaled.square().sum((1, 2)) + (away @ self.prior.precision * away).sum(1)
        logarithms: Tensor = -0.5 * (fit + squares)
        return logarithms


def root(matrix: Tensor) -> Tensor:
    """Take the square root of a symmetric matrix, eigenvalues below 0 as 0.

    Args:
        matrix: [P, P].

    Returns:
        Symmetric and positive semi-definite [P, P].
    """
    values, basis = torch.linalg.eigh(matrix)
    half: Tensor = (basis * values.clamp(min=0).sqrt()) @ basis.mT
    return half


def log_determinant(factors: Tensor) -> Tensor:
    """Find the logarithms of the determinants of matrices.

    Args:
        factors: Their Cholesky factors [S, P, P].

    Returns:
        [S].
    """
    logarithms: Tensor = 2 * factors.diagonal(dim1=1, dim2=2).log().sum(1)
    return logarithms


def fit_curve(
    rounds: NoisyDerivatives, prior: Normal, gram: Tensor, classes: int, scale: Tensor, effort: Effort | None = None
) -> Normal:
    """Find the mean and covariance of the posterior.

    Args:
        gram: Σ aaᵀ, as far as it is known.
        scale: From θ to its weights of a [K].
        effort: How long to draw; None after the last round, where it is said if draws do not agree.

    Returns:
        The Gaussian with these moments.
    """
    passes, warm_up, draws = effort or LAST
    target = Target(rounds, prior, Population(gram, classes, scale))
    found = fit_line(combine_rounds(rounds), prior)
    for _ in range(passes):
        around = found._replace(precision=found.precision / WIDER)
        drawn = draw_slices(target, around, CHAINS, warm_up, draws)
        found = moments_of(drawn.flatten(0, 1))
    if effort is None and disagreement(drawn) > DISAGREE:
        warnings.warn(
            "The posterior under noise is so wide and bent that draws from it do not agree: do not rely on its "
            "intervals. Outcomes are nearly certain, or noise leaves little: allow a larger epsilon.",
            stacklevel=2,
        )
    return found


def moments_of(drawn: Tensor) -> Normal:
    """Find the Gaussian with the moments of draws.

    Args:
        drawn: [S, P].
    """
    away = drawn - drawn.mean(0)
    return Normal(drawn.mean(0), torch.linalg.inv(away.mT @ away / (len(away) - 1)))
