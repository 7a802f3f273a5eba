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
from consilience.cli.screen import out, print_sentence, progress
from consilience.engines.participation import Participation
from consilience.errors import InputError
from consilience.runs.recipe import Recipe, free_folder, run_folder
from consilience.runs.store import Store


@app.command()
def run(
    method: Annotated[
        str | None, typer.Argument(autocompletion=methods_like, help="Which method; see `consilience methods`.")
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
    from consilience.runs.run import Compute
    from consilience.runs.run import run as run_method

    if resume is not None:
        recipe, bounds, how = _as_before(resume, data_dir, min_replies)
    elif method is None:
        raise InputError(
            "Say which method to run, for example `consilience run beta`; `consilience methods` lists them."
        )
    else:
        recipe = Recipe(
            method,
            data=data,
            target=target,
            sites=sites,
            split=split,
            model=model,
            seed=seed,
            calibration=calibration,
            inputs=inputs,
            validation=validation,
            settings=tuple(settings or ()),
            data_dir=data_dir,
        )
        how = {
            **{"rounds": rounds, "engine": Compute(engine, threads, device=device), "start": start},
            **{"out": out_ or run_folder(method, data), "keep_replies": keep_replies},
            "participation": Participation(participation, dropout, deadline, min_replies),
        }
    about = {
        **{"recipe": recipe.to_json(), "model": recipe.model},
        **{"keep_replies": how["keep_replies"], "with_bounds": bounds},
    }
    with progress(not as_json):
        result = run_method(*recipe.build(), seed=recipe.seed, resume=resume is not None, about=about, **how)
    with progress(not as_json):
        report = {**result.report, "bounds": result.bounds if bounds else {}}
    finish(Store(how["out"]), report, as_json)


def _as_before(folder: Path, data_dir: str | None, min_replies: int | None) -> tuple[Recipe, bool, dict[str, Any]]:
    """What a run's folder says it was made with: the recipe, whether bounds were wanted, and how it was run."""
    from consilience.runs.run import Compute

    saved = Store(folder).read_json()
    recipe = _recipe(saved, data_dir)
    taking = Participation(**saved.get("participation", {}))
    how = {
        **{"out": folder, "start": saved.get("started_from", {}).get("folder")},
        "engine": Compute(saved["engine"], saved["threads"], device=saved.get("device", "cpu")),
        **{name: saved[name] for name in ("rounds", "keep_replies")},
        "participation": dataclasses.replace(taking, min_replies=min_replies or taking.min_replies),
    }
    return recipe, saved["with_bounds"], how


def _recipe(saved: dict[str, Any], data_dir: str | None) -> Recipe:
    recipe = Recipe.from_json(saved.get("recipe", {"": ""}), data_dir)
    asked = recipe.split or recipe.sites
    if asked and recipe.data.endswith(".csv") and saved["split"] == "natural":  # older runs took the files regardless
        return dataclasses.replace(recipe, split="natural", sites=saved["sites"])
    return recipe


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
    from consilience.runs.run import load

    saved = Store(folder).read_json()
    recipe = _recipe(saved, data_dir)
    result = load(folder, *recipe.build())
    other = dataclasses.replace(recipe, method=method, settings=tuple(settings or ())).build_method()
    pooled = result.pool(other)
    target = Store(out_ or free_folder(folder, f"pool-{method}"))
    finish(target, {**pooled.report, "bounds": saved.get("bounds", {}), "pooled_from": folder.name}, as_json)


@app.command(short_help="Write a folder's report.html again.")
def report(folder: Annotated[Path, typer.Argument(help="The folder of a run, comparison or experiment.")]) -> None:
    """Write report.html again from run.json, compare.json or results.json."""
    from consilience.report.reproduction_page import reproduction_page
    from consilience.report.run_page import comparison_page, run_page

    store = Store(folder)
    pages = {"compare.json": comparison_page, "results.json": reproduction_page, "run.json": run_page}
    name = next((name for name in pages if (folder / name).exists()), "run.json")
    value = store.read_report() if name == "run.json" else store.read_json(name)
    store.write("report.html", pages[name](value).encode())
    out.print(f"Report: {folder / 'report.html'}")


@app.command(short_help="Five sites that hardly share a class, in under a minute.")
def demo(
    out_: Annotated[Path, typer.Option("--out", help="The folder for the report.")] = Path("demo"),
    seed: Seed_ = 0,
    as_json: Json_ = False,
) -> None:
    """Five sites that hardly share a class: what each way of learning together is worth, in under a minute."""
    from consilience.comparison.demo import demo as compare
    from consilience.report.run_page import comparison_page
    from consilience.report.table import comparison_table

    with progress(not as_json):
        found = compare(seed)
    store = Store(out_)
    store.write_json("compare.json", found)
    store.write("report.html", comparison_page(found).encode())
    print_sentence(found, comparison_table(found), f"Report: {out_ / 'report.html'}", as_json)


def finish(store: Store, report: dict[str, Any], as_json: bool) -> None:
    """Write the report and show it."""
    from consilience.report.run_page import run_page
    from consilience.report.table import run_table

    store.write_json("run.json", report)
    store.write("report.html", run_page(report).encode())
    print_sentence(report, run_table(report), f"Report: {store.folder / 'report.html'}", as_json)
