"""Commands around one run: run, pool, report, and the demo."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.cli.options import (
    Calibration_,
    Data_,
    DataDir_,
    Deadline_,
    Device_,
    Dropout_,
    Engine_,
    Inputs_,
    Json_,
    MinReplies_,
    Model_,
    Participation_,
    Seed_,
    Set_,
    Sites_,
    Split_,
    Target_,
    app,
    methods_like,
)
from consilience.errors import InputError
from consilience.participation import Participation
from consilience.recipe import Recipe, free_folder
from consilience.screen import out, progress
from consilience.store import Store
from consilience.store import as_json as json_text


@app.command()
def run(
    method: Annotated[
        str | None, typer.Argument(autocompletion=methods_like, help="Which method; see «consilience methods».")
    ] = None,
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
    participation: Participation_ = None,
    dropout: Dropout_ = 0.0,
    deadline: Deadline_ = None,
    min_replies: MinReplies_ = None,
    keep_replies: Annotated[str, typer.Option(help="last, all or none.")] = "last",
    bounds: Annotated[bool, typer.Option(help="Also score each site alone, the server alone and pooled data.")] = True,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    start: Annotated[Path | None, typer.Option(help="Begin at the posterior of the run in this folder.")] = None,
    threads: Annotated[int | None, typer.Option(help="BLAS threads; one for small networks by default.")] = None,
    device: Device_ = "cpu",
    as_json: Json_ = False,
) -> None:
    """Run one method and write a report."""
    from consilience.run import run as run_method

    if resume is not None:
        saved = Store(resume).read_json()
        recipe = Recipe.from_json(saved.get("recipe", {"": ""}), str(data_dir) if data_dir else None)
        rounds, engine, folder = saved["rounds"], saved["engine"], resume
        keep_replies, bounds = saved["keep_replies"], saved["with_bounds"]
        start = saved.get("started_from", {}).get("folder")
        threads, device = saved["threads"], saved.get("device", "cpu")
        taking = Participation(**saved.get("participation", {}))
        taking = dataclasses.replace(taking, min_replies=min_replies or taking.min_replies)
    else:
        if method is None:
            raise InputError(
                "Say which method to run, for example «consilience run beta»; «consilience methods» lists them."
            )
        taking = Participation(participation, dropout, deadline, min_replies)
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
            participation=taking,
            device=device,
            resume=resume is not None,
            start=start,
            about={**kept, "model": recipe.model},
        )
    with progress(not as_json) as _:
        report = {**result.report, "bounds": result.bounds if bounds else {}}
    finish(Store(folder), report, as_json)


@app.command(short_help="Pool a run's replies by another rule, without training.")
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


@app.command(short_help="Write a folder's report.html again.")
def report(folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison or experiment.")]) -> None:
    """Write report.html again from run.json, compare.json or results.json."""
    from consilience.report.html import comparison_page, run_page
    from consilience.report.reproduced import reproduction_page

    store = Store(folder)
    pages = {"compare.json": comparison_page, "results.json": reproduction_page, "run.json": run_page}
    name = next((name for name in pages if (folder / name).exists()), "run.json")
    value = store.read_json(name)
    if name == "run.json" and not value.get("finished"):
        raise InputError(f"The run in {folder} has not finished; go on with «consilience run --resume {folder}».")
    store.write("report.html", pages[name](value).encode())
    out.print(f"Report: {folder / 'report.html'}")


@app.command(short_help="Five sites that hardly share a class, in under a minute.")
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
