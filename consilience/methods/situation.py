"""What rows are like where a method is to be chosen: kind, size, sites, and how far the sites differ."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from consilience.data.sites import Sites
from consilience.method.declared import is_sum
from consilience.methods import METHODS
from consilience.methods.advice import Advice, Situation, advise, cautions, usual_map
from consilience.methods.slopes import Slopes, differ_in_slopes

KINDS = {"classification": "classes", "regression": "numbers"}
SURE = 1e-2  # a difference between sites that chance makes less often is taken for one
STRONG = 0.07  # for classes, as Cramér's V: half of its square, in nats a row, is what own models could gain
STRONG_SHARE = 0.1  # for numbers, of their variance: random Fourier features gain more than models of one's own below
STRONG_COLUMN = 0.25  # share of a column's variance between sites


class Shift(NamedTuple):
    """How far sites differ.

    Attributes:
        outcome: In what is predicted: Cramér's V of sites and classes, or the share of variance between sites.
        chance: How often chance alone makes a difference as large (a χ² or an F test).
        columns: The share of each column's variance that lies between sites; none for images.
        names: The columns' names, where they have some.
        slopes: In what the columns say of what is predicted.
        both: In the outcome and the slopes together: each may be too small to be told from chance.
        number: Whether numbers are predicted.
    """

    outcome: float
    chance: float
    columns: tuple[float, ...]
    names: tuple[str, ...]
    slopes: Slopes = Slopes()
    both: Slopes = Slopes()
    number: bool = False

    @property
    def differ(self) -> bool:
        """Whether the sites differ in what is predicted, in what columns say of it, or in both together."""
        return self.matters or self.slopes_matter or self.both_matter

    @property
    def matters(self) -> bool:
        """Whether the sites differ in what is predicted, beyond chance."""
        size = math.sqrt(self.outcome) if self.number else self.outcome
        return self._beyond(Slopes(size, self.chance))

    @property
    def slopes_matter(self) -> bool:
        """Whether the sites differ in what the columns say of what is predicted, beyond chance."""
        return self._beyond(self.slopes)

    @property
    def both_matter(self) -> bool:
        """Whether outcome and slopes together differ beyond chance."""
        return self._beyond(self.both)

    def _beyond(self, found: Slopes) -> bool:
        least = math.sqrt(STRONG_SHARE) if self.number else STRONG
        return found.chance < SURE and found.size >= least

    @property
    def columns_matter(self) -> bool:
        """Whether the sites differ in a column."""
        return max(self.columns, default=0.0) >= STRONG_COLUMN

    @property
    def column(self) -> str:
        """The column that differs most."""
        if not self.columns:
            return ""
        place = max(range(len(self.columns)), key=lambda j: self.columns[j])
        if self.names:
            return self.names[place]
        return f"column {place + 1}"


def measure_shift(sites: Sites) -> Shift:
    """Measure how far sites differ, from their training rows.

    Returns:
        The differences; none where there is one site, or times to an event are predicted.
    """
    columns: tuple[float, ...] = ()
    if sites.image is None and isinstance(sites.features, int):
        columns = tuple(_between([data.x.double() for data in sites.train])[0].tolist())
    outcome, chance = 0.0, 1.0
    if sites.classes:
        outcome, chance = _class_shift(sites)
    elif not sites.outcome:
        share, chances = _between([data.y.double().reshape(-1, 1) for data in sites.train])
        outcome, chance = float(share[0]), float(chances[0])
    slopes = both = Slopes()
    if columns and not sites.outcome:
        slopes = differ_in_slopes([data.x for data in sites.train], [data.y for data in sites.train], sites.classes)
    if sites.classes == 2:
        both = _together(sites, slopes)
    elif not sites.classes:
        both = Slopes(math.sqrt(outcome + slopes.size**2), min(1.0, 2 * min(chance, slopes.chance)))
    return Shift(outcome, chance, columns, sites.feature_names or (), slopes, both, not sites.classes)


def _counts(sites: Sites) -> Tensor:
    """How often each site sees each class, without sites that have no rows and classes that nobody has."""
    counts = torch.stack([data.y.long().bincount(minlength=sites.classes or 0) for data in sites.train]).double()
    return counts[counts.sum(1) > 0][:, counts.sum(0) > 0]


def _class_shift(sites: Sites) -> tuple[float, float]:
    """Cramér's V of sites and classes, and the p value of its χ² test."""
    from scipy.stats import chi2_contingency

    counts = _counts(sites)
    if min(counts.shape) < 2:
        return 0.0, 1.0
    found = chi2_contingency(counts.numpy(), correction=False)
    v = math.sqrt(found.statistic / (float(counts.sum()) * (min(counts.shape) - 1)))
    return v, float(found.pvalue)


def _together(sites: Sites, slopes: Slopes) -> Slopes:
    """The χ² of sites and two classes and that of slopes, summed: independent where the sites are alike."""
    from scipy.stats import chi2, chi2_contingency

    counts = _counts(sites)
    if min(counts.shape) < 2:
        return slopes
    found = chi2_contingency(counts.numpy(), correction=False)
    beyond = max(0.0, found.statistic - found.dof) / float(counts.sum())
    q, free = float(found.statistic) + slopes.q, found.dof + slopes.free
    return Slopes(math.sqrt(beyond + slopes.size**2), float(chi2.sf(q, free)), q, free)


def _between(groups: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Of each column the share of variance that lies between groups, and the p value of its F test."""
    from scipy.stats import f

    groups = [group for group in groups if len(group)]
    width = groups[0].shape[1]
    rows = sum(len(group) for group in groups)
    free = rows - len(groups)
    if len(groups) < 2 or free < 1:
        return torch.zeros(width), torch.ones(width)
    means = torch.stack([group.mean(0) for group in groups])
    sizes = torch.tensor([len(group) for group in groups]).double().unsqueeze(1)
    overall = (sizes * means).sum(0) / rows
    between = (sizes * (means - overall) ** 2).sum(0)
    within = sum(((group - mean) ** 2).sum(0) for group, mean in zip(groups, means, strict=True))
    total = between + within
    share = torch.where(total > 0, between / total.clamp_min(1e-300), torch.zeros_like(total))
    statistic = (between / (len(groups) - 1)) / (within / free).clamp_min(1e-300)
    return share, torch.from_numpy(f.sf(statistic.numpy(), len(groups) - 1, free))


def describe_situation(
    sites: Sites,
    *,
    place: str = "run",
    network: str = "none",
    weights: int | None = None,
    secure: bool = False,
    private: bool = False,
    one_round: bool = False,
    effects: bool = False,
    shift: Shift | None = None,
) -> Situation:
    """Look at rows, and put what is asked for beside them.

    Args:
        place: Who asks: run, estimator or study.
        network: The network that somebody named: none, linear or other.
        weights: How many weights it has; those of a linear model on the columns if None.
        secure: Whether replies shall be masked.
        private: Whether differential privacy is asked for.
        one_round: Whether the sites can answer once only.
        effects: Whether coefficients are asked for.
        shift: How far the sites differ; measured if None.

    Returns:
        What rules are held against.
    """
    found = shift or measure_shift(sites)
    images = not isinstance(sites.shape, int)
    if weights is None:
        weights = (_columns(sites) + 1) * (sites.classes or 1)
    return Situation(
        kind=KINDS.get(sites.kind, sites.kind),
        place=place,
        network=network,
        images=images,
        natural=sites.split == "natural",
        differ=found.differ,
        columns_differ=found.columns_matter,
        sites=len(sites),
        rows=sum(len(data.y) for data in sites.train),
        weights=weights,
        secure=secure,
        private=private,
        one_round=one_round,
        effects=effects,
    )


class BuildsSites(Protocol):
    """What knows how to build its rows, as a `Problem` does."""

    def build_sites(self) -> Sites:
        """Build the sites with their rows."""


def recommend(
    sites: Sites | BuildsSites,
    *,
    secure: bool = False,
    epsilon: float | None = None,
    one_round: bool = False,
    effects: bool = False,
) -> Advice:
    """Recommend a method for these rows, with the reason and what was measured.

    Args:
        sites: A `Problem`; or everybody's rows, as `co.from_csv` or a split gives them.
        secure: Whether sites shall mask what they send.
        epsilon: ε of differential privacy; None: none is asked for.
        one_round: Whether the sites can answer once only.
        effects: Whether coefficients with intervals are asked for.

    Returns:
        The method with its features and settings, the reason, the figure and the page: what `consilience run` takes
        where nobody names a method.

    Raises:
        InputError: Nothing here serves what is asked for; the message says what to do.

    Example:
        >>> import consilience as co
        >>> co.recommend(co.Problem("moons", sites=3, split="iid")).method
        'exact_tuned'
    """
    if not isinstance(sites, Sites):
        sites = sites.build_sites()
    situation = describe_situation(
        sites, secure=secure, private=epsilon is not None, one_round=one_round, effects=effects
    )
    return complete(advise(situation), situation, sites)


def complete(advice: Advice, situation: Situation, sites: Sites) -> Advice:
    """Fill in what is usual for a method on these rows, and what to know besides.

    Args:
        situation: What it was chosen for.

    Returns:
        The advice with its feature map, its network and cautions.
    """
    features = advice.features
    if features is None and advice.model is None:
        features = usual_map([METHODS[advice.method]], sites.shape, situation.private)
    width = _columns(sites)
    if features is not None and ":" in features:
        width = int(features.split(":")[1])
    sums = is_sum(METHODS[advice.method])
    thin = sums and min(len(data.y) for data in sites.train) < width
    known = dataclasses.replace(situation, thin=thin)
    return advice._replace(features=features, cautions=cautions(known))


def _columns(sites: Sites) -> int:
    """How many numbers a row has."""
    if isinstance(sites.features, int):
        return sites.features
    return math.prod(sites.features)
