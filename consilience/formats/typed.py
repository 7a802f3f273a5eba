"""JSON as values of the types that classes declare: what a file holds is checked where it is read, and nowhere else."""

from __future__ import annotations

import dataclasses
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from consilience.errors import InputError, refuse_damage

T = TypeVar("T")


def restore_fields(kind: type[T], value: Any) -> T:
    """Make a dataclass or named tuple from JSON.

    Args:
        kind: The class.
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


def declared_types(kind: type) -> dict[str, Any]:
    """Find the types of a class's fields.

    Args:
        kind: The class.

    Returns:
        Types by name; none where a type is only known to a type checker, so that nothing can be judged.
    """
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def matches(declared: Any, value: Any) -> bool:
    """Tell whether a value is of the type that is declared.

    Args:
        declared: A type as `declared_types` gives it; None where it is not known.
        value: The value.

    Returns:
        False where it is not; True also where the type cannot be judged.
    """
    inner = get_args(declared)
    if get_origin(declared) in (Union, UnionType):
        return any(matches(one, value) for one in inner)
    if declared in (int, bool, str, type(None)):
        return type(value) is declared
    if declared is float:
        return type(value) in (float, int)
    if get_origin(declared) in (dict, list, tuple):
        return _matches_container(get_origin(declared), inner, value)
    return _matches_thing(declared, value)


def _matches_container(kind: Any, inner: tuple[Any, ...], value: Any) -> bool:
    """Whether a value is a dict, list or tuple of what is declared to be inside."""
    if not isinstance(value, kind):
        return False
    if isinstance(value, dict):
        return all(matches(inner[0], name) and matches(inner[1], item) for name, item in value.items())
    return all(matches(inner[0], item) for item in value)


def _matches_thing(declared: Any, value: Any) -> bool:
    """Whether a value can be a thing with behaviour, which no plain value has."""
    if isinstance(declared, type) and (dataclasses.is_dataclass(declared) or hasattr(declared, "_fields")):
        return isinstance(value, declared)
    if getattr(declared, "_is_protocol", False):
        return value is not None and not isinstance(value, (bool, int, float, str, tuple, list, dict))
    return True
