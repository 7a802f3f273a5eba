"""What a linear model on fixed features is made of: its layer, its classes, its priors, and what it must refuse."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from consilience.distributions.likelihood import LOG_NOISE, Softmax
from consilience.distributions.posterior import Dense
from consilience.distributions.prior import Flat
from consilience.errors import InputError
from consilience.glm.derivatives import Quadratic, pack
from consilience.glm.sums import Sums
from consilience.messages import Received
from consilience.models.maps import is_bounded, last_layer
from consilience.task import Task
from consilience.tree import Params


def layer_of(task: Task) -> Params:
    """Name the weights of a task's linear layer.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        Its weight and bias.
    """
    return {name: task.like[name] for name in task.uncertain}


def classes_of(task: Task) -> int | None:
    """Count the classes of a task.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        How many there are; None for numbers.
    """
    if isinstance(task.likelihood, Softmax):
        return last_layer(task.model).out_features
    return None


def priors_of(task: Task) -> tuple[Quadratic, Quadratic | None]:
    """Write a task's prior as quadratics.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        That over the layer's weights [C, K]; and that over the log-noise, None where the noise is known.
    """
    layer = layer_of(task)
    mean, var = task.prior.gaussian({name: leaf.double() for name, leaf in task.weights(task.like).items()})
    weights = Quadratic(pack({k: mean[k] for k in layer}), 1 / pack({k: var[k] for k in layer}))
    if LOG_NOISE not in mean:
        return weights, None
    return weights, Quadratic(mean[LOG_NOISE], 1 / var[LOG_NOISE])


def weight_prior(task: Task) -> Dense:
    """Write the task's prior over the linear layer, in double precision."""
    return task.prior.dense({name: leaf.double() for name, leaf in layer_of(task).items()})


def check_proper(task: Task) -> None:
    """Refuse a flat prior where the rows alone leave a combination of weights open.

    Raises:
        InputError: Classes have a flat prior.
    """
    if isinstance(task.likelihood, Softmax) and isinstance(task.prior, Flat):
        raise InputError(
            "A flat prior leaves some weights open: no row shows the level that the logits of all classes share, and "
            "a site's posterior is no Gaussian. Give a prior of finite variance (prior_var), or use glm."
        )


def check_bounded(task: Task) -> None:
    """Refuse features that no noise could hide.

    Raises:
        InputError: The features are not clipped.
    """
    if not is_bounded(task.model):
        raise InputError(
            "The features are not clipped, and a row of any length could be recognised under any noise: put "
            "`Bounded` under the last layer, as epsilon does in `run` and in studies."
        )


def warn_of_few_rows(replies: Sequence[Received], whole: bool = True) -> None:
    """Warn of Gram matrices that show single rows.

    Args:
        whole: Whether they are all of a round's, so that it is known how many.
    """
    few = [
        reply for reply in replies if isinstance(reply.payload, Sums) and 0 < float(reply.size) < reply.payload.features
    ]
    who = f"{len(few)} of {len(replies)} sites"
    if not whole:
        who = "Some sites"
    if few:
        warnings.warn(
            f"{who} have fewer rows than the {few[0].payload.features} sums of a Gram "
            "matrix's row: it shows their rows' features up to a rotation. Use fewer features, or add sums securely.",
            stacklevel=2,
        )
