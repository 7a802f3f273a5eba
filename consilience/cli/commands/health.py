"""`consilience health`: whether a server or a site of a deployed study is alive."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from consilience.cli.app import app
from consilience.cli.handed import say
from consilience.disk.pulse import last_beat


@app.command()
def health(
    folder: Annotated[Path, typer.Argument(help="Its folder: NAME.run or NAME.site.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what the process last said of itself.")] = False,
) -> None:
    """Say whether `study serve` or `site serve` works in a folder; the exit code is 1 if it does not."""
    beat = last_beat(folder)
    now = time.time()
    trouble = f"Nothing was ever started in {folder}"
    if beat is not None:
        trouble = beat.trouble(now)
    if as_json and beat is not None:
        print(json.dumps({**beat._asdict(), "healthy": not trouble, "trouble": trouble}, ensure_ascii=False))
    elif trouble:
        say(f"{trouble}.", "red")
    elif beat is not None:
        say(f"{beat.party} is well: {beat.state}, last heard of {now - beat.time:.0f} seconds ago.")
    if trouble:
        raise typer.Exit(1)
