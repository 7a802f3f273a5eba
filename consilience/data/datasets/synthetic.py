"""Data sets that need no download: one that ships with scikit-learn, and some that are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from consilience.data.dataset import Dataset
from consilience.data.datasets.facts import Facts
from consilience.data.splits.split import dirichlet_draws
from consilience.errors import InputError
from consilience.key import Key

INTERVALS = ((-0.8, -0.6), (-0.2, 0.0), (0.5, 0.8))  # where the sine's inputs lie


def digits() -> Dataset:
    """1797 handwritten digits of 8 × 8 pixels, scaled to [0, 1] (scikit-learn).

    Returns:
        A classification of 64 features, ten classes.

    Example:
        >>> import consilience as co
        >>> co.datasets.digits().x.shape
        torch.Size([1797, 64])
    """
    from sklearn.datasets import load_digits  # here, because it takes a second that few commands need

    x, y = load_digits(return_X_y=True)
    pixels = torch.tensor(x / 16, dtype=torch.float32)
    return Dataset("digits", pixels, torch.tensor(y), classes=10, public=True, image=(1, 8, 8))


def moons(n: int = 1000, noise: float = 0.2, seed: int = 0) -> Dataset:
    """Two interleaved half circles, one class each, with Gaussian noise of the given SD (scikit-learn).

    Args:
        noise: The standard deviation of the noise.
        seed: Equal seeds draw equal rows.

    Returns:
        A classification of two features, two classes.

    Raises:
        InputError: `n` is below 2.

    Example:
        >>> import consilience as co
        >>> rows = co.datasets.moons(100, noise=0.1)
        >>> rows.x.shape, rows.y.unique().tolist()
        (torch.Size([100, 2]), [0, 1])
    """
    from sklearn.datasets import make_moons

    _check_least("n", n, 2)
    x, y = make_moons(n_samples=n, noise=noise, random_state=seed)
    return Dataset("moons", torch.tensor(x, dtype=torch.float32), torch.tensor(y), classes=2, public=True)


def linear_gaussian(n: int = 200, features: int = 4, noise: float = 0.5, seed: int = 0) -> Dataset:
    """A conjugate regression: x ~ N(0, I), y = xθ + ε with θ ~ N(0, I) and ε of SD `noise`; no intercept.

    With the prior N(0, I) the posterior is Gaussian with precision I + XᵀX / noise² and mean precision⁻¹ Xᵀy / noise².
    The θ that was drawn is `linear_gaussian_truth(features, seed)`. Nothing is standardised, so that it stays true.

    Args:
        noise: The standard deviation of ε.
        seed: Equal seeds draw equal rows.

    Raises:
        InputError: `n` is below 2 or `features` below 1.

    Example:
        >>> import consilience as co
        >>> rows = co.datasets.linear_gaussian(50, features=3)
        >>> rows.x.shape, rows.classes
        (torch.Size([50, 3]), None)
    """
    _check_least("n", n, 2)
    key = Key(seed)
    x = key.fold(1).normal((n, features))
    y = x @ linear_gaussian_truth(features, seed) + noise * key.fold(2).normal((n,))
    return Dataset("linear_gaussian", x, y, public=True)


def linear_gaussian_truth(features: int = 4, seed: int = 0) -> Tensor:
    """The weights θ behind `linear_gaussian`.

    Args:
        features: As in `linear_gaussian`.
        seed: As in `linear_gaussian`.

    Returns:
        θ, [features].

    Raises:
        InputError: `features` is below 1.
    """
    _check_least("features", features, 1)
    return Key(seed).fold(0).normal((features,))


def sine(n_per_site: int = 100, noise: float = 0.3, seed: int = 0) -> Dataset:
    """Five sites that see different parts of one curve, y = 1.5 sin(0.4πx) + 1.5 cos(2πx) + ε.

    d'Hondt et al., App. C.1: each site draws its probabilities of three intervals from Dirichlet(1, 1, 1), and its
    inputs uniformly in the interval drawn. The paper writes ε ~ N(0, 0.3); 0.3 is read as the deviation here, and
    `noise=0.3**0.5` is the other reading. The paper's sites train on 100 points, or on 20.

    Args:
        n_per_site: How many rows a site.
        noise: The standard deviation of ε.
        seed: Equal seeds draw equal rows.

    Returns:
        A regression of one feature, with five natural sites.

    Raises:
        InputError: `n_per_site` is below 1.

    Example:
        >>> import consilience as co
        >>> rows = co.datasets.sine(20)
        >>> rows.x.shape, rows.site.unique().tolist()
        (torch.Size([100, 1]), [0, 1, 2, 3, 4])
    """
    _check_least("n_per_site", n_per_site, 1)
    key = Key(seed)
    sites = 5
    shares = dirichlet_draws(1.0, (sites, len(INTERVALS)), key.fold(0))
    interval = torch.multinomial(shares, n_per_site, replacement=True, generator=key.fold(1).generator()).flatten()
    low, high = torch.tensor(INTERVALS)[interval].unbind(-1)
    x = low + (high - low) * key.fold(2).uniform(sites * n_per_site)
    y = sine_truth(x) + noise * key.fold(3).normal((len(x),))
    return Dataset("sine", x.unsqueeze(1), y, site=torch.arange(sites).repeat_interleave(n_per_site), public=True)


def sine_truth(x: Tensor) -> Tensor:
    """The noise-free curve behind `sine`.

    Args:
        x: Inputs of any shape.

    Returns:
        The curve at each of them.
    """
    return 1.5 * torch.sin(0.4 * math.pi * x) + 1.5 * torch.cos(2 * math.pi * x)


def swiss_roll(n: int = 1500, noise: float = 0.5, seed: int = 0) -> Dataset:
    """Three classes along a spiral, one after another: the swiss roll seen from the side (scikit-learn).

    The toy problem of Chen and Chao 2021, §3.3, which does not say how the roll is cut, its noise or its size. Here
    each class is a third of the rows, about half a turn, and the outer radius is scaled to 1. The paper's three sites
    are `dominant(0.8)`.

    Args:
        noise: The standard deviation of the noise, on a roll whose radius goes from 4.7 to 14.1.
        seed: Equal seeds draw equal rows.

    Returns:
        A classification of two features, three classes.

    Raises:
        InputError: `n` is below 3.

    Example:
        >>> import consilience as co
        >>> co.datasets.swiss_roll(90).y.bincount().tolist()
        [30, 30, 30]
    """
    from sklearn.datasets import make_swiss_roll

    _check_least("n", n, 3)
    x, along = make_swiss_roll(n_samples=n, noise=noise, random_state=seed)
    sides = torch.tensor(x[:, [0, 2]] / (4.5 * math.pi), dtype=torch.float32)
    y = torch.tensor(along).argsort().argsort() * 3 // n
    return Dataset("swiss_roll", sides, y, classes=3, public=True)


DATASETS: dict[str, Callable[[], Dataset]] = {
    "digits": digits,
    "moons": moons,
    "linear_gaussian": linear_gaussian,
    "sine": sine,
    "swiss_roll": swiss_roll,
}
FACTS = {
    "digits": Facts(1797, 64, 10),
    "moons": Facts(1000, 2, 2),
    "linear_gaussian": Facts(200, 4),
    "sine": Facts(500, 1, sites=5),
    "swiss_roll": Facts(1500, 2, 3),
}


def _check_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name}={value} is too small: ask for at least {least}.")
