"""`consilience recommend`: which method for these rows, why, and where that was measured."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from consilience.cli.app import app
from consilience.cli.applies import check_applies
from consilience.cli.given import typed_options
from consilience.cli.groups import DataOptions, with_groups
from consilience.cli.handed import say
from consilience.cli.options import Epsilon_, Seed_, Split_
from consilience.cli.screen import say_files
from consilience.report.schema.numbers import count
from consilience.report.schema.wording import percent

if TYPE_CHECKING:
    from consilience.data.sites import Sites
    from consilience.methods.advice import Advice
    from consilience.methods.situation import Shift
    from consilience.methods.slopes import Slopes


NOT_OF_RUN = ("secure", "one_round", "effects", "as_json")  # what is asked for here alone


@app.command()
@with_groups
def recommend(
    ctx: typer.Context,
    *,
    rows: DataOptions,
    split: Split_ = None,
    secure: Annotated[bool, typer.Option("--secure", help="Sites shall mask what they send.")] = False,
    epsilon: Epsilon_ = None,
    one_round: Annotated[bool, typer.Option("--one-round", help="Sites can answer once only.")] = False,
    effects: Annotated[bool, typer.Option("--effects", help="Coefficients with intervals are asked for.")] = False,
    seed: Seed_ = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Look at kind, size, sites and shift, and name a method with the reason and what was measured."""
    from consilience.methods.situation import measure_shift
    from consilience.methods.situation import recommend as recommend_method

    check_applies(ctx)
    problem = rows.problem(split=split)
    say_files(problem, not as_json)
    sites = problem.build_sites(seed)
    advice = recommend_method(sites, secure=secure, epsilon=epsilon, one_round=one_round, effects=effects)
    shift = measure_shift(sites)
    if as_json:
        print(json.dumps({**advice._asdict(), "seen": describe(sites, shift)}, ensure_ascii=False, indent=1))
        return
    for sentence in describe(sites, shift):
        say(sentence)
    say("")
    say(f"Take {advice.method}", "bold")
    say(f"Why: {advice.why}.")
    say(f"Measured: {advice.figure} ({advice.page}).")
    for caution in advice.cautions:
        say(caution, "yellow")
    say("")
    say(_command(advice, typed_options(ctx), secure))


def _command(advice: Advice, asked: Mapping[str, Any], secure: bool) -> str:
    """The command that does what is advised: a run on the same rows, or a study where replies are to be masked."""
    if secure:
        return f"consilience study new NAME --like TABLE --target COLUMN --secure --method {advice.words}"
    words = ["consilience", "run", *advice.words.split()]
    for name, value in asked.items():
        values = [value]
        if isinstance(value, (list, tuple)):
            values = [*value]
        for each in values:
            if name not in NOT_OF_RUN:
                words += [f"--{name.replace('_', '-')}", shlex.quote(str(each))]
    return " ".join(words)


def describe(sites: Sites, shift: Shift) -> list[str]:
    """Say what was looked at.

    Args:
        sites: Everybody's rows.
        shift: How far the sites differ.

    Returns:
        A sentence each: the rows, and what differs between sites.
    """
    sizes = [len(data.y) for data in sites.train]
    kind = sites.kind
    if sites.classes:
        kind = f"{sites.classes} classes"
    if isinstance(sites.shape, int):
        shape = count(sites.shape, "column")
    else:
        shape = f"images of {' × '.join(map(str, sites.shape))}"
    rows = f"{sum(sizes):,} training rows, {shape}, {kind}"
    lines = [f"{rows}; {count(len(sizes), 'site')} of {min(sizes):,} to {max(sizes):,} rows."]
    if sites.classes:
        lines.append(_outcome("Cramér's V of sites and classes", shift))
    elif not sites.outcome:
        lines.append(_outcome("share of the target's variance between sites", shift))
    if shift.columns and not sites.outcome and len(sizes) > 1:
        lines.append(_slopes(shift))
    if shift.both_matter and not shift.matters and not shift.slopes_matter:
        evidence = f"as Cramér's V {shift.both.size:.2f}, p {_chance(shift.both)}"
        lines.append(f"Each difference alone could be chance, the two together are none: {evidence}.")
    if shift.columns:
        between = f"{percent(max(shift.columns))} of its variance lies between sites"
        lines.append(f"The column that differs most is {shift.column}: {between}.")
    return lines


def _slopes(shift: Shift) -> str:
    from consilience.methods.situation import SURE

    evidence = f"score test of slopes, as Cramér's V {shift.slopes.size:.2f}, p {_chance(shift.slopes)}"
    if shift.slopes_matter:
        return f"The sites differ in what the columns say of it: {evidence}."
    if shift.slopes.chance < SURE:
        return f"The sites differ little in what the columns say of it: {evidence}."
    return f"The sites are not seen to differ in what the columns say of it: {evidence}."


def _chance(found: Slopes) -> str:
    from consilience.methods.situation import SURE

    if found.chance < SURE:
        return f"< {SURE:g}"
    return f"= {found.chance:.2g}"


def _outcome(measure: str, shift: Shift) -> str:
    if shift.matters:
        return f"The sites differ in what is predicted: {measure} {shift.outcome:.2f}."
    return f"The sites are alike in what is predicted: {measure} {shift.outcome:.2f}."
