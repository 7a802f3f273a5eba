"""Rules that merge the clients' Gaussians into one, weight by weight.  Özer et al. 2022, eq. 4–8.

Each rule maps one slice of weights: means and variances [K, …] and the clients' shares [K] → mean, variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from consilience.distributions.posterior import Dense, Gaussian, Posterior, Samples, moments
from consilience.errors import InputError
from consilience.key import Key
from consilience.tree import Params

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]

SLICE = 2**15  # weights merged at a time: a slice of all clients stays in the processor's cache
LOWEST = math.exp(-8)  # between these the released program clamps σ²
HIGHEST = math.exp(8)


def eaa(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Empirical arithmetic aggregation, eq. 4: the average variance.

    Args:
        m: The clients' means [K, …].
        v: Their variances [K, …].
        w: Their shares [K].

    Returns:
        Mean and variance.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> mean, var = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
        >>> [value.tolist() for value in co.aggregation.eaa(mean, var, torch.tensor([0.5, 0.5]))]
        [[1.0], [2.0]]
    """
    return _dot(w, m), _dot(w, v)


def gaa(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Gaussian arithmetic aggregation, eq. 5: the variance of Σ wₖ θₖ for independent θₖ.

    Args:
        m: The clients' means [K, …].
        v: Their variances [K, …].
        w: Their shares [K].

    Returns:
        Mean and variance.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> mean, var = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
        >>> [value.tolist() for value in co.aggregation.gaa(mean, var, torch.tensor([0.5, 0.5]))]
        [[1.0], [1.0]]
    """
    return _dot(w, m), _dot(w**2, v)


def aalv(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Arithmetic aggregation with log-variance, eq. 6: FedAvg on (μ, log σ²).

    Args:
        m: The clients' means [K, …].
        v: Their variances [K, …].
        w: Their shares [K].

    Returns:
        Mean and variance.
    """
    return _dot(w, m), _dot(w, v.log()).exp()


def ppa(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Population pooling, the limit of eq. 7 for an infinite population: the moments of the mixture Σ wₖ N(μₖ, σₖ²).

    Args:
        m: The clients' means [K, …].
        v: Their variances [K, …].
        w: Their shares [K].

    Returns:
        Mean and variance.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> mean, var = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [3.0]])
        >>> [value.tolist() for value in co.aggregation.ppa(mean, var, torch.tensor([0.5, 0.5]))]
        [[1.0], [3.0]]
    """
    mean = _dot(w, m)
    return mean, _dot(w, v + (m - mean) ** 2)


def cf(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Conflation, eq. 8: the density ∝ Πₖ N(θ; μₖ, σₖ²)^(wₖ / max w), whose precision is Σ (wₖ / max w) / σₖ².

    Args:
        m: The clients' means [K, …].
        v: Their variances [K, …].
        w: Their shares [K].

    Returns:
        Mean and variance.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> mean, var = torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]])
        >>> [value.tolist() for value in co.aggregation.cf(mean, var, torch.tensor([0.5, 0.5]))]
        [[1.0], [0.5]]
    """
    precision = _dot(w, 1 / v)
    return _dot(w, m / v) / precision, w.max() / precision


def population(key: Key, size: int) -> Rule:
    """Eq. 7 itself: round(N wₖ) draws from client k, pooled; the mean and variance of all N.

    Of a client's draws only their mean and their sum of squares matter, which are a normal and an independent
    χ²; those two are drawn, so the population has the paper's distribution at a fraction of its cost.
    """
    generator = key.generator()

    def rule(m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        n = (size * w).round().clamp(min=1).reshape(-1, *[1] * (m.ndim - 1))
        centre = m + (v / n).sqrt() * torch.randn(m.shape, generator=generator, dtype=m.dtype)
        half = ((n - 1) / 2).clamp(min=torch.finfo(m.dtype).tiny).expand_as(m).contiguous()
        within = 2 * v * torch._standard_gamma(half, generator)
        mean = (n * centre).sum(0) / n.sum()
        return mean, (within + n * (centre - mean) ** 2).sum(0) / n.sum()

    return rule


@dataclass(frozen=True)
class Released:
    """A rule as the released program has it: log σ² clamped to [−8, 8] before it enters.

    EAA and GAA add client after client, and the sum so far is clamped before the next is added: with equal variances
    at the lower end, K = 10 multiplies them by 1.9 (EAA) and 1.09 (GAA) where eq. 4 and 5 give 1 and 0.1. AALV
    averages what it is sent.

    Attributes:
        rule: The rule as the paper has it.
    """

    rule: Rule

    def __call__(self, m: Tensor, v: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Merge a slice of weights.

        Args:
            m: The clients' means [K, …].
            v: Their variances [K, …].
            w: Their shares [K].

        Returns:
            Mean and variance.
        """
        if self.rule is aalv:
            return aalv(m, v, w)
        v = v.clamp(LOWEST, HIGHEST)
        if self.rule not in (eaa, gaa):
            return self.rule(m, v, w)
        shares = w
        if self.rule is gaa:
            shares = w**2
        total = shares[0] * v[0]
        for share, var in zip(shares[1:], v[1:], strict=True):
            total = total.clamp(LOWEST, HIGHEST) + share * var
        return _dot(w, m), total


def clamp(posterior: Posterior) -> Posterior:
    """Clamp variances as the released program does when it predicts: none is smaller than e⁻⁸.

    Returns:
        A Gaussian with clamped variances; anything else as it is.
    """
    if not isinstance(posterior, Gaussian):
        return posterior
    return Gaussian(posterior.mean, {k: v.clamp(LOWEST, HIGHEST) for k, v in posterior.var.items()})


def _dot(w: Tensor, values: Tensor) -> Tensor:
    """Σₖ wₖ valuesₖ."""
    total: Tensor = torch.tensordot(w, values, dims=1)
    return total


def merge(gaussians: Sequence[Gaussian], weights: Tensor, rule: Rule, sites: Sequence[int] | None = None) -> Gaussian:
    """Merge many Gaussians into one; leaves that are points are averaged.

    Slices of weights are merged one after another, so that little more memory is needed than the clients' own.

    Args:
        weights: One number a client [K]; normalised here.
        rule: How means and variances are merged.
        sites: The clients' numbers, for errors; 0, 1, … without them.

    Returns:
        The merged Gaussian.

    Raises:
        InputError: If the clients' networks differ, or a variance is not positive.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.posterior import Gaussian
        >>> sites = [Gaussian({"w": torch.tensor([m])}, {"w": torch.tensor([1.0])}) for m in (0.0, 2.0)]
        >>> co.aggregation.merge(sites, torch.tensor([0.5, 0.5]), co.aggregation.eaa)
        Gaussian(mean={'w': tensor([1.])}, var={'w': tensor([1.])})
    """
    if sites is None:
        sites = range(len(gaussians))
    _check_leaves(gaussians, sites)
    w = weights / weights.sum()
    mean: Params = {}
    var: Params = {}
    for name, like in gaussians[0].mean.items():
        if name in gaussians[0].var:
            mean[name], var[name] = _merge_leaf(name, gaussians, w.to(like), rule, sites)
        else:
            mean[name] = _average_leaf(name, gaussians, w.to(like))
    return Gaussian(mean, var)


def _merge_leaf(
    name: str, gaussians: Sequence[Gaussian], w: Tensor, rule: Rule, sites: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Mean and variance of one leaf by a rule."""
    means = [g.mean[name].reshape(-1) for g in gaussians]
    variances = [g.var[name].reshape(-1) for g in gaussians]
    mean = torch.empty_like(means[0])
    var = torch.empty_like(means[0])
    for part in _slices(len(mean)):
        m = torch.stack([each[part] for each in means])
        v = torch.stack([each[part] for each in variances])
        if not bool((v > 0).all()):
            site = sites[int((~(v > 0)).any(1).int().argmax())]
            raise InputError(f"Site {site} sent a variance of '{name}' that is not above 0: leave it out or refit it.")
        mean[part], var[part] = rule(m, v, w)
    shape = gaussians[0].mean[name].shape
    return mean.reshape(shape), var.reshape(shape)


def _average_leaf(name: str, gaussians: Sequence[Gaussian], w: Tensor) -> Tensor:
    """The weighted mean of one leaf."""
    means = [g.mean[name].reshape(-1) for g in gaussians]
    mean = torch.empty_like(means[0])
    for part in _slices(len(mean)):
        mean[part] = _dot(w, torch.stack([each[part] for each in means]))
    return mean.reshape(gaussians[0].mean[name].shape)


def _slices(length: int) -> list[slice]:
    return [slice(start, start + SLICE) for start in range(0, length, SLICE)]


def _check_leaves(gaussians: Sequence[Gaussian], sites: Sequence[int]) -> None:
    """Refuse clients whose networks differ, and clients for whom every weight is a point."""
    first = gaussians[0]
    for site, gaussian in zip(sites, gaussians, strict=True):
        names = _differences(gaussian.mean, first.mean) | _differences(gaussian.var, first.var)
        if names:
            raise InputError(
                f"Site {site} and site {sites[0]} differ in '{min(names)}': give all sites the same network and the "
                "same Bayesian layers."
            )
    if not first.var:
        raise InputError(
            "Every weight is a point, so there is no variance to merge: make a layer Bayesian, or use FedAvg."
        )


def _differences(a: Params, b: Params) -> set[str]:
    """Names of the leaves that only one of two has, or that differ in shape."""
    shapes_a = {(name, leaf.shape) for name, leaf in a.items()}
    shapes_b = {(name, leaf.shape) for name, leaf in b.items()}
    return {name for name, _ in shapes_a ^ shapes_b}


def as_gaussian(posterior: Posterior, uncertain: Collection[str]) -> Gaussian:
    """Read a posterior as a diagonal Gaussian.

    Args:
        posterior: A diagonal Gaussian or samples; nothing else has a variance for every weight.
        uncertain: Names of the leaves that get variances from samples; others are points.

    Returns:
        The Gaussian as it is, or the samples' moments.

    Raises:
        InputError: For a point or a dense Gaussian.
    """
    match posterior:
        case Gaussian():
            return posterior
        case Samples():
            mean, var = moments(posterior)
            return Gaussian(mean, {k: v for k, v in var.items() if k in uncertain})
        case Dense():
            raise InputError("Rules merge weight by weight: use an inference with diagonal variances.")
    raise InputError("The inference gives single weights and no variances: use MeanField, Laplace, SWAG or a sampler.")


def spread(gaussian: Gaussian) -> float:
    """Compute the norm of all standard deviations, the degree of spread of Table 4.

    Args:
        gaussian: A Gaussian; points have no spread.
    """
    return math.sqrt(sum(float(v.double().sum()) for v in gaussian.var.values()))
