"""The command line: demo, run, pool, compare, tune, reproduce, effects, report, predict, study, site, catalogues."""

from __future__ import annotations

import codecs
import errno
import sys
import unicodedata
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import click
import typer

from consilience.cli.app import COMMANDS, app, load_command
from consilience.errors import InputError, RunWarning

# What is printed in place of signs that a terminal or a pipe cannot write.
HANDLER = "consilience.spelt"
SPELT = {"×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "≥": ">=", "≤": "<=", "≈": "~", "±": "+-"}
SPELT |= {"→": "->", "←": "<-", "√": "sqrt ", "∞": "inf", "‘": "'", "’": "'", "“": '"', "”": '"', "█": "#", "✓": "ok"}


def main() -> None:
    """Run a command; a user's mistake, or a file that cannot be used, ends with one sentence and exit code 2."""
    spell_out()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _once()
            warnings.simplefilter("ignore", RunWarning)  # which stand under the table
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


def every_command() -> click.Group:
    """Load all commands, for who wants to go through them."""
    commands = _build_commands()
    for name in COMMANDS:
        commands.commands[name] = load_command(name)
    return commands


@cache
def _build_commands() -> click.Group:
    """Make the application of its commands, once a process."""
    commands = typer.main.get_command(app)
    assert isinstance(commands, click.Group)
    return commands


def _once() -> Callable[..., None]:
    """Make what says a warning as a sentence, each once a command: a table may be read twice."""
    said: set[str] = set()

    def show(message: Warning | str, *where: Any, **more: Any) -> None:
        if str(message) not in said:  # where in the code it was raised helps nobody here
            said.add(str(message))
            _say("Warning", "yellow", str(message))

    return show


def _say(kind: str, style: str, sentence: str) -> None:
    """Print a sentence to standard error."""
    from rich.text import Text

    from consilience.cli.screen import err, plain

    err.print(Text.assemble((f"{kind}: ", style), plain(sentence)), soft_wrap=True)  # brackets are not markup here


def spell_out() -> None:
    """Let standard output and error spell what they cannot write, in place of stopping there."""
    codecs.register_error(HANDLER, _spelt)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # not every stand-in for a stream has it
        if reconfigure is not None:
            reconfigure(errors=HANDLER)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Spell the signs that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(spell(sign) for sign in error.object[error.start : error.end]), error.end


def spell(sign: str) -> str:
    """Spell a sign in ASCII: by a table, a Greek letter by its name, an accented letter without its accent.

    Args:
        sign: One character.

    Returns:
        Its spelling; a question mark where there is none.
    """
    if sign in SPELT:
        return SPELT[sign]
    words = unicodedata.name(sign, "").split()
    if words[:1] == ["GREEK"] and words[2:3] == ["LETTER"]:
        name = words[3].lower()
        return name.capitalize() if words[1] == "CAPITAL" else name
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"
