"""A study as the text people read, discuss and sign."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from consilience.data.cells import Cells, Numbers, is_missing, number
from consilience.data.columns import MOST_CLASSES
from consilience.data.formats import read_table
from consilience.data.inspection import widen
from consilience.data.targets import read_outcome
from consilience.errors import InputError, unknown_name
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import SITES, Study
from consilience.study.protocol.promise import describe_promise
from consilience.study.protocol.target import Target, lay_times

FEW = 5  # different whole numbers that look like categories, and odd texts that a column of numbers may have
MOST_LEVELS = 20  # of a column of text

AGREEMENT = """\
# A study of consilience: what all sites agree on before anything is computed.
# Read it, change what is not right, and only then let the sites sign it with `consilience site join`.
# Any later change of the agreement has another hash, and every signature and file made before is refused.

format = {format}
name = {name}
server = {server}  # the coordinator's public key
seed = {seed}  # decides every random number
scaling = {scaling}  # agreed: by the constants below; sums: the constants come from `site sums` and `study scale`

[target]  # {target_kind}
{target}

# type: number or category. range: what is plausible; anything outside is refused with examples. The model sees
# (value − centre) / spread. missing: refuse, mark (a number becomes `fill` and is marked in a column of its own, a
# category is none of its levels), centre (a number becomes `centre`, unmarked) or impute (a number is drawn several
# times at the site, for methods that send a Gaussian). unknown: further texts that mean missing, as ? does. same:
# pairs of a spelling and the level it means. since: the day from which the days of a column of dates are counted.
[columns]
{columns}

[model]  # see `consilience run --help`
model = {model}
prior_var = {prior_var}  # variance of every weight before any data; the same at all sites
noise = {noise}  # of a number: variance of an observation on the scaled target, 0 if it is learned
draws = {draws}  # members that stand for a Gaussian when predicting

[method]  # see `consilience methods {method_name}`
method = {method}
settings = {settings}
rounds = {rounds}  # hand-overs; 1 for one-round methods

[rows]  # each site's own, drawn by the seed
choose = {choose}  # share that chooses β, λ and temperature; only sums of log-scores leave the site
test = {test}  # share that only scores
smallest = {smallest}  # rule "smallest cell": smaller counts are not shown, nor does a site take part with fewer rows
rare = {rare}  # rule "rare values": levels of fewer rows become "other", and a reply names them; merge; or refuse
rows_per_parameter = {rows_per_parameter}  # rule: training rows a site needs for each parameter; 0: no such rule
fewest_sites = {fewest_sites}  # rules "fewest sites", "subtraction": fewer are not pooled, nor do models differ by them
most_influence = {most_influence}  # share of the pooled model that one site may have without a warning

[leaving]  # what leaves a site: {sends}
leaves = {leaves}  # nothing else may be in a reply, and no reply may be larger
most_bytes = {most_bytes}
# What sites get back. mixture: all samples, without names; student: one distilled model; ensemble: every site's
# posterior by name, which β and λ need, and which shows every site what the others sent.
hand_out = {hand_out}
"""


def agreement_text(a: Agreement, sends: str) -> str:
    """Write an agreement as people read it.

    Args:
        sends: What leaves a site, in words.

    Returns:
        The text, TOML with comments.
    """
    apart = ("target", "columns")
    words = {f.name: toml(getattr(a, f.name)) for f in dataclasses.fields(a) if f.name not in apart}
    target = "\n".join(f"{k} = {toml(v)}" for k, v in _target_fields(a.target).items())
    columns = "\n".join(f"{_bare(c.name)} = {inline(_column_fields(c))}" for c in a.columns)
    words |= {"target": target, "target_kind": TARGET_KINDS[a.kind], "columns": columns}
    text = AGREEMENT.format(**words, sends=sends, method_name=a.method)
    return _with_promise(_with_options(text, a), a)


TARGET_KINDS = {  # the comment beside [target]
    "classification": 'classes = ["no", "yes"], or a number with unit, range, centre and spread',
    "regression": 'classes = ["no", "yes"], or a number with unit, range, centre and spread',
    "counts": "counts of one unit of exposure, where an exposure is named",
    "survival": "times until event = 1, or until nobody looked any longer; curves are given at times, risks at horizon",
}


def _with_options(text: str, a: Agreement) -> str:
    """The text with the optional fields that the study uses, each at the top of its table."""
    for field in dataclasses.fields(a):
        value = getattr(a, field.name)
        if not field.metadata or value == field.default:
            continue
        line = f"{field.name} = {toml(value)}  # {field.metadata['says']}\n"
        heading = f"\n[{field.metadata['part']}]"
        if heading not in text:
            text = f"{text.rstrip(chr(10))}\n{heading}\n"
        place = text.index("\n", text.index(heading) + 1) + 1
        text = text[:place] + line + text[place:]
    return text


def _with_promise(text: str, a: Agreement) -> str:
    """The text with what a promise of privacy means, whichever of its fields stand there."""
    if a.privacy is None:
        return text
    promise = describe_promise(a)["privacy"]
    where = "every site adds all of the noise"
    if promise["noise"] == "once":
        where = f"noise once, {promise['honest_sites']} honest sites' shares of it, under secure sums"
    meant = (
        f"# For each {promise['unit']}; neighbours: {promise['adjacency']} one; {where}.\n"
        f"# Not covered: {'; '.join(promise['not_covered'])}.\n"
    )
    place = text.index("\n", text.index("\n[privacy]") + 1) + 1
    return text[:place] + meant + text[place:]


def study_text(study: Study) -> str:
    """Write a study's whole file: the agreement as it was written, then the sites and the models made so far."""
    parts = [study.text.rstrip("\n") + "\n"]
    if study.sites or study.sums:
        parts.append(SITES)
    for giver in study.sums:
        parts.append("[[sums]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in giver._asdict().items() if v))
    for site in study.sites:
        names = ("name", "number", "rows", "key", "masks", "signature", "left")
        fields = {k: getattr(site, k) for k in names if k not in ("rows", "masks") or getattr(site, k)}
        parts.append("[[sites]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in fields.items()))
    for drop in study.drops:
        parts.append("[[drops]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in drop._asdict().items()))
    for model in study.models:
        parts.append("[[models]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in model._asdict().items()))
    return "\n".join(parts)


def toml(value: Any) -> str:
    """Write a value as TOML does.

    Args:
        value: A text, number, truth value, or a list of them.
    """
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which JSON allows as it is


def inline(fields: dict[str, Any]) -> str:
    """Write fields as an inline table of TOML."""
    return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in fields.items()) + " }"


def _bare(name: str) -> str:
    """A name as a key of TOML, quoted only where it must be."""
    if name.isascii() and name.replace("_", "").replace("-", "").isalnum():
        return name
    return toml(name)


def _column_fields(c: Column) -> dict[str, Any]:
    """Only what says something about this kind of column."""
    fields: dict[str, Any] = {"type": c.type}
    if c.type == "number":
        fields |= {"unit": c.unit, "range": c.range, "centre": c.centre, "spread": c.spread}
        if c.since:
            fields["since"] = c.since
        if c.quantiles:
            fields["quantiles"] = c.quantiles
    else:
        fields["levels"] = c.levels
    fields["missing"] = c.missing
    if c.missing == "mark" and c.type == "number":
        fields["fill"] = c.fill
    if c.unknown:
        fields["unknown"] = c.unknown
    if c.same:
        fields["same"] = c.same
    return fields


def _target_fields(t: Target) -> dict[str, Any]:
    if t.classes:
        return {"name": t.name, "classes": t.classes}
    if t.kind == "regression":
        return {"name": t.name, "unit": t.unit, "range": t.range, "centre": t.centre, "spread": t.spread}
    return {name: value for name, value in t.fields.items() if name not in ("classes", "centre", "spread")}


def propose_columns(
    path: Path, target: str, event: str = "", horizon: float | None = None, counts: bool = False, exposure: str = ""
) -> tuple[Target, tuple[Column, ...]]:
    """Describe columns as an example table suggests them: to be checked by people who know.

    Ranges are rounded outwards. A few odd texts among numbers are taken to mean missing.

    Args:
        path: The table, a CSV file.
        target: The column to be predicted; that of times, where there is an event.
        event: The column that says whether the event was seen; none if empty.
        horizon: The time at which risks are shown; the middle of the grid that is proposed if None.
        counts: Whether the target's numbers are counts.
        exposure: The column of the counts' exposure; none if empty.

    Returns:
        What is predicted, and the other columns.

    Raises:
        InputError: There is no such column, or one holds texts that could name single rows.
    """
    table = read_table(path, fewest=1)
    for name in (target, event, exposure):
        if name and name not in table.columns:
            raise unknown_name("column", name, table.columns)
    own = {target, event, exposure}
    columns = tuple(_propose(name, cells, False) for name, cells in table.columns.items() if name not in own)
    if not event and not counts:
        c = _propose(target, table.columns[target], True)
        return Target(target, c.levels, "", c.range, c.centre, c.spread), columns
    if event:
        y = read_outcome(dict(table.columns), (target, event), "survival")
        times, at = lay_times(y[y[:, 1] > 0, 0].tolist(), horizon)
        return Target(target, range=_from_zero(y[:, 0]), event=event, times=times, horizon=at), columns
    y = read_outcome(dict(table.columns), (target, exposure or None), "counts").reshape(len(table), -1)
    if not exposure:
        return Target(target, range=_from_zero(y[:, 0]), counts=True), columns
    ranges = (_from_zero(y[:, 0]), _from_zero(y[:, 1]))
    return Target(target, range=ranges[0], counts=True, exposure=exposure, exposure_range=ranges[1]), columns


def _from_zero(values: Tensor) -> tuple[float, float]:
    """From 0 to beyond the largest number, rounded outwards."""
    return 0.0, widen(float(values.min()), float(values.max()))[1]


def _propose(name: str, cells: Cells, is_target: bool) -> Column:
    """One column as its cells suggest it."""
    empty = cells.empty()
    known = len(cells) - int(empty.sum())
    values = cells.numbers()
    numbers = values[~np.isnan(values)]
    texts = {text for text in cells.distinct() if not is_missing(text)}
    odd = tuple(sorted(text for text in texts if number(text) is None))
    if _looks_like_category(texts, odd, numbers, known, is_target):
        if odd and not is_target:
            _check_levels(name, len(texts), known)
        levels = sorted(texts, key=lambda t: (number(t) is None, number(t) or 0.0, t))
        return Column(name, "category", levels=tuple(levels), missing=_treat(known < len(cells)))
    low, high = widen(float(numbers.min()), float(numbers.max()))
    centre = (low + high) / 2
    spread = (high - low) / 4
    gaps = known < len(cells) or bool(odd)
    return Column(name, "number", "", (low, high), centre, spread, (), _treat(gaps), centre, odd)


def _looks_like_category(
    texts: Collection[str], odd: Sequence[str], numbers: Numbers, known: int, is_target: bool
) -> bool:
    """Few different whole numbers, many odd texts, or more texts than numbers."""
    most = FEW
    if is_target:
        most = MOST_CLASSES
    few = len(texts) <= most and bool((numbers == np.floor(numbers)).all())
    return few or len(odd) > FEW or 2 * len(numbers) <= known


def _treat(gaps: bool) -> str:
    """What a column does with missing values: marked if there are any."""
    if gaps:
        return "mark"
    return "refuse"


def _check_levels(name: str, levels: int, rows: int) -> None:
    """Levels are written into the study, which goes to every site."""
    if levels > MOST_LEVELS or (levels > 2 and 2 * levels > rows):
        raise InputError(
            f"Column '{name}' has {levels} different texts in {rows} rows, which the study's file would show to every "
            "site: leave the column out of the table, or let `consilience inspect TABLE --write columns.toml` propose "
            "the columns, correct them, and give them with --columns."
        )
