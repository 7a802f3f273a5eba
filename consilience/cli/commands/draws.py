"""Commands that pool the draws of any Bayesian model: pool, moments, ask, correct; and of studies, `draws`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.app import draws_app, site_app, study_app
from consilience.cli.commands.study import warn
from consilience.cli.handed import columns as listing
from consilience.cli.handed import say, site_home, write_files
from consilience.cli.screen import out
from consilience.cli.study_options import Files_ as Received_
from consilience.cli.study_options import Key_, Ledger_, Replace_, SiteOut_, Study_, Table_
from consilience.errors import InputError

if TYPE_CHECKING:
    from consilience.draws import Draws, Moments, Pooled

UNUSABLE = 3  # the exit code of a pool that should not be used

Files_ = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE…", help="One a site: .nc, .zarr, a quoted pattern of CmdStan's .csv, or moments .json."
    ),
]
Prior_ = Annotated[
    list[str] | None,
    typer.Option(
        help="The prior that all sites used: a file of draws; NAME=DENSITY, repeated, as beta=normal(0,2.5); flat; "
        "fractional; or model, by lprior in the files."
    ),
]
Param_ = Annotated[
    list[str] | None, typer.Option("--param", help="A parameter to pool, repeated; by default all that sites share.")
]
Transform_ = Annotated[
    list[str] | None,
    typer.Option(
        "--transform",
        help="NAME=real, positive, unit, interval(LOW,HIGH), simplex, ordered, correlation or cholesky; repeated.",
    ),
]
Count_ = Annotated[int, typer.Option("--draws", help="How many draws to make.")]
Seed_ = Annotated[int, typer.Option(help="Of the randomness.")]
Anyway_ = Annotated[bool, typer.Option("--anyway", help="Write a pool that should not be used, with its alarms.")]
Json_ = Annotated[bool, typer.Option("--json", help="Print the table and the alarms as JSON.")]


@draws_app.command()
def pool(
    files: Files_,
    prior: Prior_ = None,
    rule: Annotated[
        str,
        typer.Option(
            help="auto, gaussian, consensus, semiparametric, kernel, barycentre, mixture, reweighted or hierarchical."
        ),
    ] = "auto",
    param: Param_ = None,
    transform: Transform_ = None,
    tau: Annotated[float | None, typer.Option(help="Of hierarchical: the scale of the prior of each tau.")] = None,
    draws: Count_ = 4000,
    seed: Seed_ = 0,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where the pool is written, as .nc.")] = None,
    anyway: Anyway_ = False,
    as_json: Json_ = False,
) -> None:
    """Pool the posteriors of several sites into one, and say whether to believe it."""
    from consilience.draws import pool as pool_draws

    pooled = pool_draws(
        [_read(file) for file in files],
        _prior(prior),
        rule,
        params=param,
        transforms=_pairs(transform, "--transform", "sigma=positive"),
        draws=draws,
        seed=seed,
        tau=tau,
    )
    _finish(pooled, out_, anyway, as_json)


@draws_app.command()
def moments(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A site's draws.")],
    transform: Transform_ = None,
    param: Param_ = None,
    rows: Annotated[
        int | None, typer.Option(help="Rows that the model was fitted to, to see whether it may leave.")
    ] = None,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where they are written, as .json.")] = None,
) -> None:
    """Write mean and covariance, which say less about rows, in place of draws."""
    from consilience.draws import Draws, moments_of
    from consilience.draws.disclosure import check_rows
    from consilience.draws.space import shared_space

    site = _read(file)
    if not isinstance(site, Draws):
        raise InputError(f"{file} holds moments already: send it as it is.")
    space = shared_space([site], param, _pairs(transform, "--transform", "sigma=positive"))
    if rows is not None:
        check_rows(rows, space.width)
    say("All sites must write their parameters alike: give the others the same transforms.")
    for parameter in space.parameters:
        say(f"--param {parameter.name} --transform '{parameter.name}={parameter.transform}'")
    write_files(out_ or Path(f"{site.name}.json"), moments_of(site, space).to_json(), "Moments", shared=True)


@draws_app.command()
def ask(
    pooled: Annotated[str, typer.Argument(metavar="POOLED", help="What `draws pool` wrote.")],
    draws: Count_ = 2000,
    seed: Seed_ = 0,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where the question is written, as .nc.")] = None,
) -> None:
    """Make proposals at which each site shall say how probable its rows are."""
    from consilience.draws import ask as ask_draws
    from consilience.draws.writing import read_pooled, to_netcdf

    question = ask_draws(read_pooled(pooled), draws, seed)
    write_files(out_ or Path("ask.nc"), to_netcdf({"posterior": question}), "Question", shared=True)
    say("Next: at each site, write log_lik, the log-likelihood of all its rows at every draw, in the same order.")


@draws_app.command()
def correct(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What `draws ask` wrote.")],
    answers: Files_,
    prior: Prior_ = None,
    draws: Count_ = 4000,
    seed: Seed_ = 0,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where the pool is written, as .nc.")] = None,
    anyway: Anyway_ = False,
    as_json: Json_ = False,
) -> None:
    """Correct a pool by the sites' log-likelihoods at the same proposals."""
    from consilience.draws import correct as correct_draws
    from consilience.draws import read

    known = _prior(prior)
    if known is None:
        raise InputError("The prior shall count once: give it with --prior, as --prior 'beta=normal(0,2.5)'.")
    pooled = correct_draws(read(question, "the question"), [read(file) for file in answers], known, draws, seed)
    _finish(pooled, out_, anyway, as_json)


@site_app.command("draws")
def site_draws(
    study_file: Study_,
    table: Table_,
    file: Annotated[
        str, typer.Argument(metavar="DRAWS", help="Of your own model of these rows: .nc, .zarr, or CmdStan's .csv.")
    ],
    out_: SiteOut_ = None,
    key: Key_ = None,
    ledger: Ledger_ = None,
    replace: Replace_ = False,
) -> None:
    """Write the posterior of this site's own model, as the study agreed on it. One leaves, once."""
    from consilience.study.posteriors import OwnPosterior
    from consilience.study.protocol.members import read
    from consilience.study.protocol.posteriors import describe_posteriors

    study = read(study_file)
    question = OwnPosterior(study, file, replace)
    home = site_home(study, key)
    opened = home.open(table, ledger, keep=write_files)
    path = out_ or Path(f"{home.member.name}.posterior")
    write_files(path, opened.site.answer(question).content, "For the coordinator")
    say(describe_posteriors(study.agreement))
    say("That the draws are of this table's rows, nobody can check but you.", "yellow")
    say(f"`consilience site show {path}` shows everything that leaves.")


@study_app.command("draws")
def study_draws(
    study_file: Study_,
    files: Received_,
    draws: Count_ = 4000,
    seed: Seed_ = 0,
    out_: Annotated[Path | None, typer.Option("--out", "-o", help="Where the pool is written, as .nc.")] = None,
    anyway: Anyway_ = False,
    as_json: Json_ = False,
) -> None:
    """Pool the posteriors of the sites' own models into one, and say whether to believe it."""
    from consilience.report.schema.wording import percent
    from consilience.study.posteriors import pool_posteriors
    from consilience.study.protocol.members import read

    study = read(study_file)
    pooled, shares, refused = pool_posteriors(study, files, draws, seed)
    warn(refused)
    most = study.agreement.most_influence
    for name, share in shares.items():
        if share > most and not as_json:
            say(f"{name} has {percent(share)} of what is known, and the study agreed on {percent(most)}.", "yellow")
    _finish(pooled, out_, anyway, as_json)


def _read(file: str) -> Draws | Moments:
    from consilience.draws import read, read_moments

    if file.endswith(".json"):
        return read_moments(Path(file))
    return read(file)


def _prior(words: list[str] | None) -> Any:
    """One word, or a density for each parameter."""
    if not words:
        return None
    if all("=" in word for word in words):
        return _pairs(words, "--prior", "beta=normal(0,2.5)")
    if len(words) == 1:
        return words[0]
    raise InputError("Give --prior once, or once for each parameter, as --prior 'beta=normal(0,2.5)'.")


def _pairs(words: list[str] | None, flag: str, example: str) -> dict[str, str]:
    """NAME=VALUE, repeated."""
    found: dict[str, str] = {}
    for word in words or ():
        name, given, value = word.partition("=")
        if not (given and name.strip() and value.strip()):
            raise InputError(f"{flag} {word}: write it as {flag} '{example}'.")
        if name.strip() in found:
            raise InputError(f"{flag} names '{name.strip()}' twice: give it once.")
        found[name.strip()] = value.strip()
    return found


def _finish(pooled: Pooled, path: Path | None, anyway: bool, as_json: bool) -> None:
    """Print the pool, write it, and end with the exit code that says whether to use it."""
    from consilience.draws.writing import pooled_netcdf, summary

    lines = summary(pooled)
    verdict = f"{pooled.verdict}"
    if as_json:
        alarms = [alarm._asdict() for alarm in pooled.alarms]
        value = {"rule": pooled.rule, "why": pooled.why, "prior": pooled.prior, "usable": pooled.usable, "k": pooled.k}
        print(json.dumps({**value, "alarms": alarms, "parameters": lines}, ensure_ascii=False, indent=1))
    else:
        table = listing(("parameter", "mean", "SD", "3 %", "97 %", "pooled as"), right=("mean", "SD", "3 %", "97 %"))
        for line in lines:
            numbers = (f"{line[name]:.3g}" for name in ("mean", "sd", "low", "high"))
            table.add_row(line["parameter"], *numbers, line["transform"])
        out.print(table)
        say(f"Rule: {pooled.rule}, as {pooled.why}.")
        say(f"Prior, counted once: {pooled.prior}.")
        if pooled.left:
            say(f"Not pooled, as not all sites have the same: {', '.join(pooled.left)}.")
        for alarm in pooled.alarms:
            say(alarm.sentence, "red" if alarm.stops else "yellow")
        say(verdict, "bold")
    if pooled.usable or anyway:
        if path is not None:
            write_files(path, pooled_netcdf(pooled), "" if as_json else "Pool", shared=True)
    elif path is not None and not as_json:
        say(f"{path} was not written; --anyway writes it with its alarms.")
    if not pooled.usable:
        raise typer.Exit(UNUSABLE)
