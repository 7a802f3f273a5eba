"""Cross-conformal prediction sets: a run for each fold, and sets from all of them. No rows are held out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from consilience.data.sites import Data, Sites
from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.method import Method, is_personal
from consilience.prediction_sets.cross import CrossGuarantee, check_folds, cross_intervals, cross_sets
from consilience.prediction_sets.nonconformity import CALIBRATION, PREDICTION, draws, row_scores, score_from
from consilience.prediction_sets.score_counts import count_scores
from consilience.runs.conformal import GRID, LEVEL
from consilience.runs.problem import Problem, as_problem
from consilience.runs.recipe import ingredients
from consilience.runs.result import Result
from consilience.runs.run import Compute, run
from consilience.task import Task


@dataclass(frozen=True)
class CrossSets:
    """The runs of all folds, and sets from them.

    Attributes:
        runs: One for each fold, trained without it.
        guarantee: What is promised, and what sets are found from.
        seed: What random parts of scores are drawn from.
    """

    runs: tuple[Result, ...]
    guarantee: CrossGuarantee
    seed: int = 0

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor] | Tensor:
        """Find the sets of rows.

        Args:
            x: Rows in the units of the runs' sites [N, …].

        Returns:
            Whether each class is in the set [N, C]; for numbers the lower and the upper end of the interval [N], in the
            target's units.
        """
        with torch.no_grad():
            models = [result.model()(x) for result in self.runs]
        classes = [p for p in models if isinstance(p, Categorical)]
        if classes:
            return cross_sets(self.guarantee, classes, draws(Key(self.seed), PREDICTION, len(x)))
        numbers = [p for p in models if isinstance(p, Normal)]
        low, high = cross_intervals(self.guarantee, numbers)
        sites = self.runs[0].sites
        return low * sites.target_scale + sites.target_shift, high * sites.target_scale + sites.target_shift


def cross_conformal(
    method: Method | str,
    task: Task | Problem,
    sites: Sites | None = None,
    level: float = LEVEL,
    folds: int = 5,
    *,
    score: str | None = None,
    grid: int = GRID,
    seed: int = 0,
    engine: str | Compute = "auto",
) -> CrossSets:
    """Make prediction sets without holding rows out: CV+ over the folds of all sites' rows.

    The method runs once for each fold, without the fold's rows at every site. That is cheap where a run is, as with
    `ExactPooling`; any method works whose model is one for all sites.

    Args:
        method: The method; by its name, with the settings that are usual on the problem.
        task: The problem, of classes or numbers; or the network, its likelihood and its prior.
        sites: Everybody's rows, none of them held out, where `task` is no `Problem`.
        level: 1 − α. The promise is about 1 − 2α; see `CrossGuarantee`.
        score: As in `conformal`, but for `quantile`.
        grid: How many edges scores are counted on.
        seed: What folds and runs are drawn from.
        engine: Where the runs' clients run; as in `run`.

    Raises:
        InputError: Rows are held out, there are too few, or the score has no such sets.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> problem = co.Problem(co.datasets.moons(1500), sites=2, split="iid")
        >>> sets = co.cross_conformal("exact", problem, level=0.9, folds=3)
        >>> sets.predict(torch.tensor([[0.5, 0.2], [0.0, 1.0]])).shape
        torch.Size([2, 2])
    """
    method, task, sites = ingredients(method, as_problem(task, sites), seed)
    if sites.conformal is not None:
        raise InputError("Folds calibrate on all rows, and some are held out: split without conformal=.")
    sizes = [len(part.y) for part in sites.train]
    check_folds(level, sum(sizes), folds)
    found = score_from(score, sites.kind)
    if found.name in ("quantile", "time"):
        raise InputError(f"Folds have no sets by the score '{found}': use hinge, aps, raps or residual.")
    if is_personal(method):
        raise InputError("Folds need one model for all sites, and this method has one for each.")
    edges = found.edges(grid, sites.classes)
    assigned = assign_folds(sizes, folds, seed)
    runs = []
    tables = []
    for fold in range(folds):
        kept = tuple(_take(part, own != fold) for part, own in zip(sites.train, assigned, strict=True))
        result = run(method, task, dataclasses.replace(sites, train=kept), seed=seed, engine=engine, scored=False)
        model = result.model()
        counts = torch.zeros(len(edges) + 1, dtype=torch.int64)
        for k, (part, own) in enumerate(zip(sites.train, assigned, strict=True)):
            left_out = _take(part, own == fold)
            if not len(left_out.y):
                continue
            u = draws(Key(seed).fold(fold), CALIBRATION, len(left_out.y), k)
            with torch.no_grad():
                p: Distribution = model(left_out.x)
                counts += count_scores(row_scores(found, p, left_out.y, u, level), edges)
        runs.append(result)
        tables.append(counts)
    return CrossSets(tuple(runs), CrossGuarantee(level, found, edges, torch.stack(tables)), seed)


def assign_folds(sizes: Sequence[int], folds: int, seed: int) -> list[Tensor]:
    """Give every row a fold, so that folds of all sites' rows together differ by one row at most.

    Args:
        sizes: How many rows each site has.
        seed: What they are drawn from.

    Returns:
        The fold of each row, by site.
    """
    order = Key(seed).fold(Stream.SETS).fold(3).permutation(sum(sizes))
    assigned = torch.empty_like(order)
    assigned[order] = torch.arange(len(order)) % folds
    return list(assigned.split(list(sizes)))


def _take(data: Data, rows: Tensor) -> Data:
    return Data(*(leaf[rows] for leaf in data))
