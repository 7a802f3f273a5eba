"""A TOML file's values with the types that dataclasses give them, and the columns among them."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from consilience.data.dates import NO_DAY, is_day
from consilience.errors import InputError, unknown_name
from consilience.models.hats import LEVELS
from consilience.study.protocol.columns import Column
from consilience.study.protocol.target import Target

WAYS = ("refuse", "mark", "centre", "impute")  # with missing values
TOML_TYPES = {"str": str, "float": float, "int": int, "bool": bool, "tuple[str, ...]": tuple}  # by annotation
PAIRS = "tuple[tuple[str, str], ...]"  # the annotation of a list of pairs of texts
NUMBERS = ("tuple[float, float]", "tuple[float, ...]")  # annotations of lists of numbers
LARGEST = 2**63  # whole numbers from here on are counts or seeds of nothing


def parse(path: Path) -> tuple[str, dict[str, Any]]:
    """Read a TOML file.

    Returns:
        Its text, and its values.

    Raises:
        InputError: There is no such file, or it is not TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise InputError(f"There is no file '{path}': check the name; `consilience study new` makes one.") from None
    except RecursionError:
        raise InputError(f"{path} cannot be read as TOML: its values are nested too deeply.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as TOML: {error}.") from error


def convert(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Convert values of TOML to fields of a dataclass: lists become tuples, whole numbers floats, and nothing else.

    Args:
        values: Values by the names of its fields; fields may be missing.

    Raises:
        ValueError: A value has another type than its field, or no field has its name.
    """
    known = dataclasses.fields(kind)
    fields = {field.name: _convert_field(field, values[field.name]) for field in known if field.name in values}
    unknown = [name for name in values if name not in fields]
    if unknown:
        raise ValueError(f"'{unknown[0]}'")
    return fields


def _convert_field(field: dataclasses.Field[Any], value: Any) -> Any:
    if isinstance(value, list):
        value = tuple(value)
    if field.type == PAIRS:
        sound = isinstance(value, tuple) and all(isinstance(pair, (list, tuple)) for pair in value)
        if not sound or not all(len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in value):
            raise ValueError(f"'{field.name} = {value!r}'")
        value = tuple((spelling, level) for spelling, level in value)
    if field.type == "float" and type(value) is int and abs(value) < LARGEST:
        value = float(value)
    if field.type == "int" and type(value) is int and abs(value) >= LARGEST:
        raise ValueError(f"'{field.name}', a number of {len(hex(value))} digits,")
    if field.type in NUMBERS:
        pair = field.type == "tuple[float, float]"
        sound = isinstance(value, tuple) and all(type(end) in (int, float) for end in value)
        if not sound or (pair and len(value) != 2):
            raise ValueError(f"'{field.name} = {value!r}'")
        value = tuple(float(end) for end in value)
    expected = TOML_TYPES.get(str(field.type))
    if expected is not None and type(value) is not expected:
        raise ValueError(f"'{field.name} = {value!r}'")
    if expected is tuple and not all(isinstance(text, str) for text in value):
        raise ValueError(f"'{field.name} = {value!r}'")
    return value


def read_columns(path: Path) -> tuple[Target, tuple[Column, ...]]:
    """Read the parts [target], [columns] and [same] alone: a data dictionary.

    A spelling that [same] gives another name is no level of its own.

    Raises:
        InputError: The file cannot be read, or a part is missing or wrong.
    """
    _, value = parse(path)
    try:
        tables = [{"name": name, **column} for name, column in value["columns"].items()]
        same = value.get("same", {})
        columns = tuple(_with_same(Column(**convert(Column, table)), same.get(table["name"], {})) for table in tables)
        strange = [name for name in same if name not in value["columns"]]
        if strange:
            raise InputError(f"{path}: [same] names '{strange[0]}', which is none of [columns]: correct the name.")
        return Target(**convert(Target, value["target"])), columns
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: {error} is missing, unknown or of the wrong type: compare with a new one.") from None


def _with_same(column: Column, same: Mapping[str, str]) -> Column:
    """A column whose spellings are read as the levels that they mean."""
    if not same:
        return column
    levels = tuple(level for level in column.levels if level not in same)
    pairs = tuple((str(spelling), str(level)) for spelling, level in same.items())
    return dataclasses.replace(column, levels=levels, same=(*column.same, *pairs))


def check_column(column: Column) -> None:
    """Refuse a column that cannot be read by.

    Raises:
        InputError: A value is unknown, a category has too few levels, or a number has no plausible range.
    """
    name = column.name
    if column.type not in ("number", "category"):
        raise unknown_name(f"type of column '{name}'", column.type, ["number", "category"])
    if column.missing not in WAYS:
        raise unknown_name(f"way with missing values of '{name}'", column.missing, WAYS)
    if column.quantiles and (
        len(column.quantiles) != len(LEVELS) or list(column.quantiles) != sorted(column.quantiles)
    ):
        raise InputError(f"Column '{name}': write {len(LEVELS)} quantiles in order, or leave them out.")
    if column.since and not is_day(column.since):
        raise InputError(NO_DAY.format(name=name))
    if column.since and column.type == "category":
        raise InputError(f"Column '{name}' is a category, and since is for dates, which become numbers: leave one out.")
    if column.type == "category" and column.missing == "impute":
        raise InputError(f"Column '{name}' is a category, and draws are for numbers: write missing = \"mark\".")
    if column.type == "category" and len(set(column.levels)) < 2:
        raise InputError(f"Column '{name}' is a category: list at least two different levels.")
    if column.same and column.type != "category":
        raise InputError(f"Column '{name}' is a number, and [same] is for categories: correct the cells in the table.")
    for spelling, level in column.same:
        if level not in column.levels or spelling in column.levels:
            raise InputError(
                f"Column '{name}': [same] reads '{spelling}' as '{level}', so that '{level}' must be one of its levels "
                f"({', '.join(column.levels)}) and '{spelling}' must not."
            )
    if column.type == "number":
        numbers = (*column.range, column.centre, column.spread, column.fill)
        low, high = column.range
        if not all(map(math.isfinite, numbers)) or low >= high or column.spread <= 0:
            raise InputError(f"Column '{name}': write range = [low, high], finite constants and a spread above 0.")
