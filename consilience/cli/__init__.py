"""The command line: demo, run, pool, compare, tune, reproduce, report, predict, study, site, and lists of what is."""

from __future__ import annotations

import sys

from rich.text import Text

from consilience.cli import deploy, lists, predict, runs, site, study, tables  # noqa: F401 — they add their commands
from consilience.cli.options import app
from consilience.errors import InputError
from consilience.screen import err


def main() -> None:
    """Users' mistakes end with one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        err.print(Text.assemble(("Error: ", "bold red"), str(error)), soft_wrap=True)  # brackets are no markup here
        sys.exit(2)
