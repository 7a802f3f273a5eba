"""What the options of a command say together: how tables are read, and what is promised about privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import typer
from click.core import ParameterSource

from consilience.errors import InputError


class Read(NamedTuple):
    """How the command line wants tables to be read.

    Attributes:
        reading: The same as text for a recipe; empty where nothing is asked for.
        target: The column to predict.
    """

    reading: str
    target: str | None


READING = ("columns", "drop", "text", "categories", "missing", "unknown", "delimiter", "decimal", "group")


def read_options(given: Mapping[str, Any]) -> Read:
    """Gather the options that say how tables are read.

    Args:
        given: A command's options by name.

    Returns:
        What they say together.

    Raises:
        InputError: Data that are no files have such options, or one of them cannot be used.
    """
    from consilience.data.reading import Reading
    from consilience.data.tables import merge_reading

    asked = {name: given[name] for name in READING if given.get(name) not in (None, [], ())}
    if not asked:
        return Read("", given.get("target"))
    categories = []
    for text in asked.get("categories") or ():
        column, equals, levels = text.partition("=")
        if not equals:
            raise InputError(f"--categories {text}: write a column and its categories, as ward=a,b,c.")
        categories.append((column, tuple(level.strip() for level in levels.split(","))))
    tab = {"\\t": "\t", "tab": "\t"}
    delimiter = asked.get("delimiter")
    reading = Reading(
        delimiter=tab.get(delimiter or "", delimiter),
        decimal=asked.get("decimal"),
        missing=asked.get("missing", Reading.missing),
        unknown=(*Reading.unknown, *(asked.get("unknown") or ())),
        text=tuple(asked.get("text") or ()),
        drop=tuple(asked.get("drop") or ()),
        categories=tuple(categories),
        group=asked.get("group"),
    )
    merged, target = merge_reading(reading, asked.get("columns"))
    return Read(merged.to_text(), given.get("target") or target)


def privacy_settings(
    epsilon: float | None, delta: float | None, unit: str | None, noise: str | None, honest: int | None
) -> tuple[str, ...]:
    """Write what a command says about privacy as settings of a method.

    Args:
        epsilon: ε; None: none is asked for.
        delta: δ.
        unit: Who is protected.
        noise: Where noise is added.
        honest: How many sites are relied on.

    Returns:
        Texts as `--set` takes them; none without ε.

    Raises:
        InputError: The unit means nothing here.
    """
    if epsilon is None:
        return ()
    if unit not in (None, "row"):
        raise InputError(
            f"--unit {unit}: these rows do not say whose they are, so that each is protected by itself; where every "
            "patient has one row, --unit row is the same."
        )
    options = {"epsilon": epsilon, "delta": delta, "noise": noise, "honest": honest}
    given = (f"privacy.{name}={value}" for name, value in options.items() if value is not None)
    return ("privacy=Privacy", *given)


def given_options(ctx: typer.Context) -> dict[str, Any]:
    """List the options that were given, and not left to their defaults."""
    defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {name: value for name, value in ctx.params.items() if ctx.get_parameter_source(name) not in defaults}


def typed_options(ctx: typer.Context) -> dict[str, Any]:
    """List the options that were typed, and not left to their defaults or to the environment."""
    environment = ParameterSource.ENVIRONMENT
    return {name: value for name, value in given_options(ctx).items() if ctx.get_parameter_source(name) != environment}
