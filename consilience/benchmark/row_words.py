"""A row of a table in words: 'fedavg[rounds=10,inference.epochs=5]' is a method, its settings and its rounds.

Settings come in layers, each overruling those before: a settings file or preset, what is set for all rows, the row's
own brackets.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from consilience.data.splits.split import Split
from consilience.errors import InputError, unknown_name
from consilience.method import Method, name, usual_rounds
from consilience.methods import METHODS, known_method
from consilience.report.schema.wording import BOUNDS, count
from consilience.runs.identity import citation
from consilience.serialisation.settings import configure

Settings: TypeAlias = Mapping[str, Any]  # field.path → value, of one method
AnySettings: TypeAlias = str | Path | Settings | Sequence[str | Path | Settings] | None
PRESETS = resources.files("consilience.benchmark") / "presets"


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        word: As typed, without blanks.
        name: For people.
        method: The method with its settings.
        rounds: How many.
    """

    word: str
    name: str
    method: Method
    rounds: int


def parse_word(word: str) -> tuple[str, dict[str, str]]:
    """Read a row's word.

    Args:
        word: A method's name, with settings in brackets or without.

    Returns:
        The method's name and the settings in its brackets, by path.

    Raises:
        InputError: The word is not a row, or names no method.
    """
    match = re.fullmatch(r"([^\[\]]+)(?:\[(.*)\])?", re.sub(r"\s", "", word))
    if match is None:
        raise InputError(f"`{word}` is not a row: write a method, with settings in brackets, as in fedavg[rounds=10].")
    kind, inside = match.groups()
    kind = known_method(kind)
    if not inside:
        return kind, {}
    return kind, assignments(re.split(r",(?![^(]*\))", inside))


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """Read settings.

    Args:
        texts: `field.path=value` each.

    Returns:
        The values by path, still as texts.

    Raises:
        InputError: A text has no `=`.
    """
    for text in texts:
        if "=" not in text:
            raise InputError(f"'{text}' is not a setting; write field=value, for example inference.epochs=20.")
    pairs = (text.partition("=") for text in texts)
    return {path.strip(): value.strip() for path, _, value in pairs}


def row(word: str, tuned: Settings | None = None, common: Settings | None = None, rounds: int | None = None) -> Row:
    """Build a row from words.

    Args:
        word: The method, with its own settings in brackets.
        tuned: Its settings in a file or preset.
        common: Settings for all rows, which count where the method has the field.
        rounds: The rounds of methods that have many.

    Raises:
        InputError: A method or setting is unknown.
    """
    kind, brackets = parse_word(word)
    layers = [{path: as_text(value) for path, value in (layer or {}).items()} for layer in (tuned, common, brackets)]
    chosen = [_whole(layer.pop("rounds"), word) for layer in layers if "rounds" in layer]
    method = METHODS[kind]()
    if rounds is not None and not method.about.one_shot and "rounds" not in brackets:
        chosen.append(rounds)
    for path, value in _merge(layers).items():
        if path in brackets or (path not in layers[1] and not _below_nothing(method, path)) or has(method, path):
            method = configure(method, [f"{path}={value}"])
    if not chosen:
        chosen = [usual_rounds(method)]
    return Row(re.sub(r"\s", "", word), _name(METHODS[kind], brackets), method, chosen[-1])


def method_row(method: Method, rounds: int | None = None) -> Row:
    """Build a row from a method object, which keeps its settings whatever is set for other rows.

    Args:
        rounds: The rounds of methods that have many; what is usual for it if None.

    Returns:
        The row; its word lists the settings that differ from the method's defaults.
    """
    settings = changed_settings(method)
    word = name(method)
    if settings:
        inside = ",".join(f"{path}={text}" for path, text in settings.items())
        word = re.sub(r"\s", "", f"{word}[{inside}]")
    if rounds is None or method.about.one_shot:
        rounds = usual_rounds(method)
    return Row(word, _name(type(method), settings), method, rounds)


def changed_settings(method: Method) -> dict[str, str]:
    """List the settings of a method that differ from its defaults.

    Returns:
        The values as texts by path, whole objects before their fields.
    """
    return dict(_changes(method, _default(type(method)), ""))


def _changes(settings: Any, usual: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(settings):
        path = prefix + field.name
        value = getattr(settings, field.name)
        default = getattr(usual, field.name, None)
        if value == default:
            continue
        if not dataclasses.is_dataclass(value):
            yield path, getattr(value, "__name__", None) or as_text(value)
            continue
        if type(value) is not type(default):
            yield path, _type_name(value)
            default = _default(type(value))
        yield from _changes(value, default, f"{path}.")


def _default(kind: type) -> Any:
    """A class's defaults; None where a field has none."""
    try:
        return kind()
    except TypeError:
        return None


def _type_name(value: Any) -> str:
    """An object's class as it is typed in a setting."""
    if isinstance(value, Method):
        return name(value)
    return type(value).__name__


def _name(kind: type[Method], settings: Mapping[str, str]) -> str:
    """A row's name for people: the method's, and the settings that are its own."""
    title = BOUNDS.get(name(kind)) or citation(kind)[0].split(",")[0]
    words = [title]
    for path, value in settings.items():
        if path == "rounds":
            words.append(count(int(value), "round"))
        else:
            words.append(f"{path.split('.')[-1]}={value}")
    return ", ".join(words)


def fields(settings: object, prefix: str = "") -> Iterator[str]:
    """List every setting's path, nested ones included.

    Args:
        settings: A dataclass, such as a method.
        prefix: What the paths begin with.

    Yields:
        A path, an object before its fields.
    """
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        yield prefix + field.name
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{field.name}.")


def has(method: Method, path: str) -> bool:
    """Say whether the method, or the one it goes around, has this setting.

    Args:
        method: The method with its settings.

    Returns:
        Whether it can be set.
    """
    return bool({path, f"inner.{path}"} & set(fields(method)))


def as_text(value: Any) -> str:
    """Write a JSON value as it is typed on the command line.

    Args:
        value: A number, text or list.

    Returns:
        The text; a list as a tuple.
    """
    if isinstance(value, list):
        return repr(tuple(value))
    return str(value)


def read_layers(settings: AnySettings) -> tuple[str | Path | None, tuple[str, ...]]:
    """Read settings for many rows in any form.

    Args:
        settings: A settings file or a preset's name, path → value for every row, or both in a list.

    Returns:
        The file or preset, or None; and what is set for every row, as `field=value`.

    Raises:
        InputError: Two files or presets are named.
    """
    parts: Sequence[str | Path | Settings] = ()
    if isinstance(settings, str | Path | Mapping):
        parts = (settings,)
    elif settings is not None:
        parts = settings
    sources = [part for part in parts if not isinstance(part, Mapping)]
    if len(sources) > 1:
        raise InputError(f"settings names {' and '.join(map(str, sources))}: name one file or preset.")
    common = [item for part in parts if isinstance(part, Mapping) for item in part.items()]
    return next(iter(sources), None), tuple(f"{path}={as_text(value)}" for path, value in common)


def read_settings(source: str, data: str, split: str | Split | None) -> dict[str, dict[str, Any]]:
    """Read the settings of several methods.

    Args:
        source: A file that `consilience tune` wrote, or a paper's preset by its name.
        data: The data's name, which a preset depends on.
        split: The split in words, which a preset depends on.

    Returns:
        Method → path → value.

    Raises:
        InputError: There is no such file or preset, or it holds something else.
    """
    value = _read_source(source)
    if isinstance(value, dict) and "about" in value:
        value = _for_data(source, value["data"], data, split)
    if not isinstance(value, dict) or not all(isinstance(part, dict) for part in value.values()):
        raise InputError(f'{source} should hold {{"method": {{"field.path": value}}}}, as `tune` writes it.')
    for kind in value:
        if kind not in METHODS:
            raise unknown_name("method", kind, METHODS)
    return value


def _read_source(source: str) -> Any:
    """The JSON of a file, or of the preset of that name."""
    preset = PRESETS / f"{source}.json"
    file = Path(source)
    if not file.exists() and not preset.is_file():
        known = sorted(p.name.removesuffix(".json") for p in PRESETS.iterdir() if p.name.endswith(".json"))
        raise InputError(f"There is no file '{source}', and no preset of that name; presets: {', '.join(known)}.")
    try:
        if file.exists():
            return json.loads(file.read_text(encoding="utf-8"))
        return json.loads(preset.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as JSON: {error}.") from error


def _for_data(source: str, tables: Mapping[str, Any], data: str, split: str | Split | None) -> Any:
    """The part of a preset for a data set and a split: homogeneous, heterogeneous or any."""
    dataset = data.partition("@")[0]
    if dataset not in tables:
        raise InputError(f"The preset {source} holds nothing for {dataset}; it knows {', '.join(tables)}.")
    kind, _, number = str(split or "").partition("@")[0].partition(":")
    table = tables[dataset]
    if table.get("any"):
        return table["any"]
    if kind == "iid" or (kind == "heterogeneous" and float(number or 0) == 0):
        return table["homogeneous"]
    return table["heterogeneous"]


def _merge(layers: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """All layers in one, whole objects before their fields; an object replaced loses the fields set for the old one."""
    merged: dict[str, str] = {}
    for layer in layers:
        for path, value in layer.items():
            if merged.get(path, value) != value:
                merged = {p: v for p, v in merged.items() if not p.startswith(f"{path}.")}
        merged |= layer
    return dict(sorted(merged.items(), key=lambda item: item[0].count(".")))


def _below_nothing(method: Method, path: str) -> bool:
    """Whether a setting belongs to something switched off, such as distil.inference.rate where distil is None."""
    value: Any = method
    for part in path.split(".")[:-1]:
        value = getattr(value, part, value)
        if value is None:
            return True
    return False


def _whole(text: str, word: str) -> int:
    if not text.isdecimal():
        raise InputError(f"In `{word}` rounds should be a whole number, not '{text}'.")
    return int(text)
