"""Which method is meant where nobody named one."""

from __future__ import annotations

from consilience.method import Method
from consilience.methods.evidence import EvidencePooling
from consilience.methods.mixture import Mixture

RUN = "beta"  # a run on the command line
LINEAR_STUDY = "gaussian_product"  # a study that classifies with a linear model: exact up to Laplace's approximation
LINEAR_STUDY_SETTINGS = ("inference.mode=Newton", "inference.dense=True")
STUDY = "mixture"  # any other study: a full Gaussian would be too large, or lack the noise


def classifier() -> Method:
    """Make the method of a classifier that nobody chose one for.

    Returns:
        Evidence pooling: one round, and nothing is needed at the server.
    """
    return EvidencePooling()


def regressor() -> Method:
    """Make the method of a regressor that nobody chose one for.

    Returns:
        The mixture, as it is everywhere: a site whose training diverges repeats it with smaller steps.
    """
    return Mixture()
