"""How an observation arises from a network's outputs: categorical, Gaussian with noise, heteroscedastic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from consilience.distributions.predictive import Categorical, Distribution, Normal, absorb_noise, sum_outputs
from consilience.distributions.softmax import log_softmax, softmax
from consilience.errors import InputError
from consilience.tree import Params

LOG_NOISE = "likelihood.log_noise"
FARTHEST = 30.0  # from 0 that a log-variance counts: variances from 1e-13 to 1e13, in the target's scaled unit
SMALLEST = 1e-6  # latent variance of a single set of weights, so that products stay finite


class Likelihood(Protocol):
    """How targets arise from outputs.

    One with `gradients(outputs, y, params)` knows ∂ nll / ∂ outputs and ∂ nll / ∂ its own weights for every row.
    """

    def extra(self) -> Params:
        """Return the weights of the likelihood's own, learned with the network's."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate the negative log-likelihood.

        Args:
            outputs: The network's outputs [N, …].
            params: All weights, the likelihood's own among them.

        Returns:
            −log p(y | outputs) for every row [N].
        """

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Distribution:
        """Average over the members of a posterior.

        Args:
            outputs: The members' outputs [S, N, …].
            members: The S sets of weights they come from.

        Returns:
            One distribution a row.
        """

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse outputs that do not fit the targets.

        Args:
            outputs: The network's outputs for a few rows.
            classes: How many classes there are; None for regression.

        Raises:
            InputError: If the shapes do not fit.
        """


@runtime_checkable
class OfEvents(Protocol):
    """A likelihood of targets that are neither classes nor plain numbers.

    Attributes:
        outcome_kind: What they are: `counts` or `survival`.
        by_rows: Whether it is a product over rows, so that some of them stand for all.
    """

    outcome_kind: str
    by_rows: bool


@runtime_checkable
class Linked(Protocol):
    """A likelihood under which a linear model has effects.

    Attributes:
        link: What the outputs are: logit, identity, log or hazard.
    """

    link: str


@runtime_checkable
class Latent(Protocol):
    """A likelihood that can be asked for the noise alone.

    Attributes:
        latent: Whether the network's output is uncertain too.
    """

    latent: bool


@dataclass(frozen=True, eq=False)
class Softmax:
    """Classes: one logit each.

    Attributes:
        offset: Added to the logits [C] when training only, so that what is learned does not contain it.
    """

    link: ClassVar[str] = "logit"  # what a linear model's outputs are, for tables of effects

    offset: Tensor | None = None

    def extra(self) -> Params:
        """Return nothing: a softmax has no weights."""
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate the cross-entropy; see `Likelihood.nll`."""
        if self.offset is not None:
            outputs = outputs + self.offset
        return cross_entropy(outputs, y, reduction="none")

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`.

        Args:
            outputs: Logits [N, C].
            y: Labels [N].

        Returns:
            softmax(outputs) − one-hot(y), and nothing for weights of its own.
        """
        if self.offset is not None:
            outputs = outputs + self.offset
        probs = softmax(outputs)
        at = y.unsqueeze(-1)
        return probs.scatter_add(-1, at, probs.new_full((), -1.0).expand(at.shape)), {}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Categorical:
        """Average the members' probabilities; see `Likelihood.outcome`."""
        logs = log_softmax(outputs)
        return Categorical(torch.logsumexp(logs, 0) - math.log(len(logs)))

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse a network without one output a class; see `Likelihood.check`."""
        if outputs.ndim != 2 or outputs.shape[1] != classes:
            shape = tuple(outputs.shape[1:])
            raise InputError(
                f"The model gives outputs of shape {shape} for a row; {classes} classes need ({classes},)."
            )


@dataclass(frozen=True)
class GaussianNoise:
    """Numbers: the output plus noise of one variance for all rows.

    Attributes:
        noise: The observation variance; None learns it with the weights.
        latent: Pool the function and add the noise once; False pools observations.
        full: Keep the covariances between the outputs of a vector target.
    """

    link: ClassVar[str] = "identity"

    noise: float | None = None
    latent: bool = True
    full: bool = False

    def extra(self) -> Params:
        """Return the log of the noise, starting at 0, where it is learned."""
        if self.noise is None:
            return {LOG_NOISE: torch.zeros(1)}
        return {}

    def log_noise(self, params: Params, like: Tensor) -> Tensor:
        """Look the noise up.

        Args:
            like: Gives type and device.

        Returns:
            The log of the observation variance [1], bounded.
        """
        if self.noise is None:
            return bound(params[LOG_NOISE].to(like))
        return like.new_tensor([math.log(self.noise)])

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate −log N(y; outputs, noise); see `Likelihood.nll`."""
        return _normal_nll(outputs.reshape(y.shape), self.log_noise(params, outputs), y)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`.

        Args:
            outputs: Means [N, …].

        Returns:
            The gradient by the outputs, and that by the log of the noise where it is learned [N].
        """
        if self.noise is not None:
            return (outputs - y.reshape(outputs.shape)) / self.noise, {}
        by_mean, by_noise = normal_gradients(outputs.reshape(y.shape), self.log_noise(params, outputs), y)
        return by_mean.reshape(outputs.shape), {LOG_NOISE: by_noise.reshape(len(y), -1).sum(-1)}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Normal:
        """Take mean and (co)variances over the members; see `Likelihood.outcome`."""
        noise = torch.stack([self.log_noise(p, outputs).exp() for p in members]).mean(0)
        p = _moments(_squeeze(outputs), noise, self.latent)
        if not self.full or p.mean.ndim < 2:
            return p
        away = outputs - outputs.mean(0)
        var = torch.einsum("snd,sne->nde", away, away) / max(len(outputs) - 1, 1)
        diagonal = torch.full_like(p.mean, SMALLEST)
        if not self.latent:
            diagonal = SMALLEST + noise.expand_as(p.mean)
        return p._replace(var=var + torch.diag_embed(diagonal))

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse a network without one output a target; see `Likelihood.check`."""
        _check_width(outputs, y, 1)


@dataclass(frozen=True)
class Heteroscedastic:
    """Numbers: the network gives their means and, beside them, their log-variances.

    Attributes:
        latent: Pool the function and add the noise once; False pools observations.
    """

    latent: bool = True

    def extra(self) -> Params:
        """Return nothing: the variances are outputs."""
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate −log N(y; mean, noise) with both from the outputs; see `Likelihood.nll`."""
        mean, log_noise = outputs.chunk(2, dim=-1)
        return _normal_nll(mean.reshape(y.shape), bound(log_noise.reshape(y.shape)), y)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`.

        Args:
            outputs: Means and log-variances [N, 2 D].

        Returns:
            The gradient by the outputs, and nothing for weights of its own.
        """
        mean, log_noise = (part.reshape(y.shape) for part in outputs.chunk(2, dim=-1))
        return torch.cat([d.reshape(len(y), -1) for d in normal_gradients(mean, bound(log_noise), y)], -1), {}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Normal:
        """Take mean and variance over the members; see `Likelihood.outcome`."""
        mean, log_noise = outputs.chunk(2, dim=-1)
        return _moments(_squeeze(mean), bound(_squeeze(log_noise)).exp().mean(0), self.latent)

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse a network without two outputs a target; see `Likelihood.check`."""
        _check_width(outputs, y, 2)


def bound(log_noise: Tensor) -> Tensor:
    """Let a log-variance count as at most `FARTHEST` from 0.

    Its gradient passes through as it is at the bound, where it points back. Within the bounds nothing changes.

    Args:
        log_noise: As learned; a step too long can make it anything.

    Returns:
        The log-variance to use.
    """
    return log_noise.detach().clamp(-FARTHEST, FARTHEST) + (log_noise - log_noise.detach())


def _normal_nll(mean: Tensor, log_noise: Tensor, y: Tensor) -> Tensor:
    return sum_outputs(0.5 * ((y - mean) ** 2 * torch.exp(-log_noise) + log_noise + math.log(2 * math.pi)))


def normal_gradients(mean: Tensor, log_noise: Tensor, y: Tensor, var: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Differentiate a Normal's −log density.

    Args:
        var: The variance of y itself, where y is a mean.

    Returns:
        The gradients by the mean and by the log-variance.
    """
    away = mean - y
    precision = torch.exp(-log_noise)
    return away * precision, 0.5 - 0.5 * (var + away * away) * precision


def _moments(outputs: Tensor, noise: Tensor, latent: bool) -> Normal:
    """Mean and variance over members [S, N, …]."""
    var = torch.zeros_like(outputs[0])
    if len(outputs) > 1:
        var = outputs.var(0)
    p = Normal(outputs.mean(0), var.clamp(min=SMALLEST), noise.expand_as(var))
    if latent:
        return p
    return absorb_noise(p)


def _squeeze(outputs: Tensor) -> Tensor:
    """[S, N, 1] → [S, N]."""
    if outputs.ndim == 3 and outputs.shape[-1] == 1:
        return outputs.squeeze(-1)
    return outputs


def _check_width(outputs: Tensor, y: Tensor, each: int) -> None:
    """Refuse outputs that are not `each` numbers for every target of a row."""
    width = each
    if y.ndim > 1:
        width = each * y.shape[1]
    if outputs.ndim != 2 or outputs.shape[1] != width:
        raise InputError(
            f"The model gives outputs of shape {tuple(outputs.shape[1:])} for a row; ({width},) is needed."
        )
