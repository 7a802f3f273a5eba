"""The command line: demo, run, pool, compare, tune, reproduce, report, predict, study, site, and lists of what is."""

from __future__ import annotations

import sys

from rich.text import Text

from consilience.cli import deploy, lists, predict, runs, site, study, tables  # noqa: F401 — they add their commands
from consilience.cli.options import app
from consilience.cli.screen import err, plain
from consilience.errors import InputError
from consilience.methods import register_plugins


def main() -> None:
    """Users' mistakes end with one sentence and exit code 2."""
    try:
        register_plugins()
        app()
    except InputError as error:
        said = Text.assemble(("Error: ", "bold red"), plain(str(error)))  # brackets are no markup here
        err.print(said, soft_wrap=True)
        sys.exit(2)
