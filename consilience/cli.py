"""The command line: demo, run, compare, tune, pool, methods, datasets, report, reproduce."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.errors import InputError
from consilience.recipe import Recipe, free_folder
from consilience.screen import err, live, out, progress, stoppable
from consilience.store import Store
from consilience.store import as_json as json_text

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Bayesian federated learning: private sites, one round, one calibrated model.",
)

Data_ = Annotated[
    str, typer.Option(help="A data set («consilience datasets») or a quoted pattern of CSV files, one per site.")
]
Target_ = Annotated[str | None, typer.Option(help="The column to predict, for CSV files.")]
Sites_ = Annotated[int | None, typer.Option(help="How many sites; 5, or as many as the data name.")]
Split_ = Annotated[str | None, typer.Option(help="iid, heterogeneous:H, dirichlet:ALPHA or natural.")]
Model_ = Annotated[str, typer.Option(help="linear, mlp, or package.module:factory.")]
Seed_ = Annotated[int, typer.Option(help="Decides split, start and every draw.")]
Engine_ = Annotated[str, typer.Option(help="auto, sequential, vectorised or parallel.")]
DataDir_ = Annotated[Path | None, typer.Option(envvar="CONSILIENCE_DATA", help="Where data files lie.")]
Set_ = Annotated[list[str] | None, typer.Option("--set", help="A setting, e.g. inference.epochs=20; may be repeated.")]
Seeds_ = Annotated[str, typer.Option(help="0-9, or 0,3,7, or 5: each decides split, start and every draw.")]
Calibration_ = Annotated[int, typer.Option(help="Labelled rows at the server; 0 for none.")]
Inputs_ = Annotated[float, typer.Option(help="Unlabelled rows at the server: a number, or a fraction below 1.")]
Json_ = Annotated[bool, typer.Option("--json", help="Print run.json alone on standard output.")]


@app.command()
def run(
    method: Annotated[str | None, typer.Argument(help="Which method; see «consilience methods».")] = None,
    data: Data_ = "digits",
    target: Target_ = None,
    sites: Sites_ = None,
    split: Split_ = None,
    model: Model_ = "mlp",
    rounds: Annotated[int | None, typer.Option(help="1 for one-round methods, 10 for the others.")] = None,
    seed: Seed_ = 0,
    engine: Engine_ = "auto",
    out_: Annotated[Path | None, typer.Option("--out", help="The folder for everything; runs/… by default.")] = None,
    data_dir: DataDir_ = None,
    settings: Set_ = None,
    calibration: Calibration_ = 30,
    inputs: Inputs_ = 0,
    validation: Annotated[float, typer.Option(help="Fraction of training rows kept for tuning.")] = 0.0,
    keep_replies: Annotated[str, typer.Option(help="last, all or none.")] = "last",
    bounds: Annotated[bool, typer.Option(help="Also score each site alone, the server alone and pooled data.")] = True,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    threads: Annotated[int | None, typer.Option(help="BLAS threads; one for small networks by default.")] = None,
    as_json: Json_ = False,
) -> None:
    """Run one method and write a report."""
    from consilience.run import run as run_method

    if resume is not None:
        saved = Store(resume).read_json()
        recipe = Recipe.from_json(saved.get("recipe", {"": ""}), str(data_dir) if data_dir else None)
        rounds, engine, folder = saved["rounds"], saved["engine"], resume
        keep_replies, bounds = saved["keep_replies"], saved["with_bounds"]
        threads = saved["threads"]
    else:
        if method is None:
            raise InputError(
                "Say which method to run, for example «consilience run beta»; «consilience methods» lists them."
            )
        words = (method, data, target, sites, split, model, seed, 0.2, calibration, inputs, validation)
        recipe = Recipe(*words, tuple(settings or ()), str(data_dir) if data_dir else None)
        folder = out_ or free_folder(Path("runs"), f"{method}-{Path(data).stem.strip('*') or 'csv'}")
    kept = {"recipe": recipe.to_json(), "keep_replies": keep_replies, "with_bounds": bounds}
    with progress(not as_json) as _:
        built = recipe.build()
        result = run_method(
            *built,
            rounds=rounds,
            seed=recipe.seed,
            engine=engine,
            out=folder,
            keep_replies=keep_replies,
            threads=threads,
            resume=resume is not None,
            about={**kept, "model": recipe.model},
        )
    with progress(not as_json) as _:
        report = {**result.report, "bounds": result.bounds if bounds else {}}
    finish(Store(folder), report, as_json)


@app.command()
def compare(
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD…", help="Methods, with settings in brackets: beta 'fedavg[rounds=10]'."),
    ] = None,
    data: Data_ = "digits",
    target: Target_ = None,
    sites: Sites_ = None,
    split: Annotated[str | None, typer.Option(help="One or several splits, with commas between them.")] = None,
    seeds: Seeds_ = "0",
    model: Model_ = "mlp",
    rounds: Annotated[int | None, typer.Option(help="Of methods that have many; 10 by default.")] = None,
    engine: Engine_ = "auto",
    calibration: Calibration_ = 30,
    inputs: Inputs_ = 0,
    validation: Annotated[float, typer.Option(help="Fraction of training rows left out, as when tuning.")] = 0.0,
    common: Annotated[
        list[str] | None, typer.Option("--set", help="A setting for every row that has the field; may be repeated.")
    ] = None,
    settings: Annotated[
        str | None, typer.Option(help="A file that «tune» wrote, or a preset by name: hasan2024.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The row the others are paired with; the first by default.")
    ] = None,
    bounds: Annotated[bool, typer.Option(help="Add each site alone, the server alone and pooled data.")] = True,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder; the same again goes on.")] = None,
    data_dir: DataDir_ = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json alone on standard output.")] = False,
) -> None:
    """Run several methods on the same splits and seeds, and write one report."""
    from consilience.compare import Plan, parse_seeds
    from consilience.compare import compare as compare_rows
    from consilience.comparison import csv_text, markdown
    from consilience.report.html import comparison_page
    from consilience.report.table import comparison_table

    words = ("beta", data, target, sites, None, model, 0, 0.2, calibration, inputs, validation)
    plan = Plan(
        tuple(rows or ()),
        Recipe(*words, (), str(data_dir) if data_dir else None),
        tuple(part.strip() for part in split.split(",")) if split else (None,),
        parse_seeds(seeds),
        rounds,
        engine,
        tuple(common or ()),
        settings,
        bounds,
    )
    plan.check()
    store = Store(out_ or free_folder(Path("runs"), f"compare-{Path(data).stem.strip('*') or 'csv'}"))
    with stoppable(store.folder), live(not as_json) as show:
        found = compare_rows(plan, store.folder, reference, lambda now: show(comparison_table(now)))
    store.write_json("compare.json", found)
    store.write("compare.csv", csv_text(found).encode())
    store.write("compare.md", markdown(found).encode())
    store.write("report.html", comparison_page(found).encode())
    if as_json:
        print(json_text(found))
    else:
        out.print(comparison_table(found))
        out.print(f"Report: {store.folder / 'report.html'}")


@app.command()
def tune(
    method: Annotated[str, typer.Argument(help="Which method; settings in brackets stay as they are.")],
    data: Data_ = "digits",
    target: Target_ = None,
    sites: Sites_ = None,
    split: Split_ = None,
    seeds: Seeds_ = "0",
    grid: Annotated[str, typer.Option(help='«papers», or a JSON file {"inference.rate": [0.1, 0.01]}.')] = "papers",
    budget: Annotated[int, typer.Option(help="How many trials, drawn from the grid; give every method the same.")] = 20,
    score: Annotated[str, typer.Option(help="nll, brier, crps, accuracy or rmse, on the validation rows.")] = "nll",
    model: Model_ = "mlp",
    rounds: Annotated[int | None, typer.Option(help="1 for one-round methods, 10 for the others.")] = None,
    engine: Engine_ = "auto",
    calibration: Calibration_ = 30,
    inputs: Inputs_ = 0,
    validation: Annotated[float, typer.Option(help="Fraction of training rows to tune on.")] = 0.2,
    common: Set_ = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder; several methods may share one.")] = None,
    data_dir: DataDir_ = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print settings.json alone on standard output.")] = False,
) -> None:
    """Choose a method's settings on validation rows; test rows are never looked at."""
    from consilience.compare import parse_seeds
    from consilience.report.table import trial_table
    from consilience.tune import Search, Trial, write
    from consilience.tune import tune as tune_method

    words = ("beta", data, target, sites, split, model, 0, 0.2, calibration, inputs, validation)
    search = Search(
        method,
        Recipe(*words, (), str(data_dir) if data_dir else None),
        parse_seeds(seeds),
        grid,
        budget,
        score,
        rounds,
        engine,
        tuple(common or ()),
    )
    folder = out_ or free_folder(Path("runs"), f"tune-{Path(data).stem.strip('*') or 'csv'}")

    def shown(trials: list[Trial]) -> Any:
        return trial_table(method, [(t.point, t.values, t.mean) for t in trials], score)

    with stoppable(folder), live(not as_json) as show:
        trials = tune_method(search, folder, lambda now: show(shown(now)))
    found = write(search, trials, folder)
    if as_json:
        print(json_text(found))
    else:
        out.print(shown(trials))
        out.print(f"Settings: {folder / 'settings.json'}; use them with --settings.")


@app.command()
def pool(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    method: Annotated[str, typer.Option(help="The rule to pool its replies with.")],
    settings: Set_ = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder for the new report.")] = None,
    data_dir: DataDir_ = None,
    as_json: Json_ = False,
) -> None:
    """Aggregate a run's saved replies with another method, without training."""
    from consilience.run import load

    saved = Store(folder).read_json()
    recipe = Recipe.from_json(saved.get("recipe", {"": ""}), str(data_dir) if data_dir else None)
    result = load(folder, *recipe.build())
    other = dataclasses.replace(recipe, method=method, settings=tuple(settings or ())).build_method()
    pooled = result.pool(other)
    target = Store(out_ or free_folder(folder, f"pool-{method}"))
    finish(target, {**pooled.report, "bounds": saved.get("bounds", {}), "pooled_from": folder.name}, as_json)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="One method, in full.")] = None) -> None:
    """List the methods, or show one: algorithm, paper, what a site sends, what the server needs, settings."""
    from consilience.catalogue import method_page, method_table

    out.print(method_table() if name is None else method_page(name))


datasets = typer.Typer(invoke_without_command=True, help="List the data sets, or fetch one.")
app.add_typer(datasets, name="datasets")


@datasets.callback()
def listed(context: typer.Context, data_dir: DataDir_ = None) -> None:
    """List the data sets, or fetch one."""
    from consilience.catalogue import dataset_table

    if context.invoked_subcommand is None:
        out.print(dataset_table(str(data_dir) if data_dir else None))


@datasets.command()
def get(
    name: Annotated[str, typer.Argument(help="Which data set; see «consilience datasets».")], data_dir: DataDir_ = None
) -> None:
    """Fetch a data set's file into the data folder."""
    from consilience.data import fetch

    out.print(f"{name}: {fetch(name, str(data_dir) if data_dir else None)}", soft_wrap=True)


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Write a run's report.html again from its run.json."""
    from consilience.report.html import comparison_page, run_page

    store = Store(folder)
    comparison = (folder / "compare.json").exists()
    value = store.read_json("compare.json" if comparison else "run.json")
    if not comparison and not value.get("finished"):
        raise InputError(f"The run in {folder} has not finished; go on with «consilience run --resume {folder}».")
    store.write("report.html", (comparison_page if comparison else run_page)(value).encode())
    out.print(f"Report: {folder / 'report.html'}")


@app.command()
def demo(
    out_: Annotated[Path, typer.Option("--out", help="The folder for the report.")] = Path("demo"),
    seed: Seed_ = 0,
    as_json: Json_ = False,
) -> None:
    """Five sites that hardly share a class: what each way of learning together is worth, in under a minute."""
    from consilience.demo import demo as compare
    from consilience.report.html import comparison_page
    from consilience.report.table import comparison_table

    with progress(not as_json) as _:
        found = compare(seed)
    store = Store(out_)
    store.write_json("compare.json", found)
    store.write("report.html", comparison_page(found).encode())
    if as_json:
        print(json_text(found))
    else:
        out.print(comparison_table(found))
        out.print(f"Report: {out_ / 'report.html'}")


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without one, all are listed.")] = None,
    seeds: Seeds_ = "0-2",
    scale: Annotated[str | None, typer.Option(help="How much of it: full, or quick where there is one.")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder; what is finished there is kept.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    data_dir: DataDir_ = None,
) -> None:
    """Run a paper's experiment, or go on with it, and print ours beside theirs."""
    from consilience import reproduce as experiments
    from consilience.compare import parse_seeds

    if name is None:
        out.print("\n".join(f"{known}  {experiments.load(known).title}" for known in experiments.names()))
        return
    experiment, folder = experiments.load(name), out_ or Path("runs") / name
    with stoppable(folder), progress(True):
        where = str(data_dir) if data_dir else None
        results = experiments.reproduce(name, parse_seeds(seeds), scale, folder, where, workers)
    if draw := getattr(experiments._module(name), "draw", None):
        draw(results, folder)
    out.print(experiments.results_table(results, experiment.digits))
    out.print(f"Results: {folder / 'results.json'}", soft_wrap=True)


def finish(store: Any, report: dict[str, Any], as_json: bool) -> None:
    """Write the report and show it."""
    from consilience.report.html import run_page
    from consilience.report.table import run_table

    store.write_json("run.json", report)
    store.write("report.html", run_page(report).encode())
    if as_json:
        print(json_text(report))
    else:
        out.print(run_table(report))
        out.print(f"Report: {store.folder / 'report.html'}")


def main() -> None:
    """Users' mistakes end with one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        err.print(f"[bold red]Error:[/] {error!s}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
