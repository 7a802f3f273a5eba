"""Multiple imputation at the client, and Rubin's rules.  Rubin 1987; chained equations: van Buuren 2018."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consilience.data.sites import Data
from consilience.distributions.likelihood import Softmax
from consilience.distributions.posterior import Dense, Gaussian, Posterior
from consilience.errors import InputError
from consilience.inference.chain import Inference
from consilience.inference.laplace import Laplace
from consilience.key import Key
from consilience.messages import Client
from consilience.task import Task

RIDGE = 1e-8  # of a design's mean square, so that levels that add up to 1 can be solved for


@dataclass(frozen=True)
class MultipleImputation:
    """Fill missing values m times by draws, fit each table, and add the spread between the fits to the posterior.

    1   for i = 1 … m: draw what is missing, column by column, from a linear regression on other columns and the target
    2       N(μᵢ, Wᵢ) ← the inference on that table
    3   N(μ̄, W̄ + (1 + 1/m) B), with B the covariance of the μᵢ (Rubin's rules)

    Indicators of values that were filled say "known" from then on. A column that a client has in no row stays as it is.

    Attributes:
        inference: how a table is fitted; it must give a Gaussian
        marks: which feature holds a column and which one is its missing-value indicator, as `1:2,4:5`; see `marks_of`
        tables: m
        sweeps: passes over the columns for one table
    """

    narrowest: ClassVar[None] = None  # wider than what prior and rows explain

    inference: Inference = Laplace(dense=True)
    marks: str = ""
    tables: int = 20
    sweeps: int = 5

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian | Dense:
        """Fit the imputed tables and combine the fits.

        Args:
            start: where each fit begins

        Raises:
            InputError: if `marks` is not a list of pairs, there are fewer than two tables, or a fit is no Gaussian.
        """
        pairs = read_marks(self.marks)
        if self.tables < 2:
            raise InputError(f"tables={self.tables}: the spread between fits needs two tables or more.")
        fits = []
        for i in range(self.tables):
            x = impute(client.data, _outcome(task, client.data), pairs, self.sweeps, client.key.fold(1000 + i))  # 1
            table = client._replace(data=client.data._replace(x=x.to(client.data.x)))
            fits.append(self.inference(task, start, table))  # 2
        return combine_fits(fits)  # 3


def marks_of(names: Sequence[str]) -> str:
    """Find which features indicate the missing values of which, for the setting `marks`.

    Args:
        names: The features' names, as `feature_names` of sites and of an agreement.

    Returns:
        Pairs of numbers of features, such as `1:2,4:5`.
    """
    places = {name: i for i, name in enumerate(names)}
    pairs = [(i, places[f"{name} missing"]) for name, i in places.items() if f"{name} missing" in places]
    return ",".join(f"{value}:{mark}" for value, mark in pairs)


def read_marks(text: str) -> list[tuple[int, int]]:
    """Read the setting `marks`.

    Args:
        text: Such as `1:2,4:5`.

    Returns:
        Pairs of numbers of features.

    Raises:
        InputError: It is no such list.
    """
    try:
        pairs = [tuple(int(number) for number in part.split(":")) for part in text.split(",")]
    except ValueError:
        pairs = []
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise InputError(f"marks={text!r} is no list of columns and their indicators: write for example marks=1:2,4:5.")
    return [(value, mark) for value, mark in pairs]


def _outcome(task: Task, data: Data) -> Tensor:
    """The target as columns to regress on: without it imputed tables would deny what it says."""
    if isinstance(task.likelihood, Softmax):
        return one_hot(data.y, task.classes(data.x)).double()[:, 1:]
    return data.y.double().reshape(len(data.y), -1)


def impute(data: Data, outcome: Tensor, pairs: Sequence[tuple[int, int]], sweeps: int, key: Key) -> Tensor:
    """Draw the missing values of a table once.

    Args:
        data: The rows; where an indicator is above 0, the value is missing.
        outcome: Columns of the target, [N, …].
        pairs: Which feature holds a column and which one is its missing-value indicator.
        sweeps: Passes over the columns.

    Returns:
        Features with nothing missing, [N, D].
    """
    x = data.x.double()
    w = (data.w > 0).double()
    gaps = {value: x[:, mark] > 1e-6 for value, mark in pairs}
    some = {value: (w * ~gap).sum() > 0 for value, gap in gaps.items()}
    keeps = torch.ones(x.shape[1], dtype=torch.float64, device=x.device)
    for value, mark in pairs:
        seen = w * ~gaps[value]
        mean = (seen * x[:, value]).sum() / seen.sum().clamp(min=1)
        x = _set(x, value, torch.where(gaps[value] & some[value], mean, x[:, value]))
        x = _set(x, mark, torch.where(some[value], x[:, mark].amin(), x[:, mark]))
        keeps = keeps * _but(len(keeps), mark, x)
    for sweep in range(sweeps):
        for j, (value, _) in enumerate(pairs):
            others = x * (keeps * _but(len(keeps), value, x))
            design = torch.cat([others, outcome.to(x), torch.ones(len(x), 1).to(x)], 1)
            drawn = _draw(design, x[:, value], w * ~gaps[value], key.fold(sweep * len(pairs) + j))
            x = _set(x, value, torch.where(gaps[value] & some[value], drawn, x[:, value]))
    return x


def _but(size: int, place: int, like: Tensor) -> Tensor:
    """Ones, but for one place."""
    return (torch.arange(size, device=like.device) != place).to(like)


def _set(x: Tensor, place: int, column: Tensor) -> Tensor:
    return torch.cat([x[:, :place], column.unsqueeze(1), x[:, place + 1 :]], 1)


def _draw(design: Tensor, y: Tensor, seen: Tensor, key: Key) -> Tensor:
    """Draw every row's y from the posterior predictive of a linear regression on the rows that are seen."""
    gram = design.T @ (seen.unsqueeze(1) * design)
    gram = gram + (RIDGE * gram.diagonal().mean() + 1e-12) * torch.eye(len(gram)).to(gram)
    lower, _ = torch.linalg.cholesky_ex(gram)
    best = torch.cholesky_solve((design.T @ (seen * y)).unsqueeze(1), lower).squeeze(1)
    left = (seen * (y - design @ best) ** 2).sum()
    free = (seen.sum() - (design != 0).any(0).sum()).clamp(min=2)  # columns left out are zero
    noise = key.normal((1 + len(gram) + len(y),), y)
    ninth = 2 / (9 * free)
    chi2 = free * (1 - ninth + noise[0] * ninth.sqrt()) ** 3  # Wilson and Hilferty 1931
    deviation = (left / chi2.clamp(min=1e-3)).sqrt()
    weights = torch.linalg.solve_triangular(lower.mT, noise[1 : 1 + len(gram)].unsqueeze(1), upper=True).squeeze(1)
    drawn: Tensor = design @ (best + deviation * weights) + deviation * noise[1 + len(gram) :]
    return drawn


def combine_fits(fits: Sequence[Posterior]) -> Gaussian | Dense:
    """Combine the posteriors of imputed tables by Rubin's rules.

    Args:
        fits: One Gaussian a table.

    Returns:
        The mean of their means; the mean of their covariances plus (1 + 1/m) that of their means.

    Raises:
        InputError: A fit is no Gaussian.
    """
    count = len(fits)
    if all(isinstance(fit, Dense) for fit in fits):
        dense = [fit for fit in fits if isinstance(fit, Dense)]
        means = torch.stack([fit.mean for fit in dense]).double()
        within = torch.linalg.inv(torch.stack([fit.precision for fit in dense]).double()).mean(0)
        away = means - means.mean(0)
        precision = torch.linalg.inv(within + (1 + 1 / count) * away.T @ away / (count - 1))
        return Dense(means.mean(0).to(dense[0].mean), ((precision + precision.T) / 2).to(dense[0].mean))
    diagonal = [fit for fit in fits if isinstance(fit, Gaussian)]
    if len(diagonal) < count:
        raise InputError("Rubin's rules combine Gaussians: use inference=Laplace, with dense=True for all covariances.")
    mean = {k: torch.stack([fit.mean[k] for fit in diagonal]).mean(0) for k in diagonal[0].mean}
    var = {}
    for k in diagonal[0].var:
        between = torch.stack([fit.mean[k] for fit in diagonal]).var(0)
        var[k] = torch.stack([fit.var[k] for fit in diagonal]).mean(0) + (1 + 1 / count) * between
    return Gaussian(mean, var)
