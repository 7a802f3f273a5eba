"""What the coefficients of a linear model are about: columns in their own units, and levels against a reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Sites
from consilience.errors import InputError, unknown_name

INTERCEPT = "(Intercept)"
MISSING = "missing"


class Term(NamedTuple):
    """One effect: what changes among the inputs, in the columns' own units.

    Attributes:
        column: The column's name.
        level: The level that is compared; empty for a number.
        reference: The level it is compared with; empty for a number.
        unit: The unit of a number.
        change: How much which feature changes.
    """

    column: str
    level: str = ""
    reference: str = ""
    unit: str = ""
    change: tuple[tuple[int, float], ...] = ()


class Field(NamedTuple):
    """A column and the features it became.

    Attributes:
        name: The column's name.
        first: Its first feature; the others follow.
        levels: The levels of a category; none of a number.
        unit: The unit of a number.
        mark: The feature that is 1 where the column is missing; None where there is no such feature.
        optional: Whether none of a category's levels is a level of its own: a missing value.
        rest: What such a level is called.
    """

    name: str
    first: int
    levels: tuple[str, ...] = ()
    unit: str = ""
    mark: int | None = None
    optional: bool = False
    rest: str = MISSING


@dataclass(frozen=True, eq=False)
class Design:
    """How inputs became features, and what the outputs are.

    Attributes:
        terms: The effects, without the intercept.
        baseline: The features that are 1 where all categories have their reference level.
        shift: Inputs are shift + scale · features, [D].
        scale: See `shift`.
        target: The name of what is predicted.
        outcomes: The classes, or one empty name for each number.
        reference: The class that the others are compared with.
        target_shift: Targets are target_shift + target_scale · output.
        target_scale: See `target_shift`.
    """

    terms: tuple[Term, ...]
    baseline: tuple[int, ...]
    shift: Tensor
    scale: Tensor
    target: str
    outcomes: tuple[str, ...]
    reference: str = ""
    target_shift: float = 0.0
    target_scale: float = 1.0

    def contrasts(self) -> tuple[list[Term], Tensor]:
        """Write the intercept and every term as a combination of the scaled features' weights and the bias.

        Returns:
            The terms, and their combinations [T, D + 1], the bias last.
        """
        size = len(self.shift)
        rows = torch.zeros(len(self.terms) + 1, size + 1, dtype=torch.float64)
        start = torch.zeros(size, dtype=torch.float64)
        start[list(self.baseline)] = 1.0
        rows[0, :size] = (start - self.shift) / self.scale
        rows[0, size] = 1.0
        for i, term in enumerate(self.terms):
            for feature, amount in term.change:
                rows[i + 1, feature] += amount / self.scale[feature]
        return [Term(INTERCEPT), *self.terms], rows

    def with_reference(self, target: str | None) -> Design:
        """Compare classes with another one.

        Args:
            target: The class; None: as it is.

        Raises:
            InputError: There is no such class.
        """
        if target is None:
            return self
        if target not in self.outcomes:
            raise unknown_name(f"class of '{self.target}'", target, self.outcomes)
        return dataclasses.replace(self, reference=target)


def list_terms(fields: Sequence[Field], reference: Mapping[str, str]) -> tuple[tuple[Term, ...], tuple[int, ...]]:
    """List the effects of columns: a number's by its unit, a level's against the reference level.

    Args:
        reference: The reference level by column; the first level where a column is not named.

    Returns:
        The terms, and the features of the reference levels.

    Raises:
        InputError: A column or a level is unknown.
    """
    categories = [field.name for field in fields if field.levels]
    for name in reference:
        if name not in categories:
            raise unknown_name("column with levels", name, categories or ["none"])
    terms = []
    baseline = []
    for field in fields:
        if not field.levels:
            terms += _number_terms(field)
            continue
        chosen = reference.get(field.name, field.levels[0])
        if chosen not in field.levels:
            raise unknown_name(f"level of '{field.name}'", chosen, field.levels)
        base = field.first + field.levels.index(chosen)
        baseline.append(base)
        terms += _level_terms(field, chosen, base)
    return tuple(terms), tuple(baseline)


def _number_terms(field: Field) -> list[Term]:
    terms = [Term(field.name, unit=field.unit, change=((field.first, 1.0),))]
    if field.mark is not None:
        terms.append(Term(field.name, MISSING, "known", change=((field.mark, 1.0),)))
    return terms


def _level_terms(field: Field, chosen: str, base: int) -> list[Term]:
    terms = []
    for i, level in enumerate(field.levels):
        if level != chosen:
            terms.append(Term(field.name, level, chosen, change=((field.first + i, 1.0), (base, -1.0))))
    if field.mark is not None:
        terms.append(Term(field.name, MISSING, chosen, change=((field.mark, 1.0), (base, -1.0))))
    elif field.optional:
        terms.append(Term(field.name, field.rest, chosen, change=((base, -1.0),)))
    return terms


def fields_of(names: Sequence[str]) -> list[Field]:
    """Read columns off features' names: `cp=1`, `cp=2` are levels of `cp`, `chol missing` is the indicator of `chol`.

    Returns:
        The columns. A single `cp=1` is a column of its own name.
    """
    fields = []
    place = 0
    for column, run in groupby(names, lambda name: name.rpartition("=")[0]):
        members = list(run)
        if column and len(members) > 1:
            levels = tuple(name.removeprefix(f"{column}=") for name in members)
            fields.append(Field(column, place, levels))
        else:
            fields += [Field(name, place + i) for i, name in enumerate(members)]
        place += len(members)
    known = {field.name for field in fields}
    marks = {field.name: field.first for field in fields if _marked(field, known)}
    return [field._replace(mark=marks.get(f"{field.name} {MISSING}")) for field in fields if field.name not in marks]


def _marked(field: Field, known: set[str]) -> bool:
    """Whether a column is the missing-value indicator of another one."""
    column = field.name.removesuffix(f" {MISSING}")
    return not field.levels and column != field.name and column in known


def describe_design(sites: Sites, reference: Mapping[str, str] | None = None) -> Design:
    """Describe the columns of a simulation.

    Args:
        reference: The reference level by column, and the reference class by the name of the data; the first ones by
            default.

    Raises:
        InputError: Rows are images, or a name is unknown.
    """
    if not isinstance(sites.features, int) or sites.image is not None:
        raise InputError("Effects are of columns, and these rows are images: there is no table of them.")
    levels = dict(reference or {})
    compared = levels.pop(sites.name, None)
    names = sites.feature_names or tuple(f"x{i + 1}" for i in range(sites.features))
    fields = fields_of(names)
    if sites.imputations:  # no row that was learned from has a missing value, so that its indicator has no effect
        fields = [field._replace(mark=None) for field in fields]
    terms, baseline = list_terms(fields, levels)
    shift = torch.zeros(sites.features, dtype=torch.float64)
    scale = torch.ones(sites.features, dtype=torch.float64)
    if sites.feature_shift is not None and sites.feature_scale is not None:
        shift = sites.feature_shift.double().cpu()
        scale = sites.feature_scale.double().cpu()
    outcomes: tuple[str, ...] = ("",)
    if sites.classes is not None:
        outcomes = sites.class_names or tuple(str(c) for c in range(sites.classes))
    design = Design(
        terms,
        baseline,
        shift,
        scale,
        sites.name,
        outcomes,
        reference=outcomes[0],
        target_shift=sites.target_shift,
        target_scale=sites.target_scale,
    )
    return design.with_reference(compared)
