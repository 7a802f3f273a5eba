"""The command that shows a linear model's effects."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.app import app
from consilience.cli.handed import columns, say, warn_unsigned, write_files
from consilience.cli.screen import out
from consilience.errors import InputError, unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consilience.biostatistics.effects import Effects
    from consilience.cli.handed import Listing


@app.command()
def effects(
    source: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="A run's folder, or the file of a study's model.")
    ],
    level: Annotated[float, typer.Option(help="Of all intervals.")] = 0.95,
    reference: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=LEVEL to compare with, or TARGET=CLASS; the first ones by default. May be repeated."),
    ] = None,
    meta: Annotated[
        bool,
        typer.Option("--meta", help="Show a random-effects meta-analysis of the sites' own estimates in its place."),
    ] = False,
    tau: Annotated[
        str | None, typer.Option(help="With --meta, how τ is found: REML, PM or DL; by default REML.")
    ] = None,
    interval: Annotated[
        str | None, typer.Option(help="With --meta: hartung-knapp or normal; by default hartung-knapp.")
    ] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="With --meta, also without each site in turn.")
    ] = False,
    csv_: Annotated[Path | None, typer.Option("--csv", help="Also write the table here, with all digits.")] = None,
    json_: Annotated[
        Path | None, typer.Option("--to-json", help="Also write the table and the sites' own estimates here.")
    ] = None,
    study: Annotated[
        Path | None, typer.Option(help="The study file; a model that is not of this study is refused.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON and nothing else.")] = False,
) -> None:
    """Show coefficients with intervals in the units of the columns, and how much sites differ."""
    from consilience.runs.store import as_json as to_bytes

    if not meta and (tau is not None or interval is not None or leave_one_out):
        raise InputError("--tau, --interval and --leave-one-out are of a meta-analysis: give --meta too.")
    table = _read(source, study, level, _references(reference or []), as_json)
    if meta:
        _analyse(table, tau, interval, leave_one_out, csv_, json_, as_json)
        return
    if csv_ is not None:
        write_files(csv_, table.to_csv(), _said("Effects", as_json))
    if json_ is not None:
        write_files(json_, to_bytes(table.to_json()), _said("Effects", as_json))
    if as_json:
        typer.echo(str(table))
        return
    _show(table)


def _analyse(
    table: Effects,
    tau: str | None,
    interval: str | None,
    leave_one_out: bool,
    csv_: Path | None,
    json_: Path | None,
    as_json: bool,
) -> None:
    """Show, and write where that is asked for, the meta-analysis of every effect."""
    from consilience.biostatistics.meta_analysis import as_csv, as_json_lines
    from consilience.report.meta_analysis import headings, left_out_lines, meta_lines, method_sentence
    from consilience.runs.store import as_json as to_bytes

    if interval not in (None, "hartung-knapp", "normal"):
        raise unknown_name("interval", interval, ("hartung-knapp", "normal"))
    found = table.meta_analysis((tau or "REML").upper(), interval != "normal")
    if not found:
        raise InputError("No effect is estimated by two sites: there is nothing to analyse together.")
    labelled = [(line.label._asdict(), line.meta) for line in found]
    if csv_ is not None:
        write_files(csv_, as_csv(labelled), _said("Meta-analysis", as_json))
    if json_ is not None:
        write_files(json_, to_bytes({"meta_analysis": as_json_lines(labelled)}), _said("Meta-analysis", as_json))
    if as_json:
        typer.echo(json.dumps({"meta_analysis": as_json_lines(labelled)}, indent=1, ensure_ascii=False))
        return
    say(f"Meta-analysis of the sites' own estimates, effects on {table.outcome}.", "bold")
    say(method_sentence(found[0].meta))
    names = headings(table)
    listing = columns(names, right=names[1:])
    for cells in meta_lines(table, found):
        listing.add_row(*cells)
    out.print(listing)
    if not leave_one_out:
        return
    if not any(line.meta.left_out for line in found):
        raise InputError("--leave-one-out needs the sites' own estimates of three sites or more, by name.")
    for line in found:
        say(f"{line.label}, without each site in turn:")
        listing = columns(["without", "mean", "interval", "tau", "I²"], right=["mean", "interval", "tau", "I²"])
        for cells in left_out_lines(table, line.meta):
            listing.add_row(*cells)
        out.print(listing)


def _said(what: str, quiet: bool) -> str:
    """What is said of a file; nothing where only JSON is printed."""
    if quiet:
        return ""
    return what


def _references(texts: list[str]) -> dict[str, str]:
    """Read COLUMN=LEVEL; a column's name may hold an equals sign, a level not."""
    chosen = {}
    for text in texts:
        column, equals, level = text.rpartition("=")
        if not equals or not column:
            raise InputError(f"--reference {text} is not COLUMN=LEVEL: write for example --reference sex=female.")
        chosen[column] = level
    return chosen


def _read(source: Path, study_file: Path | None, level: float, reference: Mapping[str, str], quiet: bool) -> Effects:
    """The table of a run's folder or of a model's file."""
    if source.is_dir():
        if study_file is not None:
            raise InputError("--study is for the model of a study, and this is a run's folder: leave it out.")
        from consilience.runs.run import load

        return load(source).effects(level, reference)
    from consilience.study.account import kept_account
    from consilience.study.effects import model_effects
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read

    study = None
    if study_file is not None:
        study = read(study_file)
    model = read_model(source, study)
    if study is None and not quiet:
        warn_unsigned(model.agreement)
    return model_effects(model, kept_account(source.with_suffix(".json"), model.checksum), level, reference)


def _show(table: Effects) -> None:
    from consilience.report.schema.wording import percent

    outcomes = {row.outcome for row in table}
    against = ""
    if table.against and len(outcomes) == 1:
        against = f": '{outcomes.pop()}' against '{table.against}'"
    elif table.against:
        against = f", against '{table.against}'"
    say(f"Effects on {table.outcome}{against}; {percent(table.level)} intervals.", "bold")
    out.print(_listing(table))
    for note in table.notes:
        say(note)
    if table.against:
        say(f"To compare with another class: --reference {shlex.quote(f'{table.target}=CLASS')}.")
    if not any(row.sites for row in table):
        say("How much the sites differ is not known here: it stands in the coordinator's report.")


def _listing(table: Effects) -> Listing:
    from consilience.report.forest import NEW_SITE, between, differences, figure, new_site, span

    shown = table.ratio or "effect"
    numbers = ["coefficient", "std. error", shown, "interval"]
    if not table.ratio:
        numbers = ["effect", "std. error", "interval"]
    differ = any(row.sites for row in table)
    if differ:
        numbers += ["tau", "I²", "p (Q)", "new site"][: len(differences(table))]
    listing = columns(["effect of", *numbers], right=numbers)
    several = len({row.outcome for row in table}) > 1
    for place, (estimate, row) in enumerate(zip(table.estimates, table.rows, strict=True)):
        name = str(estimate.label)
        if several:
            name = f"{row.outcome}, {name}"
        cells = [name, figure(row.estimate, False), figure(row.error, False)]
        if table.ratio:
            cells.append(figure(row.estimate, True))
        cells.append(span(row.low, row.high, bool(table.ratio)))
        if differ:
            cells += between(row, bool(table.ratio))[: len(differences(table))]
        listing.add_row(*cells)
        if table.newcomers:
            coefficient, error, *effect = new_site(table, place)
            if not table.ratio:
                effect = effect[1:]  # it is the coefficient
            listing.add_row(f"  {NEW_SITE}", coefficient, error, *effect)
    return listing
