"""Splits as people type them: "dirichlet:0.1", "step:2:10", "iid+rotate:30"."""

from __future__ import annotations

import re
from collections.abc import Callable

from consilience.data.splits.features import Noise, Rotation, Shift, Shifted
from consilience.data.splits.labels import dirichlet, heterogeneous, iid, natural, sorted_feature
from consilience.data.splits.skew import dominant, step
from consilience.data.splits.split import Split
from consilience.errors import InputError, unknown_name

PLAIN: dict[str, Callable[[], Split]] = {"iid": iid, "natural": natural, "sorted_feature": sorted_feature}
NUMBERED: dict[str, Callable[[float], Split]] = {"heterogeneous": heterogeneous, "dirichlet": dirichlet}
# Each with the kind of its numbers, how many they may be, and an example.
SKEWED: dict[str, tuple[Callable[..., Split], Callable[[str], float], int, str]] = {
    "step": (step, int, 2, "step:2:10"),
    "dominant": (dominant, float, 1, "dominant:0.8"),
}
SHIFTS: dict[str, Callable[[float], Shift]] = {"rotate": Rotation, "noise": Noise}


def parse(text: str) -> Split:
    """Read a split as people type it and as `str` writes it.

    Args:
        text: "iid", "natural", "dirichlet:0.1", "heterogeneous:0.9", "heterogeneous:0.9@hasan2023",
            "sorted_feature:2", "step:2:10", "dominant:0.8", or one of these with shifts of the features, as
            "iid+rotate:30" or "dirichlet:0.3+noise:0.5".

    Raises:
        InputError: The text is not a split; the message says what to type.

    Example:
        >>> import consilience as co
        >>> co.splits.parse("dirichlet:0.1+noise:0.5")
        Shifted(split=Dirichlet(alpha=0.1), shifts=(Noise(deviation=0.5),))
    """
    name, *shifts = _cut(text)
    split = _parse_split(name)
    if not shifts:
        return split
    return Shifted(split, tuple(_parse_shift(shift) for shift in shifts))


def _cut(text: str) -> list[str]:
    """A split and its shifts: "dirichlet:1e+09+noise:0.3" has two pieces."""
    return re.split(r"\+(?=\s*[a-z])", text)


def _parse_split(text: str) -> Split:
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if name in PLAIN and not colon:
        return PLAIN[name]()
    if name == "sorted_feature":
        return _parse_sorted(text, rest)
    if name in PLAIN:
        raise InputError(f"The split '{name}' takes no number: type {name}.")
    if name in SKEWED:
        return _parse_skewed(name, rest)
    if name not in NUMBERED:
        raise unknown_name("split", name, [*PLAIN, *NUMBERED, *SKEWED])
    return _parse_numbered(text, name, rest)


def _parse_sorted(text: str, number: str) -> Split:
    if not number.isdecimal():
        raise InputError(f"The split '{text}' needs the number of a feature: type for example sorted_feature:0.")
    return sorted_feature(int(number))


def _parse_numbered(text: str, name: str, rest: str) -> Split:
    number, at, variant = (part.strip() for part in rest.partition("@"))
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"The split '{text}' needs a number: type for example {name}:0.5.") from None
    if not at:
        return NUMBERED[name](value)
    if name != "heterogeneous":
        raise InputError(f"The split '{name}' has no variants: type {name}:{number}.")
    return heterogeneous(value, variant)


def _parse_skewed(name: str, rest: str) -> Split:
    """What stands after the colon of "step:2:10", "step:2" or "dominant:0.8"."""
    make, kind, most, example = SKEWED[name]
    try:
        numbers = [kind(word) for word in rest.split(":")]
    except ValueError:
        numbers = []
    if not 0 < len(numbers) <= most:
        raise InputError(f"The split '{name}:{rest}' cannot be read: type for example {example}.")
    return make(*numbers)


def _parse_shift(text: str) -> Shift:
    """Read a shift as "rotate:30" or "noise:0.3" has it."""
    name, _, number = (part.strip() for part in text.partition(":"))
    if name not in SHIFTS:
        raise unknown_name("shift", name, SHIFTS)
    try:
        value = float(number)
    except ValueError:
        raise InputError(f"The shift '{text}' needs a number: type for example {name}:0.5.") from None
    return SHIFTS[name](value)
