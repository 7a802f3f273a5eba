"""Settings of methods and inferences: those that came later, and copies that are cheaper or take smaller steps."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast

from consilience.inference.capabilities import Abridged, Passes, Prolonged, SlowedDown
from consilience.method.contract import Method

S = TypeVar("S")
_PASSES = ("epochs", "fewest")  # fields that count passes over a client's rows
_WITHIN = ("mode", "inference")  # fields that hold what trains


def added(default: Any, **before: Any) -> Any:
    """Declare a setting that came after runs had been kept: as it was then, it is no part of what identifies a run.

    Args:
        default: Its default.
        before: `before=…`, what a method did without the setting, unless that is the default.

    Returns:
        The field of a dataclass.
    """
    return dataclasses.field(default=default, metadata={"added": True, **before})


def abridge(settings: S) -> S:
    """Make a cheap copy of a method or an inference whose values have the same names, types and shapes.

    Whatever takes many steps may have a method `abridge` that returns itself with as few as possible; the copy's
    numbers mean nothing.

    Args:
        settings: A method, an inference, or anything they are made of.

    Returns:
        The copy; the same object where there is nothing to save.
    """
    if isinstance(settings, Abridged) and not isinstance(settings, type):
        return cast(S, settings.abridge())
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return settings
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if field.init}
    cheap = {name: abridge(value) for name, value in fields.items()}
    changed = {name: value for name, value in cheap.items() if value is not fields[name]}
    if not changed:
        return settings
    return dataclasses.replace(settings, **changed)


def slow_down(settings: S, factor: float) -> S:
    """Make a copy of a method or an inference that takes smaller steps, where nobody chose their size.

    A rate other than the default of its class was chosen, and stays. Whatever has steps of another kind may have a
    method `slow_down` of its own. Only what clients do is looked at: `inference`, `inner` and `mode`.

    Args:
        settings: A method or an inference.

    Returns:
        The copy; the same object where nothing can be slowed down.
    """
    if isinstance(settings, SlowedDown) and not isinstance(settings, type):
        return cast(S, settings.slow_down(factor))
    if not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return settings
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in ("inference", "inner", "mode"):
            slower = slow_down(value, factor)
            if slower is not value:
                changed[field.name] = slower
        elif field.name == "rate" and value == field.default and not isinstance(settings, Method):
            changed["rate"] = factor * value
    if not changed:
        return settings
    return dataclasses.replace(settings, **changed)


def prolong(settings: S, times: int) -> S:
    """Make a copy of an inference that passes over the rows so many times as often.

    Whatever counts its work otherwise may have a method `prolong` of its own; what runs until it converges has no
    `epochs` and stays.

    Returns:
        The copy; the same object where there is nothing to prolong.
    """
    if isinstance(settings, Prolonged) and not isinstance(settings, type):
        return cast(S, settings.prolong(times))
    if times == 1 or not dataclasses.is_dataclass(settings) or isinstance(settings, type):
        return settings
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name in _PASSES and value is not None:
            changed[field.name] = times * value
        elif field.name in _WITHIN:
            changed[field.name] = prolong(value, times)
    return cast(S, dataclasses.replace(cast(Any, settings), **changed))


def passes(settings: object) -> int | None:
    """Count the passes over the rows that an inference makes.

    Returns:
        The passes; None where it goes on until it converges, or counts its work otherwise.
    """
    if isinstance(settings, Passes) and isinstance(settings.epochs, int):
        return settings.epochs
    for name in _WITHIN:
        inner = getattr(settings, name, None)
        if inner is not None:
            return passes(inner)
    return None
