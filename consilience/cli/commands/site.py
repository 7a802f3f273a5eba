"""Commands of a site, from join to ledger. They write files and send nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.app import site_app
from consilience.cli.commands.site_rows import check_unchanged, kept_model, remembered, same_rows
from consilience.cli.commands.site_tables import (
    audit_json,
    brief,
    contents,
    show_audit,
    show_masks,
    show_rehearsal,
    show_table,
    show_training,
)
from consilience.cli.handed import at_home, columns, only_key, own_number, say, say_table, site_home, write_files
from consilience.cli.screen import out, progress
from consilience.cli.study_options import Key_, Ledger_, Memory_, Model_, OneClass_, Replace_, SiteOut_, Study_, Table_
from consilience.disk.locks import lock_file
from consilience.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from consilience.study.budget import Cost
    from consilience.study.exchange import File
    from consilience.study.protocol.agreement import Agreement


@site_app.command()
def join(
    study_file: Study_,
    name: Annotated[str, typer.Argument(help="This site's name, visible to everyone in the study.")],
    table: Annotated[Path | None, typer.Argument(help="The site's rows: they are checked and counted.")] = None,
    rows: Annotated[int | None, typer.Option(help="The number of rows to commit to, where no table is given.")] = None,
    out_: SiteOut_ = None,
) -> None:
    """Sign the agreement, after reading it: writes NAME.key, which stays here, and NAME.join for the coordinator.

    The site commits to a number of rows, those of TABLE or --rows: a reply that speaks for more is refused.
    """
    from consilience.study.joining import join_text
    from consilience.study.proposal import consistent
    from consilience.study.protocol.members import read
    from consilience.study.protocol.names import check_new_name

    check_new_name(name)
    study = read(study_file)
    consistent(study.agreement)
    committed = _commitment(study.agreement, name, table, rows)
    if table is not None:
        say_table(table)
    key = site_key(name)
    text = join_text(study.agreement, name, key, committed)
    write_files(out_ or Path(f"{name}.join"), text, "For the coordinator", shared=True)
    say(f"You committed to {committed:,} rows: no reply of yours may speak for more.")
    say(f"Your private key stays here and is never shared: {name}.key")
    say(f"You signed the agreement {study.agreement.hash[:12]} of '{study.agreement.name}'.")


def _commitment(agreement: Agreement, name: str, table: Path | None, rows: int | None) -> int:
    """Count the rows that a site commits to."""
    from consilience.study.protocol.members import check_rows
    from consilience.study.rows import rows_of

    if table is not None and rows is not None:
        raise InputError("Give the table, whose rows are counted, or --rows, not both.")
    if table is not None:
        _, inspection = rows_of(agreement, table, one_class=True)
        rows = inspection.rows
    if rows is None:
        raise InputError(
            f"A site commits to its number of rows: give its table, `consilience site join STUDY {name} TABLE`, or "
            "--rows N."
        )
    check_rows(agreement, name, rows)
    return rows


def site_key(name: str) -> Ed25519PrivateKey:
    """Read the site's key, or make one."""
    from consilience.study.protocol.signature import new_key, read_key

    path = Path(f"{name}.key")
    if path.exists():
        return read_key(path)
    return new_key(path)


@site_app.command()
def sums(
    study_file: Study_,
    table: Table_,
    name: Annotated[str, typer.Option("--site", help="This site's name.")],
    out_: SiteOut_ = None,
    ledger: Ledger_ = None,
) -> None:
    """Write counts, sums and sums of squares of the numeric columns, for studies that find their scaling by them."""
    from consilience.study.home import ledger_of
    from consilience.study.protocol.members import Member, read
    from consilience.study.protocol.names import check_name
    from consilience.study.protocol.signature import public
    from consilience.study.rows import rows_of
    from consilience.study.scaling import Scaling
    from consilience.study.site import Site
    from consilience.study.spending import find_people

    check_name(name)
    question = Scaling(read(study_file))
    data, inspection = rows_of(question.study.agreement, table, one_class=True)
    key = site_key(name)
    member = Member(name, 0, public(key), "")
    if question.masked:
        member = question.study.member(name)
    account = ledger_of(Path(f"{name}.key"), ledger)
    files = (account, Path(f"{name}.memory"), Path(f"{name}-sums.masks"))
    people = find_people(question.study.agreement, data, inspection, key)
    site = Site(question.study, member, key, *files, inspection=inspection, people=people)
    write_files(out_ or Path(f"{name}.sums"), site.answer(question).content, "For the coordinator")


@site_app.command()
def check(study_file: Study_, table: Table_) -> None:
    """Check a table against the study and show what would leave. Sends nothing, writes nothing."""
    from consilience.study.proposal import consistent
    from consilience.study.protocol.columns import inspect
    from consilience.study.protocol.members import read
    from consilience.study.rows import is_promised

    study = read(study_file)
    agreement = study.agreement
    consistent(agreement)
    inspection = inspect(table, agreement.columns, agreement.target, clip=is_promised(agreement))
    say_table(table)
    show_table(agreement, inspection)
    for problem in inspect(table, agreement.columns, agreement.target).problems:
        if problem not in inspection.problems:
            say(f"{problem} Left as they are, they count as the end of the range, as privacy is promised.", "yellow")
    show_rehearsal(agreement)
    if inspection.problems:
        raise InputError(f"Correct what is listed above ({len(inspection.problems)}) before `site fit`.")
    if inspection.rows < agreement.smallest:
        raise InputError(
            f"{inspection.path} has fewer than {agreement.smallest} rows, the smallest number the study allows: take "
            "part together with another site, or agree on another number, `smallest` in the study file."
        )
    show_training(study, table, own_number(study))
    say("The table fits the study. Nothing was sent or written.")


@site_app.command()
def audit(
    study_file: Study_,
    table: Table_,
    canaries: Annotated[
        int | None, typer.Option(help="How many rows are invented, half of them put in; as many as there are rows.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="δ of the promise that is put to the test; the study's, or 1e-5.")
    ] = None,
    runs: Annotated[int, typer.Option(help="Over how many runs they are spread: more take longer, find more.")] = 10,
    seed: Annotated[int, typer.Option(help="Of the coins that decide which of them are in.")] = 0,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the results, as JSON.")] = None,
) -> None:
    """Measure what the reply would tell about single rows, before anything leaves. Sends nothing.

    Invented rows are put among this site's own by the toss of a coin, the study's method is run, and the coins are
    guessed from what would have been sent.
    """
    from consilience.study.audit import DELTA, audit_site
    from consilience.study.proposal import consistent
    from consilience.study.protocol.members import read
    from consilience.study.rows import parts, rows_of

    study = read(study_file)
    consistent(study.agreement)
    data, _ = rows_of(study.agreement, table, one_class=True)
    rows = parts(study.agreement, own_number(study), data).train
    if delta is None:
        delta = study.agreement.delta or DELTA
    with progress(True):
        found = audit_site(study.agreement, rows, canaries, delta, runs, seed)
    show_audit(study.agreement, len(rows.y), found)
    if out_ is not None:
        write_files(out_, audit_json(study.agreement, len(rows.y), found), "Stays here")


@site_app.command()
def fit(
    study_file: Study_,
    table: Table_,
    out_: SiteOut_ = None,
    key: Key_ = None,
    message: Annotated[Path | None, typer.Option(help="The coordinator's message; from the second round on.")] = None,
    memory: Memory_ = None,
    ledger: Ledger_ = None,
    one_class: OneClass_ = False,
    replace: Replace_ = False,
) -> None:
    """Fit the model to this site's rows and write the one file that leaves the site."""
    from consilience.study.protocol.members import read
    from consilience.study.reply import Fit, own_scores

    study = read(study_file)
    home = site_home(study, key)
    memory = memory or home.memory
    path = out_ or Path(f"{home.member.name}.reply")
    with lock_file(memory):
        opened = home.open(table, ledger, memory, one_class, write_files)
        say_table(table)
        site = dataclasses.replace(opened.site, rows=same_rows(opened, replace))
        with progress(True):
            sealed = site.answer(Fit(study, message, replace))
            write_files(path, sealed.content, "For the coordinator")
    rows, training = site.rows, sealed.made.training
    assert rows is not None and training is not None
    for note in training.notes:
        say(note, "yellow")
    used, aside, test = (f"{len(part.y):,}" for part in (training.data, rows.choose, rows.test))
    roles = f"{aside} are held out for choosing, {test} for testing"
    if len(rows.calibrate.y):
        roles += f", {len(rows.calibrate.y):,} for prediction sets"
    say(f"Trained on {used} rows; {roles}.")
    scores = {}
    if len(rows.test.y):
        scores = own_scores(study.agreement, sealed.made.value["send"], rows.test)
    if scores:
        say(f"This site's own model on its test rows (these numbers stay here): {brief(scores)}")
    if study.agreement.secure:
        show_masks(home)
    say(f"`consilience site show {path}` shows everything that leaves.")


@site_app.command()
def show(
    file: Annotated[Path, typer.Argument(help="Any file exchanged in a study.")],
    every: Annotated[bool, typer.Option("--all", help="Print every number.")] = False,
) -> None:
    """Show everything in a file, in words and numbers."""
    from consilience.study.protocol.envelope import open_envelope

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
    study_file: Study_,
    model: Model_,
    table: Table_,
    out_: SiteOut_ = None,
    key: Key_ = None,
    memory: Memory_ = None,
    ledger: Ledger_ = None,
) -> None:
    """Write sums of log-scores over the rows held out, for `study choose` at the coordinator. No row leaves.

    In a study of times to an event: sums of events and of those at risk, for the baseline of survival curves.
    """
    from consilience.study.baseline import EventSums
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read
    from consilience.study.statistics import Statistics

    study = read(study_file)
    home = site_home(study, key)
    pooled = read_model(model, study)
    active = {site.name for site in study.active}
    strangers = [name for name in pooled.facts.sites if name not in active]
    if strangers:
        raise InputError(
            f"The model includes {', '.join(strangers)}, not in your copy of the study: ask the coordinator for the "
            "current study file and model."
        )
    opened = home.open(table, ledger, remembered(home, memory), keep=write_files)
    if pooled.is_personal:
        pooled = at_home(pooled, study, kept_model(home, memory))
    check_unchanged(opened.recalled)
    question: File = Statistics(study, pooled)
    if study.agreement.target.event:
        question = EventSums(study, pooled)
    path = out_ or Path(f"{home.member.name}.statistics")
    write_files(path, opened.site.answer(question).content, "For the coordinator")


@site_app.command()
def ledger(
    file: Annotated[Path, typer.Argument(help="The ledger: SITE.ledger.")],
    epsilon: Annotated[float | None, typer.Option(help="Choose the budget's ε, for all studies together.")] = None,
    delta: Annotated[float | None, typer.Option(help="Choose the budget's δ.")] = None,
) -> None:
    """Show everything this site ever released about its rows, and what is left of its budget. It stays here."""
    from consilience.study.budget import read_budget
    from consilience.study.spending import with_limit

    if epsilon is not None or delta is not None:
        with_limit(file, epsilon, delta)
    elif not file.exists():
        raise InputError(f"There is no ledger '{file}': `site fit` begins one.")
    budget = read_budget(file)
    heads = ("when", "study", "what", "round", "rows", "about", "ε alone", "ε so far")
    table = columns(heads, right=("round", "rows"))
    for i, release in enumerate(budget.releases):
        so_far = dataclasses.replace(budget, releases=budget.releases[: i + 1]).spent(release)
        shown = [_epsilon_text(budget.delta, cost) for cost in (release.cost, so_far)]
        round_ = str(release.round or "")
        whom = release.people.kind.partition(" ")[2]
        if not whom:
            whom = ", ".join(sorted(budget.registered(release.people))) or "everybody"
        table.add_row(release.when, release.study, release.what, round_, f"{len(release.rows):,}", whom, *shown)
    out.print(table)
    for known in budget.tables:
        say(f"Registered on {known.when}: {known.name}, {len(known.rows):,} rows whose people are in no other table.")
    if not budget.epsilon:
        say("No budget is chosen yet: the first study with differential privacy brings its own.")
        return
    say(f"Budget: ε = {budget.epsilon:g} at δ = {budget.delta:g} for everybody, over all studies (add or remove one).")
    if not all(release.bounded for release in budget.releases):
        say("What was released without noise has no ε: for those it is about no budget holds.", "yellow")


@site_app.command()
def register(table: Table_, key: Key_ = None, ledger: Ledger_ = None) -> None:
    """Say that this table's people are in no other registered table: each table then has a budget of its own.

    Without, whatever leaves is charged to everybody at the site. A table that shares a row with a registered one is
    counted as part of it. Hashes of its rows are written into the ledger, which stays here.
    """
    from consilience.data.formats import read_table
    from consilience.study.budget import read_budget, today, write_budget
    from consilience.study.home import ledger_of
    from consilience.study.protocol.signature import read_key
    from consilience.study.spending import derive_secret, whole_rows

    file = only_key(key)
    rows = whole_rows(read_table(table).columns, derive_secret(read_key(file)))
    path = ledger_of(file, ledger)
    with lock_file(path):
        budget = read_budget(path)
        registered = budget.register(table.name, rows, today())
        write_budget(path, registered)
    known = registered.tables[-1]
    say(f"Registered in {path}: {known.name}, {len(known.rows):,} different rows.")
    if len(registered.tables) <= len(budget.tables):
        say("It shares rows with a table that was registered before: both are counted as one.")


def _epsilon_text(delta: float, cost: Cost) -> str:
    """ε of releases at the ledger's δ."""
    if cost.mu == float("inf"):
        return "no bound"
    if not delta:
        return "–"
    return f"{cost.epsilon(delta):.3g}"
