"""Commands around many runs: compare, tune, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.options import (
    Calibration_,
    Data_,
    DataDir_,
    Deadline_,
    Dropout_,
    Engine_,
    Inputs_,
    MinReplies_,
    Model_,
    Participation_,
    Seeds_,
    Set_,
    Sites_,
    Split_,
    Target_,
    app,
)
from consilience.cli.screen import live, out, print_sentence, progress, stoppable
from consilience.engines.participation import Participation
from consilience.runs.recipe import Recipe, run_folder
from consilience.runs.store import Store


@app.command(short_help="Several methods on the same splits and seeds, one report.")
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
        str | None, typer.Option(help="A file that `tune` wrote, or a preset by name: hasan2024.")
    ] = None,
    reference: Annotated[
        str | None, typer.Option(help="The row the others are paired with; the first by default.")
    ] = None,
    bounds: Annotated[bool, typer.Option(help="Add each site alone, the server alone and pooled data.")] = True,
    participation: Participation_ = None,
    dropout: Dropout_ = 0.0,
    deadline: Deadline_ = None,
    min_replies: MinReplies_ = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder; the same again goes on.")] = None,
    data_dir: DataDir_ = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print compare.json alone on standard output.")] = False,
) -> None:
    """Run several methods on the same splits and seeds, and write one report."""
    from consilience.comparison.export import write_comparison
    from consilience.comparison.plan import Plan, parse_seeds
    from consilience.comparison.running import compare_plan
    from consilience.report.table import comparison_table

    recipe = Recipe(
        data=data,
        target=target,
        sites=sites,
        model=model,
        calibration=calibration,
        inputs=inputs,
        validation=validation,
        data_dir=data_dir,
    )
    plan = Plan(
        tuple(rows or ()),
        recipe,
        splits=tuple(part.strip() for part in split.split(",")) if split else (None,),
        seeds=parse_seeds(seeds),
        rounds=rounds,
        engine=engine,
        common=tuple(common or ()),
        settings=settings,
        bounds=bounds,
        participation=Participation(participation, dropout, deadline, min_replies),
    )
    plan.check()
    store = Store(out_ or run_folder("compare", data))
    with stoppable(store.folder), live(not as_json) as show:
        comparison = compare_plan(plan, store.folder, reference, lambda now: show(comparison_table(now.to_json())))
    write_comparison(comparison, store.folder)
    value = comparison.to_json()
    print_sentence(value, comparison_table(value), f"Report: {store.folder / 'report.html'}", as_json)


@app.command(short_help="Choose a method's settings on validation rows.")
def tune(
    method: Annotated[str, typer.Argument(help="Which method; settings in brackets stay as they are.")],
    data: Data_ = "digits",
    target: Target_ = None,
    sites: Sites_ = None,
    split: Split_ = None,
    seeds: Seeds_ = "0",
    grid: Annotated[str, typer.Option(help='`papers`, or a JSON file {"inference.rate": [0.1, 0.01]}.')] = "papers",
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
    from consilience.comparison.plan import parse_seeds
    from consilience.comparison.search import Search, Trial, run_search, write_settings
    from consilience.report.table import trial_table

    recipe = Recipe(
        data=data,
        target=target,
        sites=sites,
        split=split,
        model=model,
        calibration=calibration,
        inputs=inputs,
        validation=validation,
        data_dir=data_dir,
    )
    search = Search(
        method,
        recipe,
        seeds=parse_seeds(seeds),
        grid=grid,
        budget=budget,
        score=score,
        rounds=rounds,
        engine=engine,
        common=tuple(common or ()),
    )
    folder = out_ or run_folder("tune", data)

    def shown(trials: list[Trial]) -> Any:
        return trial_table(method, [(t.point, t.values, t.mean) for t in trials], score)

    with stoppable(folder), live(not as_json) as show:
        trials = run_search(search, folder, lambda now: show(shown(now)))
    found = write_settings(search, trials, folder)
    print_sentence(found, shown(trials), f"Settings: {folder / 'settings.json'}; use them with --settings.", as_json)


@app.command(short_help="A paper's experiment: ours beside theirs.")
def reproduce(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without one, all are listed.")] = None,
    seeds: Seeds_ = "0-2",
    scale: Annotated[str | None, typer.Option(help="How much of it: full, or quick where there is one.")] = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder; what is finished there is kept.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Trials at a time.")] = 1,
    data_dir: DataDir_ = None,
) -> None:
    """Run a paper's experiment, or go on with it, and print ours beside theirs."""
    from consilience.comparison import reproduce as experiments
    from consilience.comparison.plan import parse_seeds
    from consilience.report.reproduction_page import reproduction_page

    if name is None:
        out.print("\n".join(f"{known}  {experiments.load(known).title}" for known in experiments.names()))
        return
    experiment, folder = experiments.load(name), out_ or Path("runs") / name
    with stoppable(folder), progress(True):
        results = experiments.reproduce(name, parse_seeds(seeds), scale, folder, data_dir, workers)
    if draw := getattr(experiments.module(name), "draw", None):
        draw(results, folder)
    Store(folder).write("report.html", reproduction_page(results).encode())
    out.print(experiments.results_table(results, experiment.digits))
    for sentence in results.get("lost") or []:
        out.print(f"Lost: {sentence}", style="yellow", soft_wrap=True, markup=False)
    out.print(f"Results: {folder / 'results.json'}", soft_wrap=True)
    out.print(f"Report: {folder / 'report.html'}", soft_wrap=True)
