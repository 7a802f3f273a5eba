"""The command line: demo, run, pool, compare, tune, reproduce, effects, report, predict, study, site, catalogues."""

from __future__ import annotations

import errno
import sys
import warnings
from functools import cache
from typing import TextIO

import click
import typer
from rich.text import Text

from consilience.cli import (  # noqa: F401 — they add their commands
    calibrate,
    deploy,
    describe,
    device,
    effects,
    evaluate,
    health,
    lists,
    look,
    masking,
    predict,
    recommend,
    runs,
    site,
    study,
    study_new,
    survival,
    tables,
)
from consilience.console.app import app
from consilience.console.screen import err, plain
from consilience.errors import InputError
from consilience.plugins import any_plugins


def main() -> None:
    """Run a command; a user's mistake, or a file that cannot be used, ends with one sentence and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _register_plugins()
            _build_commands()()
    except InputError as error:
        _say("Error", "bold red", str(error))
        sys.exit(2)
    except OSError as error:
        if error.errno in (None, errno.EPIPE):  # nobody reads on
            raise
        place = ""
        if error.filename is not None:
            place = f"{error.filename}: "
        _say("Error", "bold red", f"{place}{error.strerror}. Check that the path is right and that you may use it.")
        sys.exit(2)


@cache
def _build_commands() -> click.Command:
    """Make the commands of their functions, once a process: it takes as long as many a command."""
    return typer.main.get_command(app)


def _register_plugins() -> None:
    """Make methods that do not come with the package known; torch is not loaded for nothing."""
    if any_plugins():
        from consilience.methods import register_plugins

        register_plugins()


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Say a warning as a sentence: where in the code it was raised helps nobody here."""
    _say("Warning", "yellow", str(message))


def _say(kind: str, style: str, sentence: str) -> None:
    """Print a sentence to standard error."""
    err.print(Text.assemble((f"{kind}: ", style), plain(sentence)), soft_wrap=True)  # brackets are not markup here
