"""Heads: what is learned on fixed features from sums alone, with its uncertainty, in closed form.

`Ridge`: Bayesian linear regression of numbers
`OneHot`: the same of ones and zeros that mark the classes
`Dirichlet`: a Gaussian process a class on log-normal targets (Milios et al. 2018)
`Discriminant`: a Gaussian a class with one covariance; Student-t when its uncertainty is kept
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from consilience.distributions.predictive import Categorical, Distribution, Normal, student_variance
from consilience.glm.spectrum import Spectrum, least_squares
from consilience.glm.sums import FLAT, Moments, Sums, in_parts, moments, square_matrix, targets
from consilience.key import Key

DRAWS = 64  # of latent functions, behind a probability
PROBIT = math.pi / 8  # of a variance, by which a logit is shrunk (MacKay 1992)


@dataclass(frozen=True)
class Ridge:
    """Bayesian linear regression of numbers: w ~ N(0, σ²/λ), y ~ N(ȳ + wᵀz, σ²), σ² for every target."""

    by_class: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("regression",)

    def prepare(self, totals: Sums) -> Spectrum:
        """See `Head.prepare`."""
        return least_squares(moments(totals))

    def log_evidence(self, fit: Spectrum, share: float) -> float:
        """See `Head.log_evidence`; the noise is where it is largest."""
        residual = fit.at(share).residual.clamp(min=1e-300)
        return float(len(residual) * fit.log_shrinkage(share).sum() - 0.5 * (fit.size - 1) * residual.log().sum())

    def predict(self, fit: Spectrum, features: Tensor) -> Distribution:
        """See `Head.predict`."""
        return _normal(fit, *fit.latent(fit.rotate(features)))

    def left_out(self, fit: Spectrum, features: Tensor, y: Tensor, shares: Sequence[float]) -> list[Distribution]:
        """See `Head.left_out`."""
        rotated = fit.rotate(features)
        marks = targets(y, None)
        return [_normal(fit.at(share), *fit.at(share).latent_left_out(rotated, marks)) for share in shares]

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
        rates: Whether softmax(log π + (f − π)/σ) is taken, π the classes' shares: where features say nothing it is π,
            however rare a class is. Of classes that are alike nothing changes.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=2, split="iid")
        >>> result = co.run(co.methods.ExactPooling(head=co.glm.heads.OneHot()), problem)
        >>> result.report["diagnostics"]["head"], result.metrics["accuracy"] > 0.8
        ('OneHot', True)
    """

    by_class: ClassVar[bool] = False
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    floor: bool = field(default=True, metadata={"added": True, "before": False})
    rates: bool = field(default=True, metadata={"added": True, "before": False})

    def prepare(self, totals: Sums) -> Spectrum:
        """See `Head.prepare`."""
        return least_squares(moments(totals))

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
        return [self._categorical(fit.at(share), *fit.at(share).latent_left_out(rotated, marks)) for share in shares]

    def linear(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """See `Head.linear`."""
        weight, bias = fit.linear()
        sharpness = self._sharpness(fit)
        centre, start = self._start(fit)
        return sharpness * weight, start + sharpness * (bias - centre)

    def _start(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """The outputs where features say nothing, and the logits there; an unseen class has part of a row."""
        if not self.rates:
            return torch.zeros_like(fit.offset), torch.zeros_like(fit.offset)
        shares = (fit.size * fit.offset + 1 / len(fit.offset)) / (fit.size + 1)
        return fit.offset, shares.log()

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
        centre, start = self._start(fit)
        return Categorical(log_softmax(start + sharpness * (means - centre) / shrink, -1))


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
        return float(fit.log_shrinkage(share).sum() + 0.5 * explained)

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
        return [_averaged_softmax(*fit.at(share).latent_left_out(rotated, marks, noise)) for share in shares]

    def linear(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """See `Head.linear`."""
        return fit.linear()


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


@dataclass(frozen=True)
class Discriminant:
    """A Gaussian a class, with one covariance Σ ~ inverse Wishart(λI) and means ~ N(mean, Σ/κ); Student-t predictives.

    Attributes:
        strength: κ, how many rows the prior of a class's mean is worth.
        plain: Whether to leave the uncertainty of means and covariance out: linear discriminant analysis.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=2, split="iid")
        >>> result = co.run(co.methods.ExactPooling(head=co.glm.heads.Discriminant()), problem)
        >>> result.report["diagnostics"]["head"], result.metrics["accuracy"] > 0.8
        ('Discriminant', True)
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

        Where features depend on each other, as the indicators of a category's levels do, rows have no density in the
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
        """Log π_c + log p(z | c), up to what classes share."""
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


def _normal(fit: Spectrum, means: Tensor, variances: Tensor) -> Normal:
    """Numbers with the function's variance and the noise; one target has no dimension of its own.

    The noise is estimated, so that the prediction is Student's t, and the Normal has its variance.
    """
    rest = fit.rest * student_variance(fit.freedom)
    var = rest * variances
    noise = rest.expand_as(var)
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
