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

from consilience.errors import InputError, unknown_name
from consilience.formats.settings import configure
from consilience.method import Method, usual_rounds
from consilience.methods import METHODS
from consilience.report.wording import BOUNDS, count
from consilience.runs.provenance import citation

Settings: TypeAlias = Mapping[str, Any]  # field.path → value, of one method
PRESETS = resources.files("consilience.comparison") / "presets"


class Row(NamedTuple):
    word: str  # as typed, without blanks
    name: str  # for people
    method: Method
    rounds: int


def parse_word(word: str) -> tuple[str, dict[str, str]]:
    """A row's word as the method's name and its own settings."""
    match = re.fullmatch(r"([^\[\]]+)(?:\[(.*)\])?", re.sub(r"\s", "", word))
    if match is None:
        raise InputError(f"`{word}` is not a row: write a method, with settings in brackets, as in fedavg[rounds=10].")
    name, inside = match.groups()
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return name, assignments(re.split(r",(?![^(]*\))", inside)) if inside else {}


def assignments(texts: Sequence[str]) -> dict[str, str]:
    """`field.path=value` texts by path."""
    for text in texts:
        if "=" not in text:
            raise InputError(f"'{text}' is not a setting; write field=value, for example inference.epochs=20.")
    pairs = (text.partition("=") for text in texts)
    return {path.strip(): value.strip() for path, _, value in pairs}


def row(word: str, tuned: Settings | None = None, common: Settings | None = None, rounds: int | None = None) -> Row:
    """A row from its word, the settings of a file, those set for all rows, and the rounds of methods that have many."""
    kind, own = parse_word(word)
    layers = [{path: as_text(value) for path, value in (layer or {}).items()} for layer in (tuned, common, own)]
    chosen = [_whole(layer.pop("rounds"), word) for layer in layers if "rounds" in layer]
    method = METHODS[kind]()
    if rounds is not None and not method.one_shot and "rounds" not in own:
        chosen.append(rounds)
    for path, value in _merged(layers).items():
        if path in own or (path not in layers[1] and not _below_nothing(method, path)) or has(method, path):
            method = configure(method, [f"{path}={value}"])
    said = [count(int(v), "round") if path == "rounds" else f"{path.split('.')[-1]}={v}" for path, v in own.items()]
    name = ", ".join([BOUNDS.get(kind) or citation(METHODS[kind])[0].split(",")[0], *said])
    return Row(re.sub(r"\s", "", word), name, method, chosen[-1] if chosen else usual_rounds(method))


def fields(settings: object, prefix: str = "") -> Iterator[str]:
    """Every setting's path, nested ones included."""
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        yield prefix + field.name
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from fields(value, f"{prefix}{field.name}.")


def has(method: Method, path: str) -> bool:
    """Whether the method, or the one it goes around, has this setting."""
    return bool({path, f"inner.{path}"} & set(fields(method)))


def as_text(value: Any) -> str:
    """A JSON value as it is typed on the command line."""
    return repr(tuple(value)) if isinstance(value, list) else str(value)


def read_settings(source: str, data: str, split: str | None) -> dict[str, dict[str, Any]]:
    """{method: {field.path: value}} from a file that `consilience tune` wrote, or from a paper's preset by its name."""
    preset = PRESETS / f"{source}.json"
    path = Path(source)
    if not path.exists() and not preset.is_file():
        known = sorted(p.name.removesuffix(".json") for p in PRESETS.iterdir() if p.name.endswith(".json"))
        raise InputError(f"There is no file '{source}', and no preset of that name; presets: {', '.join(known)}.")
    try:
        value = json.loads((path if path.exists() else preset).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as JSON: {error}.") from error
    found = _for_data(source, value["data"], data, split) if isinstance(value, dict) and "about" in value else value
    if not isinstance(found, dict) or not all(isinstance(part, dict) for part in found.values()):
        raise InputError(f'{source} should hold {{"method": {{"field.path": value}}}}, as `tune` writes it.')
    for name in found:
        if name not in METHODS:
            raise unknown_name("method", name, METHODS)
    return found


def _for_data(source: str, tables: Mapping[str, Any], data: str, split: str | None) -> Any:
    """The part of a preset for a data set and a split: homogeneous, heterogeneous or any."""
    name = data.partition("@")[0]
    if name not in tables:
        raise InputError(f"The preset {source} holds nothing for {name}; it knows {', '.join(tables)}.")
    kind, _, number = (split or "").partition("@")[0].partition(":")
    even = kind == "iid" or (kind == "heterogeneous" and float(number or 0) == 0)
    table = tables[name]
    return table.get("any") or table["homogeneous" if even else "heterogeneous"]


def _merged(layers: Sequence[Mapping[str, str]]) -> dict[str, str]:
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
