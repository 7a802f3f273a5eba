"""The command that checks a device: every method on it, held against the processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from consilience.cli.app import app
from consilience.cli.handed import columns, say
from consilience.cli.screen import out, progress

if TYPE_CHECKING:
    from consilience.cli.device_check import DeviceCheck


@app.command("check-device")
def check_device(
    name: Annotated[str, typer.Argument(metavar="DEVICE", help="cpu, cuda, cuda:1 or mps.")],
    bench: Annotated[bool, typer.Option(help="Also time rounds on both.")] = True,
    out_: Annotated[Path | None, typer.Option("--out", help="Also write what was found here, as JSON.")] = None,
) -> None:
    """Run every method on few rows with every engine, compare with the processor, and time rounds.

    The exit code is 1 if a method does not agree. Report the table of a device that nobody has reported yet.
    """
    from consilience.cli.device_check import check_device as check
    from consilience.disk.writing import write_whole
    from consilience.runs.store import as_json

    with progress(True):
        found = check(name, bench=bench)
    say(f"{name}: " + ", ".join(f"{what} {value}" for what, value in found.facts.items()), "bold")
    out.print(_agreements(found))
    if found.speeds:
        out.print(_speeds(found))
    failed = [agreement.method for agreement in found.agreements if not agreement.holds(found.tolerance)]
    if out_ is not None:
        write_whole(out_, as_json(found.to_json()).encode(), "Choose another place with --out.")
        say(f"Found: {out_}")
    if failed:
        say(f"{len(failed)} of {len(found.agreements)} methods do not agree: {', '.join(failed)}.", "yellow")
        raise typer.Exit(1)
    say(
        f"All {len(found.agreements)} methods agree with the processor: no prediction differs by more than "
        f"{found.tolerance:g}."
    )


def _agreements(found: DeviceCheck) -> RenderableType:
    """A line for each method: the largest difference of a prediction, by engine."""
    engines = list(dict.fromkeys(engine for agreement in found.agreements for engine in agreement.differences))
    table = columns(("method", *engines, ""), right=engines)
    for agreement in found.agreements:
        verdict = "agrees"
        if not agreement.holds(found.tolerance):
            verdict = agreement.error or "differs"
        gaps = (f"{agreement.differences[engine]:.0e}" if engine in agreement.differences else "" for engine in engines)
        table.add_row(agreement.method, *gaps, verdict)
    return table


def _speeds(found: DeviceCheck) -> RenderableType:
    """A line for each network and engine: seconds of a round on the processor, and on another device."""
    heads = ["cpu, s"]
    if found.device != "cpu":
        heads += [f"{found.device}, s", "times as fast"]
    table = columns(("a round of", "engine", *heads), right=heads)
    for speed in found.speeds:
        ratio = f"{speed.processor / speed.device:.2f}"
        cells = (f"{speed.processor:.3f}", f"{speed.device:.3f}", ratio)
        table.add_row(speed.what, speed.engine, *cells[: len(heads)])
    return table
