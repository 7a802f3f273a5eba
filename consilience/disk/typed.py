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

from consilience.errors import InputError

T = TypeVar("T")
NO_DEFAULT = (dataclasses.MISSING, dataclasses.MISSING)
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
        """Say whether a number lies in the range, but for rounding."""
        return self.low - ROUNDING <= value <= self.high + ROUNDING


@dataclass(frozen=True)
class Under:
    """Where JSON has a field.

    Attributes:
        key: Its key; None where the field's own fields stand among the others.
        always: Whether it is written where it is as by default, too.
    """

    key: str | None
    always: bool = False


AMONG = Under(None)
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


def plain(value: Any) -> Any:
    """Write declared types as what JSON has: what `restore_fields` reads.

    Args:
        value: A dataclass, a named tuple, or texts and numbers, and lists and mappings of these.

    Returns:
        Dicts, lists and plain values. Fields of dataclasses that are what they are by default are left out.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        declared = declared_types(type(value))
        for f in dataclasses.fields(value):
            place, item = _place(f.name, declared[f.name]), getattr(value, f.name)
            if place.key is None:
                found |= plain(item)
            elif place.always or not _is_default(f, item):
                found[place.key] = plain(item)
        return found
    if hasattr(value, "_asdict"):
        return {name: plain(item) for name, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _place(name: str, declared: Any) -> Under:
    """Where JSON has a field: under its own name, unless its type says otherwise."""
    for one in get_args(declared)[1:] if get_origin(declared) is Annotated else ():
        if isinstance(one, Under):
            return one
    return Under(name)


def _is_default(f: dataclasses.Field[Any], value: Any) -> bool:
    if f.default_factory is not dataclasses.MISSING:
        return bool(value == f.default_factory())
    return f.default is not dataclasses.MISSING and type(value) is type(f.default) and bool(value == f.default)


def restore_fields(kind: type[T], value: Any, others: bool = False) -> T:
    """Make a dataclass or named tuple from JSON, with those that are declared inside it.

    Args:
        value: The values by the names of its fields; fields with defaults may be missing.
        others: Whether keys that no field has, and None for a field with a default, are passed over.

    Returns:
        The object; lists are tuples where the class declares tuples.

    Raises:
        InputError: A value has another type than its field, a field is missing, or no field has its name.
    """
    if not isinstance(value, Mapping):
        raise InputError(f"There should be the fields of a {kind.__name__}, and there is {value!r}: restore the file.")
    declared = declared_types(kind)
    keys = {name: _place(name, one).key for name, one in declared.items()}
    usual = set(getattr(kind, "_field_defaults", ()))
    if dataclasses.is_dataclass(kind):
        usual = {f.name for f in dataclasses.fields(kind) if (f.default, f.default_factory) != NO_DEFAULT}
    if not others:
        for name in value.keys() - _all_keys(kind):
            raise InputError(f"'{name} = {value[name]!r}' is not a field of a {kind.__name__}: the file is damaged.")
    fields = {}
    for name, key in keys.items():
        given = value if key is None else value.get(key)
        if given is None and name in usual and (others or key not in value):
            continue
        if key is not None and key not in value and not (others and matches(declared[name], None)):
            raise InputError(f"A field of a {kind.__name__} is missing: the file is damaged.")
        fields[name] = _restore(declared[name], given, others or key is None)
        if not matches(declared[name], fields[name]):
            shown = reprlib.repr(given)
            raise InputError(f"'{name} = {shown}' is not what a {kind.__name__} holds: the file is damaged.")
    return kind(**fields)


def _all_keys(kind: type) -> set[str]:
    """The keys that JSON has for a class's fields, and for those that stand among them."""
    keys = set()
    for name, declared in declared_types(kind).items():
        key = _place(name, declared).key
        keys |= {key} if key is not None else _all_keys(get_args(declared)[0])
    return keys


def _restore(declared: Any, value: Any, others: bool) -> Any:
    """A value of JSON with what is declared inside it made; as it is where it cannot be."""
    if get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
    inner = get_args(declared)
    if get_origin(declared) in (Union, UnionType):
        kinds = [one for one in inner if one is not type(None)]
        if len(kinds) == 1 and value is not None:
            value = _restore(kinds[0], value, others)
    elif isinstance(value, Mapping):
        if isinstance(declared, type) and _has_fields(declared):
            value = restore_fields(declared, value, others)
        elif get_origin(declared) in (dict, Mapping):
            value = {name: _restore(inner[1], item, others) for name, item in value.items()}
    elif isinstance(value, list) and get_origin(declared) in (list, Sequence):
        value = [_restore(inner[0], item, others) for item in value]
    elif isinstance(value, list) and get_origin(declared) is tuple:
        kinds = [inner[0]] * len(value) if inner[-1] is ... else list(inner)
        if len(kinds) == len(value):
            value = tuple(_restore(one, item, others) for one, item in zip(kinds, value, strict=True))
    return value


def _has_fields(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")


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
    """Say whether a value is of the type that is declared, and in its range where it has one.

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
    if isinstance(declared, type) and _has_fields(declared):
        return isinstance(value, declared)
    if getattr(declared, "_is_protocol", False):
        return value is not None and not isinstance(value, (bool, int, float, str, tuple, list, dict))
    return True
