"""Differential privacy as a setting: how much, for whom, and where the noise is added.

A release is a vector Σ v(row) over a site's rows, of which no row's part is longer than 1: what v is, and why that
holds, is said where it is computed (`consilience.glm.noisy`). Then, with neighbouring data sets those that differ
by one row, added or removed:

    1   z ← the sums as whole multiples of a step h = 2⁻²⁰
    2   z ← z + discrete Gaussian noise of deviation σ/h;  send h·z

Rounding d numbers moves each by at most h/2 in either data set, so that the multiples differ by at most Δ = 1/h + √d in
Euclidean length, and σ = hΔ/μ makes the release a Gaussian mechanism of μ. Multiples of a power of two are exact in
double precision up to 2⁵³: masks that come after lose nothing. Sums of discrete Gaussians are as good as one: the
total variation is below 10·e^(−2π²σ²) with σ in steps, here some 10⁶ (Kairouz, Liu and Steinke 2021).

**Where.** `site`: every site adds all of the noise, and nobody need be trusted. `once`: each adds 1/t of the variance,
so that the total has it as long as t sites add theirs and keep it to themselves; the coordinator must then see the
total alone, by secure sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.errors import InputError, unknown_name
from consilience.privacy.dp.accountant import check_budget, mu_of
from consilience.privacy.dp.discrete import discrete_gaussian
from consilience.privacy.entropy import Source
from consilience.privacy.secure_aggregation.fixed_point import decode, encode

STEP = 2.0**-20  # of released sums
MOST = 2**52  # multiples of it, which double precision holds with room for a sum of sites
UNITS = ("row", "patient")
NOISES = ("site", "once")
FEWEST = 3  # sites under `once`: of two, each could take its own share off
ADJACENCY = "add or remove"


class Clipped(NamedTuple):
    """Sums of bounded rows without noise. No list of what may be sent has this type, so that it cannot leave a site.

    Attributes:
        values: Σ v(row) [d].
    """

    values: Tensor


class Released(NamedTuple):
    """Sums of bounded rows with noise.

    Attributes:
        values: Σ v(row) and the noise, in whole multiples of the step [d].
        shares: 1; added up, how many sites put in their noise.
    """

    values: Tensor
    shares: Tensor


def add_released(parts: Sequence[Released]) -> Released:
    """Add up what sites released.

    Returns:
        The total, and how many sites' noise is in it.
    """
    return Released(*(torch.stack(leaves).sum(0) for leaves in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Privacy:
    """How much may be learned about one row or patient from everything that a site sends.

    Attributes:
        epsilon: ε.
        delta: δ, below one over the number of rows.
        unit: Who is protected: `row`, or `patient` where several rows can be one's.
        noise: Where it is added: `site`, all of it at each; `once`, shares of it, under secure sums.
        honest: t, the sites that are relied on under `once` to add their share and keep it to themselves.
        constant: Of the 1 beside features of length 1: how long it is.
        bound: |y| is clipped to it, in agreed units.

    Example:
        >>> from consilience.privacy.dp.mechanisms import Privacy
        >>> privacy = Privacy(epsilon=1.0, delta=1e-5)
        >>> privacy.check(sites=4, rows=1000)
        >>> round(privacy.mu, 3)
        0.268
    """

    epsilon: float = 1.0
    delta: float = 1e-5
    unit: str = "row"
    noise: str = "site"
    honest: int = 0
    constant: float = 0.3
    bound: float = 3.0

    @property
    def mu(self) -> float:
        """What all releases of a study may spend together."""
        return mu_of(self.epsilon, self.delta)

    def check(self, sites: int | None = None, rows: int | None = None) -> None:
        """Refuse what promises nothing or cannot be kept.

        Args:
            sites: How many there are, where that is known.
            rows: How many rows there are in all, where that is known.

        Raises:
            InputError: A number is out of its range, or there are too few sites to hide a share of the noise among.
        """
        check_budget(self.epsilon, self.delta, rows)
        if self.unit not in UNITS:
            raise unknown_name("unit of privacy", self.unit, UNITS)
        if self.noise not in NOISES:
            raise unknown_name("place for noise", self.noise, NOISES)
        if not 0 < self.constant < math.inf or not 0 < self.bound < math.inf:
            raise InputError(
                f"constant={self.constant:g} and bound={self.bound:g} are lengths: give numbers above 0, or nothing is "
                "clipped."
            )
        if self.noise == "once" and sites is not None and sites < FEWEST:
            raise InputError(
                f"With {sites} sites each could take its own noise off the sum: have at least {FEWEST}, or let every "
                'site add all of the noise (noise="site").'
            )
        if self.noise == "once" and (self.honest < 2 or (sites is not None and self.honest > sites)):
            raise InputError(
                f"honest={self.honest} of {sites or 'the'} sites cannot be relied on for their share of the noise: "
                'give a number from 2 to the number of sites, or take noise="site".'
            )

    def describe(self, simulated: bool, not_covered: Sequence[str] = ()) -> dict[str, Any]:
        """Say what is promised, for run.json, agreements and models.

        Args:
            simulated: Whether the noise comes from a seed, and so can be repeated, and subtracted.
            not_covered: What is shown or sent beside it without noise.

        Returns:
            Values by name, as JSON has them.
        """
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "adjacency": ADJACENCY,
            "noise": self.noise,
            "honest_sites": self.honest if self.noise == "once" else 0,
            "mu": self.mu,
            "simulated": simulated,
            "not_covered": list(not_covered),
        }

    def check_shares(self, total: Released) -> None:
        """Refuse a total with less noise than was promised.

        Args:
            total: What sites released, added up.

        Raises:
            InputError: Fewer sites put in their share than are relied on.
        """
        if self.noise == "once" and float(total.shares) < self.honest:
            raise InputError(
                f"{float(total.shares):.0f} sites put in their share of the noise and {self.honest} are needed for the "
                "promised privacy: wait for the others, or agree on a smaller number of honest sites."
            )

    def deviation(self, numbers: int, part: float = 1.0) -> float:
        """Find the SD of the noise that one site adds to each of its sums.

        Args:
            numbers: d, how many sums there are.
            part: The share of μ² that this release takes.

        Returns:
            σ, or σ/√t of shares.
        """
        sigma = (1 + STEP * math.sqrt(numbers)) / (self.mu * math.sqrt(part))
        if self.noise == "once":
            return sigma / math.sqrt(self.honest)
        return sigma

    def add_noise(self, clipped: Clipped, source: Source, part: float = 1.0) -> Released:
        """Make sums of bounded rows fit to be sent.

        Args:
            clipped: The sums, of which no row's part is longer than 1.
            source: Where random bits come from.
            part: The share of μ² that this release takes.

        Raises:
            InputError: A sum is too large for its steps, or there are no random bits.
        """
        values = clipped.values.reshape(-1)
        multiples = encode(values, STEP, MOST)  # 1
        sigma = self.deviation(len(values), part) / STEP
        noise = discrete_gaussian(len(values), sigma, source)
        return Released(decode(multiples + noise, STEP).reshape(clipped.values.shape), torch.ones(()))  # 2
