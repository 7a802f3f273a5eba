"""How far to go from a mixture of predictions to their product: β, chosen on labelled rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from consilience.distributions.predictive import (
    Distribution,
    enough_events,
    geometric,
    log_prob,
    maximise,
    precise,
    score,
)
from consilience.key import Key

EVENTS = 5  # rows outside the most frequent class, from which on rows choose β by themselves
CAUTION = 3.0  # nats that the product must gain over the mixture where rows hold no event
PASSES, RATE, BATCH = 10, 1e-2, 100  # of Adam, as the released program has it
Loss = Callable[[Distribution, Tensor], Tensor]


def choose_beta(multiplied: Distribution, mixed: Distribution, y: Tensor, key: Key | None = None) -> float:
    """Choose β on labelled rows, with caution where few of them are outside the most frequent class.

    Such rows are predicted best by whoever is surest of that class, which the product is: it must gain up to three nats
    over the mixture. From five rows outside it on, this is the paper's plain maximum.

    Args:
        multiplied: The product of the clients' predictions for the rows.
        y: The rows' labels or targets.
        key: Not used, since nothing is drawn.

    Returns:
        β between 0 and 1; 0 where all rows are of one class.
    """
    share = enough_events(mixed, y, EVENTS, "β")
    if share == 0:
        return 0.0
    penalty = CAUTION * (1 - share) / len(y)
    both = precise(multiplied), precise(mixed)
    return maximise(lambda b: score(geometric(b, *both), y) - penalty * b, 0.0, 1.0)


def mean_loss(p: Distribution, y: Tensor) -> Tensor:
    """Average −log p(y) over rows.

    Args:
        p: Predictions of N rows.

    Returns:
        A scalar.
    """
    return -log_prob(p, y).mean()


def descend_to_beta(
    multiplied: Distribution, mixed: Distribution, y: Tensor, key: Key, loss: Loss = mean_loss
) -> float:
    """Take the authors' steps towards β: ten passes of Adam over shuffled batches of 100 rows, from ½.

    Args:
        multiplied: The product of the clients' predictions for the rows.
        y: The rows' labels or targets.
        key: For the order of the rows.
        loss: Of a batch's predictions and labels.

    Returns:
        Where the steps end, which may lie outside 0 … 1.
    """
    beta = torch.full((), 0.5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([beta], lr=RATE)
    both = precise(multiplied), precise(mixed)
    for i in range(PASSES):
        for rows in key.fold(i).permutation(len(y)).split(BATCH):
            p, q = (type(part)(*(leaf[rows] for leaf in part)) for part in both)
            adam.zero_grad()
            loss(geometric(beta, p, q), y[rows]).backward()  # type: ignore[arg-type]
            adam.step()
    return float(beta.detach())


def step_beta(multiplied: Distribution, mixed: Distribution, y: Tensor, key: Key) -> float:
    """Choose β by the authors' steps, and hold it between 0 and 1.

    Args:
        multiplied: The product of the clients' predictions for the rows.
        y: The rows' labels or targets.
        key: For the order of the rows.
    """
    return min(max(descend_to_beta(multiplied, mixed, y, key), 0.0), 1.0)


CHOICES: dict[str, Callable[[Distribution, Distribution, Tensor, Key], float]] = {
    "optimum": choose_beta,
    "adam": step_beta,
}
