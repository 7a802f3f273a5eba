"""What may be added to the mean loss: a pull towards a point, weight decay, a constant correction of the gradient.

A tilt with `onto` knows its gradient in closed form, so that no step differentiates it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from consilience import tree
from consilience.tree import Params

Tilt: TypeAlias = Callable[[Params], Tensor]  # in units of the mean loss


@dataclass(frozen=True, eq=False)
class Quadratic:
    """(μ/2)‖θ − centre‖².

    Attributes:
        centre: A point as one vector [P], or one number for all weights.
        mu: The strength μ.
    """

    centre: Tensor | float
    mu: float

    def __call__(self, params: Params) -> Tensor:
        """Evaluate the tilt.

        Args:
            params: θ, all weights by name.

        Returns:
            A scalar, in units of the mean loss.
        """
        away = tree.ravel(params) - self.centre
        return 0.5 * self.mu * (away @ away)

    def onto(self, gradient: Tensor, vector: Tensor) -> Tensor:
        """Add this tilt's gradient, in place.

        Args:
            gradient: What it is added to [P].
            vector: The weights [P].

        Returns:
            `gradient`.
        """
        if isinstance(self.centre, float) and self.centre == 0:
            return gradient.add_(vector, alpha=self.mu)
        return gradient.add_(vector - self.centre, alpha=self.mu)


@dataclass(frozen=True, eq=False)
class Linear:
    """⟨direction, θ⟩: adds a constant to every gradient.

    Attributes:
        direction: That constant [P].
    """

    direction: Tensor

    def __call__(self, params: Params) -> Tensor:
        """Evaluate the tilt.

        Args:
            params: θ, all weights by name.

        Returns:
            A scalar, in units of the mean loss.
        """
        return self.direction @ tree.ravel(params)

    def onto(self, gradient: Tensor, vector: Tensor) -> Tensor:
        """Add this tilt's gradient, in place.

        Args:
            gradient: What it is added to [P].

        Returns:
            `gradient`.
        """
        return gradient.add_(self.direction)


def proximal(centre: Params, mu: float) -> Quadratic:
    """Stay near a point (FedProx).

    Returns:
        (μ/2)‖θ − centre‖².
    """
    return Quadratic(tree.ravel(centre), mu)


def decay(strength: float) -> Quadratic:
    """Decay weights on the mean loss; as a prior its strength would depend on the number of examples.

    Args:
        strength: Of the decay, a step's rate not included.

    Returns:
        (strength/2)‖θ‖².

    Example:
        >>> import consilience as co
        >>> task = co.classification(co.models.linear(4, 2)).tilted(co.task.decay(0.01))
        >>> len(task.tilts)
        1
    """
    return Quadratic(0.0, strength)


def linear(gradient: Params) -> Linear:
    """Correct every gradient by a constant (SCAFFOLD).

    Args:
        gradient: The constant, by name.
    """
    return Linear(tree.ravel(gradient))


def proximal_norm(centre: Params, mu: float) -> Tilt:
    """Stay near a point by the distance itself, not squared, as Hasan 2023 prints it (eq. 2.12).

    Returns:
        μ‖θ − centre‖.
    """
    return lambda params: mu * torch.linalg.vector_norm(tree.ravel(params) - tree.ravel(centre) + 1e-12)
