"""Which option belongs to what: one table for run, compare, tune, recommend and study new.

An option that would change nothing is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import typer

from consilience.cli.given import READING, typed_options
from consilience.errors import InputError


class Belongs(NamedTuple):
    """What options are for.

    Attributes:
        options: Their names as parameters.
        applies: Whether they change something, told from all of a command's options.
        sentence: What is said where they do not: `{flag}` and `{data}` are filled in.
    """

    options: tuple[str, ...]
    applies: Callable[[Mapping[str, Any]], bool]
    sentence: str


def _reads_files(options: Mapping[str, Any]) -> bool:
    from consilience.data.datasets import DATASETS
    from consilience.data.tables import is_tables

    data = options.get("data")
    return data is None or (data not in DATASETS and is_tables(str(data)))


def _cuts_test_rows(options: Mapping[str, Any]) -> bool:
    from consilience.data.datasets import load

    if options["test"] == 0:  # no row, not even of those that a data set comes with
        return True
    return _reads_files(options) or load(options["data"], options["data_dir"]).x_test is None


def _counts_nothing(options: Mapping[str, Any]) -> bool:
    return options.get("task") != "counts"


def _predicts_times(options: Mapping[str, Any]) -> bool:
    from consilience.data.datasets import FACTS

    facts = FACTS.get(str(options.get("data")))
    return options.get("time") is not None or (facts is not None and facts.outcome == "survival")


def _needs_folder(options: Mapping[str, Any]) -> bool:
    return not _reads_files(options) or isinstance(options.get("inputs"), str)


def _is_given(options: Mapping[str, Any], name: str) -> bool:
    """Whether an option says something; an ε of 0 does, and is refused for what it is."""
    value = options.get(name)
    return value is not None and value is not False


def _has(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    """Whether other options are given with it."""
    return lambda options: all(_is_given(options, name) for name in names)


def _has_not(*names: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda options: not any(_is_given(options, name) for name in names)


BOTH = "{flag}: survival needs both columns, --time, and --event, which says whether it was seen: give both."
TABLE = (
    Belongs(
        ("target", "task", "time", "event", "exposure", *READING),
        _reads_files,
        "{flag} is for CSV files, and {data} knows what it predicts and is read already: leave it out.",
    ),
    Belongs(("test",), _cuts_test_rows, "{flag}: {data} comes with test rows of its own: leave it out."),
    Belongs(("data_dir",), _needs_folder, "{flag} is where data sets are kept, and {data} are files: leave it out."),
    Belongs(("event",), _has("time"), BOTH),
    Belongs(("time",), _has("event"), BOTH),
    Belongs(("target", "task", "exposure"), _has_not("time"), "{flag}: --time and --event are what is predicted then."),
    Belongs(
        ("exposure",), lambda options: options.get("task") == "counts", "{flag} is for counts: give --task counts too."
    ),
    Belongs(("level", "conformal"), _counts_nothing, "{flag}: there are no prediction sets of counts: leave it out."),
    Belongs(("horizon",), _predicts_times, "{flag} is for times to an event: give --time and --event too."),
    Belongs(
        ("delta", "unit", "noise", "honest", "patient"), _has("epsilon"), "{flag} belongs to --epsilon: give it too."
    ),
    Belongs(
        ("honest",),
        lambda options: options.get("noise") == "once",
        "{flag} is for --noise once: give it, or leave both.",
    ),
    Belongs(
        ("guarantee",),
        lambda options: bool(options.get("level")),
        "{flag} is the kind of prediction sets: give --level, as 0.9, too.",
    ),
    Belongs(("like",), _has_not("dictionary"), "{flag} and --columns both say what the columns are: give one of them."),
)


def check_applies(ctx: typer.Context) -> None:
    """Refuse options that would change nothing.

    Args:
        ctx: The command's context.

    Raises:
        InputError: One of the options that were given does not apply; the message says why.
    """
    typed = typed_options(ctx)
    flags = {parameter.name: max(parameter.opts, key=len) for parameter in ctx.command.params}
    for row in TABLE:
        for name in row.options:
            if name in typed and not row.applies(ctx.params):
                raise InputError(row.sentence.format(flag=flags[name], data=ctx.params.get("data")))
