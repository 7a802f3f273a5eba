"""The Kaplan–Meier curve of several sites."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from consilience.cli.app import app
from consilience.cli.screen import out
from consilience.disk.locks import lock_folder
from consilience.disk.writing import write_whole
from consilience.errors import InputError

SHOWN = 10  # lines of the table


@app.command("kaplan-meier")
def kaplan_meier(
    files: Annotated[str, typer.Argument(help="A quoted pattern of CSV files, one per site, or of sites' .json sums.")],
    time: Annotated[str | None, typer.Option(help="The column of times, for CSV files.")] = None,
    event: Annotated[str | None, typer.Option(help="The column that is 1 if the event was seen, else 0.")] = None,
    every: Annotated[float | None, typer.Option(help="The agreed width of a step, in the times' unit.")] = None,
    until: Annotated[float | None, typer.Option(help="The agreed end of the curve.")] = None,
    smallest: Annotated[int, typer.Option(min=1, help="The fewest events that a step may show.")] = 5,
    sums: Annotated[
        Path | None, typer.Option(help="At a site: write this site's sums to this file, and no curve.")
    ] = None,
    out_: Annotated[Path, typer.Option("--out", help="Folder for curve.csv and curve.svg.")] = Path("kaplan-meier"),
) -> None:
    """Draw one survival curve for at least three sites. Sites send sums on an agreed grid, and no rows."""
    from consilience.biostatistics.kaplan_meier import curve_csv, even_grid, read_all_sums, read_times, write_sums
    from consilience.distributions.curves import curve, sum_times
    from consilience.report.plots.survival_curve import draw_curve
    from consilience.runs.store import Store, as_json

    paths = [Path(path) for path in sorted(glob.glob(files, recursive=True))]
    if not paths:
        raise InputError(f"No file matches '{files}': check the folder and the ending.")
    if all(path.suffix == ".json" for path in paths):
        if sums is not None or (time, event, every, until) != (None, None, None, None):
            raise InputError("Files of sums know their columns and grid: leave --time, --event and the grid out.")
        grid, parts = read_all_sums(paths)
    else:
        if time is None or event is None or every is None or until is None:
            raise InputError("CSV files need --time and --event, and the agreed grid as --every and --until.")
        grid = even_grid(every, until)
        tables = [read_times(path, time, event) for path in paths]
        if sums is not None:
            if len(paths) > 1:
                raise InputError("--sums is for one site: give its file alone.")
            value = write_sums(tables[0], grid, smallest)
            write_whole(sums, as_json(value).encode(), "Choose another place.")
            out.print(f"Sums: {sums}. It holds counts on {len(grid)} steps, and no rows; send it on.")
            return
        parts = [sum_times(y, grid) for y in tables]
    found = curve(grid, parts, smallest)
    with lock_folder(out_):
        store = Store(out_)
        store.write("curve.csv", curve_csv(found).encode())
        picture = draw_curve(found, time or "time").replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
        store.write("curve.svg", picture.encode())
    table = Table("Time", "Without an event", "95 % interval", "At risk", "Events", box=None, header_style="bold")
    rows = list(zip(*(leaf.tolist() for leaf in found), strict=True))
    for t, s, low, high, at_risk, events in rows[:: -(-len(rows) // SHOWN)]:
        table.add_row(
            f"{t:g}", f"{100 * s:.1f} %", f"{100 * low:.1f}–{100 * high:.1f}", f"{at_risk:.0f}", f"{events:.3g}"
        )
    out.print(table)
    merged = len(grid) - len(rows)
    if merged > 0:
        out.print(f"{merged} of {len(grid)} steps had too few events or rows at risk, and were joined or left out.")
    out.print(f"Curve: {out_ / 'curve.csv'}, {out_ / 'curve.svg'}")
