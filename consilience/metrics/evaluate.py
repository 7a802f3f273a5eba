"""From a model to the numbers people read: scores over all test rows, at every site, and at the worst."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data, Sites
from consilience.distributions.counts import Counts
from consilience.distributions.likelihood import Latent
from consilience.distributions.predictive import Categorical, Distribution, Normal, Predictive, temperature, tempered
from consilience.distributions.survival import Survival
from consilience.method import Method, own_models
from consilience.method.declared import diagnose, list_members, monitored, tempers
from consilience.method.which import has_common
from consilience.metrics.by_part import scores_by_part
from consilience.metrics.calibration import coverage_curve, expected_ece_if_calibrated, reliability
from consilience.metrics.dispersion import describe_dispersion
from consilience.metrics.findings import (
    BySite,
    Evaluation,
    Newcomer,
    Own,
    PersonalEvaluation,
    Scores,
    Site,
    UncertaintyPart,
)
from consilience.metrics.scores import intervals, scores
from consilience.metrics.shown import examples, predicted_bins
from consilience.metrics.site_calibration import calibration_by_site
from consilience.metrics.times import describe_times, find_time_grid, with_baseline
from consilience.metrics.uncertainty import Uncertainty, belonging_to, decompose
from consilience.task import Task
from consilience.tree import Tree

LEVELS = tuple(i / 20 for i in range(1, 20))
SPLIT_ROWS = 1000  # test rows whose uncertainty is split: every member predicts each of them
BY_SITE = "temperatures"  # where each site's own model has one, in the sites' order
NEWCOMER = "newcomer"  # what the common model's scores stand under, where sites have models of their own
MODELS = 64  # sites whose own models predict rows of all sites, drawn evenly: all of them would cost sites × rows


class Judgement(NamedTuple):
    """A model of a state, and what its one pass over the test rows gave.

    Attributes:
        model: The model.
        metrics: Its scores over all test rows; empty where only its own rows were predicted.
        p: What it predicts, in the target's own unit: for all test rows, or those of its own site where each has one.
    """

    model: Predictive
    metrics: dict[str, float]
    p: Distribution


class Judged(NamedTuple):
    """What the models of a state predict.

    Attributes:
        models: The common model; each site's own where there is none.
        own: Each site's own model on its own rows, where there is a common one too; else empty.
    """

    models: list[Judgement]
    own: list[Judgement]


class Scorer:
    """Scores the states of one run on its sites' rows; the test rows of a state are predicted once."""

    def __init__(self, method: Method, task: Task, sites: Sites) -> None:
        self.method = method
        self.task = task
        self.sites = sites
        self.grid = find_time_grid(task, sites)
        self._last: tuple[Tree, Judged] | None = None

    def history(self, state: Tree, memories: Mapping[int, Tree]) -> dict[str, float]:
        """Score a state for the history of the rounds.

        Args:
            memories: What each client kept, by number, which sites' own models are made of.

        Returns:
            The scores over all test rows, and over the validation rows where there are any.
        """
        judged = self._judge(state, memories)
        judgements = [judgement for judgement in judged.models if judgement.metrics]
        metrics = _mean([judgement.metrics for judgement in judgements])
        if judged.own:
            newcomer = {f"{NEWCOMER}_{name}": value for name, value in metrics.items()}
            metrics = scores(join([judgement.p for judgement in judged.own]), in_own_unit(self._y, self.sites))
            metrics |= newcomer
        metrics |= {f"validation_{name}": value for name, value in self._validate(judged).items()}
        rows = self.sites.all_test
        for name, model in monitored(self.method, self.task, state).items():
            other = scores(*in_units(model(rows.x), rows, self.sites))
            metrics |= {f"{name}_{metric}": value for metric, value in other.items()}
        return metrics

    @property
    def _y(self) -> Tensor:
        return self.sites.all_test.y

    def _validate(self, judged: Judged) -> dict[str, float]:
        """The scores over the validation rows, each site's by its own model where there is one; none without rows."""
        if self.sites.validation is None:
            return {}
        rows = self.sites.all_validation
        if judged.own:
            pairs = zip(judged.own, self.sites.validation, strict=True)
            own = [in_units(judgement.model(part.x), part, self.sites)[0] for judgement, part in pairs]
            return scores(join(own), in_own_unit(rows.y, self.sites))
        drawn = [judgement for judgement in judged.models if judgement.metrics]
        return _mean([scores(*in_units(judgement.model(rows.x), rows, self.sites)) for judgement in drawn])

    def evaluate(self, state: Tree, memories: Mapping[int, Tree]) -> Evaluation | PersonalEvaluation:
        """Find everything that `run.json` says about how good a model is.

        Where sites have models of their own and there is a common one, the scores are of each site's own model on its
        own rows, and `newcomer` has those of the common model on all rows.

        Args:
            memories: What each client kept, by number, which sites' own models are made of.
        """
        judged = self._judge(state, memories)
        if not has_common(self.method):
            return self._evaluate_personal(judged.models)
        (common,) = judged.models
        each = per_site([cut(common.p, rows) for rows in site_rows(self.sites)], self.sites)
        if not judged.own:
            split = split_uncertainty(self.method, self.task, state, common.p, self.sites)
            return self._describe(common.p, common.metrics, self._temper(common), state, each, uncertainty=split)
        y = in_own_unit(self._y, self.sites)
        own = [judgement.p for judgement in judged.own]
        together = join(own)
        newcomer = Newcomer(Scores(common.metrics, _lists(intervals(common.p, y))), self._temper(common), each)
        found = scores(together, y)
        by_site = per_site(own, self.sites)
        return self._describe(together, found, self._temper_own(judged.own), state, by_site, newcomer=newcomer)

    def _describe(
        self,
        p: Distribution,
        metrics: dict[str, float],
        tempered: Scores | None,
        state: Tree,
        by_site: BySite,
        uncertainty: list[UncertaintyPart] | None = None,
        newcomer: Newcomer | None = None,
    ) -> Evaluation:
        """Scores and pictures of what is predicted for all test rows."""
        sites = self.sites
        y = in_own_unit(self._y, sites)
        diagnostics = diagnose(self.method, self.task, state, sites.all_test.x)
        if isinstance(p, (Counts, Normal)):
            diagnostics |= describe_dispersion(p, y, sites)
        found = Evaluation(
            Scores(metrics, _lists(intervals(p, y))),
            tempered,
            by_site,
            diagnostics,
            uncertainty,
            predicted=None,
            examples=None,
            newcomer=newcomer,
        )
        if isinstance(p, Survival):
            predicted, hazard = describe_times(p, y, self.task)
            return replace(found, predicted=predicted, baseline=hazard, events=int(y[:, 1].sum()))
        if not isinstance(p, Categorical):
            found = replace(found, coverage=coverage_curve(p, y, LEVELS))
            return replace(found, predicted=predicted_bins(p, y, sites.public))
        if sites.public:
            found = replace(found, examples=examples(p, y, sites))
        return replace(found, reliability=reliability(p, y), ece_if_calibrated=expected_ece_if_calibrated(p))

    @property
    def _tempers(self) -> bool:
        """Whether a temperature is fitted: not where calibration rows were trained on, nor to survival curves."""
        return self.sites.calibration is not None and tempers(self.method) and self.grid is None

    def _temper(self, judgement: Judgement) -> Scores | None:
        """The scores at the temperature that the server's labelled rows choose; None without such rows."""
        if not self._tempers:
            return None
        t = fitted_temperature(judgement.model, self.sites)
        q = tempered(judgement.p, t)
        y = in_own_unit(self._y, self.sites)
        return Scores(scores(q, y), _lists(intervals(q, y)), temperature=t)

    def _temper_own(self, judgements: Sequence[Judgement]) -> Scores | None:
        """The scores on own rows, each site's model at a temperature of its own; None without the rows to choose by."""
        if not self._tempers:
            return None
        temperatures = [fitted_temperature(judgement.model, self.sites) for judgement in judgements]
        q = join([tempered(j.p, t) for j, t in zip(judgements, temperatures, strict=True)])
        y = in_own_unit(self._y, self.sites)
        mean = statistics.fmean(temperatures)
        return Scores(scores(q, y), _lists(intervals(q, y)), temperature=mean, temperatures=temperatures)

    def _evaluate_personal(self, judgements: Sequence[Judgement]) -> PersonalEvaluation:
        """The sites' own models: each on its own rows, and on all rows their average and the best of them."""
        drawn = [judgement for judgement in judgements if judgement.metrics]
        each = [judgement.metrics for judgement in drawn]
        own = join([judgement.p for judgement in judgements])
        y = in_own_unit(self.sites.all_test.y, self.sites)
        own_tempered = None
        scaled = None
        if self._tempers:
            temperatures = [fitted_temperature(judgement.model, self.sites) for judgement in drawn]
            scaled = _each_tempered([judgement.model for judgement in drawn], temperatures, self.sites)
            if len(drawn) == len(judgements):
                pairs = zip(judgements, temperatures, strict=True)
                metrics = scores(join([tempered(judgement.p, t) for judgement, t in pairs]), y)
                scaled = replace(scaled, temperatures=temperatures)
                own_tempered = replace(scaled, metrics=metrics)
        best = min(each, key=lambda metrics: metrics["nll"])
        return PersonalEvaluation(
            Scores(_mean(each), {}),
            models=len(drawn),
            best=best,
            own_rows=Own(Scores(scores(own, y), _lists(intervals(own, y))), own_tempered),
            tempered=scaled,
            by_site=per_site([judgement.p for judgement in judgements], self.sites),
        )

    def _judge(self, state: Tree, memories: Mapping[int, Tree]) -> Judged:
        """One pass over the test rows with every model of a state; remembered for the last state."""
        if self._last is not None and self._last[0] is state:
            return self._last[1]
        personal = own_models(self.method, self.task, state, memories, len(self.sites))
        own = []
        if personal is None or has_common(self.method):
            common = self._complete(self.method.predictive(self.task, state), self.sites.train)
            models = [self._judge_model(common, slice(None))]
            if personal is not None:
                pairs = zip(personal, self.sites.test, strict=True)
                own = [self._predict_own(model, rows) for model, rows in pairs]
        else:
            drawn = set(draw_evenly(len(personal), MODELS))
            models = []
            for k, (alone, rows) in enumerate(zip(personal, site_rows(self.sites), strict=True)):
                model = self._complete(alone, self.sites.train[k : k + 1])
                if k in drawn:
                    models.append(self._judge_model(model, rows))
                else:
                    models.append(self._predict_own(model, self.sites.test[k]))
        self._last = (state, Judged(models, own))
        return self._last[1]

    def _complete(self, model: Predictive, train: Sequence[Data]) -> Predictive:
        """A model with a baseline hazard from its sites' sums, where it predicts times; a site's own shows no other."""
        if self.grid is None:
            return model
        if len(train) == 1:
            return with_baseline(model, train, self.grid, smallest=1, names=self.sites.feature_names)
        return with_baseline(model, train, self.grid, names=self.sites.feature_names)

    def _judge_model(self, model: Predictive, kept: slice) -> Judgement:
        """Score a model on all test rows, and keep what it predicts for some."""
        rows = self.sites.all_test
        p, y = in_units(model(rows.x), rows, self.sites)
        return Judgement(model, scores(p, y), cut(p, kept))

    def _predict_own(self, model: Predictive, rows: Data) -> Judgement:
        """Predict a site's own rows alone."""
        p, _ = in_units(model(rows.x), rows, self.sites)
        return Judgement(model, {}, cut(p, slice(None)))


def uncertainty(
    method: Method,
    task: Task,
    state: Tree,
    inputs: Tensor,
    p: Distribution,
    shown: Distribution | None = None,
    most: int | None = None,
    unit: float = 1.0,
) -> Uncertainty:
    """Split the uncertainty of a prediction by where it comes from: the parts add up to that of what is shown.

    Args:
        state: The state of the model that predicts.
        inputs: Inputs as the network sees them.
        p: What the model predicts for them.
        shown: What is shown in its place, at a temperature; None: `p`.
        most: How many posteriors are asked, drawn evenly; None: all of them.
        unit: The variance of numbers in `p` where the network's is 1.

    Returns:
        Aleatoric and epistemic uncertainty for every input, and the part of the latter between sites.
    """
    posteriors, weights = list_members(method, state)
    if most is not None and len(posteriors) > most:
        drawn = draw_evenly(len(posteriors), most)
        posteriors = tuple(posteriors[k] for k in drawn)
        weights = weights[drawn]
    if isinstance(task.likelihood, Latent) and not task.likelihood.latent:  # noise of a member is not of the weights
        task = dataclasses.replace(task, likelihood=dataclasses.replace(task.likelihood, latent=True))  # type: ignore[type-var]
    split = decompose([task.member_predictions(posterior, inputs) for posterior in posteriors], weights)
    if not isinstance(p, Categorical):
        split = Uncertainty(*(unit * part for part in split))
    return belonging_to(p, split, shown)


def split_uncertainty(
    method: Method, task: Task, state: Tree, p: Distribution, sites: Sites
) -> list[UncertaintyPart] | None:
    """Average the uncertainty of test rows: over all, over those it got right and wrong, and at every site.

    Args:
        p: What its model predicts for the test rows.

    Returns:
        One entry for each such part of the rows; None where there is a single set of weights, which cannot tell.
    """
    rows = sites.all_test
    step = max(-(-len(rows.x) // SPLIT_ROWS), 1)
    some = slice(None, None, step)
    if isinstance(p, Survival):
        return None
    unit = sites.target_scale**2
    split = uncertainty(method, task, state, rows.x[some], cut(p, some), most=MODELS, unit=unit)
    if not bool((split.epistemic > 1e-9).any()):
        return None
    site = torch.repeat_interleave(torch.arange(len(sites)), torch.tensor([len(d.x) for d in sites.test]))[some]
    parts = {"all test rows": torch.ones(len(site), dtype=torch.bool)}
    if isinstance(p, Categorical):
        right = p.log_probs[some].argmax(1) == rows.y[some]
        parts |= {"it got right": right, "it got wrong": ~right}
    parts |= {f"site {name}": site == k for k, name in enumerate(sites.names)}
    within = (split.epistemic - split.disagreement).clamp(min=0)
    kinds = {"aleatoric": split.aleatoric, "within": within, "disagreement": split.disagreement}
    entries = []
    for of, part in parts.items():
        if bool(part.any()):
            means = {kind: float(value[part].mean()) for kind, value in kinds.items()}
            entries.append(UncertaintyPart(of, int(part.sum()), **means))
    return entries


def _each_tempered(models: Sequence[Predictive], temperatures: Sequence[float], sites: Sites) -> Scores:
    """The average scores of the sites' models, each at a temperature of its own."""
    rows = sites.all_test
    metrics = []
    for model, t in zip(models, temperatures, strict=True):
        p, y = in_units(model(rows.x), rows, sites)
        metrics.append(scores(tempered(p, t), y))
    return Scores(_mean(metrics), {}, temperature=statistics.fmean(temperatures))


def fitted_temperature(model: Predictive, sites: Sites) -> float:
    """Fit a temperature to a model on the server's labelled rows.

    Args:
        sites: Everybody's rows; the server must have labelled ones.
    """
    assert sites.calibration is not None
    return temperature(model(sites.calibration.x), sites.calibration.y)


def site_rows(sites: Sites) -> list[slice]:
    """Find where each site's rows stand among all test rows."""
    ends = list(itertools.accumulate(len(test.x) for test in sites.test))
    return [slice(end - len(test.x), end) for end, test in zip(ends, sites.test, strict=True)]


def cut(p: Distribution, rows: slice) -> Distribution:
    """Take what is predicted for some rows, and let go of the rest.

    Args:
        p: What a model predicts for all test rows.

    Returns:
        The predictions for these rows.
    """
    if isinstance(p, Categorical):
        return Categorical(p.log_probs[rows].clone())
    if isinstance(p, Counts | Survival):
        return p.take(rows)
    noise = p.noise.expand_as(p.mean)
    return Normal(p.mean[rows].clone(), p.var[rows].clone(), noise[rows].clone())


def join(parts: Sequence[Distribution]) -> Distribution:
    """Put together what is predicted for parts of the rows.

    Args:
        parts: Distributions of one kind, one for each part.

    Returns:
        The distribution of all rows, in the order of the parts.
    """
    if isinstance(parts[0], Categorical):
        return Categorical(torch.cat([p[0] for p in parts]))
    if isinstance(parts[0], Counts | Survival):
        return type(parts[0])(*(torch.cat(leaf) for leaf in zip(*parts, strict=True)))
    leaves = zip(*((p.mean, p.var, p.noise.expand_as(p.mean)) for p in parts if isinstance(p, Normal)), strict=True)
    return Normal(*(torch.cat(leaf) for leaf in leaves))


def draw_evenly(count: int, most: int) -> list[int]:
    """Draw places that lie evenly among all.

    Args:
        count: How many places there are.

    Returns:
        The places in order; all of them where there are no more.
    """
    drawn = min(count, most)
    return [i * count // drawn for i in range(drawn)]


def per_site(predictions: Sequence[Distribution], sites: Sites) -> BySite:
    """Score what was predicted for each site's test rows.

    Args:
        predictions: For each site, what is predicted for its own test rows, in the target's own unit.

    Returns:
        An entry for each site, and the site with the worst NLL.
    """
    labels: list[list[int] | None] = [None] * len(sites)
    if sites.classes:
        labels = [[int(count) for count in counts] for counts in sites.label_counts()]
    y = in_own_unit(sites.all_test.y, sites)
    each = scores_by_part(join(predictions), y, [len(test.x) for test in sites.test])
    calibrated = calibration_by_site(predictions, y)
    entries = []
    for k, (metrics, train, test) in enumerate(zip(each, sites.train, sites.test, strict=True)):
        bins, levels, spans = calibrated[k]
        own = Scores(metrics, spans)
        entries.append(
            Site(sites.names[k], len(train.x), len(test.x), labels[k], own, reliability=bins, coverage=levels)
        )
    return BySite(entries, _worst(entries))


def _worst(entries: Sequence[Site]) -> dict[str, str | float | None] | None:
    """The site with the largest NLL, and its scores; None if no site has test rows."""
    scored = [site for site in entries if site.scores.metrics]
    if not scored:
        return None
    worst = max(scored, key=lambda site: site.scores.metrics["nll"] or 0.0)
    return {"site": worst.name, **worst.scores.metrics}


def in_units(p: Distribution, rows: Data, sites: Sites) -> tuple[Distribution, Tensor]:
    """Convert predictions and targets to the target's own unit.

    Args:
        p: What a model predicts for the rows.
        sites: Everybody's rows, which know the target's scale.

    Returns:
        The predictions and the truth.
    """
    y = in_own_unit(rows.y, sites)
    if isinstance(p, Counts):
        return p.expose(rows.y)
    if not isinstance(p, Normal):
        return p, y
    scale = sites.target_scale
    return Normal(p.mean * scale + sites.target_shift, p.var * scale**2, p.noise * scale**2), y


def in_own_unit(y: Tensor, sites: Sites) -> Tensor:
    """Convert targets to their own unit; labels stay.

    Args:
        y: Labels, or targets on the scale that the network sees.
        sites: Everybody's rows, which know the target's scale.
    """
    if sites.classes is not None or sites.outcome == "survival":
        return y
    if sites.outcome == "counts":
        return y.reshape(len(y), -1)[:, 0]
    return y * sites.target_scale + sites.target_shift


def _mean(each: list[dict[str, float]]) -> dict[str, float]:
    """The mean of the scores that all have."""
    names = [name for name in each[0] if all(name in metrics for metrics in each)]
    return {name: sum(metrics[name] for metrics in each) / len(each) for name in names}


def _lists(pairs: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    return {name: list(pair) for name, pair in pairs.items()}
