"""A study as the text people read, discuss and sign."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from consilience.data.cells import is_empty, number, read_table
from consilience.data.columns import MOST_CLASSES
from consilience.errors import InputError, unknown_name
from consilience.study.agreement import SITES, Agreement, Study
from consilience.study.columns import Column, Target

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

[target]  # classes = ["no", "yes"], or a number with unit, range, centre and spread
{target}

# type: number or category. range: what is plausible; anything outside is refused with examples. The model sees
# (value − centre) / spread. missing: refuse, or mark (a number becomes `fill` and is marked in a column of its own, a
# category is none of its levels). unknown: further texts that mean missing.
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
smallest = {smallest}  # the smallest count that may be shown, and the fewest rows a site may take part with

[leaving]  # what leaves a site: {sends}
leaves = {leaves}  # nothing else may be in a reply, and no reply may be larger
most_bytes = {most_bytes}
# What sites get back. mixture: all samples, without names; student: one distilled model; ensemble: every site's
# posterior by name, which β and λ need, and which shows every site what the others sent.
hand_out = {hand_out}
"""


def agreement_text(a: Agreement, sends: str) -> str:
    apart = ("target", "columns")
    words = {f.name: toml(getattr(a, f.name)) for f in dataclasses.fields(a) if f.name not in apart}
    target = "\n".join(f"{k} = {toml(v)}" for k, v in _target_fields(a.target).items())
    columns = "\n".join(f"{_bare(c.name)} = {inline(_column_fields(c))}" for c in a.columns)
    return AGREEMENT.format(**words, target=target, columns=columns, sends=sends, method_name=a.method)


def study_text(study: Study) -> str:
    """The whole file: the agreement as it was written, then the sites and the models made so far."""
    parts = [study.text.rstrip("\n") + "\n"]
    if study.sites:
        parts.append(SITES)
    for site in study.sites:
        fields = {k: getattr(site, k) for k in ("name", "number", "key", "signature", "left")}
        parts.append("[[sites]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in fields.items()))
    for made in study.models:
        parts.append("[[models]]\n" + "".join(f"{k} = {toml(v)}\n" for k, v in made._asdict().items()))
    return "\n".join(parts)


def toml(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(toml(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def inline(fields: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in fields.items()) + " }"


def _bare(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else toml(name)


def _column_fields(c: Column) -> dict[str, Any]:
    """Only what says something about this kind of column."""
    fields: dict[str, Any] = {"type": c.type}
    if c.type == "number":
        fields |= {"unit": c.unit, "range": c.range, "centre": c.centre, "spread": c.spread}
    else:
        fields["levels"] = c.levels
    fields["missing"] = c.missing
    if c.missing == "mark" and c.type == "number":
        fields["fill"] = c.fill
    return fields | ({"unknown": c.unknown} if c.unknown else {})


def _target_fields(t: Target) -> dict[str, Any]:
    if t.classes:
        return {"name": t.name, "classes": t.classes}
    return {"name": t.name, "unit": t.unit, "range": t.range, "centre": t.centre, "spread": t.spread}


def propose_columns(path: Path, target: str) -> tuple[Target, tuple[Column, ...]]:
    """Columns as an example table suggests them, with ranges rounded outwards: to be checked by people who know.

    A few odd texts among numbers are taken to mean missing. Texts that could name single rows are refused.
    """
    table = read_table(path, fewest=1)
    if target not in table.columns:
        raise unknown_name("column", target, table.columns)
    columns = []
    for name, cells in table.columns.items():
        known = [cell.text for cell in cells if not is_empty(cell)]
        numbers = [v for v in map(number, known) if v is not None]
        missing = "mark" if len(known) < len(cells) else "refuse"
        texts = sorted(set(known), key=lambda t: (number(t) is None, number(t) or 0.0, t))
        odd = tuple(t for t in texts if number(t) is None)
        few = len(texts) <= (MOST_CLASSES if name == target else FEW) and all(v.is_integer() for v in numbers)
        if few or len(odd) > FEW or 2 * len(numbers) <= len(known):
            if odd and name != target:
                _check_levels(name, len(texts), len(known))
            columns.append(Column(name, "category", levels=tuple(texts), missing=missing))
            continue
        low, high = _outwards(min(numbers), max(numbers))
        centre, spread = (low + high) / 2, (high - low) / 4
        missing = "mark" if odd else missing
        columns.append(Column(name, "number", "", (low, high), centre, spread, (), missing, centre, odd))
    own = next(c for c in columns if c.name == target)
    made = Target(target, own.levels, "", own.range, own.centre, own.spread)
    return made, tuple(c for c in columns if c.name != target)


def _check_levels(name: str, levels: int, rows: int) -> None:
    """Levels are written into the study, which goes to every site."""
    if levels > MOST_LEVELS or (levels > 2 and 2 * levels > rows):
        raise InputError(
            f"Column '{name}' has {levels} different texts in {rows} rows, which the study's file would show to every "
            "site: leave the column out of the table, or describe it with --columns."
        )


def _outwards(low: float, high: float) -> tuple[float, float]:
    """A range half as wide again on either side, at round numbers; what cannot be negative stays so."""
    width = (high - low) or abs(high) or 1.0
    step = 10 ** (len(str(int(width))) - 1) if width >= 1 else width
    below = ((low - width / 2) // step) * step
    return (0.0 if low >= 0 > below else float(below)), float(-((-high - width / 2) // step) * step)
