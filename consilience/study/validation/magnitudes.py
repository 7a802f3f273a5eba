"""How large the numbers of an honest reply can be: what the prior, the agreed columns and a number of rows allow.

A site that trains by the agreement cannot do better than the prior lets it. At a mode θ̂ the target is no higher than
where training began, so ‖θ̂‖² ≤ ‖θ₀‖² + 2v Σ nll(θ₀) with v the prior's variance: the weights are bounded by prior and
rows. And a row x adds at most ‖∂ nll‖² ‖(x, 1)‖² to the trace of a curvature, which the agreed ranges bound. What is
known only roughly is widened: `SLACK` for weights, which optimisers and samplers find roughly, `MARGIN` for curvatures,
which are computed exactly. A lie within the bounds is as large as an honest reply could be.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from consilience.distributions.likelihood import FARTHEST

SLACK = 5.0  # on the norm of weights: a loss 25 times that of the start; honest replies stay below a tenth of the bound
MARGIN = 2.0  # on curvatures, whose bound holds for every row as if it lay at the end of all ranges
WORST = 3.0  # a site's mean loss as a multiple of guessing, at weights that a search for a mode passes
ROUNDING = 1e-3  # of what is known exactly, relative
LOG_NOISE = FARTHEST  # of a learned noise, in the target's scaled unit
FAR = 100.0  # times the agreed ranges: pseudo-rows beyond have diverged; methods stop theirs at ten times
LARGEST = 300.0  # the logarithm of what bounds nothing, for networks of many layers
STEPS = 50.0  # a preconditioned step may be so many times longer than the way to the weights


class Bounds(NamedTuple):
    """What bounds an honest site's numbers.

    Attributes:
        prior_var: v, the variance of every weight under the prior.
        parameters: P, how many weights there are.
        start: ‖θ₀‖, the norm of weights before any training.
        shapes: Of all weights, in the order in which a vector of weights holds them.
        reach: ‖(x, 1)‖, the longest row that the agreed ranges allow, with its constant; its features, if there are.
        widest: The largest number in such a row.
        classes: How many classes there are; 0 where a number is predicted.
        target: The largest number that can be the target, scaled.
        noise: The variance of an observation; 0 where it is learned.
        narrowest: The smallest variance that rows need not explain (`Method.narrowest`); None where there is none.
        statistics: Names of running statistics, which are no weights.
        outcome: `counts` or `survival`, where that is predicted.
        exposures: The shortest and the longest exposure of a count.
        output: The largest log-rate or log-hazard in size, where the weights are known that replies are about.
    """

    prior_var: float
    parameters: int
    start: float
    shapes: tuple[tuple[int, ...], ...]
    reach: float
    widest: float
    classes: int
    target: float = 0.0
    noise: float = 0.0
    narrowest: float | None = None
    statistics: tuple[str, ...] = ()
    outcome: str = ""
    exposures: tuple[float, float] = (1.0, 1.0)
    output: float = LARGEST

    @property
    def layers(self) -> int:
        """L, how many matrices a row passes; 1 for a linear model."""
        return max(1, sum(len(shape) > 1 for shape in self.shapes))

    def plain_norm(self, rows: int) -> float:
        """Bound the norm of a mode and of draws around it.

        Args:
            rows: n, how many rows stand behind the weights.

        Returns:
            √(‖θ₀‖² + 2vn·ℓ) + √(vP), ℓ the most that training can take off a row's loss.
        """
        loss = self._row_loss(rows)
        mode = math.hypot(self.start, math.sqrt(2 * self.prior_var * rows * loss))
        return mode + math.sqrt(self.prior_var * self.parameters)

    def _row_loss(self, rows: int) -> float:
        """ℓ: for times, the logarithm of how many are at risk; for counts, half the deviance of a rate of 1."""
        if self.classes:
            return math.log(max(self.classes, 2))
        if self.outcome == "survival":
            return math.log(max(rows, 2))
        if self.outcome == "counts":
            shortest, longest = self.exposures
            most = max(self.target, 1.0)
            return longest + most * max(0.0, math.log(most / shortest))
        loss = 0.5 * self.target * self.target / (self.noise or 1.0)
        if not self.noise:
            loss += 0.5 * LOG_NOISE
        return loss

    @property
    def rate(self) -> float:
        """The largest expected count; that guessed from a row's own count where no weights are known."""
        return max(self.target + 1.0, self.exposures[1] * math.exp(min(self.output, LARGEST)))

    def norm(self, rows: int) -> float:
        """Bound the norm of weights, with slack.

        Args:
            rows: How many rows stand behind them.
        """
        return SLACK * self.plain_norm(rows)

    def log_noise(self) -> float:
        """Bound the size of a learned log-variance."""
        return LOG_NOISE + 2 * math.log(max(self.target, 1.0))

    def gain(self, rows: int) -> float:
        """Bound ‖∂ outputs/∂ weights‖² / ‖(x, 1)‖² of a network by the norms of its L matrices.

        Args:
            rows: How many rows stand behind the weights.

        Returns:
            Π ‖Wₗ‖² over L − 1 matrices whose squared norms add up to that of all weights; 1 for a linear model.
        """
        norm = max(1.0, self.plain_norm(rows) / math.sqrt(self.layers))
        return math.exp(min(2 * (self.layers - 1) * math.log(norm), LARGEST))

    def row_curvature(self, gain: float, noise: float) -> float:
        """Bound what one row adds to the trace of a curvature, generalised Gauss–Newton or empirical Fisher.

        Args:
            gain: How much longer a network's derivatives can be than the row.
            noise: The variance of an observation, as agreed or learned.

        Returns:
            2 ‖(x, 1)‖² for classes, as ‖p − y‖² ≤ 2 and 1 − Σp² < 1; ‖(x, 1)‖²/σ² for numbers; ‖(x, 1)‖² for times, a
            variance over those at risk; ‖(x, 1)‖² times the largest count at a mode of counts; times the gain.
        """
        by_output = 2.0
        if self.outcome == "survival":
            by_output = 1.0
        elif self.outcome == "counts":
            by_output = max(1.0, self.target)
        elif not self.classes:
            by_output = max(1.0, self.target * self.target / noise) / noise
        return by_output * self.reach * self.reach * gain

    def trace(self, rows: int, noise: float, gain: float = math.inf) -> float:
        """Bound the trace of a precision that prior and rows explain.

        Args:
            rows: n, how many rows stand behind it.
            noise: The variance of an observation, as agreed or learned.
            gain: How much longer a network's derivatives can be than the row, where the weights are known.

        Returns:
            P/v + n times what a row adds, with a margin; or what an inference's own narrowest variances add up to.
        """
        by_row = self.row_curvature(min(gain, self.gain(rows)), noise)
        pull = 0.0
        if self.outcome == "counts":  # at a mode the rates add up to the counts, and what the prior pulls on a constant
            pull = self.plain_norm(rows) / self.prior_var * self.reach * self.reach
        explained = MARGIN * (self.parameters / self.prior_var + rows * by_row + pull)
        if self.narrowest is None:
            return explained
        return max(explained, SLACK * self.parameters / self.narrowest)

    def step(self, rows: int) -> float:
        """Bound steps, gradients and control variates: whatever has the weights' names and is not weights.

        Args:
            rows: How many rows stand behind them.
        """
        size = self.plain_norm(rows)
        gradient = math.sqrt(self.row_curvature(self.gain(rows), self.noise or 1.0)) + size / self.prior_var
        return SLACK * max(STEPS * size, gradient)

    def score(self, rows: int) -> float:
        """Bound the log-probability of one row, and a logit, in size.

        Args:
            rows: How many rows stand behind the weights.

        Returns:
            The largest output of weights within their bound, doubled; for numbers, its squared distance to a target;
            for counts and times, what an output of the known weights gives.
        """
        if self.outcome == "survival":
            return math.log(max(rows, 2)) + 2 * self.output
        if self.outcome == "counts":
            count = self.target + 1.0
            return self.rate + count * (self.output + abs(math.log(self.exposures[0])) + math.log(count))
        output = 2 * self.norm(rows) * self.reach * math.sqrt(self.gain(rows)) + math.log(max(self.classes, 2))
        if self.classes:
            return output
        distance = output + self.target
        return distance * distance / (self.noise or math.exp(-LOG_NOISE))

    def loss(self, rows: int) -> float:
        """Bound a summed loss where derivatives are asked for.

        A row's curvature is p (1 − p), which large weights make 0 in all rows but those on a boundary of their choice:
        the sum over all rows is then one patient's. Such weights predict badly, and no search for a mode goes there.

        Args:
            rows: How many rows are summed over.

        Returns:
            `WORST` times that of guessing, for classes and for times.
        """
        if self.classes or self.outcome == "survival":
            return WORST * rows * self._row_loss(rows)
        return rows * self.score(rows)

    def gram(self, rows: int) -> float:
        """Bound the numbers of a Gram matrix of rows with their constant, Σ φφᵀ, and of what it is larger than.

        Args:
            rows: How many rows are summed over.

        Returns:
            n ‖(x, 1)‖², with a margin.
        """
        return MARGIN * rows * self.reach * self.reach

    def gradient_sum(self, rows: int) -> float:
        """Bound a sum of gradients of a linear model's loss: |p − y| is at most 1 for classes.

        Args:
            rows: How many rows are summed over.

        Returns:
            n ‖(x, 1)‖ times the largest target, with a margin; of a count, times its largest rate.
        """
        largest = max(1.0, self.target)
        if self.outcome == "survival":
            largest = 2.0  # a row and the mean of those at risk
        elif self.outcome == "counts":
            largest = self.rate * (1 + math.log(self.rate) + abs(math.log(self.exposures[0])))  # in a first round
        return MARGIN * rows * self.reach * largest

    def curvature(self, rows: int) -> float:
        """Bound the numbers of a Hessian of a linear model's loss.

        Args:
            rows: How many rows are summed over.

        Returns:
            A quarter of a Gram matrix for classes, as p (1 − p) ≤ ¼; for times a variance; for counts by their rate.
        """
        if self.outcome == "survival":
            return self.gram(rows)
        if self.outcome == "counts":
            return self.gram(rows) * self.rate
        return self.gram(rows) / 4
