"""What a person sees while something runs: a bar, the table so far, and how to go on after Ctrl-C."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from consilience.progress import listen
from consilience.runs.store import as_json as json_text

PIPED = 300  # columns where nobody looks: wide, so that a row stays on its line
out = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPED)
err = Console(stderr=True)


def plain(text: str) -> str:
    """A line that comes from a file, without what would move a terminal's cursor, colour it or turn letters round."""
    line = (" " if c in "\n\t" else c for c in text)
    return "".join(c for c in line if unicodedata.category(c)[0] != "C")


def bar() -> Progress:
    """What is happening, how far it is and how long is left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    made = Progress(*columns, console=err, transient=True)
    made.add_task("starting", total=1.0)
    return made


def task_label(made: Progress) -> Callable[[float, str], None]:
    only = made.task_ids[0]
    return lambda fraction, what: made.update(only, completed=fraction, description=what or "working")


@contextmanager
def progress(wanted: bool) -> Iterator[None]:
    """A bar; nothing when nobody is looking."""
    if not (wanted and err.is_terminal):
        yield
        return
    with bar() as made, listen(task_label(made)):
        yield


@contextmanager
def live(wanted: bool) -> Iterator[Callable[[RenderableType], None]]:
    """A bar above the table so far, which may be taller than the screen; nothing when nobody is looking."""
    if not (wanted and err.is_terminal):
        yield lambda table: None
        return
    made = bar()
    with Live(made, console=err, transient=True, refresh_per_second=4) as screen, listen(task_label(made)):
        yield lambda table: screen.update(Group(made, table))


def print_sentence(found: Any, table: RenderableType, closing: str, as_json: bool) -> None:
    """What was found: as JSON and nothing else for a program, as a table and where to look further for a person."""
    if as_json:
        print(json_text(found))
    else:
        out.print(table)
        out.print(closing)


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C leaves what is finished and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"Stopped. What is finished is kept: go on with the same command and --out {folder}.", soft_wrap=True)
        raise typer.Exit(130) from None
