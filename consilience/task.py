"""The statistical problem: a network's shape, a likelihood, a prior, and any tilt of the target.

Change the target, not the sampler: FedProx and SCAFFOLD are `task.tilted(…)`, PVI is `task.with_prior(…)`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.cox import Cox
from consilience.distributions.likelihood import GaussianNoise, Heteroscedastic, Likelihood, OfEvents, Softmax
from consilience.distributions.penalties import Tilt, decay
from consilience.distributions.poisson import Poisson
from consilience.distributions.posterior import Point, Posterior, Samples, members
from consilience.distributions.predictive import Categorical, Distribution, Normal, Predictive
from consilience.distributions.prior import Flat, Isotropic, Prior
from consilience.errors import InputError
from consilience.key import Key
from consilience.models.batchnorm import statistics
from consilience.models.controlled import (
    control,
    draw_weights,
    refuse_hidden_state,
    refuse_uncontrolled,
    refuse_undrawn,
)
from consilience.models.plain import perceptron
from consilience.models.plain_cnn import channels_last, plain_cnn, suits_channels_last
from consilience.models.remembered import remember
from consilience.models.variational import LOG_VAR
from consilience.tree import Params

__all__ = [
    "Anchor", "Task", "Tilt", "classification", "counts", "decay", "grad", "label_counts", "mean_nll", "regression",
    "smooth", "survival",
]  # fmt: skip

NUMBERS = (GaussianNoise, Heteroscedastic, Poisson, Cox)  # whose targets are no classes
CHUNK = 8192  # inputs predicted at a time
IMAGES = 512  # the same where every input has many numbers, and more after a convolution
TOGETHER = 2**20  # numbers in the widest layer of all members: where more, products are large one by one
UNINFORMED = 1e8  # latent variance of a flat prior, on standardised targets
PRIOR_DRAWS = 200  # for the prior predictive of a regression network


@dataclass(frozen=True, eq=False)
class Anchor:
    """A point and the gradient that is believed there.

    Attributes:
        point: Weights as one vector [P].
        gradient: The gradient there [P].
    """

    point: Tensor
    gradient: Tensor


@dataclass(frozen=True, eq=False)
class Task:
    """A network, how its outputs explain the targets, and what is believed of its weights.

    Attributes:
        model: The network's shape; weights are always passed in.
        likelihood: How an observation arises from the outputs.
        prior: What is believed about the weights before any data.
        tilts: What is added to the mean loss.
        anchor: Where every batch's own gradient is replaced by the common one.
        draws: How many members stand for a Gaussian posterior when predicting.
        compiled: Whether steps of many clients at once are compiled; an engine says so.
        guarded: Whether training that ends far above the loss it began with is an error; an engine says so.
    """

    model: nn.Module
    likelihood: Likelihood
    prior: Prior
    tilts: tuple[Tilt, ...] = ()
    anchor: Anchor | None = None
    draws: int = 20
    compiled: bool = False
    guarded: bool = False

    @property
    def like(self) -> Params:
        """Names, shapes and types of all weights, the likelihood's own and running statistics included."""
        return self._params(self.model)

    @property
    def outcome(self) -> str:
        """What targets are that are neither classes nor plain numbers: `counts`, `survival` or nothing."""
        if isinstance(self.likelihood, OfEvents):
            return self.likelihood.outcome_kind
        return ""

    @property
    def has_numbers(self) -> bool:
        """Whether targets are plain numbers."""
        return not self.outcome and not isinstance(self.likelihood, Softmax)

    @property
    def by_rows(self) -> bool:
        """Whether the likelihood is a product over rows, so that some of them stand for all."""
        return not isinstance(self.likelihood, OfEvents) or self.likelihood.by_rows

    @property
    def statistics(self) -> tuple[str, ...]:
        """Names of the running statistics: they move with the weights and are averaged, but nothing steps on them."""
        return tuple(statistics(self.model))

    @property
    def uncertain(self) -> tuple[str, ...]:
        """Names of the network's own weights, which a Gaussian may give variances."""
        return tuple(k for k, _ in self.model.named_parameters() if not k.endswith(LOG_VAR))

    def weights(self, params: Params) -> Params:
        """Leave the running statistics out.

        Args:
            params: All weights by name.

        Returns:
            Those that are learned.
        """
        moving = set(self.statistics)
        return {k: v for k, v in params.items() if k not in moving}

    def _params(self, model: nn.Module) -> Params:
        """All weights of a network of this task's shape: its own, the likelihood's, the running statistics."""
        params = {k: p.detach() for k, p in model.named_parameters() if not k.endswith(LOG_VAR)}
        for name, value in self.likelihood.extra().items():
            params[name] = value.to(next(model.parameters()).device)
        for name in self.statistics:
            params[name] = model.get_buffer(name)
        return params

    def init(self, key: Key) -> Point:
        """Draw fresh weights: the same key gives the same numbers, however the network was built.

        Args:
            key: The randomness; the same numbers on every device.

        Returns:
            The weights, on the model's device.

        Raises:
            InputError: The key does not decide a weight.
        """
        device = next((weight.device for weight in self.model.parameters()), torch.device("cpu"))
        fresh = draw_weights(self.model, int(key.fold(0).seed))
        return Point({k: v.to(device) for k, v in self._params(fresh).items()})

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Run the network in evaluation mode.

        Args:
            params: All weights by name.
            x: Inputs [N, …].

        Returns:
            Outputs [N, …].
        """
        return self._pass()(params, x)

    def _pass(self) -> Callable[[Params, Tensor], Tensor]:
        """`outputs`, with the network's layers read once for all sets of weights."""
        net = perceptron(self.model)
        if net is not None:
            return lambda params, x: net.passed(params, x)[1]
        traced = tree.under_vmap() or tree.is_exporting()
        cnn = plain_cnn(self.model)
        if cnn is not None and not traced:
            return cnn.outputs
        rearranged = not traced and suits_channels_last(self.model)

        def call(params: Params, x: Tensor) -> Tensor:
            if rearranged and x.ndim == 4:
                x = channels_last(x)
            weights = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
            out: Tensor = functional_call(self.model, weights, (x,))
            return out

        return call

    def loss(self, params: Params, batch: Data, size: Tensor) -> Tensor:
        """Evaluate U(θ)/n, what optimisers step on.

        Args:
            params: θ, all weights by name.
            batch: Some of a client's rows.
            size: n, how many rows the client has.

        Returns:
            The batch's mean negative log-likelihood − log p(θ)/n + tilt(θ).
        """
        nll = self.likelihood.nll(self.outputs(params, batch.x), batch.y, params)
        value = mean_nll(nll, batch.w) - self.prior.log_density(self.weights(params)) / size
        return value + sum(tilt(params) for tilt in self.tilts)

    def potential(self, params: Params, batch: Data, size: Tensor) -> Tensor:
        """Evaluate U(θ), what samplers sample.

        Args:
            params: θ, all weights by name.
            batch: B, some of a client's rows.
            size: n, how many rows the client has.

        Returns:
            −(n/|B|) Σ log p(y|x,θ) − log p(θ) + n·tilt(θ).
        """
        return size * self.loss(params, batch, size)

    def tilted(self, tilt: Tilt) -> Task:
        """Return a task with one more term in its mean loss.

        Args:
            tilt: A function of the weights, such as `proximal` or `linear`.
        """
        return dataclasses.replace(self, tilts=(*self.tilts, tilt))

    def anchored(self, point: Params, gradient: Params) -> Task:
        """Learn with gradients g(θ; batch) − g(point; batch) + gradient, g that of U/n with its tilts (SVRG, MIME).

        Args:
            point: Where the batch's gradient is replaced.
            gradient: What replaces it: the gradient over all rows there, tilts included.
        """
        return dataclasses.replace(self, anchor=Anchor(tree.ravel(point), tree.ravel(gradient)))

    def adjusted(self, log_frequencies: Tensor) -> Task:
        """Learn with softmax(z + log π): what z says then leaves the frequencies π out (logit adjustment).

        Args:
            log_frequencies: log π [C].

        Returns:
            A classification task whose likelihood has this offset.
        """
        assert isinstance(self.likelihood, Softmax)
        return dataclasses.replace(self, likelihood=dataclasses.replace(self.likelihood, offset=log_frequencies))

    def classes(self, x: Tensor) -> int:
        """Return how many outputs the network has.

        Args:
            x: Inputs, of which one row is looked at.
        """
        return self.outputs(self.like, x[:1]).shape[-1]

    def with_prior(self, prior: Prior) -> Task:
        """Return a task with another prior."""
        return dataclasses.replace(self, prior=prior)

    def predictive(self, posterior: Posterior) -> Predictive:
        """Average over the posterior: one pass a member, in chunks of inputs that bound the memory.

        Args:
            posterior: What is known about the weights.

        Returns:
            A function from inputs to their predictive distribution.
        """
        weights = members(posterior, Key(0), self.draws, self.like)

        def outcome(x: Tensor) -> Distribution:
            return self.likelihood.outcome(self._each(posterior, weights, x), weights)

        @torch.no_grad()
        def predict(x: Tensor) -> Distribution:
            if tree.is_exporting():  # for any number of rows
                return outcome(x)
            whole: Distribution = tree.concatenate(outcome(part) for part in x.split(_chunk(x)))
            return whole

        return lambda x: remember(lambda: predict(x), self.model, self.likelihood, *tree.leaves(posterior), x)

    def _each(self, posterior: Posterior, weights: Sequence[Params], x: Tensor) -> Tensor:
        """The outputs of every member [S, N, …]: by one product a layer where that is small, else by one pass each."""
        net = perceptron(self.model)
        if tree.is_exporting():
            net = None
        if net is not None and isinstance(posterior, Samples) and net.numbers(posterior.params, len(x)) <= TOGETHER:
            return net.passed_together(posterior.params, x)
        outputs = self._pass()
        return torch.stack([outputs(p, x) for p in weights])

    def member_predictions(self, posterior: Posterior, x: Tensor) -> list[Distribution]:
        """Predict with each member of a posterior by itself.

        Args:
            posterior: What is known about the weights.
            x: Inputs [N, …].
        """

        @torch.no_grad()
        def predict() -> list[Distribution]:
            outputs = self._pass()
            parts = x.split(_chunk(x))
            return [
                tree.concatenate(self.likelihood.outcome(outputs(p, part).unsqueeze(0), [p]) for part in parts)
                for p in members(posterior, Key(0), self.draws, self.like)
            ]

        return remember(predict, members, self.model, self.likelihood, *tree.leaves(posterior), x)

    def prior_predictive(self, x: Tensor) -> Distribution:
        """Predict before any data.

        Args:
            x: Inputs [N, …].

        Returns:
            Uniform probabilities over classes; for regression, moments over draws of the prior.
        """
        if isinstance(self.likelihood, Softmax):
            uniform = torch.ones_like(self.outputs(self.like, x[:1])[0])
            return Categorical((uniform / len(uniform)).log().expand(x.shape[0], -1))
        if not self.has_numbers:
            raise InputError("There is no prediction of counts or survival times before any data: use another method.")
        if isinstance(self.prior, Flat):
            p = self.predictive(Point(self.like))(x)
            assert isinstance(p, Normal)
            mean = torch.zeros_like(p.mean)
            var = torch.full_like(p.mean, UNINFORMED)
            if p.full:
                var = torch.diag_embed(var)
            return Normal(mean, var, p.noise)
        params = self.prior.draw(Key(0), PRIOR_DRAWS, self.weights(self.like))
        for name in self.statistics:
            params[name] = self.like[name].expand(PRIOR_DRAWS, *self.like[name].shape)
        return self.predictive(Samples(params))(x)

    def check(self, data: Data, classes: int | None) -> None:
        """Refuse a network that does not fit the rows, or hides randomness or running statistics.

        Args:
            data: Rows, of which a few are looked at.
            classes: How many classes there are; None for regression.

        Raises:
            InputError: If the network cannot be used with these rows.
        """
        refuse_uncontrolled(self.model)
        if classes is None and isinstance(self.likelihood, Softmax):
            raise InputError("These rows are a regression problem: build the task with `co.regression(model)`.")
        if classes is not None and isinstance(self.likelihood, NUMBERS):  # one of somebody's own says it in its check
            raise InputError("These rows are a classification problem: build the task with `co.classification(model)`.")
        try:
            with torch.no_grad():
                out = self.outputs(self.like, data.x[:2])
        except RuntimeError as error:
            shape = tuple(data.x.shape[1:])
            remedy = ""
            if data.x.is_floating_point() and any(isinstance(layer, nn.Embedding) for layer in self.model.modules()):
                remedy = " Token ids are whole numbers: read them with `from_arrays(…, tokens=True)`."
            raise InputError(
                f"The model cannot take inputs of shape {shape}: {str(error).splitlines()[0]}.{remedy}"
            ) from error
        self.likelihood.check(out, data.y[:2], classes)
        refuse_hidden_state(self.model, data.x[:8])
        refuse_undrawn(self.model)


def _chunk(x: Tensor) -> int:
    """How many inputs are predicted at a time."""
    if x.ndim != 2:
        return IMAGES
    return CHUNK


def classification(model: nn.Module, prior: Prior | None = None) -> Task:
    """Build the task of a classifier.

    Args:
        model: A network whose outputs are one logit a class; it is copied.
        prior: Over the weights; N(0, I) without one.

    Example:
        >>> import consilience as co
        >>> task = co.classification(co.models.linear(4, 3))
        >>> [(name, tuple(value.shape)) for name, value in task.init(co.key.Key(0)).params.items()]
        [('0.weight', (3, 4)), ('0.bias', (3,))]
    """
    return Task(control(model), Softmax(), prior or Isotropic())


def regression(
    model: nn.Module,
    noise: float | None = None,
    prior: Prior | None = None,
    heteroscedastic: bool = False,
    latent: bool = True,
    full: bool = False,
) -> Task:
    """Build the task of a regression.

    Args:
        model: A network whose outputs are the target's mean (and, if heteroscedastic, its log-variance beside it); it
            is copied.
        noise: The observation variance; learned when None.
        prior: Over the weights; N(0, I) without one.
        heteroscedastic: Whether the network gives a variance for every row.
        latent: Pools combine the latent function and add the noise once; False pools predictions of y, noise
            included, as the papers do.
        full: Keep the covariances between the outputs of a vector target.

    Example:
        >>> import consilience as co
        >>> task = co.regression(co.models.linear(4), noise=0.5)
        >>> task.likelihood.noise
        0.5
    """
    if noise is not None and not isinstance(noise, (int, float)):
        raise InputError(
            f"noise={type(noise).__name__} is no variance: give a number, or None to learn it; a prior is prior=."
        )
    likelihood: Likelihood = GaussianNoise(noise, latent, full)
    if heteroscedastic:
        likelihood = Heteroscedastic(latent)
    return Task(control(model), likelihood, prior or Isotropic())


def counts(model: nn.Module, prior: Prior | None = None) -> Task:
    """Build the task of a model of counts: Poisson, with a logarithmic link.

    Args:
        model: A network whose one output is the logarithm of the expected count, of one unit of exposure where rows
            have an exposure; it is copied.
        prior: Over the weights; N(0, I) without one.

    Example:
        >>> import consilience as co
        >>> co.counts(co.models.linear(4, 1)).likelihood
        Poisson()
    """
    return Task(control(model), Poisson(), prior or Isotropic())


def survival(
    model: nn.Module, prior: Prior | None = None, times: Sequence[float] = (), horizon: float | None = None
) -> Task:
    """Build the task of a proportional hazards model, stratified by site.

    Args:
        model: A network whose one output is a row's log-hazard relative to others; it is copied, and a last linear
            layer loses its bias, which a partial likelihood does not see.
        prior: Over the weights; N(0, I) without one.
        times: The grid on which survival curves are given, in the unit of the rows' times; from the training rows of
            the simulation without one.
        horizon: The time at which predicted and observed risks are compared; the middle of the grid without one.

    Raises:
        InputError: The grid does not ascend from above 0, or the horizon is not above 0.

    Example:
        >>> import consilience as co
        >>> co.survival(co.models.linear(4, 1), horizon=5.0).likelihood.horizon
        5.0
    """
    grid = tuple(float(t) for t in times)
    if any(not b > a for a, b in itertools.pairwise((0.0, *grid))):
        raise InputError("times must ascend from above 0: give for example times=(365, 730, 1095).")
    if horizon is not None and not 0 < horizon < math.inf:
        raise InputError(f"horizon={horizon:g} is not a time: give one above 0, in the unit of the rows' times.")
    network = control(model)
    last = list(network.modules())[-1]
    if isinstance(last, nn.Linear):
        last.register_parameter("bias", None)
    return Task(network, Cox(grid, horizon), prior or Isotropic())


def mean_nll(nll: Tensor, w: Tensor) -> Tensor:
    """Average over rows, each counted by its weight.

    Args:
        nll: One number a row [N].
        w: The rows' weights [N]; padding has 0.

    Returns:
        The weighted mean. Of a batch of unequal weights it is a ratio, biased by O(1/rows); see docs/coresets.md.
    """
    return (w * nll).sum() / w.sum().clamp(min=1e-12)


def label_counts(data: Data, classes: int) -> Tensor:
    """Count the rows of each class; padding counts nothing.

    Returns:
        Counts [C].

    Example:
        >>> import consilience as co
        >>> import torch
        >>> co.task.label_counts(co.data.Data.of(torch.zeros(4, 1), torch.tensor([0, 2, 2, 1])), 3).tolist()
        [1.0, 1.0, 2.0]
    """
    return (one_hot(data.y, classes).to(data.w) * (data.w > 0).unsqueeze(-1)).sum(0)


def smooth(counts: Tensor) -> Tensor:
    """Turn counts into frequencies, with half a row added to every class.

    Args:
        counts: Rows of each class [C].

    Returns:
        Frequencies [C], all above 0.
    """
    return (counts + 0.5) / (counts + 0.5).sum()


def grad(f: Callable[[Tensor], Tensor], vector: Tensor) -> Tensor:
    """Differentiate: `torch.func.grad` under vmap, plain autograd otherwise, which is half a millisecond a step faster.

    Args:
        f: A scalar function of a vector.

    Returns:
        ∇f, of the vector's shape.
    """
    if tree.under_vmap():
        gradient: Tensor = torch.func.grad(f)(vector)
        return gradient
    with torch.enable_grad():
        v = vector.detach().requires_grad_()
        return torch.autograd.grad(f(v), v)[0]
