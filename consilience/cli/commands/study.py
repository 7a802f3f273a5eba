"""Commands of a study's coordinator: show, add, leave, scale, message, pool, choose."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.app import study_app
from consilience.cli.handed import Listing, columns, locking_study, say, server_key, write_files
from consilience.cli.screen import out, progress
from consilience.cli.study_options import AcceptDifference_, Files_, Inputs_, Key_, Model_, Study_, StudyOut_
from consilience.disk.locks import lock_file
from consilience.disk.pulse import last_beat
from consilience.errors import InputError
from consilience.report.schema.wording import count, privacy_note

if TYPE_CHECKING:
    from consilience.study.coordinator import ChosenFiles, PooledFiles
    from consilience.study.model import Facts
    from consilience.study.protocol.agreement import Agreement
    from consilience.study.protocol.members import Study


@study_app.command()
def show(study_file: Study_) -> None:
    """Show what was agreed, who signed and which models were made, and check that the file is consistent."""
    from consilience.study.proposal import consistent
    from consilience.study.protocol.members import read

    study = read(study_file)
    consistent(study.agreement)
    _show_agreement(study.agreement)
    if study.sites:
        out.print(_site_table(study))
    else:
        out.print("No site has signed yet.")
    for model in study.models:
        note = ""
        if model.superseded:
            note = "   OUTDATED: it includes a site that has left"
        say(f"Model {model.checksum[:12]} of {', '.join(model.sites)}{note}")


def _show_agreement(agreement: Agreement) -> None:
    """Say what a study predicts, how, what leaves a site and what comes back."""
    from consilience.study.protocol.posteriors import describe_posteriors

    target = agreement.target
    kind = f"a number ({target.unit})"
    if target.classes:
        kind = f"one of {', '.join(target.classes)}"
    elif target.event:
        kind = f"the time until '{target.event}' is 1, with risks at {target.horizon:g}"
    elif target.exposure:
        kind = f"a count of one unit of '{target.exposure}'"
    elif target.counts:
        kind = "a count"
    say(f"{agreement.name}   {agreement.hash}", "bold")
    columns_ = f"{len(agreement.columns)} columns ({len(agreement.feature_names)} features)"
    say(f"Predicts '{target.name}', {kind}, from {columns_}.")
    rounds = count(agreement.rounds, "round")
    say(f"{agreement.method} with the model {agreement.network}, {rounds}, seed {agreement.seed}.")
    leaves = f"{', '.join(agreement.leaves)}; at most {agreement.most_bytes:,} bytes"
    say(f"A site sends: {agreement.build_method().about.sends} ({leaves}).")
    if agreement.secure:
        say("Sites mask what they send: the coordinator sees the sum over all sites, and no site's own.")
    if describe_posteriors(agreement):
        say(describe_posteriors(agreement))
    say(f"Sites get back: {agreement.hand_out}.")
    say("Rules of disclosure:")
    for rule in agreement.disclosure.listed():
        say(f"  {rule.name}: {rule.says}")
    from consilience.study.protocol.promise import describe_promise

    if note := privacy_note(describe_promise(agreement)):
        say(note)


def _site_table(study: Study) -> Listing:
    table = columns(("site", "number", "rows at most", "key", ""))
    for site in study.sites:
        status = "signed"
        if site.left:
            status = "left"
        rows = ""
        if site.rows:
            rows = f"{site.rows:,}"
        table.add_row(site.name, str(site.number), rows, site.key[8:20] + "…", status)
    return table


@study_app.command()
@locking_study
def add(
    study_file: Study_, files: Annotated[list[Path], typer.Argument(help="The NAME.join files of the sites.")]
) -> None:
    """Add sites that have signed, at the start or later; nobody has to train again."""
    from consilience.study.joining import add_member
    from consilience.study.proposal import consistent
    from consilience.study.protocol.members import read
    from consilience.study.protocol.text import study_text

    study = read(study_file)
    consistent(study.agreement)
    _refuse_running(study_file)
    for path in files:
        study = add_member(study, path)
        added = study.sites[-1]
        committed = ""
        if added.rows:
            committed = f", at most {added.rows:,} rows"
        say(f"Added {added.name} (number {added.number}{committed}).")
    write_files(study_file, study_text(study), "Study", shared=True)
    say("Next: send the study file to all sites again, who run `consilience site fit`.")


def _refuse_running(study_file: Path) -> None:
    """Refuse another site while rounds are played: they go on with those they began with alone."""
    from consilience.runs.store import Store

    folder = study_file.with_suffix(".run")
    store = Store(folder)
    beat = last_beat(folder)
    serving = beat is not None and not beat._replace(doubt="").trouble(time.time())
    begun = store.has_rounds and not store.read_json().get("finished", True)
    if serving or begun:
        raise InputError(
            f"The rounds in {folder} have begun and go on with the sites they began with alone: finish them first "
            f"(`consilience study serve {study_file.name} --resume`, if it was stopped), or move {folder} away."
        )


@study_app.command()
@locking_study
def leave(study_file: Study_, site: Annotated[str, typer.Argument(help="The site that leaves.")]) -> None:
    """Remove a site; pool the others' replies again for a model without it."""
    from consilience.study.protocol.members import read
    from consilience.study.protocol.text import study_text

    study = read(study_file).without(site)
    write_files(study_file, study_text(study), "Study", shared=True)
    for model in study.models:
        if site in model.sites:
            say(f"Model {model.checksum[:12]} still includes {site}: ask everyone who has a copy to delete it.")
    names = ", ".join(member.name for member in study.active) or "nobody"
    say(f"Next: `consilience study pool` with the replies of {names}.")


@study_app.command()
@locking_study
def scale(study_file: Study_, files: Files_) -> None:
    """Compute the scaling constants from the sites' sums and write them into the study, before anybody signs it."""
    from consilience.study.protocol.members import Study, read
    from consilience.study.protocol.text import agreement_text, study_text
    from consilience.study.scaling import with_scaling

    study = read(study_file)
    if study.sites:
        raise InputError("Sites have already signed, and their signatures would not cover new constants.")
    agreement, senders = with_scaling(study, files)
    text = agreement_text(agreement, agreement.build_method().about.sends)
    scaled = Study(agreement, sums=senders, text=text)
    write_files(study_file, study_text(scaled), "Study", shared=True)
    for sender in senders:
        say(f"Sums of {sender.name}, signed with the key {sender.key[8:20]}…")
    say("Ask these sites whether the keys are theirs: under these names, only these keys can join.")
    say("Next: send the study to the sites, who sign it with `site join`.")


@study_app.command()
def message(study_file: Study_, key: Key_ = None, inputs: Inputs_ = None, out_: StudyOut_ = None) -> None:
    """Write the first message, for methods that begin with one."""
    from consilience.study.coordinator import inputs_from, start
    from consilience.study.protocol.members import read

    study = read(study_file)
    first = start(study, server_key(study_file, key), inputs_from(study.agreement, inputs))
    write_files(out_ or study_file.with_suffix(".message"), first, "Message for the sites")


@study_app.command()
def pool(
    study_file: Study_,
    files: Files_,
    out_: StudyOut_ = None,
    key: Key_ = None,
    inputs: Inputs_ = None,
    after: Annotated[Path | None, typer.Option(help="The state written by the previous round.")] = None,
    accept_difference: AcceptDifference_ = False,
) -> None:
    """Check the sites' replies one by one and pool the valid ones into one model."""
    from consilience.study.coordinator import inputs_from
    from consilience.study.coordinator import pool as pool_replies
    from consilience.study.protocol.members import read

    study = read(study_file)
    with progress(True):
        pooled = pool_replies(
            study,
            files,
            server_key(study_file, key),
            inputs_from(study.agreement, inputs),
            after,
            accept_difference,
        )
    path = out_ or study_file.with_suffix(".model")
    message_path = path.with_suffix(".message")
    with lock_file(study_file):
        write_pooled(study_file, path, pooled)
        if pooled.message and pooled.state:
            write_files(message_path, pooled.message, "Message for the sites")
            state_path = path.with_suffix(".state")  # may be that of --after
            write_files(state_path, pooled.state, "Your state, for the next round")
    for remark in pooled.remarks:
        say(remark, "yellow")
    if pooled.message and pooled.state:
        say(f"Next: sites run `consilience site fit {study_file.name} TABLE --message {message_path.name}`.")
    elif study.agreement.privacy is not None:
        say("Next: hand the model out. No statistics choose a temperature: sums of scores would leave without noise.")
    elif {*pooled.facts.sites} <= {site.name for site in study.active}:
        command = f"`consilience site statistics {study_file.name} {path.name} TABLE`"
        say(f"Next: send the model to the sites, who run {command}.")


@study_app.command()
def choose(
    study_file: Study_, model: Model_, files: Files_, out_: StudyOut_ = None, key: Key_ = None, inputs: Inputs_ = None
) -> None:
    """Choose the pooling parameter, where the method has one, and a temperature by the sites' statistics.

    In a study of times to an event, find the baseline of survival curves and the Kaplan–Meier curve of all sites.
    """
    from consilience.study.account import kept_account
    from consilience.study.coordinator import choose as choose_values
    from consilience.study.coordinator import inputs_from
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read

    study = read(study_file)
    signing_key = server_key(study_file, key)
    pooled = read_model(model, study)
    known = kept_account(model.with_suffix(".json"), pooled.checksum)
    chosen = choose_values(study, pooled, files, signing_key, inputs_from(study.agreement, inputs), known)
    path = out_ or model.with_name(f"{model.stem}-chosen{model.suffix}")
    write_pooled(study_file, path, chosen)
    if study.agreement.level:
        command = f"`consilience site calibrate {study_file.name} {path.name} TABLE`"
        say(f"Next: send the model to the sites, who run {command}.")


def write_pooled(study_file: Path, path: Path, content: PooledFiles | ChosenFiles) -> None:
    """Write a model, record it in the study, and say what is in it."""
    warn(content.refused)
    with lock_file(study_file):
        write_files(path, content.model, "Model")
        record(study_file, path, content.facts.sites)
        describe(content.facts, content.account)
        write_report(path, content.account)


def warn(refused: Any) -> None:
    """Say which files were refused, and why."""
    from consilience.study.coordinator import left_out

    for sentence in left_out(refused):
        say(sentence, "yellow")


def record(study: Path, model: Path, sites: tuple[str, ...]) -> None:
    """Record the model in the study, so that it can be named if one of its sites leaves."""
    from consilience.study.protocol.envelope import open_envelope
    from consilience.study.protocol.members import read
    from consilience.study.protocol.text import study_text

    checksum = open_envelope(model, "model").checksum
    with lock_file(study):
        write_files(study, study_text(read(study).recorded(checksum, sites)), "", shared=True)


def write_report(model: Path, account: dict[str, Any]) -> None:
    """Write the model's report beside it, for people and as JSON."""
    from consilience.report.schema.folders import hide_folders
    from consilience.report.study_page import study_page
    from consilience.report.suppression import suppress
    from consilience.runs.store import as_json
    from consilience.study.protocol.envelope import open_envelope

    report = {"checksum": open_envelope(model, "model").checksum, **account}
    report["warnings"] = [hide_folders(str(warning)) for warning in account.get("warnings") or []]
    shown = suppress(report)
    report |= {name: shown[name] for name in ("per_site", "rows")}  # no small count lies in the JSON either
    write_files(model.with_suffix(".json"), as_json(report), "")
    write_files(model.with_suffix(".html"), study_page(report), "Report")


def describe(facts: Facts, account: Mapping[str, Any]) -> None:
    """Say in words which sites a model is from and what their statistics chose."""
    sites = ", ".join(facts.sites)
    if facts.rows:
        sites += f", {facts.rows:,} rows"
    say(f"Pooled from {sites}.")
    if facts.statistics_from and account["task"] == "survival":
        say(f"Baseline hazard from sums of {', '.join(facts.statistics_from)}.")
    elif facts.statistics_from:
        values = f"temperature {facts.temperature:.2f}"
        if facts.knob:
            symbol = account.get("knob_symbol") or facts.knob
            values = f"{symbol} = {facts.value:g} and {values}"
        say(f"Chosen by statistics of {', '.join(facts.statistics_from)}: {values}.")
    _show_influence(account)
    for note in facts.notes:
        say(note)


def _show_influence(account: Mapping[str, Any]) -> None:
    """Print how much of a model is each site's, where that was measured."""
    from consilience.report.schema.wording import count, percent

    sites = [site for site in account["per_site"] if "influence" in site]
    if not sites:
        return
    table = columns(("site", "rows", "influence"), right=("rows", "influence"))
    for site in sites:
        table.add_row(site["site"], count(site["train"]), percent(site["influence"]))
    out.print(table)
