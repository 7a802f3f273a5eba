"""The command line: demo, run, pool, methods, datasets, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from consilience.errors import InputError
from consilience.recipe import Recipe, free_folder

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Bayesian federated learning: private sites, one round, one calibrated model.",
)
out = Console()
err = Console(stderr=True)

Method_ = Annotated[str, typer.Argument(help="Which method; see «consilience methods».")]
Data_ = Annotated[
    str, typer.Option(help="A data set («consilience datasets») or a quoted pattern of CSV files, one per site.")
]
Target_ = Annotated[str | None, typer.Option(help="The column to predict, for CSV files.")]
Sites_ = Annotated[int | None, typer.Option(help="How many sites; 5, or as many as the data name.")]
Split_ = Annotated[str | None, typer.Option(help="iid, heterogeneous:H, dirichlet:ALPHA or natural.")]
Model_ = Annotated[str, typer.Option(help="linear, mlp, or package.module:factory.")]
Seed_ = Annotated[int, typer.Option(help="Decides split, start and every draw.")]
Engine_ = Annotated[str, typer.Option(help="auto, sequential or vectorised.")]
Out_ = Annotated[Path | None, typer.Option(help="The folder for everything; runs/… by default.")]
DataDir_ = Annotated[Path | None, typer.Option(envvar="CONSILIENCE_DATA", help="Where data files lie.")]
Set_ = Annotated[list[str] | None, typer.Option("--set", help="A setting, e.g. inference.epochs=20; may be repeated.")]
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
    calibration: Annotated[int, typer.Option(help="Labelled rows at the server; 0 for none.")] = 30,
    inputs: Annotated[float, typer.Option(help="Unlabelled rows at the server: a number, or a fraction below 1.")] = 0,
    validation: Annotated[float, typer.Option(help="Fraction of training rows kept for tuning.")] = 0.0,
    keep_replies: Annotated[str, typer.Option(help="last, all or none.")] = "last",
    bounds: Annotated[bool, typer.Option(help="Also score each site alone, the server alone and pooled data.")] = True,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    threads: Annotated[int | None, typer.Option(help="BLAS threads; one for small networks by default.")] = None,
    as_json: Json_ = False,
) -> None:
    """Run one method and write a report."""
    from consilience.run import run as run_method
    from consilience.store import Store

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
def pool(
    folder: Annotated[Path, typer.Argument(help="A run's folder.")],
    method: Annotated[str, typer.Option(help="The rule to pool its replies with.")],
    settings: Set_ = None,
    out_: Annotated[Path | None, typer.Option("--out", help="The folder for the new report.")] = None,
    data_dir: DataDir_ = None,
    as_json: Json_ = False,
) -> None:
    """Aggregate a run's saved replies with another method, without training."""
    import dataclasses

    from consilience.run import load
    from consilience.store import Store

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


@app.command()
def datasets(data_dir: DataDir_ = None) -> None:
    """List the data sets."""
    from consilience.catalogue import dataset_table

    out.print(dataset_table(str(data_dir) if data_dir else None))


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Write a run's report.html again from its run.json."""
    from consilience.report.html import comparison_page, run_page
    from consilience.store import Store

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
    from consilience.store import Store
    from consilience.store import as_json as json_text

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
    from consilience.store import as_json as json_text

    store.write_json("run.json", report)
    store.write("report.html", run_page(report).encode())
    if as_json:
        print(json_text(report))
    else:
        out.print(run_table(report))
        out.print(f"Report: {store.folder / 'report.html'}")


@contextmanager
def progress(wanted: bool) -> Iterator[None]:
    """A bar with what is happening and how long is left; nothing when nobody is looking."""
    from consilience.progress import listening

    if not (wanted and err.is_terminal):
        yield
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        with listening(lambda fraction, what: bar.update(task, completed=fraction, description=what or "working")):
            yield


def main() -> None:
    """Users' mistakes end with one sentence and exit code 2."""
    try:
        app()
    except InputError as error:
        err.print(f"[bold red]Error:[/] {error!s}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
