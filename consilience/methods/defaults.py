"""Which method is meant where nobody named one."""

from __future__ import annotations

from consilience.method import Method
from consilience.methods.evidence import EvidencePooling
from consilience.methods.exact import ExactPooling
from consilience.methods.exact_tuned import ExactTuned
from consilience.methods.mixture import Mixture

RUN = "beta"  # a recipe in Python that names none
FREE_CLASSES = "exact_tuned"  # nobody named a network either: fixed features, the same for every split
FREE_NUMBERS = "exact"  # the same for numbers, whose noise and prior one round of sums decides
NETWORK_RUN = "evidence"  # classes and a network: needs nothing at the server
TABLE_RUN = "evidence_tuned"  # the same on small tables, where plain evidence pooling is far behind
NUMBERS_RUN = "mixture"
LINEAR_NUMBERS = "exact"  # numbers and a linear model: Bayesian linear regression of all rows
MOST_WEIGHTS = 2000  # of a linear model whose full Gaussian is sent: four million numbers
LINEAR_STUDY = "gaussian_product"  # a study that classifies with a linear model: exact up to Laplace's approximation
LINEAR_STUDY_SETTINGS = ("inference.mode=Newton", "inference.dense=True")
EVENTS = "glm"  # counts and times to an event: the pooled mode and its Laplace posterior
STUDY = "mixture"  # any other study: a full Gaussian would be too large, or lack the noise


def for_free_run(classes: bool) -> str:
    """Choose the method of a run on the command line that names neither a method nor a network.

    Args:
        classes: Whether classes are predicted rather than numbers.

    Returns:
        The method's name.
    """
    if classes:
        return FREE_CLASSES
    return FREE_NUMBERS


def for_run(classes: bool, linear: bool, weights: int, table: bool) -> tuple[str, tuple[str, ...]]:
    """Choose the method of a run on the command line that names a network alone, as docs/choose.md advises.

    None of them needs anything at the server.

    Args:
        classes: Whether classes are predicted rather than numbers.
        linear: Whether the model is linear.
        weights: How many weights it has.
        table: Whether the data are tables.

    Returns:
        The method's name, and `field=value` settings.
    """
    if not classes and linear:
        return LINEAR_NUMBERS, ()
    if not classes:
        return NUMBERS_RUN, ()
    if linear and weights <= MOST_WEIGHTS:
        return LINEAR_STUDY, LINEAR_STUDY_SETTINGS
    if table:
        return TABLE_RUN, ()
    return NETWORK_RUN, ()


def classifier(free: bool) -> Method:
    """Make the method of a classifier that nobody chose one for.

    Args:
        free: Whether nobody chose a network either.

    Returns:
        Exact pooling on fixed features, tuned by the sites, or evidence pooling of networks; nothing at the server.
    """
    if free:
        return ExactTuned()
    return EvidencePooling()


def regressor(free: bool) -> Method:
    """Make the method of a regressor that nobody chose one for.

    Args:
        free: Whether nobody chose a network either.

    Returns:
        Exact pooling on fixed features, or the mixture of networks.
    """
    if free:
        return ExactPooling()
    return Mixture()
