"""The statistical problem: a network's shape, a likelihood, a prior, and any tilt of the target.

Change the target, not the sampler: FedProx and SCAFFOLD are `task.tilted(…)`, PVI is `task.with_prior(…)`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.likelihood import GaussianNoise, Heteroscedastic, Likelihood, Softmax
from consilience.models.batchnorm import statistics
from consilience.models.controlled import control, refuse_hidden_state, refuse_uncontrolled
from consilience.models.plain import perceptron
from consilience.models.remembered import remember
from consilience.models.variational import LOG_VAR
from consilience.posterior import Point, Posterior, Samples, members
from consilience.predictive import Categorical, Distribution, Normal, Predictive
from consilience.prior import Flat, Isotropic, Prior
from consilience.tree import Params

Tilt: TypeAlias = Callable[[Params], Tensor]  # in units of the mean loss

CHUNK = 8192  # inputs predicted at a time
IMAGES = 512  # the same where every input has many numbers, and more after a convolution
UNINFORMED = 1e8  # latent variance of a flat prior, on standardised targets
PRIOR_DRAWS = 200  # for the prior predictive of a regression network


@dataclass(frozen=True, eq=False)
class Anchor:
    """A point and the gradient that is believed there."""

    point: Tensor  # flat
    gradient: Tensor  # flat


@dataclass(frozen=True, eq=False)
class Task:
    model: nn.Module  # the network's shape; weights are always passed in
    likelihood: Likelihood
    prior: Prior
    tilts: tuple[Tilt, ...] = ()  # what is added to the mean loss
    anchor: Anchor | None = None  # where every batch's own gradient is replaced by the common one
    draws: int = 20  # how many members stand for a Gaussian posterior when predicting
    compiled: bool = False  # whether steps of many clients at once are compiled; an engine says so

    @property
    def like(self) -> Params:
        """Names, shapes and types of all weights, the likelihood's own and running statistics included."""
        return self._params(self.model)

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the running statistics: they move with the weights and are averaged, but nothing steps on them."""
        return tuple(statistics(self.model))

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Names of the network's own weights, which a Gaussian may give variances."""
        return tuple(k for k, _ in self.model.named_parameters() if not k.endswith(LOG_VAR))

    def weights(self, params: Params) -> Params:
        """All but the running statistics."""
        moving = set(self.statistics)
        return {k: v for k, v in params.items() if k not in moving}

    def _params(self, model: nn.Module) -> Params:
        return {
            **{k: p.detach() for k, p in model.named_parameters() if not k.endswith(LOG_VAR)},
            **{k: v.to(next(model.parameters()).device) for k, v in self.likelihood.extra().items()},
            **{k: model.get_buffer(k) for k in self.statistics},
        }

    def init(self, key: Key) -> Point:
        """Fresh weights: every layer re-initialises itself from the key."""
        device = next((weight.device for weight in self.model.parameters()), torch.device("cpu"))
        fresh = copy.deepcopy(self.model).to("cpu")  # the same numbers for every device
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(key.fold(0).seed))  # `torch.manual_seed` takes a millisecond
            for layer in fresh.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        return Point({k: v.to(device) for k, v in self._params(fresh).items()})

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """What the network says in evaluation mode."""
        net = perceptron(self.model)
        if net is not None:
            return net.passed(params, x)[1]
        own = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
        out: Tensor = functional_call(self.model, own, (x,))
        return out

    def loss(self, params: Params, batch: Data, size: Tensor) -> Tensor:
        """U(θ)/n: the batch's mean negative log-likelihood − log p(θ)/n + tilt(θ). What optimisers step on."""
        nll = self.likelihood.nll(self.outputs(params, batch.x), batch.y, params)
        value = mean_nll(nll, batch.w) - self.prior.log_density(self.weights(params)) / size
        return value + sum(tilt(params) for tilt in self.tilts)

    def potential(self, params: Params, batch: Data, size: Tensor) -> Tensor:
        """U(θ) = −(n/|B|) Σ log p(y|x,θ) − log p(θ) + n·tilt(θ). What samplers sample."""
        return size * self.loss(params, batch, size)

    def tilted(self, tilt: Tilt) -> Task:
        return dataclasses.replace(self, tilts=(*self.tilts, tilt))

    def anchored(self, point: Params, gradient: Params) -> Task:
        """Learn with gradients g(θ; batch) − g(point; batch) + gradient, g that of U/n without tilts (SVRG, MIME)."""
        return dataclasses.replace(self, anchor=Anchor(tree.ravel(point), tree.ravel(gradient)))

    def adjusted(self, log_frequencies: Tensor) -> Task:
        """Learn with softmax(z + log π): what z says then leaves the frequencies π out (logit adjustment)."""
        assert isinstance(self.likelihood, Softmax)
        return dataclasses.replace(self, likelihood=dataclasses.replace(self.likelihood, offset=log_frequencies))

    def classes(self, x: Tensor) -> int:
        """How many outputs the network has."""
        return self.outputs(self.like, x[:1]).shape[-1]

    def with_prior(self, prior: Prior) -> Task:
        return dataclasses.replace(self, prior=prior)

    def predictive(self, posterior: Posterior) -> Predictive:
        """Average over the posterior: one pass a member, in chunks of inputs that bound the memory."""
        weights = members(posterior, Key(0), self.draws, self.like)

        def outcome(x: Tensor) -> Distribution:
            return self.likelihood.outcome(torch.stack([self.outputs(p, x) for p in weights]), weights)

        @torch.no_grad()
        def predict(x: Tensor) -> Distribution:
            found: Distribution = tree.concatenate(outcome(part) for part in x.split(CHUNK if x.ndim == 2 else IMAGES))
            return found

        return lambda x: remember(lambda: predict(x), self.model, self.likelihood, *tree.leaves(posterior), x)

    def prior_predictive(self, x: Tensor) -> Distribution:
        """What is predicted before any data: uniform over classes; for regression, moments over draws of the prior."""
        if isinstance(self.likelihood, Softmax):
            classes = self.classes(x)
            return Categorical(torch.full((len(x), classes), 1 / classes, dtype=x.dtype, device=x.device).log())
        if isinstance(self.prior, Flat):
            mean = self.predictive(Point(self.like))(x)
            assert isinstance(mean, Normal)
            wide = torch.full_like(mean.mean, UNINFORMED)
            return Normal(torch.zeros_like(wide), torch.diag_embed(wide) if mean.full else wide, mean.noise)
        drawn = self.prior.draw(Key(0), PRIOR_DRAWS, self.weights(self.like))
        still = {k: self.like[k].expand(PRIOR_DRAWS, *self.like[k].shape) for k in self.statistics}
        p = self.predictive(Samples({**drawn, **still}))(x)
        assert isinstance(p, Normal)
        return p

    def check(self, data: Data, classes: int | None) -> None:
        """Refuse a network that does not fit the rows, or hides randomness or running statistics."""
        refuse_uncontrolled(self.model)
        if (classes is None) == isinstance(self.likelihood, Softmax):
            kind = "regression" if classes is None else "classification"
            raise InputError(f"These rows are a {kind} problem: build the task with co.{kind}(model).")
        try:
            with torch.no_grad():
                out = self.outputs(self.like, data.x[:2])
        except RuntimeError as error:
            shape = tuple(data.x.shape[1:])
            raise InputError(f"The model cannot take inputs of shape {shape}: {str(error).splitlines()[0]}.") from error
        self.likelihood.check(out, data.y[:2], classes)
        refuse_hidden_state(self.model, data.x[:8])


def classification(model: nn.Module, prior: Prior | None = None) -> Task:
    """A network whose outputs are one logit a class."""
    return Task(control(model), Softmax(), prior or Isotropic())


def regression(
    model: nn.Module,
    noise: float | None = None,
    prior: Prior | None = None,
    heteroscedastic: bool = False,
    latent: bool = True,
    full: bool = False,
) -> Task:
    """A network whose outputs are the target's mean (and, if heteroscedastic, its log-variance beside it).

    `noise` is the observation variance, learned when None. Pools combine the latent function and add the noise once;
    `latent=False` pools predictions of y, noise included, as the papers do. `full` keeps the covariances between the
    outputs of a vector target.
    """
    likelihood = Heteroscedastic(latent) if heteroscedastic else GaussianNoise(noise, latent, full)
    return Task(control(model), likelihood, prior or Isotropic())


def mean_nll(nll: Tensor, w: Tensor) -> Tensor:
    """The mean over rows, each counted by its weight; padding counts nothing."""
    return (w * nll).sum() / w.sum().clamp(min=1e-12)


def label_counts(data: Data, classes: int) -> Tensor:
    """How many rows of each class; padding counts nothing."""
    return (one_hot(data.y, classes).to(data.w) * (data.w > 0).unsqueeze(-1)).sum(0)


def smooth(counts: Tensor) -> Tensor:
    """Frequencies with half a row added to every class."""
    return (counts + 0.5) / (counts + 0.5).sum()


def grad(f: Callable[[Tensor], Tensor], vector: Tensor) -> Tensor:
    """∇f: `torch.func.grad` under vmap, plain autograd otherwise, which is about half a millisecond a step faster."""
    if tree.under_vmap():
        gradient: Tensor = torch.func.grad(f)(vector)
        return gradient
    with torch.enable_grad():
        v = vector.detach().requires_grad_()
        return torch.autograd.grad(f(v), v)[0]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """(μ/2)‖θ − centre‖²."""

    centre: Tensor | float  # flat
    mu: float

    def __call__(self, params: Params) -> Tensor:
        away = tree.ravel(params) - self.centre
        return 0.5 * self.mu * (away @ away)

    def onto(self, gradient: Tensor, vector: Tensor) -> Tensor:
        """Add this one's gradient at `vector`, in place."""
        at_zero = isinstance(self.centre, float) and self.centre == 0
        return gradient.add_(vector if at_zero else vector - self.centre, alpha=self.mu)


@dataclass(frozen=True, eq=False)
class Linear:
    """⟨direction, θ⟩: adds a constant to every gradient."""

    direction: Tensor  # flat

    def __call__(self, params: Params) -> Tensor:
        return self.direction @ tree.ravel(params)

    def onto(self, gradient: Tensor, vector: Tensor) -> Tensor:
        return gradient.add_(self.direction)


def proximal(centre: Params, mu: float) -> Quadratic:
    """Stay near a point (FedProx)."""
    return Quadratic(tree.ravel(centre), mu)


def decay(strength: float) -> Quadratic:
    """Weight decay on the mean loss; as a prior its strength would depend on the number of examples."""
    return Quadratic(0.0, strength)


def linear(gradient: Params) -> Linear:
    """Correct every gradient by a constant (SCAFFOLD)."""
    return Linear(tree.ravel(gradient))


def proximal_norm(centre: Params, mu: float) -> Tilt:
    """μ‖θ − centre‖, not squared, as Hasan 2023 prints it (eq. 2.12)."""
    return lambda params: mu * torch.linalg.vector_norm(tree.ravel(params) - tree.ravel(centre) + 1e-12)
