"""Sums over bounded rows, released with noise, and a linear head whose posterior knows about the noise.

**What is released.** Features ψ with ‖ψ‖ ≤ 1 and the constant κ make a = (κ, ψ)/√(1 + κ²), so that ‖a‖ ≤ 1. A label is
t, its label among zeros, or a target y/bound with ‖t‖ ≤ 1. A row's part of the released vector is

    v = (√g·svec(aaᵀ),  √h·t⊗a,  √q·t²),   g + h + q = 1,   q = 0 for classes

where svec holds a matrix's diagonal and √2 times what is above it, each number once. *No v is longer than 1*:
‖svec(aaᵀ)‖ = ‖aaᵀ‖_F = ‖a‖² ≤ 1, ‖t⊗a‖ = ‖t‖‖a‖ ≤ 1, ‖t²‖ ≤ ‖t‖² ≤ 1, so that ‖v‖² ≤ g + h + q = 1. A row that is added
or removed changes Σ v by one v: the sensitivity is 1. Without the √2 it would be 1 as well (a row along one axis), at
twice the noise's variance off the diagonal. `tests/aggregation/test_noisy.py` attacks all of this with neighbours.

A patient's rows count together: Σ w·v over them with one weight w ≤ 1 that makes it no longer than 1.

**What the head knows.** The server sees A = G + E and B = b + e with G = Σ aaᵀ, b = Σ t a, where E has independent
entries of variance τ² (twice that on its diagonal) and e of variance ρ². For targets t = wᵀa + noise of variance s²,

    b − G w ~ N(0, s²G),   so   B − A w ~ N(0, s²G + ρ²I + τ²(‖w‖²I + wwᵀ))

for a flat prior over G. Along the eigenvectors u of A, with eigenvalues γ and estimates ξ of uᵀGu, this is a Gaussian
likelihood of each coefficient, and w ~ N(0, ω) makes its posterior one too:

    m = s²ξ + ρ² + τ²(E‖w‖² + E w²),   precision ξ²/m + 1/ω,   mean (ξB/m)/precision
    1   ω ← mean of E w² and of one further coefficient with w² = mean t²: where noise drowns all, ω does not vanish
    2   s² ← E Σ(t − wᵀa)²/n = (Σt² − Σ 2κwB + (1 − 2κ)ξ E w²)/n,   κ = s²ξ/m, the part of B − ξw that is the rows'

1 and 2 are repeated until they settle (an EM algorithm). With no noise this is Bayesian linear regression by MacKay's
updates. The eigenvalues of A are those of G spread out by E, some below 0. ξ is the estimate of uᵀGu that is best on
average over all rotations, ξ = γ − 2τ² Σⱼ 1/(γ − γⱼ) (Bun, Allez, Bouchaud and Potters 2016), and at least 0: so A is
made positive semi-definite, and directions of noise alone are left to the prior. No ridge is tuned.

**A temperature, for a little more.** Labels are not Gaussian, and under much noise their shrunk means say too little. A
second, small release is v = (ℓ(T) − ℓ(1))/(r√m) for m temperatures T, ℓ the log-probability of the row's label and each
difference clipped to ±r, so that ‖v‖ ≤ 1. The server shrinks the sums towards 0 by what of their size is noise (James
and Stein), adds log T ~ N(0, 1), and takes the top of the parabola through the best T and its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.predictive import Distribution, log_prob, tempered
from consilience.errors import InputError
from consilience.glm.fitting import Head
from consilience.glm.heads import OneHot, Ridge
from consilience.glm.linear_model import check_bounded, classes_of
from consilience.glm.spectrum import Spectrum
from consilience.glm.sums import in_chunks, square_matrix, summarise
from consilience.messages import Received, Server, payloads
from consilience.models.maps import last_layer
from consilience.privacy.dp.mechanisms import Clipped, Privacy, Released, add_released
from consilience.task import Task

CLASSES = (0.8, 0.2, 0.0)  # g, h and q; on MNIST 0.7 to 0.85 differed by 0.2 points, 0.5 lost 0.5
NUMBERS = (0.5, 0.4, 0.1)  # on simulated tables, where 0.8 cost a third more error than 0.5
NO_OFFSET = 1e300  # the weight of an offset that adds no variance: the constant's weight has it
GUESS = 1.0  # how many coefficients the prior of ω is worth
STEPS = 500  # of the EM algorithm, at most
SETTLED = 1e-6  # relative change of ω, below which it has
LOG_TEMPERATURES = tuple(math.log(2) * k / 2 for k in (-5, -4, -3, -2, -1, 1, 2))  # 0.18 to 2; 0 needs no number
GAIN = 3.0  # r: what a row can say for a temperature, or against it
Map = Callable[[Tensor], Tensor]


class NoisySums(NamedTuple):
    """Totals of a = (κ, ψ)/√(1 + κ²) with the variance of their noise.

    Attributes:
        gram: A [K, K].
        cross: B [C, K], of labels or of targets in units of their bound.
        square: Σ t² [C].
        size: n.
        gram_var: τ², of what is off the diagonal.
        cross_var: ρ².
        square_var: Of Σ t².
    """

    gram: Tensor
    cross: Tensor
    square: Tensor
    size: Tensor
    gram_var: Tensor
    cross_var: Tensor
    square_var: Tensor


def length_of(features: int, outputs: int, classes: int | None) -> int:
    """Count the numbers of a release.

    Args:
        outputs: How many classes or targets there are.
        classes: How many classes; None for numbers.

    Returns:
        d.
    """
    width = features + 1
    squares = outputs
    if classes is not None:
        squares = 0
    return width * (width + 1) // 2 + outputs * width + squares


def _weights(classes: int | None) -> tuple[float, float, float]:
    """√g, √h and √q."""
    gram, cross, square = CLASSES
    if classes is None:
        gram, cross, square = NUMBERS
    return math.sqrt(gram), math.sqrt(cross), math.sqrt(square)


def _columns(width: int, privacy: Privacy, like: Tensor) -> Tensor:
    """What (1, ψ) is multiplied with to make a [K]."""
    columns = torch.ones(width, dtype=torch.float64, device=like.device)
    columns[0] = privacy.constant
    return columns / math.sqrt(1 + privacy.constant**2)


def _above(width: int, like: Tensor) -> Tensor:
    """√2 above the diagonal of a triangle and 1 on it, row by row [T]."""
    rows, columns = torch.triu_indices(width, width, device=like.device)
    return torch.where(rows == columns, 1.0, math.sqrt(2)).double()


HUGE = 1e100  # whose square is finite


def shorten(rows: Tensor) -> Tensor:
    """Clip rows to length 1.

    Args:
        rows: [N, D].

    Returns:
        The same, no longer than 1 in double precision; what is no number counts as 0, and an infinite one as a large
        one: a row that stopped the release would be told by it.
    """
    rows = rows.double().nan_to_num(nan=0.0, posinf=HUGE, neginf=-HUGE)
    short: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    return short


def sum_bounded(features: Map, data: Data, classes: int | None, privacy: Privacy) -> Clipped:
    """Add up a client's rows, each bounded, as the numbers that are released once there is noise on them.

    Args:
        features: From rows to ψ.
        data: The rows; padding has weight 0, and no weight counts for more than 1.
        classes: How many there are; None for numbers.

    Returns:
        Σ v [d].
    """
    y = data.y
    if classes is None:
        y = shorten(data.y.reshape(len(data.y), -1).double() / privacy.bound)
    bounded = Data(data.x, y, data.w.clamp(0, 1))
    sums = summarise(lambda x: shorten(features(x)), bounded, classes)
    root_gram, root_cross, root_square = _weights(classes)
    scale = _columns(sums.features, privacy, sums.gram)
    rows, columns = torch.triu_indices(sums.features, sums.features, device=scale.device)
    gram = root_gram * _above(sums.features, scale) * scale[rows] * scale[columns] * sums.gram
    cross = root_cross * scale * sums.cross
    return Clipped(torch.cat([gram, cross.flatten(), root_square * sums.square]))


def read_release(
    total: Released, features: int, outputs: int, classes: int | None, privacy: Privacy, part: float = 1.0
) -> NoisySums:
    """Take apart what sites released, added up.

    Args:
        total: The sum over sites.
        outputs: How many classes or targets there are.
        classes: How many classes; None for numbers.
        part: The share of μ² that the release took.

    Returns:
        The totals, and how much noise is on them.

    Raises:
        InputError: There are not as many numbers as that makes.
    """
    width = features + 1
    numbers = length_of(features, outputs, classes)
    if total.values.shape != (numbers,):
        raise InputError(f"The release has {tuple(total.values.shape)} numbers and {numbers} are agreed.")
    root_gram, root_cross, root_square = _weights(classes)
    scale = _columns(width, privacy, total.values)
    gram, cross, square = total.values.double().split(
        [width * (width + 1) // 2, outputs * width, numbers - width * (width + 1) // 2 - outputs * width]
    )
    matrix = square_matrix(gram / root_gram / _above(width, gram), width)
    cross = cross.reshape(outputs, width) / root_cross
    variance = total.shares.double() * privacy.deviation(numbers, part) ** 2
    size = (matrix[0, 0] / scale[0] ** 2).clamp(min=1)
    if classes is None:
        square = square / root_square
        square_var = variance / root_square**2
    else:  # a label of 0 or 1 is its own square
        square = cross[:, 0] / scale[0]
        square_var = variance / (root_cross * scale[0]) ** 2
    gram_var = variance / (2 * root_gram**2)
    return NoisySums(matrix, cross, square, size, gram_var, variance / root_cross**2, square_var)


def shrink_eigenvalues(values: Tensor, gram_var: Tensor, least: float = 0.0) -> Tensor:
    """Estimate uᵀGu for the eigenvectors u of G + E.

    Args:
        values: Eigenvalues of G + E, ascending [K].
        gram_var: τ², the variance of E off its diagonal.
        least: What no eigenvalue of G is below.

    Returns:
        ξ, ascending [K].
    """
    apart = values.unsqueeze(1) - values
    pushed = (apart / (apart**2 + gram_var).clamp(min=1e-300)).sum(1)  # no pair nearer than the noise counts fully
    return (values - 2 * gram_var * pushed).clamp(min=least).cummax(0).values


def positive_mean(estimate: Tensor, error: Tensor) -> Tensor:
    """Average what a variance can be, of which an estimate with a Gaussian error is known, and that it is above 0.

    The prior is in proportion to s². A flat one would have intervals of new outcomes cover less than they say: with an
    estimate off by a share c of itself, 90 % intervals cover 90 % − 0.16 c²; this prior makes up for it to that order.

    Args:
        estimate: Perhaps below 0.
        error: The standard deviation of its error.

    Returns:
        E s⁴ / E s² of N(estimate, error²) above 0: the estimate where it is well above its error.
    """
    z = estimate / error
    log_density = -0.5 * z**2 - 0.5 * math.log(2 * math.pi)
    ratio = (log_density - torch.special.log_ndtr(z)).exp()
    mean = error * (z + ratio).clamp(min=1e-3)  # of a truncated Normal
    square = error**2 * (1 + z * (z + ratio))
    both: Tensor = (square / mean).clamp(min=1e-12)
    return both


def fit_noisy(totals: NoisySums) -> Spectrum:
    """Fit a linear head to noisy sums by the algorithm above.

    Returns:
        The posterior of w along the eigenvectors of A, as a fit of features a: what `latent` gives with it is in
        units of the bound.
    """
    values, basis = torch.linalg.eigh(totals.gram)
    known = shrink_eigenvalues(values, totals.gram_var)
    cross = totals.cross @ basis
    error = (totals.square_var.sqrt() / totals.size).clamp(min=1e-12)
    noise = positive_mean(totals.square / totals.size, error)
    usual = noise.mean()
    prior = usual
    second = torch.ones_like(cross) / len(values)
    for _ in range(STEPS):
        spread = noise.unsqueeze(1) * known
        m = spread + totals.cross_var + totals.gram_var * (second.sum(1, keepdim=True) + second)
        precision = known**2 / m.clamp(min=1e-300) + 1 / prior
        mean = known * cross / m.clamp(min=1e-300) / precision
        second = mean**2 + 1 / precision
        part = spread / m.clamp(min=1e-300)
        explained = (2 * part * mean * cross + (1 - 2 * part) * known * second).sum(1)
        noise = positive_mean((totals.square - explained) / totals.size, error)  # 2
        before = prior
        prior = (second.sum() + GUESS * usual) / (second.numel() + GUESS)  # 1
        if bool((prior - before).abs() <= SETTLED * before):
            break
    weight = noise.unsqueeze(1) * precision  # what a Spectrum divides the noise and the coefficients by
    coefficients = mean * weight
    residual = noise * (totals.size - 1).clamp(min=1)
    zeros = torch.zeros_like(values)
    return Spectrum(
        zeros, zeros + 1, zeros.unsqueeze(0), basis.unsqueeze(0), weight, coefficients, torch.zeros_like(noise),
        torch.full((1,), NO_OFFSET, dtype=torch.float64), residual + (coefficients**2 / weight).sum(1), totals.size,
        torch.zeros((), dtype=torch.float64),
    )  # fmt: skip


@dataclass(frozen=True)
class Noisy:
    """A head on noisy sums: a regression whose intercept is the weight of the constant κ.

    Attributes:
        head: What predicts from the regression: `Ridge`, or `OneHot` without its floor.
        privacy: The setting.

    Raises:
        InputError: The head has a floor.
    """

    by_class: ClassVar[bool] = False

    head: Ridge | OneHot
    privacy: Privacy

    def __post_init__(self) -> None:
        if isinstance(self.head, OneHot) and (self.head.floor or self.head.rates):
            raise InputError(
                "Sums with noise do not show the classes' shares, which these need: OneHot(floor=False, rates=False)."
            )

    def predict(self, fit: Any, features: Tensor) -> Distribution:
        """Predict.

        Args:
            fit: What `fit_noisy` returned.
            features: ψ [N, D].

        Returns:
            The predictive distribution, the noise's part included.
        """
        psi = shorten(features)
        rows = torch.cat([torch.ones_like(psi[:, :1]), psi], 1) * _columns(psi.shape[1] + 1, self.privacy, psi)
        p = self.head.predict(fit, rows)
        if isinstance(self.head, OneHot):
            return p
        bound = self.privacy.bound
        return type(p)(p.mean * bound, p.var * bound**2, p.noise * bound**2)  # type: ignore[union-attr,call-arg]

    def linear(self, fit: Spectrum) -> tuple[Tensor, Tensor]:
        """Write the head's mean as a linear layer of ψ.

        Args:
            fit: What `fit_noisy` returned.

        Returns:
            Weights [C, D] and biases [C].
        """
        weight, bias = self.head.linear(fit)
        weight = weight * _columns(weight.shape[1], self.privacy, weight)
        if isinstance(self.head, Ridge):
            weight = weight * self.privacy.bound
        return weight[:, 1:], bias + weight[:, 0]


def sum_scores(head: Noisy, fit: Spectrum, features: Map, data: Data) -> Clipped:
    """Add up how much better temperatures other than 1 predict a client's rows, as the numbers that are released.

    Args:
        fit: What the server fitted to the first release.
        features: From rows to ψ.
        data: The rows; padding has weight 0, and no weight counts for more than 1.

    Returns:
        Σ v [1, m]: two dimensions tell it from moments.
    """
    total = torch.zeros(len(LOG_TEMPERATURES), dtype=torch.float64)
    for part in in_chunks(data):
        p = head.predict(fit, features(part.x))
        own = log_prob(p, part.y).double()
        gains = [log_prob(tempered(p, math.exp(u)), part.y).double() - own for u in LOG_TEMPERATURES]
        total = total + torch.stack(gains).clamp(-GAIN, GAIN) @ part.w.double().clamp(0, 1)
    return Clipped((total / (GAIN * math.sqrt(len(LOG_TEMPERATURES)))).unsqueeze(0))


def choose_temperature(total: Released, deviation: float) -> float:
    """Choose a temperature by noisy scores.

    Args:
        total: The sum of the clients' releases.
        deviation: Of the noise that each added.

    Returns:
        T; 1 where noise leaves nothing to go by.
    """
    scale = GAIN * math.sqrt(len(LOG_TEMPERATURES))
    scores = total.values.double().flatten() * scale
    variance = float(total.shares) * (deviation * scale) ** 2
    scores = scores * (1 - variance / scores.square().mean().clamp(min=1e-12)).clamp(min=0)
    pairs = sorted([(0.0, 0.0), *zip(LOG_TEMPERATURES, scores.tolist(), strict=True)])
    heights = [score - 0.5 * u * u for u, score in pairs]
    best = heights.index(max(heights))
    if not 0 < best < len(pairs) - 1:
        return math.exp(pairs[best][0])
    left, right = heights[best] - heights[best - 1], heights[best] - heights[best + 1]
    step = pairs[1][0] - pairs[0][0]
    return math.exp(pairs[best][0] + 0.5 * step * (left - right) / max(left + right, 1e-12))


def fit_replies(task: Task, replies: Sequence[Received], privacy: Privacy, part: float = 1.0) -> Spectrum:
    """Add up what clients released, and fit a head to it.

    Args:
        part: The share of μ² that they spent.

    Returns:
        The fit, which knows of the noise.
    """
    layer = last_layer(task.model)
    total = add_released(payloads(replies))
    privacy.check_shares(total)
    return fit_noisy(read_release(total, layer.in_features, layer.out_features, classes_of(task), privacy, part))


def check_private_problem(
    task: Task, privacy: Privacy, server: Server, head: Head | None, share: float | None, wire: str
) -> None:
    """Refuse what has no private form.

    Args:
        server: What the server sees.
        head: The head that was asked for.
        share: The prior's weight that was asked for.
        wire: The precision that was asked for.

    Raises:
        InputError: Features are not clipped, or a setting means nothing under noise.
    """
    privacy.check(server.clients)
    check_bounded(task)
    if not isinstance(head, (Ridge, OneHot, NoneType)) or share is not None or wire != "float64":
        raise InputError(
            "Under noise the head is Ridge or OneHot, the prior's weight is estimated and sums are whole multiples of "
            "a step: leave head, share and wire as they are."
        )
