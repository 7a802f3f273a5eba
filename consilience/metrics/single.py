"""Each score by itself, written once as a function of how often each row counts.

Rows count once each for the score itself, and multinomial numbers of times for the bootstrap in `scores`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Distribution, Normal, log_prob
from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.metrics.binning import align, once
from consilience.metrics.calibration import inside
from consilience.metrics.events import OF_COUNTS, OF_TIMES, Score
from consilience.metrics.events import mean_over as _mean


def accuracy(p: Categorical, y: Tensor) -> float:
    """Compute the share of rows whose most probable class is right.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2], [0.4, 0.6]]).log())
        >>> co.metrics.accuracy(p, torch.tensor([0, 0]))
        0.5
    """
    return _single("accuracy", p, y)


def balanced_accuracy(p: Categorical, y: Tensor) -> float:
    """Compute the accuracy of each class that occurs, averaged over these classes.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2], [0.7, 0.3], [0.9, 0.1], [0.4, 0.6]]).log())
        >>> co.metrics.balanced_accuracy(p, torch.tensor([0, 0, 1, 1]))
        0.75
    """
    return _single("balanced_accuracy", p, y)


def nll(p: Distribution, y: Tensor) -> float:
    """Compute the mean negative log-likelihood.

    Returns:
        Nats; infinite where a label was impossible.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log())
        >>> round(co.metrics.nll(p, torch.tensor([0, 1])), 4)
        0.6931
    """
    return _single("nll", p, y)


def brier(p: Categorical, y: Tensor) -> float:
    """Compute the Brier score, the mean squared distance of the probabilities from the labels.

    Returns:
        The score, from 0 to 2.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2], [0.4, 0.6]]).log())
        >>> round(co.metrics.brier(p, torch.tensor([0, 1])), 3)
        0.2
    """
    return _single("brier", p, y)


def auroc(p: Categorical, y: Tensor) -> float:
    """Compute the area under the ROC curve, for more classes than two the mean of each against the rest.

    Returns:
        The area; NaN where all rows are of one class.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Categorical
        >>> p = Categorical(torch.tensor([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7]]).log())
        >>> co.metrics.auroc(p, torch.tensor([0, 1, 1]))
        1.0
    """
    return _single("auroc", p, y)


def rmse(p: Normal, y: Tensor) -> float:
    """Compute the root of the mean squared error of the means.

    Returns:
        The error, in the target's units.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Normal
        >>> p = Normal(torch.tensor([1.0, 2.0]), torch.zeros(2), torch.ones(2))
        >>> round(co.metrics.rmse(p, torch.tensor([1.0, 4.0])), 3)
        1.414
    """
    return _single("rmse", p, y)


def crps(p: Normal, y: Tensor) -> float:
    """Compute the mean continuous ranked probability score.

    Returns:
        The score, in the target's units.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Normal
        >>> p = Normal(torch.tensor([0.0]), torch.tensor([0.0]), torch.tensor([1.0]))
        >>> round(co.metrics.crps(p, torch.tensor([0.0])), 3)
        0.234
    """
    return _single("crps", p, y)


def sharpness(p: Normal, y: Tensor) -> float:
    """Compute the mean predictive standard deviation.

    Args:
        y: Their targets, of which only the number matters.

    Returns:
        The SD, in the target's units.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.predictive import Normal
        >>> p = Normal(torch.zeros(2), torch.zeros(2), torch.full((2,), 4.0))
        >>> co.metrics.sharpness(p, torch.zeros(2))
        2.0
    """
    return _single("sharpness", p, y)


def _single(name: str, p: Distribution, y: Tensor) -> float:
    """One score by its name."""
    functions = table(p)
    if name not in functions:
        raise InputError(f"'{name}' is not a score of a {type(p).__name__}: choose among {', '.join(functions)}.")
    p, y = align(p, y)
    return float(functions[name](p, y, once(y)))


def each(functions: Mapping[str, Score], p: Distribution, y: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """Compute several scores of resampled rows.

    Args:
        functions: The scores by name, as `table` gives them.
        p: A distribution of N rows, aligned.
        y: Their labels or targets, aligned.
        counts: How many times row i is there in resample b [N, B].

    Returns:
        The scores by name [B].
    """
    return {name: score(p, y, counts) for name, score in functions.items()}


def table(p: Distribution) -> Mapping[str, Score]:
    """Look up the scores of a kind of distribution; calibration errors apart.

    Returns:
        The scores by name.
    """
    if isinstance(p, Counts):
        return OF_COUNTS
    if isinstance(p, Survival):
        return OF_TIMES
    if isinstance(p, Normal):
        return _NORMAL
    return _CATEGORICAL


def _nll(p: Distribution, y: Tensor, counts: Tensor) -> Tensor:
    return _mean(-log_prob(p, y), counts)


def _accuracy(p: Categorical, y: Tensor, counts: Tensor) -> Tensor:
    return _mean(_hits(p, y), counts)


def _balanced_accuracy(p: Categorical, y: Tensor, counts: Tensor) -> Tensor:
    truth = _one_hot(p, y)
    recall = ((truth * _hits(p, y).unsqueeze(1)).T @ counts) / (truth.T @ counts)
    return recall.nanmean(0)


def _brier(p: Categorical, y: Tensor, counts: Tensor) -> Tensor:
    return _mean(((p.probs - _one_hot(p, y)) ** 2).sum(-1), counts)


def _auroc(p: Categorical, y: Tensor, counts: Tensor) -> Tensor:
    classes = range(p.log_probs.shape[1])
    if len(classes) == 2:
        classes = range(1, 2)
    return torch.stack([rank_positives(_against_rest(p, c), y == c, counts) for c in classes]).nanmean(0)


def rank_positives(score: Tensor, positive: Tensor, counts: Tensor) -> Tensor:
    """Compute the chance that a positive row scores above a negative one, ties counted half.

    Args:
        score: Of every row [N].
        positive: Whether a row is [N].
        counts: How many times row i is there in resample b [N, B].

    Returns:
        The chance [B]; NaN without both kinds.
    """
    negatives, order = score[~positive].sort()
    below = torch.cat([torch.zeros_like(counts[:1]), counts[~positive][order].cumsum(0)])
    under, upto = (torch.searchsorted(negatives, score[positive], right=right) for right in (False, True))
    won = (counts[positive] * (below[under] + below[upto])).sum(0) / 2
    return won / (counts[positive].sum(0) * below[-1])


def _rmse(p: Normal, y: Tensor, counts: Tensor) -> Tensor:
    return _mean(_per_row((y - p.mean) ** 2), counts).sqrt()


def _crps(p: Normal, y: Tensor, counts: Tensor) -> Tensor:
    """In closed form for a Normal."""
    sd = p.total.sqrt()
    z = (y - p.mean) / sd
    density = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    values = sd * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return _mean(_per_row(values), counts)


def _coverage(level: float) -> Score:
    """The coverage of one level."""
    return lambda p, y, counts: _mean(inside(p, y, level), counts)


def _sharpness(p: Normal, y: Tensor, counts: Tensor) -> Tensor:
    return _mean(_per_row(p.total.sqrt()), counts)


def _against_rest(p: Categorical, c: int) -> Tensor:
    """The log-odds log p_c − log(1 − p_c), which rank like p_c and do not saturate near 1."""
    rest = torch.cat([p.log_probs[:, :c], p.log_probs[:, c + 1 :]], 1)
    return p.log_probs[:, c] - rest.logsumexp(1)


def _hits(p: Categorical, y: Tensor) -> Tensor:
    """1 where the most probable class is right [N]."""
    return (p.log_probs.argmax(-1) == y).double()


def _one_hot(p: Categorical, y: Tensor) -> Tensor:
    """The labels as probabilities [N, C]."""
    return torch.nn.functional.one_hot(y, p.log_probs.shape[1]).double()


def _per_row(values: Tensor) -> Tensor:
    """The mean over a row's outputs [N]."""
    return values.reshape(len(values), -1).mean(1)


_CATEGORICAL: dict[str, Score] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "nll": _nll,
    "brier": _brier,
    "auroc": _auroc,
}
_NORMAL: dict[str, Score] = {  # a row's outputs are averaged, in `nll` summed
    "rmse": _rmse,
    "nll": _nll,
    "crps": _crps,
    "coverage50": _coverage(0.5),
    "coverage80": _coverage(0.8),
    "coverage95": _coverage(0.95),
    "sharpness": _sharpness,
}
