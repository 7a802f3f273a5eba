"""From inputs to an output distribution, closed under pooling.

The rules work on distributions at given inputs, not on the functions behind them, so that nothing is evaluated twice
while a weight is being fitted. Everything is done in log space.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.distributions.softmax import log_softmax
from consilience.distributions.survival import Survival
from consilience.errors import Diverged, InputError


class Categorical(NamedTuple):
    """A distribution over classes for every row.

    Attributes:
        log_probs: Log-probabilities [N, C].

    Example:
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> Categorical(torch.tensor([[0.25, 0.75]]).log()).probs.tolist()
        [[0.25, 0.75]]
    """

    log_probs: Tensor

    @property
    def probs(self) -> Tensor:
        """The probabilities [N, C]."""
        return self.log_probs.exp()


class Normal(NamedTuple):
    """A normal distribution for every row.

    Attributes:
        mean: [N] or [N, D], of the latent function.
        var: The variance of the latent function; [N, D, D] for full covariances between the D outputs.
        noise: The variance of the observation noise; pooled on its own and added once.

    Example:
        >>> import torch
        >>> from consilience.distributions.predictive import Normal
        >>> Normal(mean=torch.tensor([0.0]), var=torch.tensor([1.0]), noise=torch.tensor([3.0])).total.tolist()
        [4.0]
    """

    mean: Tensor
    var: Tensor
    noise: Tensor

    @property
    def full(self) -> bool:
        """Whether `var` holds the covariances between outputs."""
        return self.var.ndim == self.mean.ndim + 1

    @property
    def total(self) -> Tensor:
        """The variance of an observation, output by output."""
        if self.full:
            return self.var.diagonal(dim1=-2, dim2=-1) + self.noise
        return self.var + self.noise


EVENTS = 10  # rows outside the most frequent class, from which on the prior of a temperature is its widest
Distribution: TypeAlias = Categorical | Normal | Counts | Survival
Predictive: TypeAlias = Callable[[Tensor], Distribution]
Powers: TypeAlias = Callable[[Sequence[Distribution], Distribution], Tensor]


def student_variance(freedom: Tensor) -> Tensor:
    """Find the variance of Student's t, for a Normal in its place.

    Args:
        freedom: Degrees of freedom; with fewer than 3, as many as 3 have.

    Returns:
        ν/(ν − 2); 1 where ν is infinite.
    """
    return 1 / (1 - 2 / freedom.clamp(min=3))


def mixture(parts: Sequence[Distribution], weights: Tensor) -> Distribution:
    """Mix distributions: the linear pool.

    Args:
        parts: One distribution a member, all of one kind, at the same inputs.
        weights: One number a member [K]; normalised here.

    Returns:
        Σₖ wₖ pₖ; for Normals the one Normal with the mixture's mean and variance.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> parts = [Categorical(torch.tensor([row]).log()) for row in ([0.9, 0.1], [0.5, 0.5])]
        >>> [round(p, 3) for p in co.aggregation.mixture(parts, torch.tensor([0.5, 0.5])).probs[0].tolist()]
        [0.7, 0.3]
    """
    w = weights / weights.sum()
    if isinstance(parts[0], Categorical):
        logs = torch.stack([p.log_probs for p in parts if isinstance(p, Categorical)])
        return Categorical(torch.logsumexp(logs + w.to(logs).log().reshape(-1, 1, 1), 0))
    if isinstance(parts[0], Counts):
        return Counts.mix([p for p in parts if isinstance(p, Counts)], w)
    if isinstance(parts[0], Survival):
        return Survival.mix([p for p in parts if isinstance(p, Survival)], w)
    normals = [p for p in parts if isinstance(p, Normal)]
    mean = _dot(w, [p.mean for p in normals])
    var = _dot(w, [p.var + _square(p.mean - mean, p.full) for p in normals])
    return Normal(mean, var, _dot(w, [p.noise for p in normals]))


def product(
    parts: Sequence[Distribution], prior: Distribution, weights: Tensor | None = None, powers: Tensor | None = None
) -> Distribution:
    """Multiply distributions: the Bayesian committee machine, with powers if wanted.

    Args:
        parts: The clients' distributions pₖ, each with the prior in it, at the same inputs.
        prior: What is predicted there before any data.
        weights: One number a client [K], by which the observation noise is averaged; equal without them.
        powers: βₖ, [K, N] or [K, 1]; 1 without them.

    Returns:
        Πₖ pₖ^βₖ · prior^(1 − Σβₖ), renormalised.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> part, prior = (Categorical(torch.tensor([row]).log()) for row in ([0.9, 0.1], [0.5, 0.5]))
        >>> [round(p, 3) for p in co.aggregation.product([part, part], prior).probs[0].tolist()]
        [0.988, 0.012]
    """
    b = powers
    if b is None:
        b = torch.ones(len(parts), 1)
    if isinstance(prior, Categorical):
        logs = torch.stack([p.log_probs for p in parts if isinstance(p, Categorical)])
        b = b.to(logs).unsqueeze(-1)
        return Categorical(log_softmax((b * logs).sum(0) + (1 - b.sum(0)) * prior.log_probs))
    prior = _only_normal(prior)
    normals = [p for p in parts if isinstance(p, Normal)]
    w = weights
    if w is None:
        w = torch.ones(len(parts))
    noise = _dot(w / w.sum(), [p.noise for p in normals])
    if prior.full:
        return Normal(*_full_product(normals, prior, b.to(prior.mean)), noise)
    return Normal(*_diagonal_product(normals, prior, b.to(prior.mean)), noise)


def _diagonal_product(parts: Sequence[Normal], prior: Normal, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of a product, output by output: precisions and precision-weighted means add."""
    b = powers
    if prior.mean.ndim > 1:
        b = b.unsqueeze(-1)
    precisions = torch.stack([1 / p.var for p in parts])
    rest = 1 - b.sum(0)
    precision = positive((b * precisions).sum(0) + rest / prior.var, 1e-3 / prior.var)
    linear = (b * precisions * torch.stack([p.mean for p in parts])).sum(0) + rest * prior.mean / prior.var
    return linear / precision, 1 / precision


def _full_product(parts: Sequence[Normal], prior: Normal, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Hasan 2023, eq. 3.4–3.5: Σ⁻¹ = Σₖ Σₖ⁻¹ − (K−1) Σₚ⁻¹, μ = Σ(Σₖ Σₖ⁻¹ μₖ − (K−1) Σₚ⁻¹ μₚ); with powers βₖ for 1."""
    b = powers[..., None, None]
    precisions = b * torch.linalg.inv(torch.stack([p.var for p in parts]))
    prior_precision = torch.linalg.inv(prior.var)
    rest = (1 - b.sum(0)) * prior_precision
    precision = precisions.sum(0) + rest
    linear = _times(precisions, torch.stack([p.mean for p in parts])).sum(0) + _times(rest, prior.mean)
    values, vectors = torch.linalg.eigh(precision)  # clamped along its own axes where it is not positive
    values = positive(values, 1e-3 * torch.linalg.eigvalsh(prior_precision)[..., :1].expand_as(values))
    var = vectors @ torch.diag_embed(1 / values) @ vectors.mT
    return _times(var, linear), var


def _only_normal(p: Distribution) -> Normal:
    """A Normal; other distributions of numbers have no product."""
    if isinstance(p, Normal):
        return p
    raise InputError(
        "Predictions of counts and of survival times cannot be multiplied: use a method that pools weights or mixes "
        "predictions."
    )


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _square(gap: Tensor, full: bool) -> Tensor:
    """The square of a gap, or its outer product with itself for full covariances."""
    if full:
        return gap.unsqueeze(-1) * gap.unsqueeze(-2)
    return gap**2


def shared(parts: Sequence[Distribution], prior: Distribution) -> Tensor:
    """Share one power: the generalised product of experts (Cao and Fleet 2014), as sure as its experts on average.

    Returns:
        βₖ = 1/K for every client [K, 1].
    """
    return torch.full((len(parts), 1), 1 / len(parts))


def robust(parts: Sequence[Distribution], prior: Distribution) -> Tensor:
    """Count each client by what it learned (robust BCM, Deisenroth and Ng 2015).

    Args:
        prior: What is predicted before any data.

    Returns:
        βₖ(x) [K, N]: the entropy that client k's data took from the prior's.
    """
    return torch.stack([(entropy(prior) - entropy(p)).clamp(min=0) for p in parts])


def entropy(p: Distribution) -> Tensor:
    """Compute the entropy of every row.

    Args:
        p: A distribution; for a Normal the entropy is that of the latent function.

    Returns:
        Nats [N].
    """
    if isinstance(p, Categorical):
        return -(p.probs * p.log_probs).sum(-1)
    p = _only_normal(p)
    if p.full:
        return 0.5 * torch.logdet(2 * math.pi * math.e * p.var)
    return sum_outputs(0.5 * (2 * math.pi * math.e * p.var).log())


def logarithmic(parts: Sequence[Distribution], weights: Tensor) -> Distribution:
    """Average log-probabilities: the logarithmic pool.

    Args:
        parts: One distribution a member, all of one kind, at the same inputs.
        weights: One number a member [K]; normalised here.

    Returns:
        Πₖ pₖ^wₖ, renormalised: for single models, the average of their logits. For Normals, their mixture.
    """
    logs = [p.log_probs for p in parts if isinstance(p, Categorical)]
    if not logs:
        return mixture(parts, weights)
    return Categorical(log_softmax(_dot(weights / weights.sum(), logs)))


def geometric(beta: float, p: Distribution, q: Distribution) -> Distribution:
    """Move between two distributions of one kind along their logarithms.

    Args:
        beta: 1 gives p, 0 gives q.
        q: Another at the same inputs.

    Returns:
        p^β q^(1−β), renormalised.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p, q = (Categorical(torch.tensor([row]).log()) for row in ([0.9, 0.1], [0.5, 0.5]))
        >>> [round(share, 3) for share in co.aggregation.geometric(1.0, p, q).probs[0].tolist()]
        [0.9, 0.1]
    """
    if isinstance(p, Categorical):
        assert isinstance(q, Categorical)
        return Categorical(log_softmax(beta * p.log_probs + (1 - beta) * q.log_probs))
    p = _only_normal(p)
    q = _only_normal(q)
    noise = beta * p.noise + (1 - beta) * q.noise
    if p.full:
        p_precision = beta * torch.linalg.inv(p.var)
        q_precision = (1 - beta) * torch.linalg.inv(q.var)
        var = torch.linalg.inv(p_precision + q_precision)
        return Normal(_times(var, _times(p_precision, p.mean) + _times(q_precision, q.mean)), var, noise)
    precision = beta / p.var + (1 - beta) / q.var
    mean = (beta * p.mean / p.var + (1 - beta) * q.mean / q.var) / precision
    return Normal(mean, 1 / precision, noise)


def tempered(p: Distribution, t: float) -> Distribution:
    """Temper a distribution.

    Args:
        t: The temperature; above 1 is less sure.

    Returns:
        p^(1/t), renormalised; for a Normal the observation's variance is multiplied by t.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.9, 0.1]]).log())
        >>> [round(share, 2) for share in co.aggregation.tempered(p, 2.0).probs[0].tolist()]
        [0.75, 0.25]
    """
    if isinstance(p, Categorical):
        return Categorical(log_softmax(p.log_probs / t))
    if isinstance(p, Counts | Survival):
        return p.temper(t)
    return Normal(p.mean, p.var * t, p.noise * t)


def finite_rows(p: Distribution) -> Tensor:
    """Find the rows whose prediction can be used; a probability of 0 can, a log of 0 or not.

    Returns:
        Whether every number of a row is finite, and no variance negative [N].
    """
    if isinstance(p, Categorical):
        return torch.isfinite(p.probs).all(-1)
    if isinstance(p, Counts | Survival):
        return p.finite()
    fine = torch.isfinite(p.mean) & torch.isfinite(p.total) & (p.total >= 0)
    return fine.reshape(len(fine), -1).all(-1)


def check_finite(p: Distribution) -> None:
    """Refuse predictions that are not finite.

    Args:
        p: Predictions of N rows.

    Raises:
        Diverged: A row's is not; the sentence says how many are, and which is the first, from 1.
    """
    bad = (~finite_rows(p)).nonzero().flatten().tolist()
    if bad:
        raise Diverged(
            f"The model predicts numbers that are not finite for {len(bad):,} of {len(p[0]):,} rows (first: row "
            f"{bad[0] + 1}): use another model, or look for the site that spoils this one."
        )


def absorb_noise(p: Normal) -> Normal:
    """Count the noise as part of the function, as the papers' pools do.

    Args:
        p: A Normal without covariances between outputs.

    Returns:
        The Normal of observations, with no noise left to add.
    """
    return Normal(p.mean, p.var + p.noise, torch.zeros_like(p.var))


def log_prob(p: Distribution, y: Tensor) -> Tensor:
    """Evaluate log p(y) for every row.

    Args:
        y: Labels [N], or targets [N] or [N, D].

    Returns:
        Log-probabilities, or log-densities summed over outputs [N].
    """
    if isinstance(p, Categorical):
        return p.log_probs.gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
    if isinstance(p, Counts | Survival):
        return p.log_prob(y)
    y = y.reshape(p.mean.shape)  # [N, 1] is [N]: against each other they would make all pairs
    if p.full:
        covariance = p.var + torch.diag_embed(p.noise.expand_as(p.mean))
        density: Tensor = torch.distributions.MultivariateNormal(p.mean, covariance).log_prob(y)
        return density
    return sum_outputs(-0.5 * ((y - p.mean) ** 2 / p.total + p.total.log() + math.log(2 * math.pi)))


def sum_outputs(values: Tensor) -> Tensor:
    """Add up what each row's outputs contribute.

    Args:
        values: [N] or [N, …].

    Returns:
        One number a row [N].
    """
    if values.ndim > 1:
        return values.flatten(1).sum(-1)
    return values


def score(p: Distribution, y: Tensor) -> float:
    """Average the log-probability over rows.

    Returns:
        The mean of log p(y).
    """
    return float(log_prob(p, y).mean())


def maximise(f: Callable[[float], float], low: float, high: float) -> float:
    """Maximise a one-dimensional unimodal function.

    Args:
        low: The lower end of the search.

    Returns:
        The maximiser on [low, high], ends included.
    """
    minimise = scipy.optimize.minimize_scalar
    optimum = minimise(lambda b: -f(float(b)), bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    return max((float(optimum.x), low, high), key=f)


def count_events(p: Distribution, y: Tensor) -> int:
    """Count what rows can say about confidence: for classes, the rows outside the most frequent one.

    Returns:
        The number of such rows; for numbers, all rows.
    """
    if isinstance(p, Categorical):
        return len(y) - int(torch.bincount(y.long().flatten()).max())
    return len(y)


def enough_events(p: Distribution, y: Tensor, enough: int, what: str) -> float:
    """Say how far rows may choose a number by themselves; warn where they hold one class alone.

    Args:
        what: What is chosen, for the warning.

    Returns:
        From 0, where there is no event, to 1, where there are enough.
    """
    events = count_events(p, y)
    if events == 0:
        warnings.warn(
            f"All {len(y)} calibration rows are of one class, from which {what} cannot be chosen: it stays where it "
            "was. Give the server rows of every class.",
            stacklevel=3,
        )
    return min(events / enough, 1.0)


def temperature(p: Distribution, y: Tensor) -> float:
    """Fit the temperature of `tempered(p, t)` under log t ~ N(0, s²), where s is 1 from ten events on.

    Without that prior, a few rows that are all right would make any model infinitely sure. Where a class is rare, few
    rows say how sure one may be: s is a tenth of the rows outside the most frequent class, and t = 1 without any.

    Returns:
        The most probable t between 1/50 and 50.
    """
    q = precise(p)
    n = len(y)
    s = enough_events(p, y, EVENTS, "a temperature")
    if s == 0:
        return 1.0
    objective = lambda log_t: score(tempered(q, math.exp(log_t)), y) - 0.5 * (log_t / s) ** 2 / n
    return math.exp(maximise(objective, -math.log(50), math.log(50)))


def precise(p: Distribution) -> Distribution:
    """Convert to double precision, so that a search over one scalar is not lost in rounding.

    Returns:
        The same in float64.
    """
    if isinstance(p, Categorical):
        return Categorical(p.log_probs.double())
    return type(p)(*(leaf.double() for leaf in p))


def positive(precision: Tensor, floor: Tensor) -> Tensor:
    """Clamp a precision where it is not positive; a warning says how often that was.

    Args:
        precision: Of a product of Normals.
        floor: What takes its place, of the same shape.
    """
    bad = int((precision <= 0).sum())
    if bad:
        warnings.warn(
            f"A product of Normals had a precision ≤ 0 at {bad} of {precision.numel()} places; clamped.", stacklevel=3
        )
    return torch.where(precision > 0, precision, floor)


def _dot(w: Tensor, values: Sequence[Tensor]) -> Tensor:
    """Σₖ wₖ valuesₖ."""
    stacked = torch.stack(list(values))
    return torch.einsum("k,k...->...", w.to(stacked), stacked)
