"""Commands around one run: run, pool, report, and the demo."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from click.core import ParameterSource

from consilience.cli.options import (
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
    app,
    methods_like,
    privacy_settings,
    read_options,
)
from consilience.cli.screen import out, print_report, progress, say_features
from consilience.data.tables import is_tables
from consilience.disk.locks import lock_folder
from consilience.engines.participation import Participation
from consilience.errors import InputError, refuse_damage
from consilience.formats.settings import restore
from consilience.formats.typed import restore_fields
from consilience.method import Method
from consilience.methods import is_own_method, known_method
from consilience.models import is_import_path
from consilience.promises import check_private
from consilience.runs.recipe import Recipe, free_folder, run_folder
from consilience.runs.resuming import check_resumed
from consilience.runs.store import Store

ASIDE = 0.2  # of a site's rows, where a level is asked for and nobody says how many rows it may cost
RESUMED = {"rounds": int, "engine": str, "threads": int, "keep_replies": str}  # options that a folder remembers


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
    private = privacy_settings(epsilon, delta, unit, noise, honest)
    if resume is not None:
        plan = _resume_plan(resume, _given(ctx))
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
        report = _execute(plan, resume is not None, as_json)
        finish(Store(folder), report, as_json)


class RunPlan(NamedTuple):
    """What to run and how."""

    recipe: Recipe
    bounds: bool
    options: dict[str, Any]  # arguments of `co.run`
    method: Method | None = None  # as an earlier start made it; None: as the recipe does, with today's defaults


def _execute(plan: RunPlan, resume: bool, as_json: bool) -> dict[str, Any]:
    """Run a plan, with its bounds where they are wanted."""
    from consilience.runs.run import Compute
    from consilience.runs.run import run as run_method

    recipe = plan.recipe
    options = dict(plan.options)
    compute = Compute(options.pop("engine"), options.pop("threads"), device=options.pop("device"))
    about = {
        "recipe": recipe.to_json(),
        "model": recipe.network,
        "keep_replies": plan.options["keep_replies"],
        "with_bounds": plan.bounds,
    }
    if options["level"] is not None:
        about["level"] = options["level"]
    bounds: dict[str, Any] = {}
    with progress(not as_json):
        method = plan.method or recipe.build_method()
        options |= {"seed": recipe.seed, "engine": compute, "resume": resume, "about": about}
        result = run_method(method, *recipe.build_problem(), **options)
    if plan.bounds:
        with progress(not as_json):
            bounds = result.bounds
    return {**result.report, "bounds": bounds, "baselines": result.baselines}


def _given(ctx: typer.Context) -> dict[str, Any]:
    """List the options that were given, and not left to their defaults."""
    defaults = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return {name: value for name, value in ctx.params.items() if ctx.get_parameter_source(name) not in defaults}


def _resume_plan(folder: Path, asked: dict[str, Any]) -> RunPlan:
    """Read from a run's folder what it was made with; anything else that is asked for is refused, but more rounds."""
    saved = Store(folder).read_json()
    recipe = _recipe(folder, saved, asked.get("model"), asked.get("data_dir"))
    if is_own_method(recipe.method):
        if asked.get("method") != recipe.method:
            raise InputError(
                f"The run in {folder} uses the method '{recipe.method}', which is not part of consilience and would be "
                f"imported: if you trust that code, write `consilience run {recipe.method} --resume {folder}`."
            )
        known_method(recipe.method)
    with refuse_damage(_damaged(folder)):
        check_resumed(str(folder), saved, asked)
    min_replies = asked.get("min_replies")
    with refuse_damage(_damaged(folder)):
        cohort = restore_fields(Participation, saved.get("participation", {}))
        options = {
            "out": folder,
            "start": (saved.get("started_from") or {}).get("folder"),
            "device": saved.get("device", "cpu"),
            "level": saved.get("level"),
            "participation": dataclasses.replace(cohort, min_replies=min_replies or cohort.min_replies),
        }
        for name, kind in RESUMED.items():
            options[name] = saved[name]
            if type(saved[name]) is not kind:
                raise TypeError(name)
        options["rounds"] = asked.get("rounds") or options["rounds"]
        method = None
        if saved.get("settings"):
            method = restore(saved["settings"])
        return RunPlan(recipe, bool(saved["with_bounds"]), options, method)


def _recipe(folder: Path, saved: dict[str, Any], model: str | None, data_dir: str | None) -> Recipe:
    """Read a run's recipe. Code that the folder names is not imported unless the user names it too."""
    recipe = Recipe.from_json(saved.get("recipe", {"": ""}), data_dir)
    if is_import_path(recipe.model) and recipe.model != model:
        raise InputError(
            f"The run in {folder} uses the model '{recipe.model}', which is not part of consilience and would be "
            f"imported and called: if you trust that code, repeat the command with `--model {recipe.model}`."
        )
    asked = recipe.split or recipe.sites
    with refuse_damage(_damaged(folder)):
        natural = asked and is_tables(recipe.data) and saved["split"] == "natural"
        if natural:  # older runs took the files regardless
            return dataclasses.replace(recipe, split="natural", sites=int(saved["sites"]))
    return recipe


def _damaged(folder: Path) -> str:
    return f"{folder / 'run.json'} is damaged: restore it from a copy, or start the run again in another folder."


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
    from consilience.findings.run_findings import read_run
    from consilience.runs.run import load

    saved = Store(folder).read_json()
    recipe = _recipe(folder, saved, model, data_dir)
    result = load(folder, None, *recipe.build_problem())
    other = dataclasses.replace(recipe, method=method, settings=tuple(settings or ())).build_method()
    pooled = result.pool(other)
    target = Store(out_ or free_folder(folder, f"pool-{method}"))
    with lock_folder(target.folder):
        about = {key: saved.get(key, {}) for key in ("bounds", "baselines")}
        with refuse_damage(_damaged(folder)):
            read_run(about)
        finish(target, {**pooled.report, **about, "pooled_from": folder.name}, as_json)


@app.command(short_help="Write a folder's report.html again.")
def report(folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison or experiment.")]) -> None:
    """Write report.html again from run.json, compare.json or results.json."""
    from consilience.report.reproduction_page import reproduction_page
    from consilience.report.run_page import comparison_page, run_page

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
