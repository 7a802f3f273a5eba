"""What a study agrees on about calibration by site: whether sites tell how right a model's probabilities are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.study.protocol.agreement import Agreement


def check_evaluation(agreement: Agreement) -> None:
    """Refuse calibration by site where it cannot be told, or would break what else is promised.

    Raises:
        InputError: It does not fit the rest.
    """
    if not agreement.evaluation:
        return
    if agreement.secure:
        raise InputError(
            "evaluation = true shows each site's own calibration, which secure = true hides: leave one of them out."
        )
    if agreement.epsilon:
        raise InputError(
            f"evaluation = true sends counts without noise, which epsilon = {agreement.epsilon:g} would not cover: "
            "leave one of them out."
        )
    if agreement.kind == "survival":
        raise InputError(
            "evaluation = true is for classes, numbers and counts: leave it out where a time to an event is predicted."
        )
    if not agreement.test:
        raise InputError("evaluation = true is about test rows, and test = 0 holds none out: write test = 0.2.")


def check_may_evaluate(agreement: Agreement) -> None:
    """Refuse to send or to read calibration by site where the sites did not agree on it.

    Raises:
        InputError: They did not.
    """
    if not agreement.evaluation:
        raise InputError(
            "This study did not agree that calibration leaves a site: write evaluation = true under [leaving] in a new "
            "one."
        )


def describe_evaluation(agreement: Agreement) -> str:
    """Say what leaves a site about its calibration, before anybody signs and where it is written.

    Returns:
        One sentence; empty where nothing leaves.
    """
    if not agreement.evaluation:
        return ""
    smallest = agreement.smallest
    sent = f"how many of them lie inside the model's intervals and how many outside, no count below {smallest}"
    if agreement.target.classes:
        sent = f"counts in bins of probability, each with at least {smallest} rows that bear it out and {smallest} not"
    if len(agreement.target.classes) == 2:
        sent += ", and calibration intercept and slope"
    return f"About one model, a site can send its calibration on its own test rows: their number, {sent}."
