"""A product of Gaussians of numbers from noisy moments: docs/private.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from consilience.data.sites import Data
from consilience.distributions.likelihood import GaussianNoise
from consilience.distributions.posterior import Dense
from consilience.errors import InputError
from consilience.glm.derivatives import laplace
from consilience.glm.linear_model import check_bounded, layer_of, priors_of
from consilience.glm.noisy import read_release, sum_bounded
from consilience.glm.noisy_derivatives import scale_of
from consilience.glm.noisy_numbers import fit_numbers
from consilience.messages import Received, Reply, Server, payloads
from consilience.models.maps import feature_map, last_layer
from consilience.privacy.dp.mechanisms import Privacy, add_released
from consilience.task import Task


def check_private_numbers(task: Task, privacy: Privacy, server: Server) -> None:
    """Refuse what has no private form.

    Args:
        server: What the server sees.

    Raises:
        InputError: The rows are another problem, or have no bound.
    """
    if not isinstance(task.likelihood, GaussianNoise):
        raise InputError(
            "gaussian_product has a private form for numbers with one noise for all rows: for classes one release does "
            "not find the posterior, use glm, which takes four."
        )
    privacy.check(server.clients)
    layer = last_layer(task.model)
    check_bounded(task)
    if layer.bias is None:
        raise InputError("Under noise a linear model needs its bias: leave it in.")


def release_moments(task: Task, privacy: Privacy, data: Data) -> Reply:
    """Add up a client's bounded rows: the natural parameters of its likelihood, up to the noise's variance.

    Returns:
        Sums without noise yet, which cannot be sent.
    """
    return Reply(sum_bounded(feature_map(task.model), data, None, privacy), 0 * data.size)


def multiply_private(task: Task, privacy: Privacy, replies: Sequence[Received]) -> Dense:
    """Multiply the prior with what clients released, added up.

    Returns:
        The posterior.
    """
    layer = last_layer(task.model)
    total = add_released(payloads(replies))
    privacy.check_shares(total)
    totals = read_release(total, layer.in_features, layer.out_features, None, privacy)
    prior, noise_prior = priors_of(task)
    assert isinstance(task.likelihood, GaussianNoise)
    scale = scale_of(layer.in_features + 1, True, privacy)
    line = fit_numbers(totals, prior, scale, privacy.bound, task.likelihood.noise)
    matrix = line.precision
    if noise_prior is not None:
        own = line.noise_precision + noise_prior.precision.reshape(())
        matrix = torch.block_diag(matrix, own.reshape(1, 1))
    return laplace(line.mean, matrix, layer_of(task), line.log_noise)
