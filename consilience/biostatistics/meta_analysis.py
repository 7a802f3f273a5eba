"""Random-effects meta-analysis of one estimate a site, as people print it.

τ² by restricted likelihood (REML), by Paule and Mandel (PM) or by DerSimonian and Laird (DL); the mean with its
normal interval or that of Hartung and Knapp (Student's t, k − 1 degrees of freedom); intervals of τ and I² by the
Q-profile of Viechtbauer 2007; the effect at a new site; each site left out in turn; Egger's test of small sites.
Equal to `metafor`.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from consilience.biostatistics.spreadsheets import inert
from consilience.errors import InputError, unknown_name

TAUS = {"REML": "restricted likelihood", "PM": "Paule and Mandel", "DL": "DerSimonian and Laird"}
STEPS = 200  # of Fisher's scoring
STILL = 1e-14  # relative to the variances, where it ends
ROOT = 1e-13  # the same of a root, found by halving
FEWEST_NEW = 3  # sites, below which nothing is said of a new one
FEWEST_SMALL = 10  # sites, below which a test of small sites says nothing

Numbers = NDArray[np.float64]


class LeftOut(NamedTuple):
    """The meta-analysis without one site.

    Attributes:
        site: Which.
        mean: The mean of the others' effects.
        low: The lower end of its interval.
        high: The upper end.
        tau: τ of the others.
        i2: Their I².
    """

    site: str
    mean: float
    low: float
    high: float
    tau: float
    i2: float


class Meta(NamedTuple):
    """What the sites' own estimates of one effect say together.

    Attributes:
        sites: k, how many there are.
        method: How τ² was found: REML, PM or DL.
        hartung_knapp: Whether the mean's interval is that of Hartung and Knapp.
        coverage: The level of all intervals.
        mean: The mean of the sites' effects.
        error: Its standard error.
        low: The lower end of its interval.
        high: The upper end.
        p: Of no effect on average.
        tau: The SD of the sites' effects.
        tau_low: The lower end of its interval.
        tau_high: The upper end.
        i2: The share of the estimates' variance that is between sites.
        i2_low: The lower end of its interval.
        i2_high: The upper end.
        q: Cochran's Q.
        q_p: Of so large a Q where all sites have the same effect.
        new_low: The interval in which the effect at a new site is expected; None with fewer than three sites.
        new_high: See `new_low`.
        small_p: Of Egger's test of small sites; None with fewer than ten.
        left_out: Without each site in turn; () where sites are not named, or there are two.
    """

    sites: int
    method: str
    hartung_knapp: bool
    coverage: float
    mean: float
    error: float
    low: float
    high: float
    p: float
    tau: float
    tau_low: float
    tau_high: float
    i2: float
    i2_low: float
    i2_high: float
    q: float
    q_p: float
    new_low: float | None
    new_high: float | None
    small_p: float | None
    left_out: tuple[LeftOut, ...] = ()


def meta_analyse(
    estimates: Sequence[float],
    errors: Sequence[float],
    method: str = "REML",
    hartung_knapp: bool = True,
    level: float = 0.95,
    names: Sequence[str] = (),
) -> Meta | None:
    """Analyse the sites' estimates of one effect.

    Args:
        estimates: One a site.
        errors: Their standard errors.
        method: How τ² is found: REML, PM or DL.
        hartung_knapp: Whether the mean's interval is that of Hartung and Knapp, else normal.
        level: Of all intervals.
        names: The sites, each of which is then left out in turn.

    Returns:
        What they say together; None with fewer than two sites.

    Raises:
        InputError: There is no such method, or the level is none.

    Example:
        >>> from consilience.biostatistics.meta_analysis import meta_analyse
        >>> found = meta_analyse([0.2, 0.4, 0.3], [0.1, 0.1, 0.1])
        >>> found.sites, round(found.mean, 3)
        (3, 0.3)
    """
    from scipy import stats

    if method not in TAUS:
        raise unknown_name("way to find τ", method, TAUS)
    if not 0 < level < 1:
        raise InputError(f"level={level:g} is not the level of an interval: give a number between 0 and 1.")
    y, v = np.asarray(estimates, float), np.asarray(errors, float) ** 2
    k = len(y)
    if k < 2:
        return None
    tau2 = tau_squared(y, v, method)
    w = 1 / (v + tau2)
    mean = float(w @ y / w.sum())
    error = math.sqrt(1 / w.sum())
    free = k - 1
    spread: Any = stats.norm()
    if hartung_knapp:
        error *= math.sqrt(float(w @ (y - mean) ** 2) / free)
        spread = stats.t(free)
    wide = float(spread.ppf(0.5 + level / 2))
    q = _q(y, v, 0.0)
    low, high = (_profile(y, v, float(stats.chi2(free).ppf(0.5 + side * level / 2))) for side in (1, -1))
    reach = wide * math.hypot(error, math.sqrt(tau2))
    left: tuple[LeftOut, ...] = ()
    if names and k > 2:
        left = tuple(_without(i, y, v, method, hartung_knapp, level, str(name)) for i, name in enumerate(names))
    return Meta(
        k,
        method,
        hartung_knapp,
        level,
        mean,
        error,
        mean - wide * error,
        mean + wide * error,
        float(2 * spread.sf(abs(mean) / error)) if error > 0 else 0.0,
        math.sqrt(tau2),
        math.sqrt(low),
        math.sqrt(high),
        _share(v, tau2),
        _share(v, low),
        _share(v, high),
        q,
        float(stats.chi2(free).sf(q)),
        None if k < FEWEST_NEW else mean - reach,
        None if k < FEWEST_NEW else mean + reach,
        _egger(y, v),
        left,
    )


def _without(place: int, y: Numbers, v: Numbers, method: str, hartung_knapp: bool, level: float, name: str) -> LeftOut:
    found = meta_analyse(
        np.delete(y, place).tolist(), np.sqrt(np.delete(v, place)).tolist(), method, hartung_knapp, level
    )
    assert found is not None
    return LeftOut(name, found.mean, found.low, found.high, found.tau, found.i2)


def tau_squared(y: Numbers, v: Numbers, method: str) -> float:
    """Estimate the variance of the sites' effects.

    Args:
        y: The sites' estimates.
        v: Their squared standard errors.
        method: REML, PM or DL.
    """
    if method == "PM":
        return _profile(y, v, len(y) - 1)
    if method == "REML":
        return _restricted(y, v)
    w = 1 / v
    spare = float(w.sum() - (w**2).sum() / w.sum())
    if spare <= 0:
        return 0.0
    return max(0.0, (_q(y, v, 0.0) - (len(y) - 1)) / spare)


def _q(y: Numbers, v: Numbers, tau2: float) -> float:
    w = 1 / (v + tau2)
    return float(w @ (y - w @ y / w.sum()) ** 2)


def _profile(y: Numbers, v: Numbers, wanted: float) -> float:
    """The τ² at which the generalised Q, which falls in it, is as wanted; 0 where it is below that already."""
    if _q(y, v, 0.0) <= wanted:
        return 0.0
    high = float(v.max() + np.var(y))
    while _q(y, v, high) > wanted:
        high *= 2
    return _halve(lambda tau2: _q(y, v, tau2) - wanted, high)


def _halve(f: Callable[[float], float], high: float) -> float:
    """The root of a falling function between 0 and `high`."""
    low = 0.0
    while high - low > ROOT * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if f(middle) > 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _restricted(y: Numbers, v: Numbers) -> float:
    """Fisher's scoring of the restricted likelihood from Hedges' estimate; a step below 0 is halved."""
    tau2 = max(0.0, float(np.var(y, ddof=1) - v.mean()))
    for _ in range(STEPS):
        w = 1 / (v + tau2)
        total = w.sum()
        rest = y - w @ y / total
        slope = float((w * rest) @ (w * rest) - (w.sum() - (w**2).sum() / total))
        bend = float((w**2).sum() - 2 * (w**3).sum() / total + ((w**2).sum() / total) ** 2)
        step = slope / bend
        if tau2 == 0 and step <= 0:
            break
        while tau2 + step < 0:
            step /= 2
            if tau2 + step < STILL * float(v.min()):
                step = -tau2
                break
        tau2 += step
        if abs(step) <= STILL * (tau2 + float(v.min())):
            break
    return tau2


def _share(v: Numbers, tau2: float) -> float:
    """I²: τ² over itself and the typical variance of an estimate (Higgins and Thompson 2002)."""
    w = 1 / v
    typical = (len(v) - 1) * w.sum() / (w.sum() ** 2 - (w**2).sum())
    return float(tau2 / (tau2 + typical))


def _egger(y: Numbers, v: Numbers) -> float | None:
    """The p-value of the slope on the standard error, weighted by 1/v (Egger et al. 1997)."""
    from scipy import stats

    if len(y) < FEWEST_SMALL or float(np.ptp(v)) <= 0:
        return None
    root = np.sqrt(1 / v)
    x = np.stack([root, np.ones(len(y))], 1)  # a constant, and the standard error, times √weight
    inverse = np.linalg.inv(x.T @ x)
    slope = inverse @ x.T @ (root * y)
    left = root * y - x @ slope
    error = math.sqrt(float(left @ left) / (len(y) - 2) * float(inverse[1, 1]))
    if error <= 0:
        return None
    return float(2 * stats.t(len(y) - 2).sf(abs(float(slope[1])) / error))


def as_json_lines(lines: Sequence[tuple[Mapping[str, str], Meta]]) -> list[dict[str, Any]]:
    """Write analyses as JSON has them.

    Args:
        lines: What each is of, by the names of a label, and what was found.
    """
    return [{**label, **meta._asdict(), "left_out": [one._asdict() for one in meta.left_out]} for label, meta in lines]


def as_csv(lines: Sequence[tuple[Mapping[str, str], Meta]]) -> str:
    """Write analyses as CSV, a line each and another for each site that is left out, which it then names.

    Args:
        lines: What each is of, by the names of a label, and what was found.
    """
    text = io.StringIO()
    names = [name for name in Meta._fields if name != "left_out"]
    writer = csv.DictWriter(text, [*lines[0][0], "without", *names], lineterminator="\n", restval="")
    writer.writeheader()
    for label, meta in lines:
        safe = {name: inert(value) for name, value in label.items()}
        writer.writerow({**safe, "without": "", **{name: getattr(meta, name) for name in names}})
        for one in meta.left_out:
            writer.writerow(
                {**safe, "without": inert(one.site), **{k: v for k, v in one._asdict().items() if k != "site"}}
            )
    return text.getvalue()
