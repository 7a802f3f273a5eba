"""The table of effects: coefficients with intervals in the units of the columns, ratios, and how much sites differ."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.biostatistics.estimable import KNOWN, WHY, is_firm, is_informed, without_constants
from consilience.biostatistics.fitted import Fitted, fitted_from
from consilience.biostatistics.heterogeneity import Heterogeneity, combine, reach
from consilience.biostatistics.meta_analysis import Meta, meta_analyse
from consilience.biostatistics.spreadsheets import inert
from consilience.biostatistics.terms import INTERCEPT, Design, Term
from consilience.distributions.likelihood import Linked
from consilience.distributions.posterior import Dense, Natural
from consilience.errors import InputError
from consilience.glm.predictions import degrees_of_freedom
from consilience.glm.site_likelihoods import layer_of
from consilience.task import Task
from consilience.tree import Params

RATIOS = {"logit": "odds ratio", "log": "rate ratio", "hazard": "hazard ratio"}  # by what the outputs are
FEWEST_ANALYSED = 7  # sites, below which a meta-analysis beside Q, τ and I² would have as many numbers as they sent
NO_META = (
    'The sites\' own estimates are not known here: a study shows them with hand_out = "ensemble", and its report has '
    "a meta-analysis from seven sites on."
)
FAR = math.log(100)  # a log odds ratio beyond which a column that separates the outcomes is likelier than an effect
FAR_WORDS = (
    "Odds ratio above 100 or below 0.01: {names}. Under a prior a column that separates the outcomes looks so, and its "
    "interval is not the rows': count its rows by outcome, or use glm, which finds it not estimable."
)
NO_SITES = "Here only the meta-analysis by REML with Hartung and Knapp's intervals is known, at 95 %."
MANY = 1e6  # degrees of freedom, beyond which Student's t is normal to seven digits


class Label(NamedTuple):
    """What an effect is of.

    Attributes:
        outcome: The class whose odds change; empty for a number.
        column: The column's name.
        level: The level that is compared; empty for a number.
        reference: The level it is compared with; empty for a number.
        unit: The unit of a number.
    """

    outcome: str
    column: str
    level: str
    reference: str
    unit: str

    def __str__(self) -> str:
        name = self.column
        if self.level:
            name += f": {self.level} (against {self.reference})"
        elif self.unit:
            name += f" ({self.unit})"
        return name


class Estimate(NamedTuple):
    """One effect as it was estimated.

    Attributes:
        label: What it is of.
        estimate: On the scale of the linear predictor; NaN where no row says anything of it.
        error: Its standard error.
    """

    label: Label
    estimate: float
    error: float

    @property
    def is_far(self) -> bool:
        """Whether a log odds ratio is so large, and so sure, that separation under a prior is likelier."""
        return self.label.column != INTERCEPT and abs(self.estimate) > FAR and self.error < 1


class Centres(NamedTuple):
    """The intercepts of the sites, where each has its own.

    Attributes:
        kind: `fixed`, free numbers; `random`, normal about the common one.
        tau: The deviation of random ones, on the scale of the linear predictor.
        plain: The effects with one intercept for all sites, those of the table in its order.
    """

    kind: str
    tau: float | None
    plain: tuple[Estimate, ...]

    def notes(self, estimates: Sequence[Estimate]) -> list[str]:
        """Say which intercepts there are, and what they change in the table's estimates."""
        how = {"fixed": "as a fixed effect", "random": "as a random effect"}[self.kind]
        text = f"Each site has its own intercept, {how}."
        if self.tau is not None:
            text += f" The SD of the sites' intercepts is τ = {self.tau:.3g}."
        changes = [
            (abs(here.estimate - there.estimate) / here.error, here, there)
            for here, there in zip(estimates, self.plain, strict=True)
            if here.label.column != INTERCEPT and here.error > 0 and math.isfinite(there.estimate)
        ]
        if not changes:
            return [text]
        _, here, there = max(changes, key=lambda change: change[0])
        return [
            text,
            f"With one intercept for all sites, '{here.label}' would be {there.estimate:.3g} ± {there.error:.2g}, "
            f"not {here.estimate:.3g} ± {here.error:.2g}; no other effect changes more.",
            "Predictions are by one intercept.",
        ]


class Analysed(NamedTuple):
    """A meta-analysis of one effect.

    Attributes:
        label: What it is of.
        meta: What the sites' own estimates say together.
    """

    label: Label
    meta: Meta


class Effect(NamedTuple):
    """A line of the table.

    Attributes:
        outcome: The class whose odds change; empty for a number.
        column: The column's name.
        level: The level that is compared; empty for a number.
        reference: The level it is compared with; empty for a number.
        unit: The unit of a number.
        estimate: On the scale of the linear predictor, in the column's own unit.
        error: Its standard error.
        low: The lower end of its interval.
        high: The upper end of its interval.
        ratio: exp(estimate), where the predictor is a logarithm; None of a linear regression.
        ratio_low: The lower end of its interval.
        ratio_high: The upper end of its interval.
        sites: How many sites estimate it by themselves; 0 where that is not known.
        mean: The mean of the sites' effects (random effects).
        mean_error: Its standard error.
        tau: The SD of the sites' effects.
        i2: The share of the estimates' variation between sites that is no chance.
        q: Cochran's Q.
        q_p: How probable so large a Q is where all sites have the same effect.
        newcomer_low: The lower end of the interval for the effect at a new site.
        newcomer_high: The upper end of it.
    """

    outcome: str
    column: str
    level: str
    reference: str
    unit: str
    estimate: float
    error: float
    low: float
    high: float
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    sites: int
    mean: float | None
    mean_error: float | None
    tau: float | None
    i2: float | None
    q: float | None
    q_p: float | None
    newcomer_low: float | None
    newcomer_high: float | None


@dataclass(frozen=True)
class Effects:
    """A table of effects: iterate over it, or take it as a data frame, as CSV or as JSON.

    Attributes:
        target: What is predicted.
        against: The class that the others are compared with; empty for numbers.
        link: What a linear predictor is: identity, logit, log or hazard.
        level: Of all intervals.
        estimates: The pooled estimates.
        by_site: The sites' own estimates, by site; none where they are not known or not shown.
        differences: How much the sites differ, one for each estimate, where only that is shown and not `by_site`.
        newcomers: The effects at a new site, one for each estimate, where a model of how sites differ says them: the
            pooled estimate is then that of the sites' mean.
        fitted: The rows it was fitted on; None where that is not known.
        freedom: Degrees of freedom behind the pooled standard errors, of numbers whose noise is estimated; None:
            intervals are normal.
        centres: The sites' intercepts; None where all share one, or where nobody knows.
        analysed: The meta-analyses by restricted likelihood with the intervals of Hartung and Knapp, at 95 %, where
            they are shown and not `by_site`.

    Example:
        >>> import consilience as co
        >>> effects = co.run("glm", co.Problem("moons", sites=3, model="linear")).effects()
        >>> effects.ratio, [effect.column for effect in effects.rows]
        ('odds ratio', ['(Intercept)', 'x1', 'x2'])
        >>> effects.to_csv().splitlines()[0].split(",")[:3]
        ['outcome', 'column', 'level']
    """

    target: str
    against: str
    link: str
    level: float
    estimates: tuple[Estimate, ...]
    by_site: Mapping[str, tuple[Estimate, ...]] = dataclasses.field(default_factory=dict)
    differences: tuple[Heterogeneity | None, ...] = ()
    newcomers: tuple[Estimate, ...] = ()
    fitted: Fitted | None = None
    freedom: float | None = None
    centres: Centres | None = None
    analysed: tuple[Analysed, ...] = ()

    @property
    def notes(self) -> list[str]:
        """What stands under the table: what it was fitted on, what was merged, and what it cannot say."""
        notes = []
        if self.fitted is not None:
            notes += self.fitted.notes()
        if self.centres is not None:
            notes += self.centres.notes(self.estimates)
        unknown = dict.fromkeys(str(found.label) for found in self.estimates if math.isnan(found.error))
        if unknown:
            notes.append(f"Not estimable: {', '.join(unknown)}. {WHY}")
        far = dict.fromkeys(str(found.label) for found in self.estimates if self.link == "logit" and found.is_far)
        if far:
            notes.append(FAR_WORDS.format(names=", ".join(far)))
        return notes

    @property
    def outcome(self) -> str:
        """What is affected, in words: a time is not, the hazard of its event is."""
        if self.link == "hazard":
            return f"the hazard of the event, time '{self.target}'"
        return f"'{self.target}'"

    @property
    def ratio(self) -> str:
        """What exp(estimate) is called: odds, rate or hazard ratio; empty for a linear regression."""
        return RATIOS.get(self.link, "")

    def __iter__(self) -> Iterator[Effect]:
        """Go through the lines."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Count the lines."""
        return len(self.estimates)

    @property
    def rows(self) -> list[Effect]:
        """The lines, with intervals at the table's level."""
        return [self._row(i, estimate) for i, estimate in enumerate(self.estimates)]

    def _row(self, place: int, estimate: Estimate) -> Effect:
        wide = reach(estimate.error, self.level, self.freedom)
        low = estimate.estimate - wide
        high = estimate.estimate + wide
        ratios: tuple[Any, ...] = (None, None, None)
        if self.ratio:
            ratios = (_exp(estimate.estimate), _exp(low), _exp(high))
        between: tuple[Any, ...] = (0, *[None] * 8)
        found = self.heterogeneity(place)
        if found is not None:
            between = found
        if self.newcomers:
            new = self.newcomers[place]
            wide = reach(new.error, self.level)
            between = (*between[:-2], new.estimate - wide, new.estimate + wide)
        return Effect(*estimate.label, estimate.estimate, estimate.error, low, high, *ratios, *between)

    def heterogeneity(self, place: int) -> Heterogeneity | None:
        """Compare the sites' estimates of one effect.

        Args:
            place: Its number in the table, from 0.

        Returns:
            How much they differ; None where fewer than two sites estimate it.
        """
        if self.differences:
            return self.differences[place]
        label = self.estimates[place].label
        own = [found for part in self.by_site.values() for found in part if found.label == label]
        return combine([found.estimate for found in own], [found.error for found in own], self.level)

    def meta_analysis(self, method: str = "REML", hartung_knapp: bool = True) -> list[Analysed]:
        """Analyse the sites' own estimates of every effect but the intercept.

        Args:
            method: How τ² is found: REML, PM (Paule and Mandel) or DL (DerSimonian and Laird).
            hartung_knapp: Whether the mean's interval is that of Hartung and Knapp, else normal.

        Raises:
            InputError: The sites' estimates are not known here, or only one analysis of them is.
        """
        if not self.by_site and self.analysed and (method, hartung_knapp, self.level) == ("REML", True, 0.95):
            return [*self.analysed]
        if not self.by_site:
            raise InputError(NO_SITES if self.analysed else NO_META)
        found = []
        for estimate in self.estimates:
            own = [(site, e) for site, part in self.by_site.items() for e in part if e.label == estimate.label]
            numbers = [e.estimate for _, e in own], [e.error for _, e in own]
            meta = meta_analyse(*numbers, method, hartung_knapp, self.level, [site for site, _ in own])
            if meta is not None and estimate.label.column != INTERCEPT:
                found.append(Analysed(estimate.label, meta))
        return found

    def at(self, level: float) -> Effects:
        """Give all intervals another level.

        Args:
            level: Between 0 and 1.

        Returns:
            The table at that level.

        Raises:
            InputError: It is no level.

        Example:
            >>> import consilience as co
            >>> effects = co.run("glm", co.Problem("moons", sites=3, model="linear")).effects()
            >>> effects.at(0.99).rows[1].low < effects.rows[1].low
            True
        """
        if not 0 < level < 1:
            raise InputError(f"level={level:g} is not the level of an interval: give a number between 0 and 1.")
        differences = tuple(found and found.at(level) for found in self.differences)
        return dataclasses.replace(self, level=level, differences=differences)

    def without_sites(self) -> Effects:
        """Leave out the sites' own estimates, and keep how much they differ.

        Returns:
            The table without them.
        """
        if not self.by_site:
            return self
        found = tuple(self.heterogeneity(i) for i in range(len(self)))
        analysed: tuple[Analysed, ...] = ()
        if len(self.by_site) >= FEWEST_ANALYSED:
            told = self.at(0.95).meta_analysis()
            analysed = tuple(line._replace(meta=line.meta._replace(left_out=())) for line in told)
        return dataclasses.replace(self, by_site={}, differences=found, analysed=analysed)

    def to_frame(self) -> Any:
        """Make a data frame, a line each.

        Returns:
            The frame, with the columns of `Effect`.

        Raises:
            InputError: pandas is not installed.
        """
        return _frame(self.rows, list(Effect._fields))

    def sites_frame(self) -> Any:
        """Make a data frame of the sites' own estimates.

        Raises:
            InputError: pandas is not installed.

        Example:
            >>> import consilience as co
            >>> effects = co.run("glm", co.Problem("moons", sites=3, model="linear")).effects()
            >>> len(effects.sites_frame())
            3
        """
        lines = [(site, *found.label, found.estimate, found.error) for site, found in self._site_lines()]
        return _frame(lines, ["site", *Label._fields, "estimate", "error"])

    def to_csv(self) -> str:
        """Write the table as CSV.

        Returns:
            The text; numbers with all their digits, what is not known is empty.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Effect._fields)
        for row in self.rows:
            numbers = row[len(Label._fields) :]
            writer.writerow([*(inert(str(text)) for text in row[: len(Label._fields)]), *map(_or_none, numbers)])
        return text.getvalue()

    def to_json(self) -> dict[str, Any]:
        """Write the table as JSON has it; `from_json` reads it again.

        Returns:
            Plain values.
        """
        fitted = None
        if self.fitted is not None:
            fitted = self.fitted.to_json()
        value: dict[str, Any] = {
            "target": self.target,
            "against": self.against,
            "link": self.link,
            "ratio": self.ratio,
            "level": self.level,
            "fitted": fitted,
            "notes": self.notes,
            "effects": [{name: _or_none(value) for name, value in row._asdict().items()} for row in self.rows],
            "freedom": self.freedom,
            "compared": [*self.by_site],
            "sites": [
                {"site": site, **found.label._asdict(), "estimate": found.estimate, "error": found.error}
                for site, found in self._site_lines()
            ],
        }
        if self.newcomers:
            value["new_site"] = [
                {**new.label._asdict(), "estimate": new.estimate, "error": new.error} for new in self.newcomers
            ]
        if self.analysed:
            value["meta_analysis"] = [
                {**line.label._asdict(), **line.meta._asdict(), "left_out": []} for line in self.analysed
            ]
        if self.centres is not None:
            value["centre"] = {
                "kind": self.centres.kind,
                "tau": self.centres.tau,
                "plain": [
                    {**line.label._asdict(), "estimate": _or_none(line.estimate), "error": _or_none(line.error)}
                    for line in self.centres.plain
                ],
            }
        return value

    def _site_lines(self) -> list[tuple[str, Estimate]]:
        return [(site, found) for site, part in self.by_site.items() for found in part]

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False)


def from_json(value: Mapping[str, Any]) -> Effects:
    """Read a table again.

    Args:
        value: What `Effects.to_json` returned.
    """
    by_site: dict[str, tuple[Estimate, ...]] = {str(site): () for site in value.get("compared", ())}
    for line in value["sites"]:
        by_site[line["site"]] = (*by_site.get(line["site"], ()), _estimate(line))
    differences: tuple[Heterogeneity | None, ...] = ()
    if not by_site:
        differences = tuple(_difference(line) for line in value["effects"])
    estimates = tuple(_estimate(line) for line in value["effects"])
    newcomers = tuple(_estimate(line) for line in value.get("new_site", ()))
    fitted = None
    if value.get("fitted"):  # tables of before do not say it
        fitted = fitted_from(value["fitted"])
    names = (value["target"], value["against"], value["link"], value["level"])
    centres = None
    if value.get("centre"):
        found = value["centre"]
        centres = Centres(found["kind"], found["tau"], tuple(_estimate(line) for line in found["plain"]))
    freedom = value.get("freedom")
    analysed = tuple(_analysed(line) for line in value.get("meta_analysis", ()))
    return Effects(*names, estimates, by_site, differences, newcomers, fitted, freedom, centres, analysed)


def _analysed(line: Mapping[str, Any]) -> Analysed:
    label = Label(*(str(line[field]) for field in Label._fields))
    return Analysed(label, Meta(**{**{name: line[name] for name in Meta._fields}, "left_out": ()}))


def _estimate(line: Mapping[str, Any]) -> Estimate:
    label = Label(*(str(line[field]) for field in Label._fields))
    if line["estimate"] is None:  # not estimable
        return Estimate(label, math.nan, math.nan)
    return Estimate(label, float(line["estimate"]), float(line["error"]))


def _difference(line: Mapping[str, Any]) -> Heterogeneity | None:
    if not line["sites"]:
        return None
    fields = {name: line[name] for name in Heterogeneity._fields if name != "error"}
    return Heterogeneity(**fields, error=line["mean_error"])


def table_of(
    task: Task,
    design: Design,
    pooled: Dense,
    sites: Mapping[str, Natural] | None = None,
    level: float = 0.95,
    newcomer: Dense | None = None,
    fitted: Fitted | None = None,
    information: Tensor | None = None,
    plain: Dense | None = None,
    tau: Tensor | tuple[()] = (),
) -> Effects:
    """Make the table of a linear model.

    Args:
        design: What its features and outputs are.
        pooled: The Gaussian over its weights, as `likelihoods.find_gaussian` finds it.
        sites: The sites' likelihoods by their names.
        newcomer: The Gaussian over a new site's weights, where a model of how sites differ has one.
        fitted: The rows it was fitted on.
        information: The precision of all rows' likelihood, without the prior [P, P]: an effect of which it says nothing
            is not estimable. None where it is not known.
        plain: The Gaussian with one intercept for all sites, where `pooled` is of a model in which each has its own.
        tau: The deviation of the sites' intercepts; () where they are free numbers, and no table can have them.

    Raises:
        InputError: The model is not linear on the columns, or its outputs have no effects.
    """
    if not isinstance(task.likelihood, Linked):
        raise InputError(
            "The effects of a model with two outputs a number are not defined: use one noise for all rows."
        )
    link = task.likelihood.link
    labels, rows = contrasts_of(task, design, link, plain is None or isinstance(tau, Tensor))
    shift = torch.tensor([_shift(label, design, link) for label in labels], dtype=torch.float64)
    known = None
    if information is not None:
        intercepts = torch.tensor([label.column == INTERCEPT for label in labels]) & ~is_informed(rows, information)
        rows[intercepts] = without_constants(rows[intercepts], _weight_places(layer_of(task)), information)
        known = is_informed(rows, information)
        if link != "identity":  # whose sums tell exactly
            known = known | is_firm(rows, pooled, task.prior.dense(layer_of(task)))
    estimates = _contrast(labels, rows, shift, pooled, known)
    newcomers: tuple[Estimate, ...] = ()
    if newcomer is not None:
        newcomers = _contrast(labels, rows, shift, newcomer, known)
    by_site = {}
    for name, likelihood in (sites or {}).items():
        by_site[name] = site_estimates(labels, rows, shift, likelihood)
    against = ""
    if link == "logit":
        against = design.reference
    freedom = _freedom(pooled, rows.shape[1])
    centres = None
    if plain is not None:
        others = _contrast(labels, rows, shift, plain, known)
        centres = Centres("fixed", None, others)
        if isinstance(tau, Tensor):
            centres = Centres("random", float(tau) * design.target_scale, others)
    table = Effects(design.target, against, link, 0.95, estimates, by_site, (), newcomers, fitted, freedom, centres)
    return table.at(level)


def _freedom(pooled: Dense, count: int) -> float | None:
    """The degrees of freedom behind a learned noise; None where so many that t is normal, or none are counted."""
    freedom = float(degrees_of_freedom(pooled, count))
    if freedom > MANY:
        return None
    return freedom


def _contrast(
    labels: Sequence[Label], rows: Tensor, shift: Tensor, belief: Dense, known: Tensor | None
) -> tuple[Estimate, ...]:
    """Combinations of the weights with their standard errors; NaN of those that are not known."""
    count = rows.shape[1]
    means = rows @ belief.mean[:count] + shift
    covariance = torch.linalg.solve(belief.precision, _padded(rows, len(belief.mean)).T)[:count]
    variances = (rows.T * covariance).sum(0)
    if known is not None:
        means = torch.where(known, means, math.nan)
        variances = torch.where(known, variances, math.nan)
    return _estimates(labels, means, variances)


def _estimates(labels: Sequence[Label], means: Tensor, variances: Tensor) -> tuple[Estimate, ...]:
    errors = variances.clamp(min=0).sqrt()
    triples = zip(labels, means.tolist(), errors.tolist(), strict=True)
    return tuple(Estimate(label, mean, error) for label, mean, error in triples)


def contrasts_of(task: Task, design: Design, link: str, intercept: bool = True) -> tuple[list[Label], Tensor]:
    """Write every effect as a combination of a task's weights.

    Args:
        task: The statistical problem, whose model is linear.
        design: What its features and outputs are.
        link: What a linear predictor is.

    Returns:
        What the effects are of, and their combinations [E, P].
    """
    layer = layer_of(task)
    places = _weight_places(layer)
    terms, rows = design.contrasts()
    if places.shape[1] < rows.shape[1] or link == "hazard" or not intercept:  # no bias, or one that nothing depends on
        terms = terms[1:]
        rows = rows[1:]
    rows = rows[:, : places.shape[1]]
    count = sum(leaf.numel() for leaf in layer.values())
    labels = []
    combinations = []
    for output, outcome in enumerate(design.outcomes):
        if link == "logit" and outcome == design.reference:
            continue
        block = torch.zeros(len(rows), count, dtype=torch.float64)
        block[:, places[output]] = design.target_scale * rows
        if link == "logit":
            block[:, places[design.outcomes.index(design.reference)]] -= rows
        labels += [_label(outcome, term) for term in terms]
        combinations.append(block)
    return labels, torch.cat(combinations)


def _label(outcome: str, term: Term) -> Label:
    return Label(outcome, term.column, term.level, term.reference, term.unit)


def _weight_places(layer: Params) -> Tensor:
    """Where a layer's weights [C, D] and bias, if it has one, stand among a task's weights: [C, D + 1]."""
    count = sum(leaf.numel() for leaf in layer.values())
    named = tree.unravel(torch.arange(count), layer)
    parts = sorted(named.values(), key=lambda leaf: -leaf.ndim)
    return torch.cat([leaf.reshape(len(leaf), -1) for leaf in parts], 1).long()


def _shift(label: Label, design: Design, link: str) -> float:
    """What the intercept of scaled targets lacks."""
    if link == "identity" and label.column == INTERCEPT:
        return design.target_shift
    return 0.0


def _padded(rows: Tensor, width: int) -> Tensor:
    """The combinations, with 0 for a learned log-noise."""
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def site_estimates(labels: Sequence[Label], rows: Tensor, shift: Tensor, likelihood: Natural) -> tuple[Estimate, ...]:
    """Estimate the effects from one site's rows alone.

    Args:
        labels: What the effects are of.
        rows: The effects as combinations of the weights [E, P].
        shift: What is added to them [E].

    Returns:
        Those effects that the site's rows determine.
    """
    precision = likelihood.precision.double()
    precision = (precision + precision.T) / 2
    values, vectors = torch.linalg.eigh(precision)
    rounding = math.sqrt(torch.finfo(likelihood.precision.dtype).eps)
    informed = values > max(rounding, KNOWN) * float(values.max().clamp(min=1e-300))
    seen = rows @ vectors[:, informed]
    lost = rows.norm(dim=1) - seen.norm(dim=1)
    known = lost <= KNOWN * rows.norm(dim=1)
    along = likelihood.linear.double() @ vectors[:, informed] / values[informed]
    means = seen @ along + shift
    variances = (seen**2 / values[informed]).sum(1)
    found = _estimates(labels, means, variances)
    return tuple(estimate for estimate, is_known in zip(found, known.tolist(), strict=True) if is_known)


def _or_none(value: Any) -> Any:
    """A value as JSON and CSV have it: what is not estimable is empty there."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value


def _exp(value: float) -> float:
    if value > 700:
        return math.inf
    return math.exp(value)


def _frame(lines: Sequence[tuple[Any, ...]], columns: list[str]) -> Any:
    try:
        import pandas  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise InputError("A data frame needs pandas: `pip install pandas`, or use to_csv() or to_json().") from error
    return pandas.DataFrame(lines, columns=columns)
