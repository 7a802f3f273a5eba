"""Commands around one run: run, pool, report, and the demo."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.console.app import app
from consilience.console.given import given_options, privacy_settings, read_options
from consilience.console.options import (
    Calibration_,
    Categories_,
    Columns_,
    Conformal_,
    Data_,
    DataDir_,
    Deadline_,
    Decimal_,
    Delimiter_,
    Delta_,
    Device_,
    Drop_,
    Dropout_,
    Engine_,
    Epsilon_,
    Event_,
    Exposure_,
    Features_,
    Group_,
    Honest_,
    Horizon_,
    Inputs_,
    Json_,
    Level_,
    MinReplies_,
    Missing_,
    Model_,
    Noise_,
    Participation_,
    Seed_,
    Set_,
    Sites_,
    Split_,
    Target_,
    Task_,
    Test_,
    Text_,
    Time_,
    Unit_,
    Unknown_,
    methods_like,
)
from consilience.console.screen import out, print_report, progress, say_features
from consilience.disk.locks import lock_folder
from consilience.errors import refuse_damage

if TYPE_CHECKING:
    from consilience.runs.store import Store

ASIDE = 0.2  # of a site's rows, where a level is asked for and nobody says how many rows it may cost


@app.command()
def run(
    ctx: typer.Context,
    method: Annotated[
        str | None,
        typer.Argument(
            autocompletion=methods_like,
            help="The method; see `consilience methods`. Without one, what docs/choose.md advises for these data.",
        ),
    ] = None,
    data: Data_ = "digits",
    target: Target_ = None,
    task: Task_ = None,
    time: Time_ = None,
    event: Event_ = None,
    exposure: Exposure_ = None,
    horizon: Horizon_ = None,
    sites: Sites_ = None,
    split: Split_ = None,
    model: Model_ = None,
    features: Features_ = None,
    rounds: Annotated[
        int | None, typer.Option(help="Number of rounds; 1 for one-round methods, 10 for others.")
    ] = None,
    seed: Seed_ = 0,
    engine: Engine_ = "auto",
    out_: Annotated[Path | None, typer.Option("--out", help="Folder for the results; runs/… by default.")] = None,
    data_dir: DataDir_ = None,
    settings: Set_ = None,
    calibration: Calibration_ = 30,
    inputs: Inputs_ = 0,
    validation: Annotated[float, typer.Option(help="Fraction of training rows held out for tuning.")] = 0.0,
    conformal: Conformal_ = 0.0,
    level: Level_ = None,
    participation: Participation_ = None,
    dropout: Dropout_ = 0.0,
    deadline: Deadline_ = None,
    min_replies: MinReplies_ = None,
    keep_replies: Annotated[str, typer.Option(help="Replies to save: last, all or none.")] = "last",
    bounds: Annotated[
        bool, typer.Option(help="Also score each site alone, the server alone and all data pooled.")
    ] = True,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    start: Annotated[Path | None, typer.Option(help="Start from the posterior of the run in this folder.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of BLAS threads; by default one for small networks.")
    ] = None,
    device: Device_ = "cpu",
    columns: Columns_ = None,
    drop: Drop_ = None,
    text: Text_ = None,
    categories: Categories_ = None,
    missing: Missing_ = None,
    unknown: Unknown_ = None,
    delimiter: Delimiter_ = None,
    decimal: Decimal_ = None,
    group: Group_ = None,
    test: Test_ = 0.2,
    epsilon: Epsilon_ = None,
    delta: Delta_ = None,
    unit: Unit_ = None,
    noise: Noise_ = None,
    honest: Honest_ = None,
    as_json: Json_ = False,
) -> None:
    """Run one method and write a report."""
    from consilience.console.run_plan import RunPlan, execute, resume_plan
    from consilience.engines.participation import Participation
    from consilience.promises import check_private
    from consilience.runs.recipe import Recipe, run_folder
    from consilience.runs.store import Store

    private = privacy_settings(epsilon, delta, unit, noise, honest)
    if resume is not None:
        plan = resume_plan(resume, given_options(ctx))
    else:
        read = read_options(ctx.params)
        if level is not None and not conformal:
            conformal = ASIDE
        recipe = Recipe(
            method or "",
            data=data,
            target=read.target,
            reading=read.reading,
            test=test,
            task=task,
            time=time,
            event=event,
            exposure=exposure,
            horizon=horizon,
            sites=sites,
            split=split,
            seed=seed,
            calibration=calibration,
            inputs=inputs,
            validation=validation,
            conformal=conformal,
            settings=tuple(settings or ()),
            data_dir=data_dir,
        )
        if method is None and model is None:
            recipe = recipe.choose_all(features)
        elif method is None:
            recipe = recipe.choose_network(model, features, ()).choose_method()
        else:
            recipe = recipe.choose_network(model, features, [recipe.build_method()])
        if private:
            check_private(recipe.build_method())
            recipe = recipe.protect(private)
        say_features(recipe, model, features, not as_json)
        options = {
            "out": out_ or run_folder(recipe.method.rpartition(":")[2], data),
            "rounds": rounds,
            "engine": engine,
            "threads": threads,
            "device": device,
            "start": start,
            "keep_replies": keep_replies,
            "level": level,
            "participation": Participation(participation, dropout, deadline, min_replies),
        }
        plan = RunPlan(recipe, bounds, options)
    folder = Path(plan.options["out"])
    with lock_folder(folder):
        report = execute(plan, resume is not None, as_json)
        finish(Store(folder), report, as_json)


@app.command(short_help="Pool a run's replies by another method, without training.")
def pool(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    method: Annotated[str, typer.Option(help="The method to pool its replies with.")],
    settings: Set_ = None,
    out_: Annotated[Path | None, typer.Option("--out", help="Folder for the new report.")] = None,
    model: Annotated[
        str, typer.Option(metavar="PACKAGE.MODULE:FACTORY", help="The run's model, if it is code of your own.")
    ] = "",
    data_dir: DataDir_ = None,
    as_json: Json_ = False,
) -> None:
    """Aggregate a run's saved replies with another method, without training."""
    from consilience.console.run_plan import saved_recipe, say_damaged
    from consilience.findings.run_findings import read_run
    from consilience.runs.recipe import free_folder
    from consilience.runs.run import load
    from consilience.runs.store import Store

    saved = Store(folder).read_json()
    recipe = saved_recipe(folder, saved, model, data_dir)
    result = load(folder, None, *recipe.build_problem())
    other = dataclasses.replace(recipe, method=method, settings=tuple(settings or ())).build_method()
    pooled = result.pool(other)
    target = Store(out_ or free_folder(folder, f"pool-{method}"))
    with lock_folder(target.folder):
        about = {key: saved.get(key, {}) for key in ("bounds", "baselines")}
        with refuse_damage(say_damaged(folder)):
            read_run(about)
        finish(target, {**pooled.report, **about, "pooled_from": folder.name}, as_json)


@app.command(short_help="Write a folder's report.html again.")
def report(folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison or experiment.")]) -> None:
    """Write report.html again from run.json, compare.json or results.json."""
    from consilience.report.reproduction_page import reproduction_page
    from consilience.report.run_page import comparison_page, run_page
    from consilience.runs.store import Store

    store = Store(folder)
    pages = {"compare.json": comparison_page, "results.json": reproduction_page, "run.json": run_page}
    name = next((name for name in pages if (folder / name).exists()), "run.json")
    if name == "run.json":
        content = store.read_report(alone=True)
    else:
        content = store.read_json(name)
    with refuse_damage(f"{folder / name} is damaged: restore it from a copy."):
        page = pages[name](content).encode()
    with lock_folder(folder):
        store.write("report.html", page)
    out.print(f"Report: {folder / 'report.html'}")


@app.command(short_help="Compare methods on five very different sites, in a minute.")
def demo(
    out_: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("demo"),
    seed: Seed_ = 0,
    as_json: Json_ = False,
) -> None:
    """Compare methods on five sites that hardly share a class, in under a minute."""
    from consilience.comparison.demo import demo as compare
    from consilience.report.run_page import comparison_page
    from consilience.report.table import comparison_table
    from consilience.runs.store import Store

    store = Store(out_)
    with lock_folder(out_):
        with progress(not as_json):
            comparison = compare(seed)
        store.write_checked("compare.json", comparison)
        store.write("report.html", comparison_page(comparison).encode())
    print_report(comparison, comparison_table(comparison), f"Report: {out_ / 'report.html'}", as_json)


def finish(store: Store, report: dict[str, Any], as_json: bool) -> None:
    """Write the report and show it."""
    from consilience.report.run_page import run_page
    from consilience.report.table import run_table

    store.write_report(report)
    store.write("report.html", run_page(report).encode())
    print_report(report, run_table(report), f"Report: {store.folder / 'report.html'}", as_json)
