"""Differential privacy as sites agree on it: the table [privacy] of an agreement, and whether it can be kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import nn

from consilience.errors import InputError
from consilience.methods import METHODS
from consilience.methods.claims import check_private, check_releases, privacy_statement
from consilience.models.maps import bound_features
from consilience.privacy.dp.accountant import epsilon_of
from consilience.privacy.dp.mechanisms import Privacy

if TYPE_CHECKING:
    from consilience.study.protocol.agreement import Agreement


def promise_of(agreement: Agreement) -> Privacy | None:
    """Find what is promised about a row or a patient.

    Returns:
        The promise; None where there is none.
    """
    if not agreement.epsilon:
        return None
    unit = "row"
    if agreement.patient:
        unit = "patient"
    return Privacy(agreement.epsilon, agreement.delta, unit, agreement.noise_added, agreement.honest_sites)


def table_promise(agreement: Agreement) -> Privacy | None:
    """Find what is promised about a row or a patient in table one, which every site adds all of the noise to.

    Returns:
        The promise; None where no table one with noise was agreed on.
    """
    if not agreement.table_epsilon:
        return None
    unit = "row"
    if agreement.patient:
        unit = "patient"
    return Privacy(agreement.table_epsilon, agreement.delta, unit)


def promised_in_all(agreement: Agreement) -> tuple[float, float]:
    """Find (ε, δ) of everything that a site may send in a study with a promise: what has noise composes exactly.

    Args:
        agreement: The study's agreement, with a promise.
    """
    own, table = promise_of(agreement), table_promise(agreement)
    assert own is not None
    if table is None:
        return own.epsilon, own.delta
    return epsilon_of(own.delta, math.hypot(own.mu, table.mu)), own.delta


def promise_settings(agreement: Agreement) -> tuple[str, ...]:
    """Write the promise as settings of a method.

    Returns:
        Texts as `field=value`; none where nothing is promised.
    """
    promise = promise_of(agreement)
    if promise is None:
        return ()
    names = ("epsilon", "delta", "unit", "noise", "honest")
    return ("privacy=Privacy", *(f"privacy.{name}={getattr(promise, name)}" for name in names))


def bounded_if_private(agreement: Agreement, feature_map: nn.Module | None) -> nn.Module | None:
    """Bound the length of features where privacy is promised.

    Args:
        feature_map: The agreed map; None: the columns themselves.

    Returns:
        The map, with the bound behind it.
    """
    if not agreement.epsilon:
        return feature_map
    return bound_features(feature_map, len(agreement.feature_names))


def describe_promise(agreement: Agreement) -> dict[str, Any]:
    """Say what is promised, by [privacy] or by private training, and what is not, as reports and models state it.

    Returns:
        `{"privacy": …}`; nothing where nothing is promised.
    """
    promise = promise_of(agreement)
    if promise is None:
        trained = privacy_statement(agreement.build_method())
        if trained is None:
            return {}
        return {"privacy": {**trained, "simulated": False}}
    parts = ["how many rows a site commits to when it joins, and that it takes part"]
    table = table_promise(agreement)
    if table is not None:
        both, _ = promised_in_all(agreement)
        parts.append(f"table one, which has an ε of its own of {table.epsilon:g}: ε = {both:.3g} with both")
    return {"privacy": promise.describe(simulated=False, not_covered=parts)}


def check_promise(agreement: Agreement) -> None:
    """Refuse a promise that cannot be kept.

    Raises:
        InputError: The method has no private form, a number promises nothing, or something else would leave without
            noise.
    """
    promise = promise_of(agreement)
    if promise is None:
        if (
            agreement.delta
            or agreement.noise_added != "site"
            or agreement.honest_sites
            or agreement.patient
            or agreement.table_epsilon
        ):
            raise InputError("What stands under [privacy] belongs to epsilon: write epsilon there too.")
        return
    check_private(METHODS[agreement.method])
    promise.check()
    table = table_promise(agreement)
    if table is not None:
        table.check()
    check_releases(METHODS[agreement.method](), agreement.rounds)
    if agreement.scaling != "agreed":
        raise InputError(
            "Under [privacy] columns are scaled by agreed constants, as sums would be released without noise: write "
            'scaling = "agreed".'
        )
    if agreement.patient and (agreement.choose or agreement.test or agreement.calibrate):
        raise InputError(
            "Roles are drawn row by row, and a patient's rows must keep together: write choose = 0, test = 0 and "
            "calibrate = 0 where a column names the patient."
        )
    if promise.noise == "once" and not agreement.secure:
        raise InputError(
            'noise_added = "once" hides a site only under secure sums: agree on them too, or write noise_added = '
            '"site".'
        )
