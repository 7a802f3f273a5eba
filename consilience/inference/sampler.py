"""The sampler that is meant where nobody chose one: of the posterior for linear models, cyclical for networks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from torch import nn

from consilience.distributions.posterior import Posterior, Samples
from consilience.inference.preconditioned import PreconditionedSGHMC
from consilience.inference.sghmc import CyclicalSGHMC
from consilience.messages import Client
from consilience.models.plain import perceptron
from consilience.task import Task

MOST_WEIGHTS = 1000  # of a linear model whose matrix of curvatures is held: 8 MB
KEPT = 20  # samples of a linear model, which are small


@dataclass(frozen=True)
class Sampler:
    """Samples by the means that suit the model.

    For a linear model `PreconditionedSGHMC`, whose samples are as wide as the posterior. For a network, whose posterior
    no short chain explores, `CyclicalSGHMC`: in a few dozen epochs that is a snapshot ensemble around several modes, as
    noise enters only at the ends of its cycles, and its samples are narrower than the posterior (0.29 of its deviation
    on a network of three units, as much as without any noise). A setting of the cycles (rate, friction, cycles,
    samples) asks for `CyclicalSGHMC` whatever the model.

    Attributes:
        epochs: passes over the client's rows
        keep: how many samples are sent; None: 20 of a linear model, 6 of a network
        batch: rows a step
        temperature: 1: the posterior; 0: optimisation, a snapshot ensemble
        rate: ε at the start of a cycle, on the mean loss; None: as suits the model
        friction: α; momentum is 1 − α; None: as suits the model
        cycles: how often the rate begins again; None: as suits the model
        samples: samples taken in a cycle; None: as suits the model
        pace: factor of the rate that suits the model

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.Mixture(inference=co.Sampler(epochs=10)), problem)
        >>> len(result.state.posteriors)
        3
    """

    moves_statistics: ClassVar[bool] = True

    epochs: int = 50
    keep: int | None = None
    batch: int = 50
    temperature: float = 1.0
    rate: float | None = None
    friction: float | None = None
    cycles: int | None = None
    samples: int | None = None
    pace: float = field(default=1.0, metadata={"added": True})

    def slow_down(self, factor: float) -> Sampler:
        """Take smaller steps, unless their size was chosen; see `consilience.method.settings.slow_down`."""
        if self.rate is not None:
            return self
        return replace(self, pace=factor * self.pace)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        """Sample exp(−U/T).

        Raises:
            InputError: if the epochs are too few for the samples.
            Diverged: if the weights are not finite.
        """
        return self.choose(task)(task, start, client)

    def canonical(self) -> Sampler | CyclicalSGHMC:
        """Write settings of the cycles as what they ask for, so that they are stored as that.

        Returns:
            The cyclical sampler; this one where nothing of the cycles is set.
        """
        if self._cycle:
            return self._cyclical
        return self

    def choose(self, task: Task) -> PreconditionedSGHMC | CyclicalSGHMC:
        """Choose the sampler for a model.

        Returns:
            The sampler, with these settings.
        """
        if self._cycle or not is_linear(task):
            return self._cyclical
        burn = self.epochs // 2
        keep = self.keep
        if keep is None:
            keep = min(KEPT, self.epochs - burn)
        rate = self.pace * PreconditionedSGHMC.rate
        return PreconditionedSGHMC(rate, burn=burn, samples=keep, **self._common)

    @property
    def _common(self) -> dict[str, Any]:
        """What both samplers are set with."""
        return {"epochs": self.epochs, "batch": self.batch, "temperature": self.temperature}

    @property
    def _cycle(self) -> dict[str, Any]:
        """What is set of the cycles."""
        names = ("rate", "friction", "cycles", "samples")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def _cyclical(self) -> CyclicalSGHMC:
        sampler = CyclicalSGHMC(**self._common, **self._cycle)
        sampler = replace(sampler, rate=self.pace * sampler.rate)
        if self.keep is None:
            return sampler
        return replace(sampler, keep=self.keep)


def is_linear(task: Task) -> bool:
    """Say whether a model is linear in its weights, and small enough for a matrix of their curvatures.

    Args:
        task: the network and its likelihood
    """
    layers = perceptron(task.model)
    linear = type(task.model) is nn.Linear or (layers is not None and len(layers.weights) == 1)
    return linear and sum(leaf.numel() for leaf in task.like.values()) <= MOST_WEIGHTS
