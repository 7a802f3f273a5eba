"""`consilience study new`: the agreement as a file, to be read, corrected and signed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.app import study_app
from consilience.cli.applies import check_applies
from consilience.cli.groups import PrivacyOptions, with_groups
from consilience.cli.handed import say, say_table, write_files
from consilience.cli.options import Centre_, Event_, Exposure_, Horizon_, Seed_, Set_, Time_, features_like, with_centre
from consilience.errors import InputError, unknown_name

if TYPE_CHECKING:
    from consilience.study.protocol.columns import Column
    from consilience.study.protocol.target import Target


@study_app.command()
@with_groups
def new(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The study's name; its file will be NAME.toml.")],
    *,
    like: Annotated[
        Path | None,
        typer.Option(help="A table to propose columns from: categories are copied into the study, rows are not."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict, with --like.")] = None,
    task: Annotated[
        str | None, typer.Option(help="counts, if the target counts events; else found by looking.")
    ] = None,
    time: Time_ = None,
    event: Event_ = None,
    exposure: Exposure_ = None,
    horizon: Horizon_ = None,
    dictionary: Annotated[
        Path | None,
        typer.Option("--columns", help="Alternatively, a TOML file with the tables \\[target] and \\[columns]."),
    ] = None,
    method: Annotated[str | None, typer.Option(help="The method; see `consilience methods`.")] = None,
    model: Annotated[str | None, typer.Option(help="The network; see `consilience models`.")] = None,
    features: Annotated[
        str | None,
        typer.Option(
            autocompletion=features_like,
            help="Fixed features of the columns: identity, relu, fourier, hats, as relu:200.",
        ),
    ] = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="Coefficients with intervals are asked for: no row is held out.")
    ] = False,
    settings: Set_ = None,
    centre: Centre_ = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of exchanging files; by default the method's usual number.")
    ] = None,
    seed: Seed_ = 0,
    scaling: Annotated[
        str, typer.Option(help="agreed, or sums: found by a first exchange of sums and counts.")
    ] = "agreed",
    hand_out: Annotated[str | None, typer.Option(help="What sites get back: mixture, student or ensemble.")] = None,
    rare: Annotated[
        str, typer.Option(help="Levels of few rows: other, merge into the commonest, or refuse.")
    ] = "other",
    rows_per_parameter: Annotated[
        float, typer.Option(help="Training rows that a site needs for each parameter of the model; 0: no such rule.")
    ] = 3.0,
    fewest_sites: Annotated[int, typer.Option(help="The fewest sites whose replies are pooled.")] = 3,
    most_influence: Annotated[
        float, typer.Option(help="Share of the model that one site may have without a warning.")
    ] = 0.5,
    level: Annotated[
        float, typer.Option(help="What prediction sets shall cover, as 0.9; a fifth of the rows calibrates them.")
    ] = 0.0,
    guarantee: Annotated[str, typer.Option(help="Their kind: class, pooled, quantile or own.")] = "",
    secure: Annotated[
        bool, typer.Option("--secure", help="Sites mask what they send: the coordinator sees the sum alone.")
    ] = False,
    evaluation: Annotated[
        bool, typer.Option("--evaluation", help="Sites may send a model's calibration on their test rows.")
    ] = False,
    posterior: Annotated[
        list[str] | None,
        typer.Option(
            help="A parameter of the sites' own models, whose draws leave: 'beta\\[2] ~ normal(0, 2.5)'. Repeated."
        ),
    ] = None,
    posterior_as: Annotated[
        str | None, typer.Option(help="What leaves of them: draws, or moments: mean and covariance.")
    ] = None,
    privacy: PrivacyOptions,
    patient: Annotated[
        str | None, typer.Option(help="The column that says whose a row is, with --unit patient.")
    ] = None,
    folder: Annotated[Path, typer.Option("--folder", help="Folder for NAME.toml and NAME.key.")] = Path(),
) -> None:
    """Write a study file, to be read, corrected and then signed by every site."""
    from consilience.study.proposal import proposal
    from consilience.study.protocol.signature import new_key, public
    from consilience.study.protocol.text import agreement_text

    path = _file_of(name, folder)
    wanted = _wanted(target, task, time, event, exposure, horizon)
    check_applies(ctx)
    if (like is None) != (wanted is None):
        raise InputError(
            "Give --like TABLE together with --target COLUMN, or with --time and --event, or neither for an example to "
            "fill in."
        )
    target_column, columns_ = _propose(like, wanted, dictionary)
    draft = proposal(
        name,
        "",
        target_column,
        columns_,
        method,
        model,
        with_centre(settings, centre),
        rounds,
        seed,
        scaling,
        hand_out,
        features,
        secure,
        _privacy(privacy, patient),
        effects,
    )
    draft = dataclasses.replace(
        draft,
        rare=rare,
        rows_per_parameter=rows_per_parameter,
        fewest_sites=fewest_sites,
        most_influence=most_influence,
        level=level,
        calibrate=0.2 * bool(level),
        guarantee=guarantee,
        grid=_grid(privacy.epsilon, level),
        evaluation=evaluation,
        posteriors=tuple(posterior or ()),
        posteriors_as=_posteriors_as(posterior, posterior_as, secure),
    )
    draft.check()
    key = new_key(path.with_suffix(".key"))
    agreement = dataclasses.replace(draft, server=public(key))
    write_files(path, agreement_text(agreement, agreement.build_method().about.sends), "Study", shared=True)
    say(f"Your private key, never to be shared: {path.with_suffix('.key')}")
    _say_guesses(like, dictionary, target_column, columns_)
    needed = f"every site needs {draft.fewest_rows:,} training rows"
    say(f"The model has {draft.parameters:,} parameters: {needed}, or agree on another rows_per_parameter.")
    command = f"`consilience site join {path.name} NAME TABLE`"
    say(f"Next: read {path}, correct it, and send it to the sites, who run {command}.")


def _file_of(name: str, folder: Path) -> Path:
    """The file of a new study."""
    from consilience.study.protocol.names import is_device

    if not name.strip() or name != Path(name).name or name.startswith(".") or is_device(name):
        raise InputError(f"'{name}' cannot name a study's file: use letters and digits, and --folder for its place.")
    path = folder / f"{name}.toml"
    if path.exists():
        raise InputError(f"{path} already exists: choose another name, or delete it if nobody has signed it.")
    return path


def _say_guesses(like: Path | None, dictionary: Path | None, target: Target, columns: Sequence[Column]) -> None:
    """Say what of a new study was invented or guessed, and what is missing from it."""
    if like is None and dictionary is None:
        names = ", ".join(column.name for column in columns)
        say(
            f"This is an invented example: it predicts '{target.name}' from {names}. Write your own target and "
            "columns in their place, or start from a table with --like TABLE --target COLUMN.",
            "yellow",
        )
    if like:
        say_table(like)
        say("Columns, types and ranges are guesses from one table: correct them before anybody signs.")
        _say_doubts(like, target.name)
    unitless = [column.name for column in columns if column.type == "number" and not column.unit]
    if unitless and (like or dictionary):
        say(f"No unit is agreed on for {', '.join(unitless)}: write it in, so that all sites mean the same.", "yellow")


def _posteriors_as(posterior: list[str] | None, wanted: str | None, secure: bool) -> str:
    """What leaves of posteriors; draws do not add up under masks."""
    if wanted is not None and not posterior:
        raise InputError("--posterior-as is about parameters that nobody named: give --posterior too.")
    if wanted is None:
        return "moments" if secure and posterior else "draws"
    return wanted


def _grid(epsilon: float | None, level: float) -> int:
    """The edges that scores are counted on: few, where every count has noise."""
    from consilience.study.protocol.agreement import Agreement
    from consilience.study.protocol.guarantees import NOISY_GRID

    if epsilon is None or not level:
        return Agreement.grid
    return NOISY_GRID


def _privacy(privacy: PrivacyOptions, patient: str | None) -> dict[str, Any]:
    """The fields of [privacy]; a study of patients keeps their rows together, and holds none out."""
    if (privacy.unit == "patient") != (patient is not None):
        raise InputError("--unit patient and --patient COLUMN belong together: give both or neither.")
    if privacy.unit == "patient":
        privacy = dataclasses.replace(privacy, unit=None)
    if not privacy.settings():
        return {}
    fields = {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta or 1e-5,
        "noise_added": privacy.noise or "site",
        "honest_sites": privacy.honest or 0,
    }
    if patient is None:
        return fields
    return {**fields, "patient": patient, "choose": 0.0, "test": 0.0}


def _wanted(
    target: str | None,
    task: str | None,
    time: str | None,
    event: str | None,
    exposure: str | None,
    horizon: float | None,
) -> dict[str, Any] | None:
    """What is to be proposed from a table, by the names of `propose_columns`; None where nothing is asked for."""
    if task not in (None, "counts"):
        raise unknown_name("task", str(task), ["counts"])
    if time is None and event is None:
        if horizon is not None:
            raise InputError("--horizon is for times to an event: give --time and --event too.")
        if exposure is not None and task != "counts":
            raise InputError("--exposure is for counts: give --task counts too.")
        if target is None:
            if task is not None:
                raise InputError(
                    "--task counts needs to know which column counts: give --like TABLE and --target COLUMN."
                )
            return None
        return {"target": target, "counts": task == "counts", "exposure": exposure or ""}
    if time is None or event is None:
        raise InputError("Survival needs both columns: --time, and --event, which says whether it was seen.")
    if target is not None or task is not None or exposure is not None:
        raise InputError(
            "--time and --event are what a survival model predicts: leave --target, --task and --exposure."
        )
    return {"target": time, "event": event, "horizon": horizon}


def _propose(
    like: Path | None, wanted: dict[str, Any] | None, dictionary: Path | None
) -> tuple[Target, tuple[Column, ...]]:
    """Read the columns from a dictionary, guess them from a table, or take an example to fill in."""
    from consilience.study.proposal import EXAMPLE
    from consilience.study.protocol.text import propose_columns
    from consilience.study.protocol.toml import read_columns

    if dictionary is not None:
        return read_columns(dictionary)
    if like and wanted:
        return propose_columns(like, **wanted)
    return EXAMPLE


def _say_doubts(path: Path, target: str) -> None:
    """Say what may be wrong with the table that a study was proposed from."""
    from consilience.data.doubts import find_doubts
    from consilience.data.formats import read_table

    for name, cells in read_table(path, fewest=1).columns.items():
        for doubt in find_doubts(name, cells, target=name == target):
            say(f"{doubt.what}: look at it before anybody signs.", "yellow")
