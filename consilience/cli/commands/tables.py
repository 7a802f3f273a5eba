"""Commands around many runs: compare, tune, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.app import app
from consilience.cli.applies import check_applies
from consilience.cli.groups import (
    CohortOptions,
    ComputeOptions,
    DataOptions,
    NetworkOptions,
    PrivacyOptions,
    with_groups,
)
from consilience.cli.options import DataDir_, Rounds_, Seeds_, Set_, Split_
from consilience.cli.screen import live, out, print_report, progress, say_features, say_files, stoppable
from consilience.disk.locks import lock_folder
from consilience.errors import InputError


@app.command()
@with_groups
def compare(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD…", help="Methods, with settings in brackets, as 'fedavg\\[rounds=10]'."),
    ] = None,
    *,
    rows: DataOptions,
    split: Annotated[str | None, typer.Option(help="One or several splits, separated by commas.")] = None,
    seeds: Seeds_ = "0",
    network: NetworkOptions,
    common: Annotated[
        list[str] | None, typer.Option("--set", help="A setting for every method that has it; may be repeated.")
    ] = None,
    settings: Annotated[
        str | None, typer.Option(help="A file written by `tune`, or the name of a preset, as hasan2024.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of methods that run several; 10 by default.")] = None,
    validation: Annotated[float, typer.Option(help="Fraction of training rows held out, as for tuning.")] = 0.0,
    reference: Annotated[
        str | None, typer.Option(help="The row that the others are compared with; the first by default.")
    ] = None,
    bounds: Annotated[bool, typer.Option(help="Add each site alone, the server alone and all data pooled.")] = True,
    privacy: PrivacyOptions,
    cohort: CohortOptions,
    compute: ComputeOptions,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds to run at a time; one per core by default, from four seeds on."),
    ] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; run again with the same folder to continue.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only compare.json on standard output.")] = False,
) -> None:
    """Run several methods on the same splits and seeds, and write one report."""
    from consilience.benchmark.export import write_comparison
    from consilience.benchmark.plan import Plan, parse_seeds
    from consilience.benchmark.running import compare_plan
    from consilience.report.table import comparison_table
    from consilience.runs.engines import processes
    from consilience.runs.recipe import run_folder
    from consilience.runs.store import Store

    check_applies(ctx)
    plan = Plan(
        tuple(words or ()),
        rows.problem(validation=validation, **vars(network)),
        splits=_splits(split),
        seeds=parse_seeds(seeds),
        rounds=rounds,
        engine=compute.engine,
        device=compute.device,
        common=tuple(common or ()),
        settings=settings,
        bounds=bounds,
        participation=cohort.cohort(),
    )
    plan = plan.settle().protect(privacy.settings())
    say_files(plan.problem, not as_json)
    say_features(plan.problem, network.model, network.features, not as_json)
    plan.check()
    if workers is None:
        workers = 1
        if compute.device == "cpu":
            workers = processes.usual_workers(len(plan.splits) * len(plan.seeds))
    store = Store(out_ or run_folder("compare", rows.data))
    with lock_folder(store.folder):
        with stoppable(store.folder), live(not as_json) as show:
            print_row = lambda now: show(comparison_table(now.to_json()))
            comparison = compare_plan(plan, store.folder, reference, print_row, workers)
        write_comparison(comparison, store.folder)
    value = comparison.to_json()
    print_report(value, comparison_table(value), f"Report: {store.folder / 'report.html'}", as_json)


@app.command()
@with_groups
def tune(
    ctx: typer.Context,
    method: Annotated[str, typer.Argument(help="The method; settings in brackets are fixed.")],
    *,
    rows: DataOptions,
    split: Split_ = None,
    seeds: Seeds_ = "0",
    grid: Annotated[str, typer.Option(help='`papers`, or a JSON file as {"inference.rate": [0.1, 0.01]}.')] = "papers",
    budget: Annotated[
        int, typer.Option(help="Number of trials drawn from the grid; use the same for every method.")
    ] = 20,
    score: Annotated[str, typer.Option(help="The score to optimise: nll, brier, crps, accuracy or rmse.")] = "nll",
    network: NetworkOptions,
    common: Set_ = None,
    rounds: Rounds_ = None,
    validation: Annotated[float, typer.Option(help="Fraction of training rows held out to tune on.")] = 0.2,
    compute: ComputeOptions,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; several methods may share one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print only settings.json on standard output.")] = False,
) -> None:
    """Choose a method's settings on validation rows; test rows are never used."""
    from consilience.benchmark.plan import parse_seeds
    from consilience.benchmark.search import Search, Trial, run_search, write_settings
    from consilience.report.table import trial_table
    from consilience.runs.recipe import run_folder

    check_applies(ctx)
    search = Search(
        method,
        rows.problem(split=split, validation=validation, **vars(network)),
        seeds=parse_seeds(seeds),
        grid=grid,
        budget=budget,
        score=score,
        rounds=rounds,
        engine=compute.engine,
        device=compute.device,
        common=tuple(common or ()),
    )
    search = search.settle()
    say_files(search.problem, not as_json)
    say_features(search.problem, network.model, network.features, not as_json)
    folder = out_ or run_folder("tune", rows.data)

    def show_trials(trials: list[Trial]) -> Any:
        return trial_table(method, [(t.point, t.values, t.mean) for t in trials], score)

    with lock_folder(folder):
        with stoppable(folder), live(not as_json) as show:
            trials = run_search(search, folder, lambda so_far: show(show_trials(so_far)))
        chosen = write_settings(search, trials, folder)
    closing = f"Settings: {folder / 'settings.json'}; use them with --settings."
    print_report(chosen, show_trials(trials), closing, as_json)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; without one, all are listed.")] = None,
    seeds: Seeds_ = "0-2",
    scale: Annotated[
        str | None, typer.Option(help="full, or quick or smoke where the experiment has such a smaller version.")
    ] = None,
    column: Annotated[list[str] | None, typer.Option(help="A column to run, all by default; may be repeated.")] = None,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results; finished trials there are kept.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of trials to run at a time.")] = 1,
    data_dir: DataDir_ = None,
) -> None:
    """Run a paper's experiment, or continue it, and print our results beside the paper's."""
    from consilience.benchmark import reproduce as experiments
    from consilience.benchmark.plan import parse_seeds
    from consilience.cli.handed import columns
    from consilience.report.reproduction_page import reproduction_page
    from consilience.runs.store import Store

    if name is None:
        table = columns(("experiment", "what it repeats"))
        for known in experiments.names():
            table.add_row(known, experiments.load(known).title)
        out.print(table)
        return
    experiment = experiments.load(name)
    folder = out_ or Path("runs") / name
    with lock_folder(folder):
        with stoppable(folder), progress(True):
            results = experiments.reproduce(name, parse_seeds(seeds), scale, folder, data_dir, workers, column or ())
        draw = getattr(experiments.module(name), "draw", None)
        if draw is not None:
            draw(results, folder)
        Store(folder).write("report.html", reproduction_page(results).encode())
    out.print(experiments.results_table(results, experiment.digits))
    for sentence in results.get("lost") or []:
        out.print(f"Lost: {sentence}", style="yellow", soft_wrap=True, markup=False)
    out.print(f"Results: {folder / 'results.json'}", soft_wrap=True)
    out.print(f"Report: {folder / 'report.html'}", soft_wrap=True)


def _splits(text: str | None) -> tuple[str | None, ...]:
    """Read a list of splits; without one, the data's own."""
    if not text:
        return (None,)
    parts = tuple(part.strip() for part in text.split(","))
    if "" in parts:
        raise InputError(
            f"--split {text}: a comma has no split beside it; write for example --split iid,dirichlet:0.1."
        )
    return parts
