"""How good predictions are. Each score is a function of a predictive distribution and the targets.

    single: each score by itself, `nll`, `brier`, `accuracy`, `rmse`, `crps`, …
    scores: all of them at once, `scores`, with `intervals` over the rows; `BETTER` says which way is better
    calibration: `ece` and its relatives, `reliability`, `coverage`, recalibration by `intercept_and_slope`
    uncertainty: `decompose` into what the observation, the weights and the sites contribute
    paired: `difference` between two rows of a table over seeds, adjusted by `holm`
    communication: scores against what was sent, `curve`

`binning` holds what the calibration errors share.

`evaluate` turns a model into the scores of all rows and of each site; `baselines` are what needs no federated method.
"""

from consilience.metrics.calibration import (
    coverage,
    coverage_curve,
    ece,
    ece_adaptive,
    ece_classwise,
    ece_debiased,
    expected_ece_if_calibrated,
    intercept_and_slope,
    reliability,
    wilson,
)
from consilience.metrics.communication import curve
from consilience.metrics.paired import difference, holm
from consilience.metrics.scores import BETTER, intervals, scores
from consilience.metrics.single import accuracy, auroc, balanced_accuracy, brier, crps, nll, rmse, sharpness
from consilience.metrics.uncertainty import decompose

__all__ = [
    "BETTER",
    "accuracy",
    "auroc",
    "balanced_accuracy",
    "brier",
    "coverage",
    "coverage_curve",
    "crps",
    "curve",
    "decompose",
    "difference",
    "ece",
    "ece_adaptive",
    "ece_classwise",
    "ece_debiased",
    "expected_ece_if_calibrated",
    "holm",
    "intercept_and_slope",
    "intervals",
    "nll",
    "reliability",
    "rmse",
    "scores",
    "sharpness",
    "wilson",
]
