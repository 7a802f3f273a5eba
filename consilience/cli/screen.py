"""What a person sees while something runs: a bar, the table so far, and how to continue after Ctrl-C."""

from __future__ import annotations

import os
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from consilience.progress import listen

if TYPE_CHECKING:
    from consilience.runs.problem import Problem

INTERRUPTED = 130  # the exit code after Ctrl-C, as shells have it
PIPED = 300  # columns where nobody looks: wide, so that a row stays on its line


def _width() -> int | None:
    """The terminal's own width, which rich finds out; a wide one for a pipe."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return None
    return PIPED


class Screen(Console):
    """A console that ends its lines with what is seen, where a program or a file reads them."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print as rich does; without the spaces that fill a line up to the width, where nobody looks."""
        if self.is_terminal:
            super().print(*objects, **settings)
            return
        with self.capture() as captured:
            super().print(*objects, **settings)
        self.file.write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))
        self.file.flush()


out = Screen(width=_width())
err = Console(stderr=True)


def plain(text: str) -> str:
    """Strip a line that comes from a file of what would move a terminal's cursor, colour it or turn letters round."""
    line = text.replace("\n", " ").replace("\t", " ")
    return "".join(c for c in line if unicodedata.category(c)[0] != "C")


def new_bar() -> Progress:
    """Make a bar that says what is happening, how far it is and how long is left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=err, transient=True)
    bar.add_task("starting", total=1.0)
    return bar


def listener(bar: Progress) -> Callable[[float, str], None]:
    """Make a listener that moves the bar."""
    task = bar.task_ids[0]
    return lambda fraction, what: bar.update(task, completed=fraction, description=what or "working")


def say_features(problem: Problem, model: str | None, features: str | None, visible: bool) -> None:
    """Say which feature map was chosen, where nobody named one."""
    if not visible or problem.features is None or (model, features) != (None, None):
        return
    chosen = f"Features: {problem.features}, which is usual for such rows; choose others with --features."
    out.print(chosen, soft_wrap=True, markup=False)


def say_files(problem: Problem, visible: bool) -> None:
    """Say how CSV files are written, in one line."""
    from consilience.data.inspection import summarise_files

    words = problem.describe_files()
    if visible and words:
        out.print(plain(f"Read {summarise_files(words)}"), soft_wrap=True, markup=False, highlight=False)


@contextmanager
def progress(visible: bool) -> Iterator[None]:
    """Show a bar; nothing when nobody is looking."""
    if not (visible and err.is_terminal):
        yield
        return
    with new_bar() as bar, listen(listener(bar)):
        yield


@contextmanager
def live(visible: bool) -> Iterator[Callable[[RenderableType], None]]:
    """Show a bar above the table so far, which may be taller than the screen; nothing when nobody is looking."""
    if not (visible and err.is_terminal):
        yield lambda table: None
        return
    bar = new_bar()
    with Live(bar, console=err, transient=True, refresh_per_second=4) as screen, listen(listener(bar)):
        yield lambda table: screen.update(Group(bar, table))


def print_report(report: Any, table: RenderableType, closing: str, as_json: bool) -> None:
    """Print a report: as JSON and nothing else for a program, as a table and where to look further for a person."""
    if as_json:
        from consilience.runs.store import as_json as json_text

        print(json_text(report))
        return
    out.print(table)
    out.print(closing)


def stop(sentence: str) -> typer.Exit:
    """Say that Ctrl-C was heard and what it means; the caller raises what is returned."""
    err.print(f"Stopped. {sentence}", soft_wrap=True, markup=False, highlight=False)
    return typer.Exit(INTERRUPTED)


@contextmanager
def stoppable(folder: Path) -> Iterator[None]:
    """On Ctrl-C keep what is finished and say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        place = shlex.quote(str(folder))
        raise stop(f"Finished work is kept: run the same command again with --out {place} to continue.") from None


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """On Ctrl-C say how to continue a run, whose finished rounds are kept."""
    try:
        yield
    except KeyboardInterrupt:
        command = f"`consilience run --resume {shlex.quote(str(folder))}`"
        raise stop(f"Finished rounds are kept: continue with {command}.") from None
