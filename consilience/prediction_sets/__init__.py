"""Prediction sets with a finite-sample guarantee: one more small message from each site.

scores: how strange a row looks to a model, `Score`
counts: what a site sends, counts of scores on an agreed grid, as they are, merged upwards or with noise
coverage: exact coverage of quantiles of quantiles, what holds given the calibration rows, and binomial intervals
kinds: thresholds by each kind of guarantee, and the rule that chooses one
sets: a `Guarantee`, and sets of classes or intervals of numbers by its thresholds
measured: how often sets held what they should, and how large they were

What is random comes from a key, and what moves between sites is a table of whole numbers that add up.
"""

from consilience.prediction_sets.kinds import KINDS, choose_kind
from consilience.prediction_sets.nonconformity import SCORES, Score
from consilience.prediction_sets.sets import Guarantee

__all__ = ["KINDS", "SCORES", "Guarantee", "Score", "choose_kind"]
