"""Commands of a study's coordinator: new, show, add, leave, scale, message, pool, choose."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.handed import Inputs_, Key_, Model_, Study_, columns, say, server_key, write_files
from consilience.cli.options import Seed_, Set_, app
from consilience.cli.screen import out, progress
from consilience.errors import InputError

study_app = typer.Typer(no_args_is_help=True, help="Coordinate a study: agree, collect files, pool.")
app.add_typer(study_app, name="study")

Files_ = Annotated[list[Path], typer.Argument(help="Files from the sites.")]
Out_ = Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; beside the study by default.")]


@study_app.command()
def new(
    name: Annotated[str, typer.Argument(help="The study's name; its file will be NAME.toml.")],
    like: Annotated[
        Path | None,
        typer.Option(help="A table whose columns to propose: no row of it is kept, levels of categories are."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict, with --like.")] = None,
    dictionary: Annotated[
        Path | None, typer.Option("--columns", help="Or a TOML file with the parts [target] and [columns].")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See `consilience methods`.")] = None,
    model: Annotated[str | None, typer.Option(help="See `consilience models`.")] = None,
    settings: Set_ = None,
    rounds: Annotated[int | None, typer.Option(help="Hand-overs; what is usual for the method by default.")] = None,
    seed: Seed_ = 0,
    scaling: Annotated[str, typer.Option(help="agreed, or sums for a first exchange of sums and counts.")] = "agreed",
    hand_out: Annotated[str | None, typer.Option(help="mixture, student or ensemble.")] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Where NAME.toml and NAME.key go.")] = Path(),
) -> None:
    """Write a study's file, to be read, corrected and then signed by every site."""
    from consilience.formats.signature import new_key, public
    from consilience.study.proposal import EXAMPLE, proposal
    from consilience.study.text import agreement_text, propose_columns
    from consilience.study.toml import read_columns

    path = folder / f"{name}.toml"
    if path.exists():
        raise InputError(f"{path} already exists: choose another name, or delete it if nobody has signed it.")
    if (like is None) != (target is None):
        raise InputError("Give --like TABLE and --target COLUMN together, or neither for an example to fill in.")
    what, own = propose_columns(like, target) if like and target else EXAMPLE
    if dictionary is not None:
        what, own = read_columns(dictionary)
    draft = proposal(name, "", what, own, method, model, tuple(settings or ()), rounds, seed, scaling, hand_out)
    key = new_key(path.with_suffix(".key"))
    made = dataclasses.replace(draft, server=public(key))
    write_files(path, agreement_text(made, made.build_method().sends), "Study")
    say(f"Your key, never to be handed out: {path.with_suffix('.key')}")
    if like:
        say("Columns, types and ranges are guesses from one table: correct them before anybody signs.")
    say(f"Next: read {path}, correct it, and send it to the sites, who run `consilience site join {path.name} NAME`.")


@study_app.command()
def show(study: Study_) -> None:
    """What was agreed, who signed, which models were made; checks that the file can work."""
    from consilience.study.agreement import read
    from consilience.study.proposal import consistent

    found = read(study)
    a = found.agreement
    consistent(a)
    say(f"{a.name}   {a.hash}", "bold")
    kind = f"one of {', '.join(a.target.classes)}" if a.target.classes else f"a number ({a.target.unit})"
    say(f"Predicts '{a.target.name}', {kind}, from {len(a.columns)} columns ({len(a.feature_names)} features).")
    say(f"{a.method} with the model {a.model}, {a.rounds} round(s), seed {a.seed}.")
    say(f"Leaves a site: {a.build_method().sends} ({', '.join(a.leaves)}; at most {a.most_bytes:,} bytes).")
    say(f"Sites get back: {a.hand_out}.")
    table = columns(("site", "number", "key", ""))
    for site in found.sites:
        table.add_row(site.name, str(site.number), site.key[8:20] + "…", "left" if site.left else "signed")
    out.print(table if found.sites else "No site has signed yet.")
    for made in found.models:
        old = "   OLD: it holds a site that has left" if made.superseded else ""
        say(f"Model {made.checksum[:12]} of {', '.join(made.sites)}{old}")


@study_app.command()
def add(study: Study_, files: Annotated[list[Path], typer.Argument(help="NAME.join files from sites.")]) -> None:
    """Add sites that signed; at the start or at any time later, without anybody training again."""
    from consilience.study.agreement import read
    from consilience.study.joining import add_member
    from consilience.study.proposal import consistent
    from consilience.study.text import study_text

    found = read(study)
    consistent(found.agreement)
    for path in files:
        found = add_member(found, path)
        say(f"Added {found.sites[-1].name} (number {found.sites[-1].number}).")
    write_files(study, study_text(found), "Study")
    say("Next: send the study's file to all sites again; each runs `consilience site fit`.")


@study_app.command()
def leave(study: Study_, site: Annotated[str, typer.Argument(help="The site that leaves.")]) -> None:
    """Take a site out; pool the others' replies again to have the model without it."""
    from consilience.study.agreement import read
    from consilience.study.text import study_text

    before = read(study)
    found = before.without(site)
    write_files(study, study_text(found), "Study")
    old = [m for m in found.models if site in m.sites]
    for made in old:
        say(f"Model {made.checksum[:12]} still holds {site}: it is old; ask everybody who has a copy to delete it.")
    say(f"Next: `consilience study pool` with the replies of {', '.join(s.name for s in found.active) or 'nobody'}.")


@study_app.command()
def scale(study: Study_, files: Files_) -> None:
    """Find the scaling constants from the sites' sums and write them into the study, before anybody signs it."""
    from consilience.study.agreement import read
    from consilience.study.joining import with_scaling
    from consilience.study.text import agreement_text

    found = read(study)
    if found.sites:
        raise InputError("Sites have signed already, and their signatures would not fit new constants.")
    agreement, names = with_scaling(found.agreement, files)
    write_files(study, agreement_text(agreement, agreement.build_method().sends), "Study")
    say(f"Constants from {', '.join(names)}. Next: send the study to the sites, who sign it with `site join`.")


@study_app.command()
def message(study: Study_, key: Key_ = None, inputs: Inputs_ = None, out_: Out_ = None) -> None:
    """Write the first message, for methods that begin with one (such as evidence_logits)."""
    from consilience.study.agreement import read
    from consilience.study.coordinator import inputs_from, start

    found = read(study)
    made = start(found, server_key(study, key), inputs_from(found.agreement, inputs))
    write_files(out_ or study.with_suffix(".message"), made, "Message for the sites")


@study_app.command()
def pool(
    study: Study_,
    files: Files_,
    out_: Out_ = None,
    key: Key_ = None,
    inputs: Inputs_ = None,
    after: Annotated[Path | None, typer.Option(help="The state that the round before left.")] = None,
) -> None:
    """Check the sites' replies one by one and pool those that are sound into one model."""
    from consilience.study.agreement import read
    from consilience.study.coordinator import inputs_from
    from consilience.study.coordinator import pool as pooled

    found = read(study)
    with progress(True) as _:
        made = pooled(found, files, server_key(study, key), inputs_from(found.agreement, inputs), after)
    path = out_ or study.with_suffix(".model")
    warn(made.refused)
    write_files(path, made.model, "Model")
    record(study, path, made.facts.sites)
    describe(made.facts)
    write_report(path, made.account)
    if made.message and made.state:
        write_files(path.with_suffix(".message"), made.message, "Message for the sites")
        write_files(
            path.with_suffix(".state"), made.state, "Your state, for the next round"
        )  # last: may replace --after
        say(f"Next: sites run `consilience site fit {study.name} TABLE --message {path.with_suffix('.message').name}`.")
    elif {*made.facts.sites} <= {site.name for site in found.active}:
        say(f"Next: send the model to the sites; `consilience site statistics {study.name} {path.name} TABLE`.")


@study_app.command()
def choose(
    study: Study_, model: Model_, files: Files_, out_: Out_ = None, key: Key_ = None, inputs: Inputs_ = None
) -> None:
    """Choose β or λ, and a temperature, by the sum of the sites' statistics."""
    from consilience.study.account import kept_account
    from consilience.study.agreement import read
    from consilience.study.coordinator import choose as chosen
    from consilience.study.coordinator import inputs_from
    from consilience.study.model import read_model

    found = read(study)
    own, pooled = server_key(study, key), read_model(model, found)
    known = kept_account(model.with_suffix(".json"), pooled.checksum)
    made = chosen(found, pooled, files, own, inputs_from(found.agreement, inputs), known)
    warn(made.refused)
    path = out_ or model.with_name(f"{model.stem}-chosen{model.suffix}")
    write_files(path, made.model, "Model")
    record(study, path, made.facts.sites)
    describe(made.facts)
    write_report(path, made.account)


def warn(refused: Any) -> None:
    from consilience.study.coordinator import left_out

    for sentence in left_out(refused):
        say(sentence, "yellow")


def record(study: Path, model: Path, sites: tuple[str, ...]) -> None:
    """Remember the model in the study, so that it can be named if one of its sites leaves."""
    from consilience.formats.envelope import open_envelope
    from consilience.study.agreement import read
    from consilience.study.text import study_text

    write_files(study, study_text(read(study).recorded(open_envelope(model, "model").checksum, sites)), "")


def write_report(model: Path, account: dict[str, Any]) -> None:
    """The model's report beside it, for people and as JSON."""
    from consilience.formats.envelope import open_envelope
    from consilience.report.study_page import study_page
    from consilience.runs.store import as_json

    told = {"checksum": open_envelope(model, "model").checksum, **account}
    write_files(model.with_suffix(".json"), as_json(told), "")
    write_files(model.with_suffix(".html"), study_page(told), "Report")


def describe(facts: Any) -> None:
    """A model in words."""
    rows = f", {facts.rows:,} rows" if facts.rows else ""
    say(f"Pooled from {', '.join(facts.sites)}{rows}.")
    if facts.statistics_from:
        names = {"beta": "β", "penalty": "λ"}
        turned = f"{names[facts.knob]} = {facts.value:g} and " if facts.knob else ""
        say(f"Chosen by statistics of {', '.join(facts.statistics_from)}: {turned}temperature {facts.temperature:.2f}.")
    for note in facts.notes:
        say(note)
