"""How an observation arises from a network's outputs: categorical, Gaussian with noise, heteroscedastic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from consilience.errors import InputError
from consilience.models.softmax import log_softmax, softmax
from consilience.predictive import Categorical, Distribution, Normal, absorb_noise
from consilience.tree import Params

LOG_NOISE = "likelihood.log_noise"
SMALLEST = 1e-6  # latent variance of a single set of weights, so that products stay finite


class Likelihood(Protocol):
    """One with `gradients(outputs, y, params)` knows ∂ nll / ∂ outputs and ∂ nll / ∂ its own weights for every row."""

    def extra(self) -> Params:
        """Weights of the likelihood's own, learned with the network's."""

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """−log p(y | outputs) for every row."""

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Distribution:
        """Members' outputs [S, N, …] → one distribution a row."""

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse outputs that do not fit the targets."""


@dataclass(frozen=True, eq=False)
class Softmax:
    """One logit a class; `offset` is added when training only, so that what is learned does not contain it."""

    offset: Tensor | None = None

    def extra(self) -> Params:
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        return cross_entropy(outputs if self.offset is None else outputs + self.offset, y, reduction="none")

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        probs, at = softmax(outputs if self.offset is None else outputs + self.offset), y.unsqueeze(-1)
        return probs.scatter_add(-1, at, probs.new_full((), -1.0).expand(at.shape)), {}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Categorical:
        logs = log_softmax(outputs)
        return Categorical(torch.logsumexp(logs, 0) - math.log(len(logs)))

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        if outputs.ndim != 2 or outputs.shape[1] != classes:
            shape = tuple(outputs.shape[1:])
            raise InputError(
                f"The model gives outputs of shape {shape} for a row; {classes} classes need ({classes},)."
            )


@dataclass(frozen=True)
class GaussianNoise:
    noise: float | None = None  # observation variance; None: learned with the weights
    latent: bool = True  # pool the function and add the noise once; False: pool observations
    full: bool = False  # keep the covariances between the outputs of a vector target

    def extra(self) -> Params:
        return {} if self.noise is not None else {LOG_NOISE: torch.zeros(1)}

    def log_noise(self, params: Params, like: Tensor) -> Tensor:
        return like.new_tensor([math.log(self.noise)]) if self.noise is not None else params[LOG_NOISE].to(like)

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        return _normal_nll(outputs.reshape(y.shape), self.log_noise(params, outputs), y)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        if self.noise is not None:
            return (outputs - y.reshape(outputs.shape)) / self.noise, {}
        by_mean, by_noise = normal_gradients(outputs.reshape(y.shape), self.log_noise(params, outputs), y)
        return by_mean.reshape(outputs.shape), {LOG_NOISE: by_noise.reshape(len(y), -1).sum(-1)}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Normal:
        noise = torch.stack([self.log_noise(p, outputs).exp() for p in members]).mean(0)
        p = _moments(_squeeze(outputs), noise, self.latent)
        if not self.full or p.mean.ndim < 2:
            return p
        away = outputs - outputs.mean(0)
        var = torch.einsum("snd,sne->nde", away, away) / max(len(outputs) - 1, 1)
        extra = torch.full_like(p.mean, SMALLEST) if self.latent else SMALLEST + noise.expand_as(p.mean)
        return p._replace(var=var + torch.diag_embed(extra))

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        _check_width(outputs, y, 1)


@dataclass(frozen=True)
class Heteroscedastic:
    latent: bool = True  # as above

    def extra(self) -> Params:
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        mean, log_noise = outputs.chunk(2, dim=-1)
        return _normal_nll(mean.reshape(y.shape), log_noise.reshape(y.shape), y)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        mean, log_noise = (part.reshape(y.shape) for part in outputs.chunk(2, dim=-1))
        return torch.cat([d.reshape(len(y), -1) for d in normal_gradients(mean, log_noise, y)], -1), {}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Normal:
        mean, log_noise = outputs.chunk(2, dim=-1)
        return _moments(_squeeze(mean), _squeeze(log_noise).exp().mean(0), self.latent)

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        _check_width(outputs, y, 2)


def _normal_nll(mean: Tensor, log_noise: Tensor, y: Tensor) -> Tensor:
    per_output = 0.5 * ((y - mean) ** 2 * torch.exp(-log_noise) + log_noise + math.log(2 * math.pi))
    return per_output.flatten(1).sum(-1) if per_output.ndim > 1 else per_output


def normal_gradients(mean: Tensor, log_noise: Tensor, y: Tensor, var: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """The gradient of a Normal's −log density by its mean and by its log variance; `var` is that of y itself."""
    away, precision = mean - y, torch.exp(-log_noise)
    return away * precision, 0.5 - 0.5 * (var + away * away) * precision


def _moments(outputs: Tensor, noise: Tensor, latent: bool) -> Normal:
    """Mean and variance over members [S, N, …]."""
    var = outputs.var(0) if len(outputs) > 1 else torch.zeros_like(outputs[0])
    p = Normal(outputs.mean(0), var.clamp(min=SMALLEST), noise.expand_as(var))
    return p if latent else absorb_noise(p)


def _squeeze(outputs: Tensor) -> Tensor:
    """[S, N, 1] → [S, N]."""
    return outputs.squeeze(-1) if outputs.ndim == 3 and outputs.shape[-1] == 1 else outputs


def _check_width(outputs: Tensor, y: Tensor, each: int) -> None:
    wanted = each * (1 if y.ndim == 1 else y.shape[1])
    if outputs.ndim != 2 or outputs.shape[1] != wanted:
        raise InputError(
            f"The model gives outputs of shape {tuple(outputs.shape[1:])} for a row; ({wanted},) is needed."
        )
