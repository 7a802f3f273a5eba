"""The penalised two-way fit behind evidence pooling: what the sites agree on, and how far each is off.

For each input, class scores s and site offsets a minimise Σ_kc r_kc (s_c + a_k − z_kc)² + λ Σ_k r_k a_k². Eliminating a
leaves one C × C system with the same matrix for every input, so the fit is a fixed linear map of the sites' scores z.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.softmax import log_softmax
from consilience.errors import Diverged

KNOWN = 5  # rows of a class after which a site is held to know it
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # between which the estimate of λ weighs
CONTRADICTION = 0.2  # digits without any shift showed 0.01–0.15, rotated by ± 30° 0.05–0.39


class Fit(NamedTuple):
    """The two-way fit of the sites' scores z.

    Attributes:
        scores: s, [N, C]; 0 for a class nobody has seen.
        offsets: a, [K, N].
        residuals: z − s − a, [K, N, C]; 0 where a site has not seen the class.
    """

    scores: Tensor
    offsets: Tensor
    residuals: Tensor


def strengths(counts: Tensor, exponent: float) -> Tensor:
    """Weigh the sites' scores by how many rows stand behind them.

    Args:
        counts: Each site's rows of each class n_kc [K, C].
        exponent: How strongly numbers count.

    Returns:
        r_kc = n_kc^exponent, and 0 for what a site has not seen.
    """
    n = counts.double()
    return torch.where(n > 0, n.clamp(min=1e-300) ** exponent, torch.zeros_like(n))


def solver(r: Tensor, penalty: float) -> Tensor:
    """Make the map from all sites' scores to the class scores; the matrix is factored once.

    With no penalty the scores are known up to one constant, which no softmax sees; sites that share no class, even by
    way of others, leave more than one free, and then the penalty is set to 1 and said so.

    Args:
        r: The strengths [K, C].

    Returns:
        The map [C, K, C].
    """
    if penalty == 0 and len(groups := components(r)) > 1:
        lists = "; ".join(", ".join(str(k) for k in group) for group in groups)
        warning = f"Sites share no class, even by way of others, between the groups {lists}: λ = 1 is used."
        warnings.warn(warning, stacklevel=2)
        penalty = 1.0
    right = torch.einsum("kd,dc->dkc", r, torch.eye(r.shape[1], dtype=r.dtype))
    right = right - torch.einsum("kd,kc->dkc", r, _offset_weights(r, penalty))
    return torch.einsum("de,ekc->dkc", torch.linalg.pinv(_normal_matrix(r, penalty), hermitian=True), right)


def _offset_weights(r: Tensor, penalty: float) -> Tensor:
    """How a site's offset follows from its scores."""
    return r / r.sum(1, keepdim=True).clamp(min=1e-300) / (1 + penalty)


def _normal_matrix(r: Tensor, penalty: float) -> Tensor:
    """What is left for the class scores once the offsets are eliminated, [C, C]."""
    return torch.diag(r.sum(0)) - r.T @ _offset_weights(r, penalty)


class Equations(NamedTuple):
    """What one site, or several together, add to the class scores' equations A s = b.

    Attributes:
        matrix: A, the same for every input [C, C].
        right: b of every input [N, C].
        counts: How often each class was seen [C].
    """

    matrix: Tensor
    right: Tensor
    counts: Tensor


def normal_equations(z: Tensor, counts: Tensor, exponent: float, penalty: float) -> Equations:
    """Write what a site's scores add to the fit: Σ over sites gives the fit of all, and no site's offset is left.

    Args:
        z: The site's scores [N, C].
        counts: Its rows of each class [C].
        exponent: How strongly numbers count.
        penalty: λ, above 0.

    Returns:
        The site's part of the equations.
    """
    r = strengths(counts.unsqueeze(0), exponent)
    scores = z.double()
    offsets = scores @ _offset_weights(r, penalty).T
    return Equations(_normal_matrix(r, penalty), r * (scores - offsets), counts.double())


def solve(equations: Equations) -> Tensor:
    """Find the class scores.

    Args:
        equations: The sum of all sites' parts.

    Returns:
        s [N, C]; 0 for a class nobody has seen.
    """
    scores: Tensor = equations.right @ torch.linalg.pinv(equations.matrix, hermitian=True)
    return scores


def fit(z: Tensor, r: Tensor, penalty: float, solve: Tensor | None = None) -> Fit:
    """Fit class scores and site offsets; a site with scores that are not finite is left out.

    Args:
        z: The sites' scores [K, N, C].
        r: The strengths [K, C].
        solve: What `solver` gives for these strengths; made here without it.

    Returns:
        Scores, offsets and residuals.
    """
    z, finite_r = _drop_broken_sites(z, r)
    if solve is None or finite_r is not r:
        solve = solver(finite_r, penalty)
    r = finite_r
    s = torch.einsum("dkc,knc->nd", solve.to(z), z)
    w = r.to(z)
    gap = z - s
    a = torch.einsum("kc,knc->kn", w, gap) / w.sum(1, keepdim=True).clamp(min=1e-30) / (1 + penalty)
    return Fit(s, a, (gap - a.unsqueeze(-1)) * (w > 0).unsqueeze(1))


def _drop_broken_sites(z: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """Scores and strengths as they are, or without the sites whose scores are not finite."""
    bad = ~torch.isfinite(z).flatten(1).all(1)
    if tree.under_vmap() or not bool(bad.any()):
        return z, r
    if bool(bad.all()):
        raise Diverged("No site's scores are finite: train again with a smaller rate.")
    sites = ", ".join(str(int(k)) for k in bad.nonzero())
    warnings.warn(f"Scores of site {sites} are not finite: left out of the pool.", stacklevel=3)
    return z.masked_fill(bad[:, None, None], 0.0), r.masked_fill(bad[:, None], 0.0)


def class_scores(r: Tensor, penalty: float | None) -> Callable[[Tensor], Tensor]:
    """Make the rule that turns the sites' scores into class scores.

    Args:
        r: The strengths [K, C].
        penalty: λ; None estimates it.

    Returns:
        A function from the sites' scores [K, N, C] to class scores [N, C].
    """
    if penalty is None:
        return lambda z: estimate_penalty(z, r)
    solve = solver(r, penalty)

    def scores(z: Tensor) -> Tensor:
        if tree.is_exporting():  # whether a site is broken may not decide what is computed
            return torch.einsum("dkc,knc->nd", solve.to(z), z)
        return fit(z, r, penalty, solve).scores

    return scores


def estimate_penalty(z: Tensor, r: Tensor) -> Tensor:
    """Average class scores over λ, each λ counted by how well it explains the input's own scores.

    Args:
        z: The sites' scores [K, N, C].
        r: The strengths [K, C].

    Returns:
        Class scores [N, C].

    Raises:
        Diverged: If no site's scores are finite.
    """
    z, r = _drop_broken_sites(z, r)
    fits = [fit(z, r, penalty) for penalty in PENALTIES]
    log_likelihoods = [restricted_log_likelihood(f, r, p) for f, p in zip(fits, PENALTIES, strict=True)]
    plausible = torch.stack(log_likelihoods).softmax(0).to(z)
    return torch.einsum("ln,lnc->nc", plausible, torch.stack([f.scores for f in fits]))


def restricted_log_likelihood(found: Fit, r: Tensor, penalty: float) -> Tensor:
    """Say how well λ explains the sites' scores at each input.

    The penalised fit is the posterior mean of the mixed model z_kc = s_c + a_k + e_kc with e_kc ~ N(0, σ²/r_kc) and
    a_k ~ N(0, σ²/(λ r_k)). Its restricted likelihood, σ² profiled out, needs only the minimum of the sum of squares:
    log|V| = K log(1 + 1/λ) + const, and XᵀV⁻¹X is the matrix of the fit.

    Args:
        r: The strengths [K, C].

    Returns:
        Log-likelihoods [N], up to a constant that no λ changes.
    """
    seen = r.sum(0) > 0
    sites = (r.sum(1) > 0).sum().double()
    freedom = ((r > 0).sum() - seen.sum()).clamp(min=1)
    squares = torch.einsum("kc,knc->n", r, found.residuals.double() ** 2)
    squares = (squares + penalty * (r.sum(1) @ found.offsets.double() ** 2)).clamp(min=1e-30)
    spread = sites * math.log1p(1 / penalty) + torch.logdet(_normal_matrix(r, penalty)[seen][:, seen])
    return -0.5 * (freedom * squares.log() + spread)


def diagnosis(z: Tensor, counts: Tensor, exponent: float, penalty: float = 1.0) -> dict[str, Any]:
    """Say who knows what, and where the sites contradict each other.

    Offsets (nats) say how far a site's evidence is shifted: large for inputs unlike anything it saw. Residuals (nats,
    over the classes that are likely at an input) are what no offset explains. A contradiction is a site that names
    another class than the pool although it knows the pool's: its classes look different, which the rule assumes away.

    Args:
        z: The sites' scores [K, N, C].
        counts: Each site's rows of each class [K, C].
        exponent: How strongly numbers count.

    Returns:
        Contradictions, residuals and offsets, in all and by site, for the report.
    """
    r = strengths(counts, exponent)
    two_way = fit(z, r, penalty)
    total = counts.sum(0)
    posterior = class_log_probs(two_way.scores, (total + 0.5) / (total + 0.5).sum(), total > 0)
    w = r.to(z).unsqueeze(1) * posterior.exp()
    squares = w * two_way.residuals**2
    by_cell = (squares.sum(1) / w.sum(1).clamp(min=1e-30)).sqrt()
    top = posterior.argmax(-1)
    choice = z.masked_fill(~(counts > 0).unsqueeze(1), -torch.inf).argmax(-1)
    knows = (counts > KNOWN)[:, top]
    wrong = (choice != top) & knows
    share = float(wrong.sum() / knows.sum().clamp(min=1))
    if share > CONTRADICTION:
        warnings.warn(
            f"Sites that know a class name another in {share:.0%} of cases: what a class looks like may differ between "
            "sites, which evidence pooling assumes away. Check units, devices and definitions, or compare with fedavg.",
            stacklevel=2,
        )
    return {
        "contradiction": share,
        "contradiction_by_site": (wrong.sum(1) / knows.sum(1).clamp(min=1)).tolist(),
        "residual": float((squares.sum() / w.sum()).sqrt()),
        "residual_by_site_and_class": _none_where_unseen(by_cell, counts),
        "offset_by_site": (two_way.offsets**2).mean(1).sqrt().tolist(),
    }


def _none_where_unseen(values: Tensor, counts: Tensor) -> list[list[float | None]]:
    """Values [K, C] as lists, without those of classes that a site has not seen."""
    lists: list[list[float | None]] = values.tolist()
    for site, unseen in (counts <= 0).nonzero().tolist():
        lists[site][unseen] = None
    return lists


def components(r: Tensor) -> list[list[int]]:
    """Group the sites by whether they share classes, directly or by way of others.

    Args:
        r: The strengths [K, C].

    Returns:
        The sites' numbers, group by group.
    """
    adjacency = ((r > 0).double() @ (r > 0).double().T > 0).numpy()
    count, label = scipy.sparse.csgraph.connected_components(adjacency, directed=False)
    return [[k for k in range(len(r)) if label[k] == group] for group in range(count)]


def class_log_probs(scores: Tensor, frequencies: Tensor, seen: Tensor) -> Tensor:
    """Turn class scores into log-probabilities.

    Args:
        scores: s [N, C].
        frequencies: The prior π [C].
        seen: Which classes a site has seen [C]; any other keeps its prior π(y).

    Returns:
        log p(y|x) ∝ log π(y) + s_y [N, C].
    """
    prior = frequencies.to(scores).log()
    known = log_softmax((prior + scores).masked_fill(~seen, -torch.inf))
    return torch.where(seen, known + torch.log1p(-frequencies[~seen].sum().to(scores)), prior)
