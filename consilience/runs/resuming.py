"""What a run was made with, held against what is asked of it when it is resumed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from consilience.data.reading import reading_from
from consilience.errors import InputError
from consilience.methods import method
from consilience.runs.problem import Problem
from consilience.serialisation.settings import configure, describe

FREE = {"rounds", "min_replies", "data_dir", "resume", "as_json"}  # which may be asked for anew
READING = ("drop", "text", "missing", "delimiter", "decimal", "group")  # as options and recipes call them
FLAGS = {"settings": "--set", "out_": "--out"}  # whose names are not those of their options


def check_resumed(folder: str, saved: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse options that differ from what a run was made with; more rounds may always be asked for.

    Args:
        folder: The run's folder, as it is asked for.
        saved: What its run.json holds.
        asked: The options that were given with --resume, by name.

    Raises:
        InputError: Some of them differ; the sentence names each.
    """
    made = _made_with(folder, saved)
    differing = []
    for option, value in asked.items():
        if option in FREE:
            continue
        before = made.get(option)
        now = value
        if option == "settings":
            before, now = _settings(saved, value)
        if option == "engine" and value == "auto":
            continue
        if _words(before) != _words(now):
            differing.append(f"{_flag(option)} {_words(before)}, not {_words(now)}")
    if differing:
        raise InputError(
            f"The run in {folder} was made with {'; '.join(differing)}: leave that out to continue it, or start "
            "another run in a folder of its own."
        )


def _made_with(folder: str, saved: Mapping[str, Any]) -> dict[str, Any]:
    """What every option was, given or chosen."""
    recipe = dict(saved.get("recipe") or {})
    cohort = {"participation": None, "dropout": 0.0, "deadline": None, **(saved.get("participation") or {})}
    made = {
        **{field.name: field.default for field in dataclasses.fields(Problem)},  # what a recipe leaves out is as usual
        **recipe,
        "level": saved.get("level"),
        "sites": recipe.get("sites") or saved.get("sites"),
        "split": recipe.get("split") or saved.get("split"),
        "inputs": _as_number(recipe.get("inputs")),
        "start": (saved.get("started_from") or {}).get("folder"),
        "bounds": saved.get("with_bounds"),
        "out_": folder,
        **cohort,
    }
    reading = reading_from(str(recipe.get("reading") or ""))
    for name in READING:
        made[name] = getattr(reading, name)
    made["task"] = recipe.get("task") or reading.task
    made |= _privacy(saved)
    return made | {name: saved.get(name) for name in ("engine", "threads", "device", "keep_replies")}


def _privacy(saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked for as differential privacy, as options call it; each row is protected by itself."""
    made: dict[str, Any] = dict.fromkeys(("epsilon", "delta", "unit", "noise", "honest"))
    for path, value in _flatten(saved.get("settings")):
        group, _, name = path.rpartition(".")
        if group.split(".")[-1] == "privacy" and name in made:
            made |= {name: value, "unit": "row"}
    return made


def _settings(saved: Mapping[str, Any], changes: Any) -> tuple[str, str]:
    """The settings that are asked for, before and now; only those that differ."""
    name = str((saved.get("recipe") or {}).get("method"))
    before = dict(_flatten(saved.get("settings")))
    now = dict(_flatten(describe(configure(method(name), tuple(changes)))))
    usual = dict(_flatten(describe(method(name))))
    differing = [key for key in now if now[key] != before.get(key)]
    keys = sorted(key for key in differing if now[key] != usual.get(key) or _names(changes, key))
    return ", ".join(f"{k}={before.get(k)}" for k in keys), ", ".join(f"{k}={now[k]}" for k in keys)


def _names(changes: Any, key: str) -> bool:
    """Whether a setting is named, perhaps one of the method that a method goes around."""
    names = [str(change).partition("=")[0].strip() for change in changes]
    return any(key == name or key.endswith(f".{name}") for name in names)


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Settings by their path."""
    if not isinstance(value, dict):
        return [(prefix, value)]
    pairs = []
    for name, part in value.items():
        path = name
        if prefix:
            path = f"{prefix}.{name}"
        pairs += _flatten(part, path)
    return pairs


def _as_number(value: Any) -> Any:
    """A whole number as the command line reads it."""
    if isinstance(value, int):
        return float(value)
    return value


def _flag(option: str) -> str:
    if option == "method":
        return "the method"
    return FLAGS.get(option, "--" + option.replace("_", "-"))


def _words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(str, value))
    if value in (None, ""):
        return "none"
    return str(value)
