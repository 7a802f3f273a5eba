"""Heads: what is learned on fixed features from sums alone, with its uncertainty, in closed form.

    `Ridge`: Bayesian linear regression, of numbers or of ones and zeros that mark the classes
    `Discriminant`: a Gaussian a class with one covariance; Student-t when its uncertainty is kept
    `Dirichlet`: a Gaussian process a class on log-normal targets (Milios et al. 2018)

All use features in units of their deviation over all sites' rows. Each has one setting λ, the weight of its prior,
which maximises the marginal likelihood or is chosen by rows left out one at a time; that is closed form too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from consilience.key import Key
from consilience.likelihood import LOG_NOISE
from consilience.pooling.sums import FLAT, Moments, Sums, in_parts, moments, square_matrix, targets
from consilience.posterior import Point
from consilience.predictive import Categorical, Distribution, Normal, maximise
from consilience.tree import Params

LEAST = 1e-10  # λ/n: a prior that says nothing
SHARES = (  # values of λ/n that can be chosen: where λ matters half a decade apart, else a whole one
    *(10.0**k for k in range(-10, -6)),
    *(10 ** (k / 2 - 6) for k in range(15)),
    *(10.0**k for k in range(2, 5)),
)
TEMPERATURES = tuple(2 ** (k / 2) for k in range(-4, 11))  # that can be chosen with them: 1/4 to 32
DRAWS = 64  # of latent functions, behind a probability
PROBIT = math.pi / 8  # of a variance, by which a logit is shrunk (MacKay 1992)


class Spectrum(NamedTuple):
    """Least squares at every λ at once: the eigenvectors of a scatter, shared by all outputs or one set for each.

    Attributes:
        mean: Of each feature [D].
        scale: The deviation of each feature [D].
        centre: Where a set's rows have their centre, in units of the deviations [B, D].
        basis: Eigenvectors, in columns [B, D, D].
        values: Eigenvalues [B, D].
        coefficients: Σ y z along the eigenvectors [C, D].
        offset: The outputs' weighted means [C].
        weight: Σ of the rows' precisions [B].
        spread: Σ (y − ȳ)² of every output [C].
        size: n.
        share: λ/n.
    """

    mean: Tensor
    scale: Tensor
    centre: Tensor
    basis: Tensor
    values: Tensor
    coefficients: Tensor
    offset: Tensor
    weight: Tensor
    spread: Tensor
    size: Tensor
    share: Tensor

    @property
    def shrunk(self) -> Tensor:
        """The eigenvalues with λ added [B, D]."""
        return self.values + self.share * self.size

    def at(self, share: float) -> Spectrum:
        """Choose λ.

        Args:
            share: λ/n.

        Returns:
            The fit there.
        """
        return self._replace(share=torch.as_tensor(share, dtype=torch.float64))

    def linear(self) -> tuple[Tensor, Tensor]:
        """Write the means as a linear layer of features as they are.

        Returns:
            Weights [C, D] and biases [C].
        """
        weight = (self.basis @ (self.coefficients / self.shrunk).unsqueeze(-1)).squeeze(-1)
        bias = self.offset - (weight * self.centre).sum(1)
        weight = weight / self.scale
        return weight, bias - weight @ self.mean

    @property
    def noise(self) -> Tensor:
        """σ² of every output [C]."""
        return self.residual.clamp(min=1e-12) / (self.size - 1).clamp(min=1)

    @property
    def residual(self) -> Tensor:
        """What is left of the spread, the prior's part included [C]."""
        return self.spread - (self.coefficients**2 / self.shrunk).sum(-1)

    def rotate(self, features: Tensor) -> Tensor:
        """Take rows to the eigenvectors, which does not depend on λ.

        Args:
            features: φ [N, D].

        Returns:
            [B, N, D].
        """
        z = (features.to(self.mean) - self.mean) / self.scale
        return (z - self.centre.unsqueeze(1)) @ self.basis

    def latent(self, rotated: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the outputs' functions.

        Args:
            rotated: What `rotate` returned.

        Returns:
            Means [N, C] and variances in units of the noise [N, B].
        """
        weights = self.coefficients / self.shrunk
        if len(rotated) == 1:  # the eigenvectors are shared
            means = rotated[0] @ weights.T
        else:
            means = torch.einsum("cnd,cd->nc", rotated, weights)
        variances = torch.einsum("bnd,bd->nb", rotated**2, 1 / self.shrunk)
        return means + self.offset, variances + 1 / self.weight


class Classes(NamedTuple):
    """A Gaussian a class with a common covariance, at every λ at once.

    Attributes:
        mean: Of each feature [D].
        scale: The deviation of each feature [D].
        basis: Eigenvectors of the scatter within classes, in columns [D, D].
        values: Its eigenvalues [D].
        centres: The classes' means along the eigenvectors [C, D].
        counts: Rows a class, and the prior's [C].
        size: n.
        share: λ/n.
    """

    mean: Tensor
    scale: Tensor
    basis: Tensor
    values: Tensor
    centres: Tensor
    counts: Tensor
    size: Tensor
    share: Tensor


class Head(Protocol):
    """What a head can do; `fit` is all that the server needs."""

    by_class: ClassVar[bool]
    tasks: ClassVar[tuple[str, ...]]

    def prepare(self, totals: Sums) -> Any:
        """Do what does not depend on λ.

        Args:
            totals: The sums of all rows.

        Returns:
            A fit with λ = 0.
        """

    def log_evidence(self, fit: Any, share: float) -> float:
        """Evaluate the logarithm of the marginal likelihood, up to a constant.

        Args:
            fit: What `prepare` returned.
            share: λ/n.
        """

    def predict(self, fit: Any, features: Tensor) -> Distribution:
        """Predict.

        Args:
            fit: A fit with its λ.
            features: φ [N, D].

        Returns:
            The predictive distribution, its epistemic part included.
        """

    def left_out(self, fit: Any, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """Predict rows that are among the totals as if each were not.

        Args:
            fit: What `prepare` returned.
            features: Their φ [N, D].
            y: Their labels or targets.
            shares: Values of λ/n.

        Returns:
            A distribution for each value.
        """

    def linear(self, fit: Any) -> tuple[Tensor, Tensor]:
        """Write the head's mean as a linear layer.

        Args:
            fit: A fit with its λ.

        Returns:
            Weights [C, D] and biases [C], of features as they are.
        """


def fit(head: Head, totals: Sums, share: float | None = None, least: float = LEAST) -> Any:
    """Fit a head to totals.

    Args:
        head: Which.
        totals: The sums of all rows.
        share: λ/n; None: where the marginal likelihood is largest.
        least: The smallest λ/n that is considered then.

    Returns:
        What predicting needs.
    """
    prepared = head.prepare(totals)
    if share is None:
        evidence = lambda exponent: head.log_evidence(prepared, 10**exponent)
        share = 10 ** maximise(evidence, math.log10(least), math.log10(SHARES[-1]))
    return prepared._replace(share=torch.as_tensor(share, dtype=torch.float64))


_latest: dict[Head, tuple[Sums, Any]] = {}


def prepared(head: Head, totals: Sums) -> Any:
    """Prepare a head, or take what was prepared last for these very totals: in a simulation all sites ask.

    Args:
        head: Which.
        totals: The sums of all rows.

    Returns:
        What `head.prepare` returns.
    """
    known = _latest.get(head)
    if known is None or known[0].gram is not totals.gram:
        known = (totals, head.prepare(totals))
        _latest[head] = known
    return known[1]


def _shrinkage(fit: Spectrum, share: float) -> Tensor:
    """½ Σ log λ/(g + λ) for every output's eigenvectors [B]."""
    penalty = share * fit.size
    return 0.5 * (penalty.log() - (fit.values + penalty).log()).sum(-1)


@dataclass(frozen=True)
class Ridge:
    """Bayesian linear regression of numbers: w ~ N(0, σ²/λ), y ~ N(ȳ + wᵀz, σ²), σ² for every target."""

    by_class: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("regression",)

    def prepare(self, totals: Sums) -> Spectrum:
        """See `Head.prepare`."""
        return _spectrum(moments(totals))

    def log_evidence(self, fit: Spectrum, share: float) -> float:
        """See `Head.log_evidence`; the noise is where it is largest."""
        residual = fit.at(share).residual.clamp(min=1e-300)
        return float(len(residual) * _shrinkage(fit, share).sum() - 0.5 * (fit.size - 1) * residual.log().sum())

    def predict(self, fit: Spectrum, features: Tensor) -> Distribution:
        """See `Head.predict`."""
        return _normal(fit, *fit.latent(fit.rotate(features)))

    def left_out(self, fit: Spectrum, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """See `Head.left_out`."""
        rotated = fit.rotate(features)
        marks = targets(y, None)
        return [_normal(fit.at(share), *_leave_out(fit.at(share), rotated, marks)) for share in shares]

    def linear(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """See `Head.linear`."""
        return fit.linear()


@dataclass(frozen=True)
class OneHot:
    """The same regression on ones and zeros that mark the classes (analytic federated learning, Fed3R).

    Its outputs f are roughly probabilities and not quite, so that softmax(f/σ) is taken, σ the outputs' mean deviation
    from their targets: a rule, not a fit (docs/exact.md has what it costs). Each output is shrunk for its variance.

    Attributes:
        floor: Whether 1/σ is at least the number of classes, rare ones counting less: then outputs near the base rate
            are the probabilities that they claim to be.
    """

    by_class: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    floor: bool = field(default=True, metadata={"added": True, "before": False})

    def prepare(self, totals: Sums) -> Spectrum:
        """See `Head.prepare`."""
        return _spectrum(moments(totals))

    def log_evidence(self, fit: Spectrum, share: float) -> float:
        """See `Head.log_evidence`; the noise is where it is largest."""
        return Ridge().log_evidence(fit, share)

    def predict(self, fit: Spectrum, features: Tensor) -> Distribution:
        """See `Head.predict`."""
        return self._categorical(fit, *fit.latent(fit.rotate(features)))

    def left_out(self, fit: Spectrum, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """See `Head.left_out`."""
        rotated = fit.rotate(features)
        marks = targets(y, len(fit.offset))
        return [self._categorical(fit.at(share), *_leave_out(fit.at(share), rotated, marks)) for share in shares]

    def linear(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """See `Head.linear`."""
        weight, bias = fit.linear()
        sharpness = self._sharpness(fit)
        return sharpness * weight, sharpness * bias

    def _sharpness(self, fit: Spectrum) -> Tensor:
        """1/σ.

        Near the base rate p softmax(s f) moves class k by s pₖ for each unit of f, which is right where s = 1/pₖ: with
        one s for all, Σ pₖ(1 − pₖ)(s pₖ − 1)² is least, outputs of a class varying as its marks do.
        """
        sharpness = 1 / fit.noise.sqrt().mean()
        if not self.floor:
            return sharpness
        weights = fit.offset * (1 - fit.offset)
        return torch.maximum(sharpness, (weights * fit.offset).sum() / (weights * fit.offset**2).sum())

    def _categorical(self, fit: Spectrum, means: Tensor, variances: Tensor) -> Categorical:
        sharpness = self._sharpness(fit)
        shrink = (1 + PROBIT * sharpness**2 * fit.noise * variances).sqrt()
        return Categorical(log_softmax(sharpness * means / shrink, -1))


@dataclass(frozen=True)
class Dirichlet:
    """A Gaussian process a class on log-normal targets: a Dirichlet likelihood (Milios et al. 2018).

    A row of a class says Gamma(1 + ε) about it and Gamma(ε) about each other class; as log-normals these are targets
    y₁, y₀ with noise s₁, s₀, so that each class has a least-squares problem of its own, with weights 1/s.

    Attributes:
        concentration: ε.
    """

    by_class: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    concentration: float = 0.01

    @property
    def _targets(self) -> tuple[float, float, float, float]:
        """y₀, s₀, y₁, s₁."""
        s0 = math.log(1 / self.concentration + 1)
        s1 = math.log(1 / (1 + self.concentration) + 1)
        return math.log(self.concentration) - s0 / 2, s0, math.log(1 + self.concentration) - s1 / 2, s1

    def prepare(self, totals: Sums) -> Spectrum:
        """See `Head.prepare`."""
        m = moments(totals)
        y0, s0, y1, s1 = self._targets
        counts = totals.counts
        sums = m.cross  # Σ z of each class, as z has mean 0
        weight = counts / s1 + (m.size - counts) / s0
        centre = sums * (1 / s1 - 1 / s0) / weight.unsqueeze(1)
        offset = (counts * y1 / s1 + (m.size - counts) * y0 / s0) / weight
        linear = sums * (y1 / s1 - y0 / s0) - (weight * offset).unsqueeze(1) * centre
        bases, spectra = [], []
        for c, gram in enumerate(totals.gram):
            own = _standardise_gram(square_matrix(gram, totals.features), m)
            scatter = own / s1 + (m.scatter - own) / s0 - weight[c] * torch.outer(centre[c], centre[c])
            values, basis = torch.linalg.eigh(scatter)
            bases.append(basis)
            spectra.append(values.clamp(min=0))
        basis = torch.stack(bases)
        coefficients = (linear.unsqueeze(1) @ basis).squeeze(1)
        return Spectrum(
            m.mean, m.scale, centre, basis, torch.stack(spectra), coefficients, offset, weight, 0 * weight, m.size,
            torch.zeros_like(m.size),
        )  # fmt: skip

    def log_evidence(self, fit: Spectrum, share: float) -> float:
        """See `Head.log_evidence`."""
        explained = (fit.coefficients**2 / fit.at(share).shrunk).sum()
        return float(_shrinkage(fit, share).sum() + 0.5 * explained)

    def predict(self, fit: Spectrum, features: Tensor) -> Distribution:
        """See `Head.predict`."""
        return _averaged_softmax(*fit.latent(fit.rotate(features)))

    def left_out(self, fit: Spectrum, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """See `Head.left_out`."""
        y0, s0, y1, s1 = self._targets
        rotated = fit.rotate(features)
        member = targets(y, len(fit.offset))
        marks = y0 + (y1 - y0) * member
        noise = s0 + (s1 - s0) * member
        return [_averaged_softmax(*_leave_out(fit.at(share), rotated, marks, noise)) for share in shares]

    def linear(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """See `Head.linear`."""
        return fit.linear()


@dataclass(frozen=True)
class Discriminant:
    """A Gaussian a class, with one covariance Σ ~ inverse Wishart(λI) and means ~ N(mean, Σ/κ); Student-t predictives.

    Attributes:
        strength: κ, how many rows the prior of a class's mean is worth.
        plain: Whether to leave the uncertainty of means and covariance out: linear discriminant analysis.
    """

    by_class: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    strength: float = 1.0
    plain: bool = False

    def prepare(self, totals: Sums) -> Classes:
        """See `Head.prepare`."""
        m = moments(totals)
        counts = totals.counts + self.strength
        sums = m.cross  # Σ z of each class, as z has mean 0
        scatter = m.scatter - (sums.T / counts) @ sums
        values, basis = torch.linalg.eigh(scatter)
        centres = (sums / counts.unsqueeze(1)) @ basis
        return Classes(m.mean, m.scale, basis, values.clamp(min=0), centres, counts, m.size, torch.zeros_like(m.size))

    def log_evidence(self, fit: Classes, share: float) -> float:
        """See `Head.log_evidence`; the prior of Σ has D + 2 degrees of freedom.

        Where features depend on each other, as the marks of a category's levels do, rows have no density in the
        directions in which none of them varies: these are left out.
        """
        values = fit.values
        if float(fit.size) > len(values):
            values = values[values > FLAT * fit.size]
        features = len(values)
        penalty = share * fit.size
        prior = features + 2
        wishart = 0.5 * (prior * features * penalty.log() - (prior + fit.size) * (values + penalty).log().sum())
        return float(wishart)

    def predict(self, fit: Classes, features: Tensor) -> Distribution:
        """See `Head.predict`."""
        rotated = ((features.to(fit.mean) - fit.mean) / fit.scale) @ fit.basis
        return Categorical(log_softmax(self._scores(fit, self._distances(fit, rotated), fit.counts, fit.size), -1))

    def left_out(self, fit: Classes, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """See `Head.left_out`: without row i of class c, the scatter loses N/(N − 1)·ddᵀ, d the row less its mean."""
        rotated = ((features.to(fit.mean) - fit.mean) / fit.scale) @ fit.basis
        labels = y.long().unsqueeze(1)
        own = fit.counts[labels]
        factor = own / (own - 1).clamp(min=1e-6)
        away = rotated - fit.centres[labels.squeeze(1)]
        parts: list[Distribution] = []
        for share in shares:
            fitted = fit._replace(share=torch.as_tensor(share, dtype=torch.float64))
            inverse = 1 / (fit.values + share * fit.size)
            distances = self._distances(fitted, rotated)
            weighted = away * inverse
            length = (weighted * away).sum(1, keepdim=True)
            cross = (weighted * rotated).sum(1, keepdim=True) - weighted @ fit.centres.T
            is_own = torch.zeros_like(distances, dtype=torch.bool).scatter(1, labels, True)
            distances = torch.where(is_own, factor**2 * length, distances)
            cross = torch.where(is_own, factor * length, cross)
            distances = distances + factor * cross**2 / (1 - factor * length).clamp(min=1e-9)
            counts = fit.counts - is_own.double()
            parts.append(Categorical(log_softmax(self._scores(fitted, distances, counts, fit.size - 1), -1)))
        return parts

    def linear(self, fit: Classes) -> tuple[Tensor, Tensor]:
        """See `Head.linear`: linear discriminant analysis."""
        freedom = fit.size + len(fit.values) + 3
        scaled = freedom * fit.centres / (fit.values + fit.share * fit.size)
        weight = scaled @ fit.basis.T / fit.scale
        return weight, fit.counts.log() - 0.5 * (scaled * fit.centres).sum(1) - weight @ fit.mean

    def _distances(self, fit: Classes, rotated: Tensor) -> Tensor:
        """(z − m_c)ᵀ (S + λI)⁻¹ (z − m_c) [N, C]."""
        inverse = 1 / (fit.values + fit.share * fit.size)
        cross = rotated @ (fit.centres * inverse).T
        return (rotated**2 @ inverse).unsqueeze(1) - 2 * cross + (fit.centres**2 @ inverse)

    def _scores(self, fit: Classes, distances: Tensor, counts: Tensor, size: Tensor) -> Tensor:
        """log π_c + log p(z | c), up to what classes share."""
        features = len(fit.values)
        freedom = size + features + 3  # of the covariance's posterior, and one
        if self.plain:
            return counts.log() - 0.5 * freedom * distances
        widening = 1 + 1 / counts
        return counts.log() - 0.5 * features * widening.log() - 0.5 * freedom * torch.log1p(distances / widening)


def _standardise_gram(gram: Tensor, m: Moments) -> Tensor:
    """Σ zzᵀ from Σ φφᵀ with φ₀ = 1 [D, D]."""
    total = gram[0, 1:]
    centred = gram[1:, 1:] - torch.outer(total, m.mean) - torch.outer(m.mean, total)
    centred = centred + gram[0, 0] * torch.outer(m.mean, m.mean)
    return centred / m.scale / m.scale.unsqueeze(1)


def _spectrum(m: Moments) -> Spectrum:
    """Unweighted least squares on all outputs: one set of eigenvectors."""
    values, basis = torch.linalg.eigh(m.scatter)
    centre = torch.zeros_like(m.mean).unsqueeze(0)
    return Spectrum(
        m.mean, m.scale, centre, basis.unsqueeze(0), values.clamp(min=0).unsqueeze(0), m.cross @ basis, m.target,
        m.size.reshape(1), m.spread, m.size, torch.zeros_like(m.size),
    )  # fmt: skip


def _normal(fit: Spectrum, means: Tensor, variances: Tensor) -> Normal:
    """Numbers with the function's variance and the noise; one target has no dimension of its own."""
    var = fit.noise * variances
    noise = fit.noise.expand_as(var)
    if means.shape[1] == 1:
        return Normal(means[:, 0], var[:, 0], noise[:, 0])
    return Normal(means, var, noise)


@functools.cache
def _fixed_draws(columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Standard Normal draws and their negatives, [draws, columns]: the same whenever they are asked for."""
    draws = Key(0).normal((DRAWS // 2, columns), torch.empty((), dtype=dtype, device=device))
    return torch.cat([draws, -draws])


def _averaged_softmax(means: Tensor, variances: Tensor) -> Categorical:
    """E softmax of independent Normals [N, C], by draws that are the same for every row."""
    draws = _fixed_draws(means.shape[1], means.dtype, means.device)
    parts = []
    for mean, deviation in zip(in_parts(means), in_parts(variances.clamp(min=0).sqrt()), strict=True):
        logits = mean.unsqueeze(1) + deviation.unsqueeze(1) * draws
        parts.append(torch.logsumexp(log_softmax(logits, -1), 1) - math.log(len(draws)))
    return Categorical(torch.cat(parts))


def _leave_out(fit: Spectrum, rotated: Tensor, marks: Tensor, noise: Tensor | float = 1.0) -> tuple[Tensor, Tensor]:
    """Means and variances of rows left out: ŷ₋ᵢ = y − (y − ŷ)/(1 − h), v₋ᵢ = v/(1 − h), h = v/noise."""
    means, variances = fit.latent(rotated)
    rest = (1 - variances / noise).clamp(min=1e-6)
    return marks - (marks - means) / rest, variances / rest


def as_point(layer: tuple[Tensor, Tensor], fit: Any, like: Params) -> Point:
    """Write a linear head as weights of a task.

    Args:
        layer: What `Head.linear` returned.
        fit: The fit, for the noise.
        like: The task's weights: a last linear layer, and a noise where that is learned.

    Returns:
        Weights of the same names and types.
    """
    params = dict(like)
    for name, value in like.items():
        if name == LOG_NOISE:
            params[name] = fit.noise.log().mean().reshape(1).to(value)
        elif name.endswith("weight"):
            params[name] = layer[0].to(value)
        elif name.endswith("bias"):
            params[name] = layer[1].to(value)
    return Point(params)
