"""Commands of a site: join, sums, check, fit, show, statistics, evaluate. They write files and send nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.handed import (
    Key_,
    Model_,
    Study_,
    Table_,
    own_number,
    say,
    site_identity,
    write_files,
)
from consilience.cli.options import app
from consilience.cli.screen import out, progress
from consilience.cli.site_rows import kept_rows, same_rows, unseen_rows
from consilience.cli.site_tables import (
    brief,
    calibration_table,
    contents,
    score_table,
    show_rehearsal,
    show_table,
    show_training,
)
from consilience.disk.locks import lock_file
from consilience.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from consilience.agreement.agreement import Agreement

site_app = typer.Typer(no_args_is_help=True, help="Take part in a study; your rows never leave.")
app.add_typer(site_app, name="site")

Out_ = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where to write; by default SITE.reply, SITE.join and so on.")
]
OneClass_ = Annotated[bool, typer.Option("--one-class", help="Confirm that all rows here are of one class.")]
Memory_ = Annotated[
    Path | None, typer.Option("--memory", help="What `site fit` keeps at the site; SITE.memory by default.")
]
Replace_ = Annotated[
    bool, typer.Option("--replace", help="Write over a reply from other rows, which was never handed over.")
]


@site_app.command()
def join(
    study_file: Study_,
    name: Annotated[str, typer.Argument(help="This site's name, visible to everyone in the study.")],
    table: Annotated[Path | None, typer.Argument(help="The site's rows: they are checked and counted.")] = None,
    rows: Annotated[int | None, typer.Option(help="The number of rows to commit to, where no table is given.")] = None,
    out_: Out_ = None,
) -> None:
    """Sign the agreement, after reading it: writes NAME.key, which stays here, and NAME.join for the coordinator.

    The site commits to a number of rows, those of TABLE or --rows: a reply that speaks for more is refused.
    """
    from consilience.agreement.agreement import read
    from consilience.agreement.names import check_name
    from consilience.study.joining import join_text
    from consilience.study.proposal import consistent

    check_name(name)
    study = read(study_file)
    consistent(study.agreement)
    committed = _commitment(study.agreement, name, table, rows)
    key = _site_key(name)
    text = join_text(study.agreement, name, key, committed)
    write_files(out_ or Path(f"{name}.join"), text, "For the coordinator", shared=True)
    if study.agreement.format > 1:
        say(f"You committed to {committed:,} rows: no reply of yours may speak for more.")
    say(f"Your private key stays here and is never shared: {name}.key")
    say(f"You signed the agreement {study.agreement.hash[:12]} of '{study.agreement.name}'.")


def _commitment(agreement: Agreement, name: str, table: Path | None, rows: int | None) -> int:
    """Count the rows that a site commits to; 0 in old studies, which do not ask."""
    from consilience.agreement.agreement import check_rows
    from consilience.study.rows import rows_of

    if table is not None and rows is not None:
        raise InputError("Give the table, whose rows are counted, or --rows, not both.")
    if table is not None:
        _, inspection = rows_of(agreement, table, one_class=True)
        rows = inspection.rows
    if agreement.format == 1:
        return 0
    if rows is None:
        raise InputError(
            f"A site commits to its number of rows: give its table, `consilience site join STUDY {name} TABLE`, or "
            "--rows N."
        )
    check_rows(agreement, name, rows)
    return rows


def _site_key(name: str) -> Ed25519PrivateKey:
    """Read the site's key, or make one."""
    from consilience.formats.signature import new_key, read_key

    path = Path(f"{name}.key")
    if path.exists():
        return read_key(path)
    return new_key(path)


@site_app.command()
def sums(
    study_file: Study_,
    table: Table_,
    name: Annotated[str, typer.Option("--site", help="This site's name.")],
    out_: Out_ = None,
) -> None:
    """Write counts, sums and sums of squares of the numeric columns, for studies that find their scaling by them."""
    from consilience.agreement.agreement import read
    from consilience.agreement.names import check_name
    from consilience.study.joining import sums_file
    from consilience.study.rows import rows_of

    check_name(name)
    agreement = read(study_file).agreement
    if agreement.scaling != "sums":
        raise InputError('This study agrees on its scaling in advance (scaling = "agreed"): no sums are needed.')
    _, rows = rows_of(agreement, table, one_class=True)
    content = sums_file(agreement, name, rows, _site_key(name))
    write_files(out_ or Path(f"{name}.sums"), content, "For the coordinator")


@site_app.command()
def check(study_file: Study_, table: Table_) -> None:
    """Check a table against the study and show what would leave. Sends nothing, writes nothing."""
    from consilience.agreement.agreement import read
    from consilience.agreement.columns import inspect
    from consilience.study.proposal import consistent

    study = read(study_file)
    agreement = study.agreement
    consistent(agreement)
    inspection = inspect(table, agreement.columns, agreement.target)
    show_table(agreement, inspection)
    show_rehearsal(agreement)
    if inspection.problems:
        raise InputError(f"Correct what is listed above ({len(inspection.problems)}) before `site fit`.")
    if inspection.rows < agreement.smallest:
        raise InputError(
            f"{inspection.path} has fewer than {agreement.smallest} rows, the smallest number the study allows."
        )
    show_training(study, table, own_number(study))
    say("The table fits the study. Nothing was sent or written.")


@site_app.command()
def fit(
    study_file: Study_,
    table: Table_,
    out_: Out_ = None,
    key: Key_ = None,
    message: Annotated[Path | None, typer.Option(help="The coordinator's message; from the second round on.")] = None,
    memory: Memory_ = None,
    one_class: OneClass_ = False,
    replace: Replace_ = False,
) -> None:
    """Fit the model to this site's rows and write the one file that leaves the site."""
    from consilience.agreement.agreement import read
    from consilience.study.recall import marks_file, marks_path, recall
    from consilience.study.rows import rows_of
    from consilience.study.site import fit as fit_site
    from consilience.study.site import own_scores

    study = read(study_file)
    member, signing_key = site_identity(study, key)
    data, _ = rows_of(study.agreement, table, one_class)
    path = out_ or Path(f"{member.name}.reply")
    memory_path = memory or Path(f"{member.name}.memory")
    with lock_file(memory_path):
        recalled = recall(study.agreement, member.number, signing_key, memory_path, data)
        rows = same_rows(study.agreement, member.number, data, recalled, memory_path, replace)
        with progress(True):
            fitted = fit_site(study, member, signing_key, rows, message, memory_path, replace)
        marks = marks_file(study.agreement, member.name, member.number, signing_key, rows)
        write_files(marks_path(memory_path), marks, "Stays here, to know rows by")
        write_files(memory_path, fitted.memory, "Stays here")  # first, so that nothing is handed over unremembered
        write_files(path, fitted.reply, "For the coordinator")
    for note in fitted.training.notes:
        say(note, "yellow")
    used, aside, test = (f"{len(part.y):,}" for part in (fitted.training.data, rows.choose, rows.test))
    say(f"Trained on {used} rows; {aside} are set aside for choosing, {test} for testing.")
    scores = {}
    if len(rows.test.y):
        scores = own_scores(study.agreement, fitted.send, rows.test)
    if scores:
        say(f"This site's own model on its test rows (these numbers stay here): {brief(scores)}")
    say(f"`consilience site show {path}` shows everything that leaves.")


@site_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="Any file exchanged in a study.")],
    every: Annotated[bool, typer.Option("--all", help="Print every number.")] = False,
) -> None:
    """Show everything in a file, in words and numbers."""
    from consilience.formats.envelope import open_envelope

    envelope = open_envelope(file)
    header = envelope.header
    signature = "ITS SIGNATURE IS INVALID"
    if envelope.signed_by(envelope.key):
        signature = "its signature fits the key it names"
    say(f"{file}: a {header.kind} of '{header.sender}' in the study '{header.study_name}'", "bold")
    key = f"{envelope.key[8:20]}…"
    say(f"Study {header.study[:12]}, round {header.round}, {envelope.nbytes:,} bytes, key {key}; {signature}.")
    for name, value in header.about.items():
        if isinstance(value, dict):
            for field, part in value.items():
                say(f"{name} {field}: {part}")
        else:
            say(f"{name}: {value}")
    contents(envelope.tensors)
    if every:
        for name, tensor in sorted(envelope.tensors.items()):
            say(f"{name.removeprefix('tree.')} = {tensor.tolist()}")


@site_app.command()
def statistics(
    study_file: Study_, model: Model_, table: Table_, out_: Out_ = None, key: Key_ = None, memory: Memory_ = None
) -> None:
    """Write sums of log-scores over the rows set aside, for `study choose` at the coordinator. No row leaves."""
    from consilience.agreement.agreement import read
    from consilience.study.model import read_model
    from consilience.study.recall import recall
    from consilience.study.rows import rows_of
    from consilience.study.site import statistics as sum_scores

    study = read(study_file)
    member, signing_key = site_identity(study, key)
    pooled = read_model(model, study)
    active = {site.name for site in study.active}
    strangers = [name for name in pooled.facts.sites if name not in active]
    if strangers:
        raise InputError(
            f"The model includes {', '.join(strangers)}, not in your copy of the study: ask the coordinator for the "
            "current study file and model."
        )
    data, _ = rows_of(study.agreement, table, one_class=True)
    memory_path = memory or kept_rows(member.name)
    recalled = recall(study.agreement, member.number, signing_key, memory_path, data)
    if not recalled.known:
        say("What `site fit` kept is not here: whether this is the table it was fitted to cannot be checked.", "yellow")
    if recalled.difference:
        raise InputError(
            f"The table has changed since `site fit`: {recalled.difference}. Use the table of then: two sums show "
            "where they differ, and rows set aside may have been trained on."
        )
    choose = recalled.rows.choose
    sums = sum_scores(study, member, signing_key, choose, pooled.method, pooled.state, pooled.checksum)
    write_files(out_ or Path(f"{member.name}.statistics"), sums, "For the coordinator")


@site_app.command()
def evaluate(
    model: Model_,
    table: Table_,
    study: Annotated[
        Path | None, typer.Option(help="The study file; with it, only this site's test rows are used.")
    ] = None,
    key: Key_ = None,
    memory: Memory_ = None,
) -> None:
    """Evaluate a returned model on rows it has not seen: its scores and its calibration. The results stay here.

    Rows that this site's memory knows as trained on or chosen by are left out, whatever order they come in.
    """
    from consilience.metrics.scores import intervals, scores
    from consilience.predictive import Categorical

    pooled, data = unseen_rows(model, table, study, key, memory)
    target = pooled.agreement.target
    y = data.y
    if not target.classes:
        y = y * target.spread + target.centre
    p = pooled(data.x)
    out.print(score_table(scores(p, y), intervals(p, y)))
    if isinstance(p, Categorical):
        out.print(calibration_table(p, y, pooled.agreement.smallest))
