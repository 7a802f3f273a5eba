"""Commands around one run: run, pool, report, and the demo."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.app import app
from consilience.cli.applies import check_applies
from consilience.cli.given import given_options
from consilience.cli.groups import (
    CohortOptions,
    ComputeOptions,
    DataOptions,
    NetworkOptions,
    PrivacyOptions,
    with_groups,
)
from consilience.cli.options import (
    Centre_,
    Conformal_,
    DataDir_,
    Json_,
    Level_,
    Rounds_,
    Seed_,
    Set_,
    Split_,
    methods_like,
    with_centre,
)
from consilience.cli.screen import out, print_report, progress, resumable, say_features, say_files
from consilience.disk.locks import lock_folder
from consilience.errors import refuse_damage

if TYPE_CHECKING:
    from consilience.runs.store import Store

ASIDE = 0.2  # of a site's rows, where a level is asked for and nobody says how many rows it may cost


@app.command()
@with_groups
def run(
    ctx: typer.Context,
    method: Annotated[
        str | None,
        typer.Argument(
            autocompletion=methods_like,
            help="The method; see `consilience methods`. Without one, what `consilience recommend` says.",
        ),
    ] = None,
    *,
    rows: DataOptions,
    split: Split_ = None,
    network: NetworkOptions,
    settings: Set_ = None,
    centre: Centre_ = None,
    rounds: Rounds_ = None,
    seed: Seed_ = 0,
    validation: Annotated[float, typer.Option(help="Fraction of training rows held out for tuning.")] = 0.0,
    conformal: Conformal_ = 0.0,
    level: Level_ = None,
    bounds: Annotated[
        bool, typer.Option(help="Also score each site alone, the server alone and all data pooled.")
    ] = True,
    privacy: PrivacyOptions,
    cohort: CohortOptions,
    compute: ComputeOptions,
    threads: Annotated[
        int | None, typer.Option(help="Number of BLAS threads; by default one for small networks.")
    ] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="Folder for the results; runs/… by default.")] = None,
    keep_replies: Annotated[str, typer.Option(help="Replies to save: last, all or none.")] = "last",
    start: Annotated[Path | None, typer.Option(help="Start from the posterior of the run in this folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    as_json: Json_ = False,
) -> None:
    """Run one method and write a report."""
    from consilience.cli.run_plan import RunPlan, choose, execute, resume_plan
    from consilience.runs.recipe import Recipe, run_folder
    from consilience.runs.store import Store

    if resume is not None:
        plan = resume_plan(resume, given_options(ctx))
    else:
        check_applies(ctx)
        private = privacy.settings()
        if level is not None and not conformal:
            conformal = ASIDE
        problem = rows.problem(split=split, validation=validation, conformal=conformal, **vars(network))
        recipe = choose(Recipe(method or "", problem, seed, with_centre(settings, centre)), private, rounds == 1)
        say_files(recipe.problem, not as_json)
        say_features(recipe.problem, network.model, network.features, not as_json)
        options = {
            "out": out_ or run_folder(recipe.method.rpartition(":")[2], rows.data),
            "rounds": rounds,
            "engine": compute.engine,
            "threads": threads,
            "device": compute.device,
            "start": start,
            "keep_replies": keep_replies,
            "level": level,
            "participation": cohort.cohort(),
        }
        plan = RunPlan(recipe, bounds, options)
    folder = Path(plan.options["out"])
    with lock_folder(folder), resumable(folder):
        report = execute(plan, resume is not None, as_json)
        finish(Store(folder), report, as_json)


@app.command()
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
    from consilience.cli.run_plan import saved_recipe, say_damaged
    from consilience.report.schema.run_findings import read_run
    from consilience.runs.recipe import free_folder
    from consilience.runs.run import load
    from consilience.runs.store import Store

    saved = Store(folder).read_json()
    recipe = saved_recipe(folder, saved, model, data_dir)
    result = load(folder, None, *recipe.problem.build(recipe.seed))
    other = dataclasses.replace(recipe, method=method, settings=tuple(settings or ())).build_method()
    pooled = result.pool(other)
    target = Store(out_ or free_folder(folder, f"pool-{method}"))
    with lock_folder(target.folder):
        about = {key: saved.get(key, {}) for key in ("bounds", "baselines")}
        with refuse_damage(say_damaged(folder)):
            read_run(about)
        finish(target, {**pooled.report, **about, "pooled_from": folder.name}, as_json)


@app.command()
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


@app.command()
def demo(
    out_: Annotated[Path, typer.Option("--out", help="Folder for the report.")] = Path("demo"),
    seed: Seed_ = 0,
    as_json: Json_ = False,
) -> None:
    """Compare methods on five sites that hardly share a class, in under a minute."""
    from consilience.benchmark.demo import demo as compare
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
