"""What a method, with these settings, promises about single rows, and what it must refuse to promise."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast

from consilience.errors import InputError
from consilience.inference.capabilities import Promises
from consilience.method import Bound, Method, Private, name, usual_rounds
from consilience.method.declared import kind_of, private_rounds, sends_inference
from consilience.privacy.dp.mechanisms import Privacy
from consilience.privacy.dp.subsampled import Steps

M = TypeVar("M", bound=Method)


def promised_privacy(method: Method) -> Privacy | None:
    """Find what a method, with these settings, promises about its clients' rows.

    Args:
        method: The method with its settings.

    Returns:
        The setting; None where it promises nothing.
    """
    return method.privacy


def privacy_statement(method: Method) -> dict[str, Any] | None:
    """Say what a method with its inference promises about single rows.

    Args:
        method: The method with its settings, told its rounds.

    Returns:
        Values by the names of `privacy` in run.json; None where nothing is promised.
    """
    if not isinstance(method.inference, Promises) or not sends_inference(method) or isinstance(method, Bound):
        return None
    return method.inference.privacy_statement()


def steps_of_round(method: Method) -> Steps | None:
    """Find the noisy steps on random batches that a client takes in a round.

    Args:
        method: The method with its settings, told its rounds.

    Returns:
        The steps, where its inference takes such and promises something by them.
    """
    if privacy_statement(method) is None or not isinstance(method.inference, Promises):
        return None
    return method.inference.steps_of_round


def for_rounds(method: M, rounds: int) -> M:
    """Tell whatever spends a budget over the rounds how many there are.

    An inference that does has a method `for_rounds` of its own, another, `privacy_statement`, that says what it
    promises, and a property `steps_of_round`, that says by what; the promise holds only where nothing else is sent.

    Args:
        method: The method with its settings.
        rounds: How many rounds it will run.

    Returns:
        The method whose inference knows them; the same object where nothing is spent.

    Raises:
        InputError: The method sends more than its inference's result, or the budget is for fewer rounds.
    """
    inference: Any = method.inference
    if method.inner is not None and not isinstance(inference, Promises):
        inference = method.inner.inference
    if not isinstance(inference, Promises):
        return method
    if not sends_inference(method) and not isinstance(
        method, Bound
    ):  # bounds infer as the run does, and promise nothing
        raise InputError(
            f"{name(method)} sends {method.about.sends}: {type(inference).__name__} cannot answer for all of that. "
            "Choose a method that sends its weights alone."
        )
    settled = dataclasses.replace(cast(Any, method), inference=inference.for_rounds(rounds))
    return cast(M, settled)


def check_releases(method: Method, rounds: int) -> None:
    """Refuse rounds that nothing is left for, or that leave most of it: a private method spends it in its usual ones.

    Args:
        method: The method with its settings.

    Raises:
        InputError: There are more than the budget is for, or fewer than it must be spent in.
    """
    usual = usual_rounds(method, private=True)
    if rounds > usual:
        raise InputError(
            f"The privacy of {name(method)} is spent in {usual} round(s), and {rounds} would release more: use "
            f"rounds={usual}."
        )
    if private_rounds(method) and rounds < usual:
        raise InputError(
            f"The privacy of {name(method)} is spent in {usual} rounds, most of it in the last, and there are "
            f"{rounds}: use rounds={usual}."
        )


def check_private(method: Method | type[Method]) -> None:
    """Refuse to promise privacy for a method whose replies have no bound.

    Args:
        method: The method, or its class.

    Raises:
        InputError: It has no private form.
    """
    if not issubclass(kind_of(method), Private):
        raise InputError(
            f"{name(method)} has no private form, because nothing bounds what one row changes in its replies: choose "
            "one of docs/private.md."
        )
