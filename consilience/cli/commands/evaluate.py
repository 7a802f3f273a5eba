"""Commands about how well a returned model predicts: `site evaluate`, and `study evaluate` for calibration by site."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from consilience.cli.app import site_app, study_app
from consilience.cli.commands.site_rows import remembered, unseen_rows
from consilience.cli.commands.site_tables import calibration_table, score_table
from consilience.cli.commands.study import warn, write_report
from consilience.cli.handed import say, site_home, site_identity, write_files
from consilience.cli.screen import out
from consilience.cli.study_options import Files_, Key_, Ledger_, Memory_, Model_, Study_, Table_
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.study.model import Model


@site_app.command()
def evaluate(
    model: Model_,
    table: Table_,
    study: Annotated[
        Path | None, typer.Option(help="The study file; with it, only this site's test rows are used.")
    ] = None,
    key: Key_ = None,
    memory: Memory_ = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a page with calibration and scores; it stays here, too.")
    ] = None,
    out_: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write calibration alone for `study evaluate`, where the study agreed on it."),
    ] = None,
    ledger: Ledger_ = None,
) -> None:
    """Evaluate a returned model on rows it has not seen: its scores and its calibration. The results stay here.

    Rows that this site's memory knows as trained on, chosen or calibrated by are left out, whatever order they come
    in. Where sites have models of their own, it is this site's, made with what `site fit` kept. With --out, counts of
    calibration are written for the coordinator, once in a study.
    """
    from consilience.distributions.predictive import Categorical
    from consilience.metrics.calibration import expected_ece_if_calibrated
    from consilience.metrics.scores import intervals, scores
    from consilience.report.schema.sentence import ece_note
    from consilience.study.protocol.members import read

    _check_options(study, out_, ledger)
    pooled, data = unseen_rows(model, table, study, key, memory, leaves=out_ is not None)
    target = pooled.agreement.target
    y = data.y
    if not target.classes:
        y = y * target.spread + target.centre
    p = pooled(data.x)
    out.print(score_table(scores(p, y), intervals(p, y)))
    if isinstance(p, Categorical):
        out.print(calibration_table(p, y, pooled.agreement.smallest))
        say(ece_note(len(y), expected_ece_if_calibrated(p), is_regression=False))
    sets = {}
    if pooled.guarantee is not None and pooled.guarantee.own_models != pooled.own:
        say("The thresholds of its prediction sets are of the sites' own models: its sets are not looked at.", "yellow")
    elif pooled.guarantee is not None and len(y):
        from consilience.cli.prediction_sets import show_coverage

        sets = {"guarantee": show_coverage(pooled, pooled.guarantee, data, table.stem)}
    if report is not None:
        from consilience.report.run_page import run_page
        from consilience.study.protocol.evaluation import evaluation_report

        site = table.stem
        if study is not None:
            site = site_identity(read(study), key)[0].name
        page = run_page({**evaluation_report(pooled.agreement, p, y, site), **sets})
        write_files(report, page, "Report, for this site")
    if study is not None and out_ is not None:
        _write_evaluation(study, key, table, memory, pooled, out_, ledger)


def _check_options(study_file: Path | None, out_: Path | None, ledger: Path | None) -> None:
    """Refuse to write for the coordinator what nobody agreed on, before anything is computed."""
    from consilience.study.protocol.calibration import check_may_evaluate
    from consilience.study.protocol.members import read

    if out_ is None:
        if ledger is not None:
            raise InputError("--ledger is where something leaves this site: give --out too.")
        return
    if study_file is None:
        raise InputError("--out writes a file for the coordinator of a study: give --study too.")
    check_may_evaluate(read(study_file).agreement)


def _write_evaluation(
    study_file: Path, key: Path | None, table: Path, memory: Path | None, pooled: Model, path: Path, ledger: Path | None
) -> None:
    """Write the calibration that leaves, after it is entered into the site's ledger."""
    from consilience.study.evaluations import Evaluation
    from consilience.study.protocol.calibration import describe_evaluation
    from consilience.study.protocol.members import read

    study = read(study_file)
    home = site_home(study, key)
    opened = home.open(table, ledger, remembered(home, memory), keep=write_files)
    write_files(path, opened.site.answer(Evaluation(study, pooled)).content, "For the coordinator")
    say(describe_evaluation(study.agreement))


@study_app.command("evaluate")
def evaluate_study(study_file: Study_, model: Model_, files: Files_) -> None:
    """Write the model's report with its calibration at every site, by what the sites sent of their test rows."""
    from consilience.study.account import evaluated_account, kept_account
    from consilience.study.coordinator import left_out
    from consilience.study.evaluations import read_evaluations
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read

    study = read(study_file)
    pooled = read_model(model, study)
    evaluated, refused = read_evaluations(study, pooled, files)
    warn(refused)
    known = kept_account(model.with_suffix(".json"), pooled.checksum)
    write_report(model, evaluated_account(study, pooled.facts, known, evaluated, left_out(refused)))
    say(f"Calibration by site, from {', '.join(site['site'] for site in evaluated)}.")
