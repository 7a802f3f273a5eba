"""Gradients and Hessians of a softmax over bounded rows, released with noise, and a posterior that knows about it.

**What is released.** Features ψ with ‖ψ‖ ≤ 1 and the constant κ make a = (κ, ψ)/√(1 + κ²), so that ‖a‖ ≤ 1 (without a
bias, a = ψ). Weights are t = Qᵀθ [C−1, K] with orthonormal contrasts Q [C, C−1] of the classes: what all classes share
changes no probability p. With y the label's mark and S = diag(p) − ppᵀ, a row's part of the released vector at t is

    v = (Qᵀ(p − y)⊗a/√2,  2√g·svec(QᵀSQ⊗aaᵀ)),   g = 2/3 for two classes, 1/4 for more

*No v is longer than 1.* Q keeps lengths, since p − y and S have no part along 1, and svec those of matrices, so that
‖v‖² ≤ ‖p − y‖²/2 + 4g‖S‖² with Frobenius' norm. Let s = ‖p‖², x = 1 − s and r = 1 − p of the label's class.

  * ‖p − y‖² = s + 2r − 1 ≤ s + 1, so that 1 − ‖p − y‖²/2 ≥ x/2.
  * ‖S‖² = s − 2Σp³ + s² ≤ s − Σp³ = Σp·p(1 − p) ≤ 1/4, as s² ≤ Σp·Σp³ (Cauchy and Schwarz); and ‖S‖ ≤ tr S = x.
  * g = 1/4: 4g‖S‖² ≤ min(1/4, x²) ≤ x/2, at x ≤ ½ by the second and beyond it by the first.
  * Two classes: ‖p − y‖² = 2r² and ‖S‖² = 4r²(1 − r)², so that with g = 2/3 it is to be shown that
    (32/3)·r²(1 − r) ≤ 1 + r. The difference is largest where 2r − 3r² = 3/32, at r = 0.616, and below 0 there.

A row with a large residual has little curvature: the Hessian costs the gradient nothing. A row that is added or removed
changes Σ v by one v: the sensitivity is 1. `tests/pooling/test_noisy_derivatives.py` attacks this with neighbours.

**What the posterior knows.** Round r asks at tᵣ and sees ĝᵣ = gᵣ + eᵣ and Aᵣ = Hᵣ + Eᵣ, e of variance ρᵣ², E symmetric
of variance τᵣ² (twice that on its diagonal). With the truth at t, u the rows' own score there and p̂(s) = Σ p(s)⊗a,

    ĝᵣ = p̂(tᵣ) − p̂(t) − u + eᵣ

so that all rounds tell about the same p̂(t) + u, and differ by what depends on the rows' features alone. The mean of all
releases, weighted by the budget c that each took (Σ c = 1), has the noise of one release with the whole budget. It
stands for a gradient ĝ at t₀ = Σ cᵣtᵣ and a Hessian A of H = Σ cᵣHᵣ there, with w = t − t₀:

    ĝ − F(t) ~ N(0, H(t) + ρ²I + K(w)),   F(t) = Σ cᵣp̂(tᵣ) − p̂(t) = −Hw + …

Taking the last round alone, as if tᵣ had come from nowhere, would leave out what the earlier ones tell about w: K(w),
and intervals with it, would be too wide. K(w) is the covariance of what is not known of Hw. Eigenvalues λ of A are
shrunk to f(λ) as `noisy` does, and the shrunk matrix stands for H. What is still unknown is less than E: the covariance
of a mean given noisy numbers is the noise's variance times the slope of that mean (Tweedie's formula, to second order),
and the slope of a matrix with shrunk eigenvalues is known in A's eigenbasis (Daleckiĭ and Kreĭn):

    var Hᵢⱼ = τ²·(f(λᵢ) − f(λⱼ))/(λᵢ − λⱼ),   var Hᵢᵢ = 2τ²·∂f(λᵢ)/∂λᵢ

Where noise drowns a spectrum, all f(λ) are alike and little is unknown; where eigenvalues stand apart, it is all of τ².
Taking τ² everywhere made intervals too wide with few rows for the columns.

Rounds before the last find a point: they take F = −Hw, which makes the posterior Gaussian, and go to its mean. In the
end F bends: noise makes the posterior so wide that a Gaussian around a mode covers too little. What F and H do beyond
first order is that of `ROWS` Gaussian rows with the moments of the Gram matrix, which the first round's Hessian holds
(at t = 0, S is known):

    F(t) = −Hw + (F̃(t) + H̃w),   H(t) = H + (1 − r/3)(H̃(t) − H̃),   H̃ = Σ cᵣH̃(tᵣ),   log-determinant times 1 − r

where r, the mean of H over H plus noise, is how much of ĝ − F(t) is u: its third cumulant, the change of H, is that of
an exponential family, and takes so much away from both (Edgeworth's expansion to first order). With no noise, r = 1,
this is the likelihood of the rows to third order, and with much noise the Gaussian above.

The posterior, with the task's prior, is drawn from by elliptical slice sampling around the Gaussian one (Murray, Adams
and MacKay 2010; Nishihara, Murray and Adams 2014), many chains side by side, with draws that are always the same. Its
moments are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.models.softmax import log_softmax
from consilience.pooling.derivatives import Quadratic
from consilience.pooling.noisy import shorten, shrink_eigenvalues
from consilience.pooling.sums import in_chunks, square_matrix, targets
from consilience.privacy.mechanisms import Clipped, Privacy, Released

TWO_CLASSES = 2 / 3  # g
MORE_CLASSES = 1 / 4
ROWS = 400  # that stand for the features' distribution
STEPS = 40  # of the Gaussian posterior's fixed point
CHAINS = 32
WARM_UP = 12  # draws of a chain that are thrown away
DRAWS = 30  # of a chain that are kept
WIDER = 1.5  # than the Gaussian posterior's variance, around which slices are taken
TRIES = 40  # for each draw, at most
Map = Callable[[Tensor], Tensor]


class NoisyDerivatives(NamedTuple):
    """Totals at a point, with the variance of their noise; of several rounds, one more dimension in front.

    Attributes:
        point: t₀ [P], one contrast's K weights after another.
        gradient: ĝ [P].
        hessian: A [P, P].
        gradient_var: ρ².
        hessian_var: τ², of what is off the diagonal.
    """

    point: Tensor
    gradient: Tensor
    hessian: Tensor
    gradient_var: Tensor
    hessian_var: Tensor


class Normal(NamedTuple):
    """A Gaussian over t.

    Attributes:
        mean: [P].
        precision: [P, P].
    """

    mean: Tensor
    precision: Tensor


def contrasts(classes: int) -> Tensor:
    """Make Q.

    Args:
        classes: C.

    Returns:
        Orthonormal columns that add up to 0 each [C, C − 1].
    """
    columns = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for j in range(1, classes):
        columns[:j, j - 1] = 1.0
        columns[j, j - 1] = -j
    contrast: Tensor = columns / columns.norm(dim=0)
    return contrast


def scale_of(width: int, bias: bool, privacy: Privacy) -> Tensor:
    """Find what (1, ψ) is multiplied with to make a.

    Args:
        width: K.
        bias: Whether the first of them is the constant.
        privacy: The setting.

    Returns:
        [K].
    """
    scale = torch.ones(width, dtype=torch.float64)
    if bias:
        scale[0] = privacy.constant
        scale = scale / math.sqrt(1 + privacy.constant**2)
    return scale


def weight_of(classes: int) -> float:
    """Return 2√g, what Hessians are multiplied with."""
    if classes == 2:
        return 2 * math.sqrt(TWO_CLASSES)
    return 2 * math.sqrt(MORE_CLASSES)


def length_of(weights: int) -> int:
    """Count the numbers of a release about P weights."""
    return weights + weights * (weights + 1) // 2


def sum_derivatives(features: Map, data: Data, weights: Tensor, privacy: Privacy) -> Clipped:
    """Add up a client's rows, each bounded, as the numbers that are released once there is noise on them.

    Args:
        features: From rows to ψ, without a leading 1.
        data: The rows; padding has weight 0, and no weight counts for more than 1.
        weights: θ [C, K] of (1, ψ), or of ψ where there is no bias.
        privacy: The setting.

    Returns:
        Σ v [d].
    """
    classes, width = weights.shape
    q = contrasts(classes)
    count = (classes - 1) * width
    gradient = torch.zeros(count, dtype=torch.float64)
    hessian = torch.zeros(count, count, dtype=torch.float64)
    for part in in_chunks(data):
        psi = shorten(features(part.x))
        bias = psi.shape[1] < width
        if bias:
            psi = torch.cat([torch.ones_like(psi[:, :1]), psi], 1)
        p = log_softmax(psi @ weights.double().mT).exp()
        rows = psi * scale_of(width, bias, privacy)
        w = part.w.double().clamp(0, 1).unsqueeze(1)
        residual = w * ((p - targets(part.y, classes)) @ q)
        gradient = gradient + (residual.mT @ rows).flatten()
        hessian = hessian + curvature(rows, w * p, p, q)
    above = _above(count)
    rows_, columns = torch.triu_indices(count, count)
    triangle = weight_of(classes) * above * hessian[rows_, columns]
    return Clipped(torch.cat([gradient / math.sqrt(2), triangle]))


def curvature(rows: Tensor, weighted: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Add up QᵀSQ⊗aaᵀ.

    Args:
        rows: a [N, K].
        weighted: Probabilities, each row's times its weight [N, C].
        p: Probabilities [N, C].
        q: Q.

    Returns:
        The sum [P, P].
    """
    count = q.shape[1] * rows.shape[1]
    blocks = []
    for j in range(q.shape[1]):
        for k in range(q.shape[1]):
            own = weighted @ (q[:, j] * q[:, k]) - (weighted @ q[:, j]) * (p @ q[:, k])
            blocks.append((rows * own.unsqueeze(1)).mT @ rows)
    shape = (q.shape[1], q.shape[1], rows.shape[1], rows.shape[1])
    return torch.stack(blocks).reshape(shape).permute(0, 2, 1, 3).reshape(count, count)


def read_derivatives(total: Released, point: Tensor, classes: int, privacy: Privacy, part: float) -> NoisyDerivatives:
    """Take apart what sites released, added up.

    Args:
        total: The sum over sites.
        point: t₀ [P].
        classes: C.
        privacy: The setting.
        part: The share of μ² that the release took.

    Returns:
        The totals, and how much noise is on them.

    Raises:
        InputError: There are not as many numbers as that makes.
    """
    count = len(point)
    numbers = length_of(count)
    values = total.values.double().flatten()
    if len(values) != numbers:
        raise InputError(f"The release has {len(values)} numbers and {numbers} are agreed.")
    variance = total.shares.double() * privacy.deviation(numbers, part) ** 2
    hessian = square_matrix(values[count:] / _above(count) / weight_of(classes), count)
    gradient = math.sqrt(2) * values[:count]
    return NoisyDerivatives(point, gradient, hessian, 2 * variance, variance / (2 * weight_of(classes) ** 2))


def join_rounds(before: NoisyDerivatives | None, seen: NoisyDerivatives) -> NoisyDerivatives:
    """Put a release behind those of earlier rounds.

    Args:
        before: Those of earlier rounds, if there were any.
        seen: The newest.

    Returns:
        All of them, the first one first.
    """
    newest = [leaf.unsqueeze(0) for leaf in seen]
    if before is None:
        return NoisyDerivatives(*newest)
    return NoisyDerivatives(*(torch.cat(pair) for pair in zip(before, newest, strict=True)))


def combine_rounds(rounds: NoisyDerivatives) -> NoisyDerivatives:
    """Average releases, each weighted by the budget it took.

    Args:
        rounds: Those of several rounds.

    Returns:
        ĝ and A at t₀, with noise as of one release.
    """
    weights = _round_weights(rounds)
    point, gradient, hessian = (torch.tensordot(weights, leaf, 1) for leaf in rounds[:3])
    gradient_var = 1 / (1 / rounds.gradient_var).sum()
    return NoisyDerivatives(point, gradient, hessian, gradient_var, 1 / (1 / rounds.hessian_var).sum())


def _round_weights(rounds: NoisyDerivatives) -> Tensor:
    """c, which add up to 1."""
    budgets = 1 / rounds.gradient_var
    return budgets / budgets.sum()


def _above(count: int) -> Tensor:
    """√2 above the diagonal of a triangle and 1 on it, row by row."""
    rows, columns = torch.triu_indices(count, count)
    return torch.where(rows == columns, 1.0, math.sqrt(2)).double()


def contrast_prior(prior: Quadratic, scale: Tensor) -> Normal:
    """Write a prior over θ as one over t.

    Args:
        prior: Means and precisions above 0 [C, K].
        scale: From θ to its weights of a [K].

    Returns:
        The prior over t.
    """
    q = contrasts(len(prior.mean))
    mean = q.mT @ (prior.mean / scale)
    var = 1 / (prior.precision * scale**2)
    blocks = torch.einsum("cj,ck,ca->jka", q, q, var)
    width = len(scale)
    covariance = torch.diag_embed(blocks).permute(0, 2, 1, 3).reshape(mean.numel(), mean.numel())
    assert covariance.shape[0] == q.shape[1] * width
    return Normal(mean.flatten(), torch.linalg.inv(covariance))


def as_weights(fitted: Normal, prior: Quadratic, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Write a Gaussian over t as one over θ; along what all classes share, the prior is all that is known.

    Args:
        fitted: The Gaussian.
        prior: The prior over θ.
        scale: From θ to its weights of a [K].

    Returns:
        The mean [C, K], and the precision over the weights of one class after another.
    """
    classes, width = prior.mean.shape
    q = contrasts(classes)
    mean = q @ fitted.mean.reshape(classes - 1, width) * scale + prior.mean.mean(0)
    change = torch.kron(q.mT.contiguous(), torch.diag(1 / scale))
    shared = torch.full((classes, classes), 1 / classes, dtype=torch.float64)
    together = torch.kron(shared, torch.diag(1 / (1 / prior.precision).mean(0)))
    return mean, change.mT @ fitted.precision @ change + together


def unknown_variances(values: Tensor, shrunk: Tensor, noise_var: Tensor) -> Tensor:
    """Find how much is not known of H's entries in the eigenbasis of A.

    Args:
        values: λ, eigenvalues of A, ascending [P].
        shrunk: f(λ), ascending [P].
        noise_var: τ².

    Returns:
        Variances, symmetric, from 0 to what the noise has: τ² off the diagonal and 2τ² on it [P, P].
    """
    same = torch.eye(len(values), dtype=torch.bool)
    apart = values.unsqueeze(1) - values
    slopes = (shrunk.unsqueeze(1) - shrunk) / torch.where(same, torch.ones_like(apart), apart)
    slopes = torch.where(apart == 0, torch.zeros_like(slopes), slopes).clamp(0, 1)
    near = (noise_var - apart**2) / (apart**2 + noise_var).clamp(min=1e-300) ** 2
    own = 1 - 2 * noise_var * torch.where(same, torch.zeros_like(near), near).sum(1)
    own = torch.where(shrunk > 0, own.clamp(0, 1), torch.zeros_like(own))
    return noise_var * (slopes + 2 * torch.diag(own))


def fit_line(seen: NoisyDerivatives, prior: Normal) -> Normal:
    """Find the Gaussian posterior for F = −Hw.

    Args:
        seen: A release.
        prior: The prior.

    Returns:
        The posterior.
    """
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

    Args:
        seen: The first release.
        classes: C.

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
        classes: C.
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

    def differentiate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Add up p⊗a and the Hessian, at several points.

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
        return self.count * means, self.count * hessian.reshape(*points.shape, -1)


class Target:
    """The log-density of t, given all releases.

    Args:
        rounds: The releases.
        prior: The prior.
        population: Rows that stand for the features' distribution.
    """

    def __init__(self, rounds: NoisyDerivatives, prior: Normal, population: Population) -> None:
        self.seen = combine_rounds(rounds)
        values, self.basis = torch.linalg.eigh(self.seen.hessian)
        known = shrink_eigenvalues(values, self.seen.hessian_var)
        self.hessian = (self.basis * known) @ self.basis.mT
        self.unknown = unknown_variances(values, known, self.seen.hessian_var)
        self.shared = self.unknown - torch.diag(self.unknown.diagonal())
        self.prior, self.population = prior, population
        means, curvatures = population.differentiate(rounds.point)
        weights = _round_weights(rounds)
        self.means = weights @ means
        self.curvature = torch.tensordot(weights, curvatures, 1)
        self.noise = self.seen.gradient_var * torch.eye(len(values), dtype=torch.float64)
        self.own = float(torch.linalg.solve(self.hessian + self.noise, self.hessian).trace()) / len(values)  # r

    def uncertainty(self, steps: Tensor) -> Tensor:
        """Find the covariance of what is not known of Hw.

        Args:
            steps: w [S, P].

        Returns:
            K(w), positive semi-definite [S, P, P]; τ²(‖w‖²I + wwᵀ), were nothing known but A.
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
        steps = points - self.seen.point
        means, curvatures = self.population.differentiate(points)
        expected = self.means - means + steps @ (self.curvature - self.hessian)
        known = self.noise + self.uncertainty(steps)
        hessians = self.hessian + (1 - self.own / 3) * (curvatures - self.curvature)
        factors, failed = torch.linalg.cholesky_ex(hessians + known)
        if bool(failed.any()):
            values, basis = torch.linalg.eigh(hessians)
            factors = torch.linalg.cholesky((basis * values.clamp(min=0).unsqueeze(1)) @ basis.mT + known)
        errors = (self.seen.gradient - expected).unsqueeze(2)
        scaled = torch.linalg.solve_triangular(factors, errors, upper=False)
        away = points - self.prior.mean
        determinants = factors.diagonal(dim1=1, dim2=2).log().sum(1)
        fit = (1 - self.own) * determinants + 0.5 * scaled.square().sum((1, 2))
        logarithms: Tensor = -fit - 0.5 * (away @ self.prior.precision * away).sum(1)
        return logarithms


def fit_curve(rounds: NoisyDerivatives, prior: Normal, gram: Tensor, classes: int, scale: Tensor) -> Normal:
    """Find the mean and covariance of the posterior after the last round.

    Args:
        rounds: The releases.
        prior: The prior.
        gram: Σ aaᵀ, as far as it is known.
        classes: C.
        scale: From θ to its weights of a [K].

    Returns:
        The Gaussian with these moments.
    """
    line = fit_line(combine_rounds(rounds), prior)
    target = Target(rounds, prior, Population(gram, classes, scale))
    drawn = draw_slices(target, line._replace(precision=line.precision / WIDER))
    away = drawn - drawn.mean(0)
    return Normal(drawn.mean(0), torch.linalg.inv(away.mT @ away / (len(away) - 1)))


def draw_slices(target: Callable[[Tensor], Tensor], around: Normal) -> Tensor:
    """Draw from a density by elliptical slice sampling; the same numbers every time.

    Every evaluation is a try of all chains, each of which goes on to its next draw when it has found one.

    Args:
        target: Its logarithm, from [S, P] to [S].
        around: A Gaussian near it, which decides how fast it goes and not where.

    Returns:
        Draws of all chains [S, P].
    """
    factor = torch.linalg.cholesky(torch.linalg.inv(around.precision))
    count = WARM_UP + DRAWS
    shape = (CHAINS, count + 1, len(around.mean))
    away, directions = (Key(1).normal(shape, around.mean) @ factor.mT).split([1, count], 1)
    away = away.squeeze(1)
    generator = Key(2).generator()
    chains = torch.arange(CHAINS)
    done = torch.zeros(CHAINS, dtype=torch.long)
    drawn = torch.zeros(CHAINS, count, len(around.mean), dtype=torch.float64)

    def toss() -> Tensor:
        return torch.rand(CHAINS, generator=generator, dtype=torch.float64)

    def ratio(away: Tensor) -> Tensor:
        return target(around.mean + away) + 0.5 * (away @ around.precision * away).sum(1)

    least = ratio(away) + (toss() + 1e-300).log()
    angle = 2 * math.pi * toss()
    low, high = angle - 2 * math.pi, angle
    for _ in range(TRIES * count):
        direction = directions[chains, done.clamp(max=count - 1)]
        tried = away * angle.cos().unsqueeze(1) + direction * angle.sin().unsqueeze(1)
        height = ratio(tried)
        taken = height > least
        away = torch.where(taken.unsqueeze(1), tried, away)
        new = taken & (done < count)
        drawn[chains[new], done[new]] = away[new]
        done = done + taken
        if int(done.min()) >= count:
            break
        low = torch.where(angle < 0, angle, low)
        high = torch.where(angle < 0, high, angle)
        first = 2 * math.pi * toss()
        low = torch.where(taken, first - 2 * math.pi, low)
        high = torch.where(taken, first, high)
        angle = torch.where(taken, first, low + (high - low) * toss())
        least = torch.where(taken, height + (toss() + 1e-300).log(), least)
    return around.mean + drawn[:, WARM_UP:].reshape(-1, len(around.mean))
