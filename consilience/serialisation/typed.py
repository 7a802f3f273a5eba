"""JSON as values of the types that classes declare: what a file holds is checked where it is read, and nowhere else."""

from __future__ import annotations

import dataclasses
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from consilience.errors import InputError, refuse_damage

T = TypeVar("T")
ROUNDING = 1e-9  # a mean of shares may end above 1 in its last digits


@dataclass(frozen=True)
class Between:
    """The range of a number, both ends included; what is not a number lies in none.

    Attributes:
        low: The lower end.
        high: The upper end.
    """

    low: float = -math.inf
    high: float = math.inf

    def holds(self, value: float) -> bool:
        """Tell whether a number lies in the range, but for rounding."""
        return self.low - ROUNDING <= value <= self.high + ROUNDING


Share: TypeAlias = Annotated[float, Between(0, 1)]
Size: TypeAlias = Annotated[float, Between(0)]
Rows: TypeAlias = Annotated[int, Between(0, 1e15)]


def parse_json(text: str) -> Any:
    """Read JSON of which every number can be reckoned with and every text written.

    Returns:
        Its value.

    Raises:
        ValueError: It is not JSON, a number in it is not finite, or a text holds half a character.
    """
    value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_finite_int)
    if "\\ud" in text.lower():  # halves of characters beyond 16 bits, which only stand in pairs
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _refuse_constant(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _finite_int(digits: str) -> int:
    _finite(digits)
    return int(digits)


def checked(thing: T) -> T:
    """Hold a dataclass or named tuple that was made from a file against what its class declares.

    Returns:
        The object itself.

    Raises:
        InputError: A field has another type, or is out of its range.
    """
    kind = type(thing)
    for name, declared in declared_types(kind).items():
        value = getattr(thing, name)
        if not matches(declared, value):
            shown = reprlib.repr(value)
            raise InputError(f"'{name} = {shown}' is not what a {kind.__name__} holds: the file is damaged.")
    return thing


def restore_fields(kind: type[T], value: Any) -> T:
    """Make a dataclass or named tuple from JSON.

    Args:
        value: The values by the names of its fields; fields with defaults may be missing.

    Returns:
        The object; lists are tuples where the class declares tuples.

    Raises:
        InputError: A value has another type than its field, a field is missing, or no field has its name.
    """
    if not isinstance(value, dict):
        raise InputError(f"There should be the fields of a {kind.__name__}, and there is {value!r}: restore the file.")
    declared = declared_types(kind)
    fields = {}
    for name, item in value.items():
        fields[name] = item
        if isinstance(item, list) and get_origin(declared.get(name)) is tuple:
            fields[name] = tuple(item)
        if name not in declared or not matches(declared[name], fields[name]):
            raise InputError(f"'{name} = {item!r}' is not a field of a {kind.__name__}: the file is damaged.")
    with refuse_damage(f"A field of a {kind.__name__} is missing: the file is damaged."):
        return kind(**fields)


def declared_types(kind: type) -> Mapping[str, Any]:
    """Find the types of a class's fields.

    Returns:
        Types by name; none where a type is only known to a type checker, so that nothing can be judged.
    """
    return _declared_types(kind)


@cache
def _declared_types(kind: Any) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except NameError:
        return {}


def matches(declared: Any, value: Any) -> bool:
    """Tell whether a value is of the type that is declared, and in its range where it has one.

    Args:
        declared: A type as `declared_types` gives it; None where it is not known.

    Returns:
        False where it is not; True also where the type cannot be judged.
    """
    inner = get_args(declared)
    if get_origin(declared) is Annotated:
        ranges = [one for one in inner[1:] if isinstance(one, Between)]
        return matches(inner[0], value) and all(one.holds(value) for one in ranges)
    if get_origin(declared) in (Union, UnionType):
        return any(matches(one, value) for one in inner)
    if declared in (int, bool, str, type(None)):
        return type(value) is declared
    if declared is float:
        return isinstance(value, (float, int)) and not isinstance(value, bool)
    if get_origin(declared) in (dict, list, tuple, Mapping, Sequence):
        return _matches_container(get_origin(declared), inner, value)
    return _matches_thing(declared, value)


def _matches_container(kind: Any, inner: tuple[Any, ...], value: Any) -> bool:
    """Whether a value is a dict, list or tuple of what is declared to be inside."""
    if not isinstance(value, kind) or isinstance(value, str):
        return False
    if isinstance(value, Mapping):
        return all(matches(inner[0], name) and matches(inner[1], item) for name, item in value.items())
    if kind is tuple and inner[-1] is not ...:
        return len(value) == len(inner) and all(map(matches, inner, value))
    return all(matches(inner[0], item) for item in value)


def _matches_thing(declared: Any, value: Any) -> bool:
    """Whether a value can be a thing with behaviour, which no plain value has."""
    if isinstance(declared, type) and (dataclasses.is_dataclass(declared) or hasattr(declared, "_fields")):
        return isinstance(value, declared)
    if getattr(declared, "_is_protocol", False):
        return value is not None and not isinstance(value, (bool, int, float, str, tuple, list, dict))
    return True
