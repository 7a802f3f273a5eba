"""Which rows a sum over a table would show, and how they are kept out of it: merged into larger groups, or left out.

A linear model's precision is Λ = Σ w x xᵀ. A level that one row holds makes Λ's line of that level this row, and so
does every combination of features that is 0 in all other rows: "all but one", "one indicator less another". What
combines features linearly is therefore looked at here, and not single columns alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.privacy.disclosure.sparse import find_sparse

NAMED = 4  # columns of a combination that a sentence names
INVOLVED = 0.05  # of a combination's largest weight, in units of features' SDs: columns that are named
MISSING = "missing"
UNLIKE = "unlike the commonest"
ALONE = 1 - 1e-7  # share of a group's own indicator that features can combine to: 1 but for rounding


class Span(NamedTuple):
    """Where a column lies among the features.

    Attributes:
        name: The column's name.
        first: Its first feature.
        levels: The levels of a category, one feature each; none of a number.
        marked: Whether a number has a second feature that is 1 where it is missing.
        fill: What stands for a missing number, as the model sees it.
    """

    name: str
    first: int
    levels: tuple[str, ...] = ()
    marked: bool = False
    fill: float = 0.0


class Finding(NamedTuple):
    """Few rows that features set apart, and what becomes of them.

    Attributes:
        what: Which rows, for people; without a count.
        then: What they count as from now on, or that they are left out.
        column: The column; empty where several together set them apart.
        level: Which of its values: a level, `missing`, `known` or `unlike the commonest`.
    """

    what: str
    then: str
    column: str = ""
    level: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.then}."


class Guarded(NamedTuple):
    """Rows in which no group is small.

    Attributes:
        x: All rows' features, rare values merged, [N, D].
        rows: Which of them may be summed up, [N].
        findings: What was merged or left out.
    """

    x: Tensor
    rows: Tensor
    findings: tuple[Finding, ...]


class Group(NamedTuple):
    """Rows that features set apart.

    Attributes:
        name: What they have in common, for people.
        rows: Which they are, [N].
        column: The column that sets them apart by itself; empty where there is none.
    """

    name: str
    rows: Tensor
    column: str = ""


class Summed(NamedTuple):
    """What of a row is added up over rows, beside the columns themselves.

    Attributes:
        feature_map: What the model makes of rows before it is linear; None: the columns.
        outcome: What of the outcome is summed with the features [N, M]; M is 0 for nothing.
        target: The outcome's name.
        apart: Rows of the same number are added up by themselves [N]; None: all rows are added up together.
        weights: How much rows count in products of features, where not all alike [N]: one without weight shows nothing.
    """

    feature_map: Callable[[Tensor], Tensor] | None
    outcome: Tensor
    target: str = ""
    apart: Tensor | None = None
    weights: Tensor | None = None


def guard(
    x: Tensor, spans: Sequence[Span], smallest: int, summed: Summed | None = None, recode: bool = False
) -> Guarded:
    """Merge rare values, and leave rows out that features could still be combined to show.

    A rare level becomes none of its column's levels, which stands for "other": nobody is counted as what they are not.
    Where that is too small a group, the site's next rarest levels join it; in a column of two, all rows are "other".

    Args:
        x: Features, [N, D].
        spans: Where the columns lie among them.
        smallest: The fewest rows that a group may have.
        summed: What is added up beside the columns; None for nothing.
        recode: Whether rare values count as the commonest one where "other" would be too small, as studies agreed on
            before there was another way.

    Returns:
        The rows after that; every group has no row or at least `smallest`.
    """
    x = x.clone()
    rows = torch.ones(len(x), dtype=torch.bool)
    findings: dict[Finding, None] = {}  # without repetitions, in order
    while rows.any():
        part = x[rows]
        for span in spans:
            findings |= dict.fromkeys(merge_column(part, span, smallest, recode))
        x[rows] = part
        apart = _find_unlike(part, spans, smallest) or find_apart(part, spans, smallest)
        found = [apart] if apart is not None else _combined(part, spans, smallest, _of(summed, rows))
        if not found:
            break
        places = rows.nonzero().flatten()
        for group in found:
            findings[Finding(group.name, "they are left out", group.column, UNLIKE * bool(group.column))] = None
            rows[places[group.rows]] = False
    return Guarded(x, rows, tuple(findings))


def merge_column(x: Tensor, span: Span, smallest: int, recode: bool = False) -> list[Finding]:
    """Merge a column's rare values into larger groups, in place.

    Args:
        x: Features, [N, D].
        span: Where the column lies.
        smallest: The fewest rows that a group may have.
        recode: As in `guard`.

    Returns:
        What was rare.
    """
    if span.levels and recode:
        return _recode_levels(x[:, span.first : span.first + len(span.levels)], span, smallest)
    if span.levels:
        return _merge_levels(x[:, span.first : span.first + len(span.levels)], span, smallest)
    return _merge_numbers(x, span, smallest, recode)


def _merge_levels(x: Tensor, span: Span, smallest: int) -> list[Finding]:
    """Rare levels become none of the levels, and the next rarest with them until that is a group large enough."""
    none = len(span.levels)
    codes = torch.where(x.any(1), x.argmax(1), none)
    counts = codes.bincount(minlength=none + 1).tolist()
    rare = [code for code, count in enumerate(counts) if 0 < count < smallest]
    if not rare:
        return []
    joined = sorted((code for code, count in enumerate(counts[:none]) if count >= smallest), key=lambda c: counts[c])
    others = {*rare, none}
    while joined and sum(counts[code] for code in others) < smallest:
        others.add(joined.pop(0))
    x[torch.isin(codes, torch.tensor(sorted(others)))] = 0
    few = f"Column '{span.name}': fewer than {smallest} rows have"
    findings = []
    for code in [*rare, *sorted(others.difference(rare))]:
        if code in rare and code < none:
            what = f"{few} level '{span.levels[code]}'"
        elif code in rare:
            findings.append(Finding(f"{few} a missing value", "they count as 'other'", span.name, MISSING))
            continue
        elif code < none:
            what = (
                f"Column '{span.name}': 'other' would be fewer than {smallest} rows without level '{span.levels[code]}'"
            )
        else:
            continue
        findings.append(Finding(what, "they count as 'other'", span.name, span.levels[code]))
    return findings


def _recode_levels(x: Tensor, span: Span, smallest: int) -> list[Finding]:
    """Rare levels become none of the levels where that makes a group large enough, else the commonest level."""
    none = len(span.levels)
    codes = torch.where(x.any(1), x.argmax(1), none)
    counts = codes.bincount(minlength=none + 1)
    rare = [code for code, count in enumerate(counts.tolist()) if 0 < count < smallest]
    if not rare:
        return []
    few = torch.isin(codes, torch.tensor(rare))
    together = int(few.sum()) + int(counts[none]) * (none not in rare)
    x[few] = 0
    host = "none of its levels"
    if together < smallest:
        commonest = int(counts[:none].argmax())
        x[few, commonest] = 1
        host = f"'{span.levels[commonest]}', its commonest level"
        rare = [code for code in rare if code != commonest]
    names = [*(f"level '{level}'" for level in span.levels), "a missing value"]
    short = [*span.levels, MISSING]
    few_rows = f"Column '{span.name}': fewer than {smallest} rows have"
    return [Finding(f"{few_rows} {names[code]}", f"they count as {host}", span.name, short[code]) for code in rare]


def _merge_numbers(x: Tensor, span: Span, smallest: int, recode: bool) -> list[Finding]:
    """Few missing numbers count as known, few known ones as missing, and few that differ from the commonest as that."""
    findings = []
    few = f"Column '{span.name}': fewer than {smallest} rows"
    known = torch.ones(len(x), dtype=torch.bool)
    if span.marked:
        mark = x[:, span.first + 1]
        missing = int(mark.sum())
        if 0 < missing < smallest:
            mark[:] = 0
            then = "what stands for a missing value counts as known there"
            findings.append(Finding(f"{few} lack it", then, span.name, MISSING))
        elif 0 < len(x) - missing < smallest:
            mark[:] = 1
            x[:, span.first] = span.fill
            findings.append(Finding(f"{few} have it", "they count as missing", span.name, "known"))
        known = mark == 0
    values = x[known, span.first]
    if len(values) and recode:
        common = values.mode().values
        if 0 < int((values != common).sum()) < smallest:
            x[known, span.first] = common
            what = f"{few} differ from its commonest value"
            findings.append(Finding(what, "they count as that", span.name, UNLIKE))
    return findings


def _find_unlike(x: Tensor, spans: Sequence[Span], smallest: int) -> Group | None:
    """Find the few rows whose number differs from the commonest one of its column: nothing else can stand for it."""
    for span in spans:
        if span.levels:
            continue
        known = torch.ones(len(x), dtype=torch.bool)
        if span.marked:
            known = x[:, span.first + 1] == 0
        values = x[:, span.first]
        if not known.any():
            continue
        unlike = known & (values != values[known].mode().values)
        if 0 < int(unlike.sum()) < smallest:
            name = f"Column '{span.name}': fewer than {smallest} rows differ from its commonest value"
            return Group(name, unlike, span.name)
    return None


def find_apart(x: Tensor, spans: Sequence[Span], smallest: int) -> Group | None:
    """Find a few rows that a combination of levels and indicators sets apart from all others.

    Two groups that differ in few rows show these: one feature less the other is 0 everywhere else. So do groups that
    together make up all but a few. Of combinations of more than two, those are found that single out rows which are
    alike in all levels and marks.

    Args:
        x: Features, [N, D].
        spans: Where the columns lie.
        smallest: The fewest rows that a group may have.

    Returns:
        The rows, fewer than `smallest`; None where there are none.
    """
    groups = [group for span in spans for group in _groups(x, span) if 0 < int(group.rows.sum()) < len(x)]
    if not groups:
        return None
    inside = torch.stack([group.rows for group in groups], 1).double()
    return _pair(groups, inside, smallest) or _profile(inside, smallest)


def _groups(x: Tensor, span: Span) -> Iterator[Group]:
    """The groups of rows whose indicator is a sum of one column's features and a constant."""
    if span.levels:
        own = x[:, span.first : span.first + len(span.levels)]
        for i, level in enumerate(span.levels):
            yield Group(f"{span.name}={level}", own[:, i] != 0)
        yield Group(f"{span.name} missing", ~own.any(1))
        return
    known = torch.ones(len(x), dtype=torch.bool)
    if span.marked:
        known = x[:, span.first + 1] == 0
        yield Group(f"{span.name} missing", ~known)
    values = x[:, span.first]
    different = values[known].unique()
    if len(different) == 2:
        for which, value in zip(("the lower", "the higher"), different, strict=True):
            yield Group(f"{which} value of {span.name}", known & (values == value))


def _pair(groups: Sequence[Group], inside: Tensor, smallest: int) -> Group | None:
    """Rows in which two groups differ, or agree, if they are few."""
    counts = inside.sum(0)
    unlike = counts.unsqueeze(0) + counts.unsqueeze(1) - 2 * inside.T @ inside
    alike = len(inside) - unlike
    for fewest, differ in ((unlike.triu(1), True), (alike.triu(1), False)):
        pairs = ((fewest > 0) & (fewest < smallest)).nonzero()
        if not len(pairs):
            continue
        i, j = pairs[fewest[pairs[:, 0], pairs[:, 1]].argmin()].tolist()
        word = "together make up all but"
        if differ:
            word = "differ in"
        name = f"'{groups[i].name}' and '{groups[j].name}' {word} fewer than {smallest} rows"
        return Group(name, (inside[:, i] != inside[:, j]) == differ)
    return None


def _profile(inside: Tensor, smallest: int) -> Group | None:
    """Rows that are alike in all groups, and that a combination of groups singles out, if they are few."""
    profiles, which, counts = inside.unique(dim=0, return_inverse=True, return_counts=True)
    design = torch.cat([torch.ones(len(profiles), 1, dtype=torch.float64), profiles], 1)
    basis, sizes, _ = torch.linalg.svd(design, full_matrices=False)
    basis = basis[:, sizes > 1e-9 * sizes[0]]
    alone = ((basis**2).sum(1) > ALONE) & (counts < smallest)
    if not alone.any():
        return None
    return Group(f"Several levels and indicators together single out fewer than {smallest} rows", alone[which])


def _of(summed: Summed | None, rows: Tensor) -> Summed:
    """What is added up of some rows."""
    if summed is None:
        return Summed(None, torch.zeros(int(rows.sum()), 0))
    apart, weights = summed.apart, summed.weights
    if apart is not None:
        apart = apart[rows]
    if weights is not None:
        weights = weights[rows]
    return summed._replace(outcome=summed.outcome[rows], apart=apart, weights=weights)


def _combined(x: Tensor, spans: Sequence[Span], smallest: int, summed: Summed) -> list[Group]:
    """Few rows in which a combination of what is added up is not what it is in all others."""
    columns = [(place, span.name) for span in spans for place in _places(span)]
    places = torch.tensor([place for place, _ in columns], dtype=torch.int64)
    names = [name for _, name in columns]

    def features(own: Tensor) -> Tensor:
        if summed.feature_map is None:
            return torch.cat([x[own][:, places], summed.outcome[own]], 1)
        with torch.no_grad():
            return torch.cat([summed.feature_map(x[own]), summed.outcome[own]], 1)

    together = torch.arange(len(x))
    parts = [together]
    if summed.apart is not None:
        parts = [together[summed.apart == part] for part in summed.apart.unique()]
    groups = []
    for part in parts:
        weights = summed.weights
        if weights is not None:
            weights = weights[part]
        for shown in find_sparse(lambda own, part=part: features(part[own]), len(part), smallest, weights):  # type: ignore[misc]
            inside = torch.zeros(len(x), dtype=torch.bool)
            inside[part[shown.rows]] = True
            name = "the model's features"
            if summed.feature_map is None:
                name = _involved(names + [summed.target] * summed.outcome.shape[1], shown.weights)
            groups.append(Group(f"A combination of {name} is the same in all but fewer than {smallest} rows", inside))
    return groups


def _places(span: Span) -> range:
    """The features of a column that are added up."""
    return range(span.first, span.first + (len(span.levels) or 1 + span.marked))


def _involved(names: Sequence[str], weights: Tensor) -> str:
    """The columns of a combination."""
    large = (weights.abs() > INVOLVED * weights.abs().max()).nonzero().flatten().tolist()
    involved = list(dict.fromkeys(names[i] for i in large))
    listed = ", ".join(f"'{name}'" for name in involved[:NAMED])
    if len(involved) > NAMED:
        listed += f" and {len(involved) - NAMED} more"
    return listed
