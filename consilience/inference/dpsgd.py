"""DP-SGD: a point estimate with a guarantee for every row.  Abadi et al., CCS 2016, Algorithm 1."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Point, Posterior, centre
from consilience.errors import Diverged, InputError
from consilience.inference.clipped_gradient import check_rows_apart, clipped_sum
from consilience.inference.optimisers import Descent
from consilience.key import Key
from consilience.messages import Client
from consilience.privacy.dp.subsampled import Steps, epsilon_of_steps, noise_for
from consilience.privacy.entropy import are_secret, protecting_normal, protecting_uniform
from consilience.progress import track
from consilience.task import Task, grad
from consilience.tree import Params

NOT_COVERED = (
    "the number of rows of each site, and whether it answered",
    "rows that several sites hold, which are counted at each",
    "how features and targets were scaled, where the sites' rows decided it",
    "the model that training started from, if it had seen these rows",
    "scores, statistics and calibration on the sites' rows",
    "settings that were chosen by looking at the rows",
    "what the rounding of floating-point noise may tell",
)


@dataclass(frozen=True)
class DPSGD:
    """Stochastic gradient descent that is (ε, δ)-differentially private in every row.

        for each step
    1       B ← each row with probability q, by a coin of its own
    2       g ← Σ over B of ∇ℓ(row) · min(1, C / ‖∇ℓ(row)‖)
    3       g ← (g + N(0, σ²C²)) / (qn) + what depends on no row: prior, tilts
    4       θ ← θ − rate · g, with momentum if asked

    All rounds and steps together keep to (ε, δ), rows added or removed being neighbours; σ is found by an accountant
    unless it is given. The number of rows n counts as known.

    Attributes:
        epsilon: ε of all rounds together
        delta: δ; must be below one over the number of rows
        noise_multiplier: σ; None: as ε asks for
        clip: C, the longest gradient that a row may have
        share: q, the probability with which a row is in a step's batch
        steps: how many steps a client takes in a round
        rate: step size on the mean loss
        momentum: share of the last step that goes on
        rounds: over which ε is spent; None: as many as the run or the study has

    Example:
        >>> import consilience as co
        >>> inference = co.inference.DPSGD(epsilon=3.0, delta=1e-3, steps=20)
        >>> problem = co.Problem(co.datasets.moons(300), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedAvg(inference=inference), problem, rounds=1).report["rounds"]
        1
    """

    epsilon: float = 3.0
    delta: float = 1e-5
    noise_multiplier: float | None = None
    clip: float = 1.0
    share: float = 0.1
    steps: int = 100
    rate: float = 0.5
    momentum: float = 0.0
    rounds: int | None = None

    unit: ClassVar[str] = "row"

    def abridge(self) -> DPSGD:
        """Take one step, and ask no accountant; see `consilience.method.settings.abridge`."""
        return dataclasses.replace(self, steps=1, noise_multiplier=1.0, rounds=self.rounds or 1)

    def slow_down(self, factor: float) -> DPSGD:
        """Stay as it is: to try again after looking at the rows would cost privacy.

        Returns:
            The same.
        """
        return self

    def prolong(self, times: int) -> DPSGD:
        """Take so many times as many steps; see `consilience.method.settings.prolong`.

        Returns:
            The copy.
        """
        return dataclasses.replace(self, steps=times * self.steps)

    def for_rounds(self, rounds: int) -> DPSGD:
        """Spend the budget over so many rounds; see `consilience.methods.claims.for_rounds`.

        Returns:
            The same, which knows them.

        Raises:
            InputError: Fewer were set.
        """
        self.check()
        if self.rounds is not None and self.rounds < rounds:
            raise InputError(
                f"The budget of DPSGD is for {self.rounds} rounds and there are {rounds}: set inference.rounds to "
                f"{rounds}, or leave it out."
            )
        return dataclasses.replace(self, rounds=self.rounds or rounds)

    def check(self, rows: int | None = None) -> None:
        """Refuse settings that promise nothing.

        Args:
            rows: The rows of the smallest site, where that is known.

        Raises:
            InputError: A setting is out of its range.
        """
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"epsilon={self.epsilon:g} is not a privacy budget: give a number above 0, for example 1.")
        if not 0 < self.delta < 1:
            raise InputError(
                f"delta={self.delta:g} is not a probability of failure: give a number above 0 and below 1/rows."
            )
        if rows is not None and self.delta * rows >= 1:
            raise InputError(
                f"delta={self.delta:g} would allow publishing one of {rows:,} rows as it is: give less than "
                f"{1 / rows:.1g}, one over the number of rows."
            )
        if not (0 < self.share <= 1 and self.steps >= 1 and 0 < self.clip < math.inf):
            raise InputError(
                f"share={self.share:g}, steps={self.steps}, clip={self.clip:g}: a share lies above 0 and is at most 1, "
                "there is at least one step, and gradients are cut to a length above 0."
            )
        if self.noise_multiplier is not None and not 0 < self.noise_multiplier < math.inf:
            raise InputError(
                f"noise_multiplier={self.noise_multiplier:g} hides nothing: give a number above 0, or None to have it "
                "found for epsilon."
            )

    @property
    def sigma(self) -> float:
        """σ, the noise's SD in units of C."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        return noise_for(self.epsilon, self.delta, self.share, self.steps * (self.rounds or 1))

    @property
    def steps_of_round(self) -> Steps:
        """What a client's round spends; see `consilience.methods.claims.steps_of_round`."""
        return Steps(self.sigma, self.share, self.steps)

    def privacy_statement(self) -> dict[str, Any] | None:
        """Say what is promised, for reports and files.

        Returns:
            Values by the names of `privacy` in run.json; None where there is next to no noise, and so no promise.
        """
        steps = self.steps * (self.rounds or 1)
        epsilon = self.epsilon
        if self.noise_multiplier is not None:
            epsilon = epsilon_of_steps(self.noise_multiplier, self.delta, self.share, steps)
        if math.isinf(epsilon):
            return None
        return {
            "epsilon": epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "adjacency": "add or remove",
            "mode": "noise at every site, in every step of its training",
            "noise": "site",
            "honest_sites": 0,
            "simulated": not are_secret(),
            "not_covered": list(NOT_COVERED),
            "noise_multiplier": self.sigma,
            "clip": self.clip,
            "share": self.share,
            "steps": steps,
        }

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        """Descend, privately.

        Returns:
            Where the descent ends.

        Raises:
            InputError: if a setting promises nothing, rows meet in the network, or the rounds are not known.
            Diverged: if the weights are not finite.
        """
        check_rows_apart(task)
        data = client.data
        self.check(int(tree.below(data.w).sum(-1).max()))
        if self.rounds is None and bool((tree.below(client.progress) > 0).any()):
            raise InputError("DPSGD must know over how many rounds its budget is spent: set inference.rounds.")
        several = tree.under_vmap()
        like = centre(start, task.like).params
        vector = tree.ravel(like)
        key = client.key
        expected: float | Tensor = self.share * data.size  # qn
        if not several:
            key = key.plain
            expected = float(expected)
        deviation = self.sigma * self.clip
        total = clipped_sum(task, like, self.clip)
        optimiser = Descent(self.rate, self.momentum)
        state = optimiser.init(vector)
        for t in track(range(self.steps), "step"):
            batch = poisson_batch(data, self.share, key.fold(t).fold(0))  # 1
            clipped = total(vector, batch)  # 2
            noise = protecting_normal(key.fold(t).fold(1), vector).mul_(deviation)
            gradient = add_known(noise.add_(clipped).div_(expected), task, vector, like, data.size)  # 3
            vector, state = optimiser.step(vector, gradient, state, self.rate, overwrite=not several)  # 4
        if not several and not tree.finite(vector):
            raise Diverged("Training diverged: the weights are not finite; try a smaller rate.")
        return Point(tree.unravel(vector, like))


def poisson_batch(data: Data, share: float, key: Key) -> Data:
    """Draw a batch: every row by a coin of its own. Clients under one vmap get batches as large as the largest.

    Args:
        share: The probability with which a row is drawn.
        key: The randomness, unless draws are secret.

    Returns:
        The rows, then others of weight 0; at least one.
    """
    drawn = (protecting_uniform(key, len(data.w), data.w) < share) & (data.w > 0)
    largest = max(1, int(tree.below(drawn.sum()).max()))
    order = torch.argsort((~drawn).to(torch.uint8), stable=True)[:largest]
    rows = Data(*(leaf.index_select(0, order) for leaf in data))
    return rows._replace(w=drawn.index_select(0, order).to(data.w))


def add_known(gradient: Tensor, task: Task, vector: Tensor, like: Params, size: Tensor) -> Tensor:
    """Add the part of ∇(U/n) that no row decides: the prior's and the tilts'.

    Args:
        gradient: What it is added to, flat; it may be written over.
        like: Their names and shapes.
        size: n, the number of rows.

    Returns:
        The gradient, flat.
    """
    prior = task.prior.gradient(vector)
    if prior is not None:
        gradient = gradient.add_(prior / size)
    for tilt in task.tilts:
        if hasattr(tilt, "onto"):
            gradient = tilt.onto(gradient, vector)
        else:
            gradient = gradient + grad(lambda v, t=tilt: t(tree.unravel(v, like)), vector)  # type: ignore[misc]
    return gradient
