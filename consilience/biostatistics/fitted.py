"""What a table of effects was fitted on: rows, events and sites, and what sites merged before they fitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from consilience.biostatistics.terms import MISSING
from consilience.data.sites import Sites, concatenate
from consilience.privacy.disclosure.guard import UNLIKE

MOST_CLASSES = 6  # whose rows are named one by one
FILLED = (
    "Missing cells of {columns} were filled by the mean and marked: where more than a few are missing, their effects "
    "and those of columns that go along with them are biased, and not only too narrow. Fill by "
    "draws: missing=impute:20."
)


class Fitted(NamedTuple):
    """The rows behind a table.

    Attributes:
        rows: How many were fitted on; 0 where a site withholds its number.
        sites: At how many sites they are.
        events: Rows of each class, or events of counts and times under "events"; empty of numbers, and where they are
            not known.
        held_out: Rows that were not fitted on, by role.
        share: The share of its rows that a site of a study keeps from the fit, where their number is not known.
        merged: Levels that sites merged as few of their rows have them, by column, and at how many sites.
        more: Further sentences.
        predicting: How many of the rows the model that predicts and is scored was fitted on, where that is another
            one, as the others are held out.
    """

    rows: int
    sites: int
    events: Mapping[str, int] = {}
    held_out: Mapping[str, int] = {}
    share: float = 0.0
    merged: Mapping[str, tuple[tuple[str, ...], int]] = {}
    more: tuple[str, ...] = ()
    predicting: int = 0

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON has it; `fitted_from` reads it again."""
        value = self._asdict()
        if not self.predicting:
            del value["predicting"]
        return value

    def notes(self) -> list[str]:
        """Say it in sentences."""
        return [self._basis(), *self.merges(), *self.more]

    def merges(self) -> list[str]:
        """Say in sentences what sites merged or left out."""
        return [line for column, found in self.merged.items() for line in _merged(column, *found)]

    def _basis(self) -> str:
        n = "an unknown number of rows"
        if self.rows:
            n = _count(self.rows, "row")
        out = sum(self.held_out.values())
        if out:
            n = f"{_count(self.rows)} of {_count(self.rows + out, 'row')}"
        text = f"Fitted on {n} at {_count(self.sites, 'site')}"
        if "events" in self.events:
            text += f", {_count(self.events['events'], 'event')}"
        elif self.events and len(self.events) <= MOST_CLASSES:
            text += f" ({', '.join(f'{name}: {_count(count)}' for name, count in self.events.items())})"
        if self.predicting:
            text += f". Scores and predictions are of the same model fitted on {_count(self.predicting)} of them"
        elif out:
            roles = ", ".join(f"{_count(count)} {role}" for role, count in self.held_out.items() if count)
            zero = " and ".join(f"{role}=0" for role, count in self.held_out.items() if count)
            text += f". The others are held out ({roles}): run with {zero} to fit all"
        elif self.share:
            text += f". Sites keep {100 * self.share:.0f} % of their rows from the fit"
        return f"{text}."


def _count(n: int, noun: str = "") -> str:
    text = f"{n:,}".replace(",", "\u202f")
    if not noun:
        return text
    if n == 1:
        return f"{text} {noun}"
    return f"{text} {noun}s"


def _merged(column: str, values: tuple[str, ...], sites: int) -> Iterator[str]:
    """What became of a column's rare values; sites say no counts, and these sentences none of rows."""
    where = f"at {_count(sites, 'site')}"
    if not column:
        yield f"Few rows that a combination of columns sets apart were left out {where}."
        return
    levels = [value for value in values if value not in (UNLIKE, "known")]
    if levels:
        names = ", ".join(f"'{level}'" for level in levels)
        yield f"'{column}': {names} counted as 'other' {where}, where few rows have one of them."
    if "known" in values:
        yield f"'{column}': counted as missing {where}, where few rows have it."
    if UNLIKE in values:
        yield f"'{column}': the few rows whose value is not the commonest were left out {where}."


def fitted_from(value: Mapping[str, Any]) -> Fitted:
    """Read what `Fitted.to_json` wrote.

    Args:
        value: The fields, as JSON has them.
    """
    merged = {str(column): (tuple(map(str, levels)), int(k)) for column, (levels, k) in value["merged"].items()}
    return Fitted(
        int(value["rows"]),
        int(value["sites"]),
        {str(name): int(count) for name, count in value["events"].items()},
        {str(role): int(count) for role, count in value["held_out"].items()},
        float(value["share"]),
        merged,
        tuple(map(str, value["more"])),
        int(value.get("predicting", 0)),
    )


def fitted_of(sites: Sites) -> Fitted | None:
    """Count the rows that a simulation is fitted on.

    Args:
        sites: The sites with their rows.

    Returns:
        Rows, events and sites; None where there are no rows.
    """
    if not sites.train:
        return None
    parts = sites.train
    if sites.numbers is not None:  # rows that several sites have are there once
        parts = sites.pooled().train
    y = concatenate(parts).y
    events: dict[str, int] = {}
    if sites.classes is not None:
        classes = sites.class_names or tuple(str(c) for c in range(sites.classes))
        events = dict(zip(classes, y.bincount(minlength=sites.classes).tolist(), strict=True))
    elif sites.outcome == "counts":
        events = {"events": round(float(y.reshape(len(y), -1)[:, 0].double().sum()))}
    elif sites.outcome == "survival":
        events = {"events": int((y[:, 1] > 0).sum())}
    held_out = {
        "test": sum(len(part.y) for part in sites.test),
        "validation": sum(len(part.y) for part in sites.validation or ()),
        "conformal": sum(len(part.y) for part in sites.conformal or ()),
        "calibration": 0 if sites.calibration is None else len(sites.calibration.y),
    }
    more: tuple[str, ...] = ()
    names = sites.feature_names or ()
    gappy = [name for name in names if f"{name} {MISSING}" in names]
    if gappy and not sites.imputations:
        more = (FILLED.format(columns=", ".join(f"'{name}'" for name in gappy)),)
    known = {role: count for role, count in held_out.items() if count}
    return Fitted(len(y), len(sites.names), events, known, more=more)
