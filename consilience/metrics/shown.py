"""What a report shows beside scores: predictions against the truth, and single rows where rows are public."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.data.sites import Sites
from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Normal
from consilience.metrics.findings import Example, Predicted, PredictedBin

PREDICTED_BINS = 10
SHOWN_EXAMPLES = 5  # of a kind, and only of public rows
SHOWN_POINTS = 300


def predicted_bins(p: Normal | Counts, y: Tensor, public: bool) -> Predicted | None:
    """Compare predictions with the truth, in bins of the prediction.

    Args:
        p: What a model predicts for the test rows.
        public: Whether single rows may be shown.

    Returns:
        The bins, some rows if they may be shown, and the spread of the truth; None for too few rows or several targets.
    """
    if p.mean.ndim > 1 or len(y) < 2 * PREDICTED_BINS:
        return None
    order = p.mean.argsort()
    deviation = p.total.sqrt()
    bins = []
    for part in order.tensor_split(PREDICTED_BINS):
        true = y[part].double()
        half = 1.96 * float(true.std()) / len(part) ** 0.5
        mean = float(true.mean())
        bins.append(
            PredictedBin(
                predicted=float(p.mean[part].double().mean()),
                deviation=float(deviation[part].double().mean()),
                observed=mean,
                rows=len(part),
                interval=[mean - half, mean + half],
            )
        )
    points = None
    if public:
        step = max(-(-len(y) // SHOWN_POINTS), 1)
        points = [(float(p.mean[i]), float(deviation[i]), float(y[i])) for i in order[::step]]
    return Predicted(bins, points, float(y.double().std()))


def examples(p: Categorical, y: Tensor, sites: Sites) -> list[Example]:
    """Pick the most confidently wrong test rows and the most uncertain ones.

    Args:
        p: What a model predicts for the test rows.
        sites: Everybody's rows, which must be public.

    Returns:
        An entry for each row, with its image if it is one.
    """
    confidence, label = p.probs.max(1)
    entropy = torch.special.entr(p.probs).sum(1)
    wrong = (label != y).nonzero().flatten()
    kinds = {
        "most confidently wrong": wrong[confidence[wrong].argsort(descending=True)][:SHOWN_EXAMPLES],
        "most uncertain": entropy.argsort(descending=True)[:SHOWN_EXAMPLES],
    }
    rows = sites.all_test
    entries = []
    for kind, indices in kinds.items():
        for i in indices.tolist():
            entries.append(
                Example(
                    kind=kind,
                    predicted=int(label[i]),
                    confidence=float(confidence[i]),
                    true=int(y[i]),
                    image=picture(rows.x[i]),
                )
            )
    return entries


def picture(x: Tensor) -> list[list[float]] | None:
    """Turn a row into a grey image, if it is one: channels are averaged, and 64 numbers are 8 × 8.

    Returns:
        The image, from 0 to 1; None for other rows and for large images.
    """
    if x.ndim == 3:
        image = x.mean(0)
    elif x.shape == (64,):
        image = x.reshape(8, 8)
    else:
        return None
    if image.numel() > 1024:
        return None
    low = float(image.min())
    high = float(image.max())
    return [[round((v - low) / max(high - low, 1e-9), 2) for v in row] for row in image.tolist()]
