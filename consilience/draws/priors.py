"""The prior that all sites used, in unconstrained space, so that it counts once and not once a site.

It is known as draws, as densities by name, as a function, or as the model's own log-prior at the sites' draws. Gaussian
rules need it as exp(⟨h, u⟩ − ½ uᵀΛu): from draws by moments, from a density by its expansion where the pool is, from
values by least squares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from consilience.distributions.posterior import Dense, Natural, Samples, dense_moments, natural
from consilience.draws.reading import PRIOR, Draws, holds_draws, read
from consilience.draws.space import Parameter, Space
from consilience.draws.transforms import REAL, UNIT, Correlation, Interval, Simplex, Transform
from consilience.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray

Given: TypeAlias = "str | Mapping[str, str] | Draws | xarray.Dataset | Callable[[dict[str, Any]], float] | None"
NAMED = FLAT, FRACTIONAL, MODEL = "flat", "fractional", "model"
ASKED = 3000  # draws at which a function is evaluated, at most
POSITIVE_HALF = Interval(0.0)


class Density:
    """A density by name, as `normal(0, 2.5)`.

    Args:
        text: The name and its numbers.

    Raises:
        InputError: There is none such.
    """

    def __init__(self, text: str) -> None:
        found = re.fullmatch(r"\s*([a-z_]+)\s*(?:\((.*)\))?\s*", text.lower())
        if found is None:
            raise InputError(f"'{text}' is no density: write it as normal(0, 2.5).")
        self.text = text.strip()
        self.name = found[1].replace("_", "")
        if self.name not in DENSITIES:
            raise unknown_name("density", found[1], DENSITIES)
        try:
            self.numbers = [float(word) for word in (found[2] or "").split(",") if word.strip()]
        except ValueError:
            raise InputError(f"'{text}': between the brackets are numbers, as in normal(0, 2.5).") from None
        counts = DENSITIES[self.name]
        if counts and len(self.numbers) != counts:
            raise InputError(f"'{text}' has {len(self.numbers)} numbers and needs {counts}.")
        if self.name == "dirichlet" and not self.numbers:
            raise InputError(f"'{text}' has no numbers: write one for all shares, or one for each.")
        for number in self.numbers[-1:]:
            if not number > 0 and self.name != "uniform":
                raise InputError(f"'{text}': {number:g} is not above 0.")

    @property
    def support(self) -> Transform | None:
        """The transform that its bounds ask for; None where it has none of its own."""
        if self.name == "uniform":
            return Interval(*self.numbers)
        return SUPPORTS.get(self.name, POSITIVE_HALF)

    def log(self, x: Tensor) -> Tensor:
        """Evaluate the log-density of parameters [S, …], up to a constant [S]."""
        a = self.numbers
        if self.name.startswith("lkj"):
            return self._log_lkj(x)
        if self.name == "dirichlet":
            each = (torch.tensor(a, dtype=x.dtype) - 1) * x.log()
        elif self.name in ("normal", "halfnormal"):
            each = -0.5 * ((x - self._centre) / a[-1]) ** 2
        elif self.name in ("studentt", "halfstudentt"):
            each = -(a[0] + 1) / 2 * torch.log1p(((x - self._centre) / a[-1]) ** 2 / a[0])
        elif self.name in ("cauchy", "halfcauchy"):
            each = -torch.log1p(((x - self._centre) / a[-1]) ** 2)
        elif self.name == "lognormal":
            each = -x.log() - 0.5 * ((x.log() - a[0]) / a[1]) ** 2
        elif self.name == "exponential":
            each = -a[0] * x
        elif self.name == "gamma":
            each = (a[0] - 1) * x.log() - a[1] * x
        elif self.name == "inversegamma":
            each = -(a[0] + 1) * x.log() - a[1] / x
        elif self.name == "beta":
            each = (a[0] - 1) * x.log() + (a[1] - 1) * torch.log1p(-x)
        else:  # uniform, flat
            each = torch.zeros_like(x)
        return each.reshape(len(x), -1).sum(1)

    @property
    def _centre(self) -> float:
        if self.name.startswith("half"):
            return 0.0
        return self.numbers[-2]

    def _log_lkj(self, x: Tensor) -> Tensor:
        """(η − 1) log|R|, and for a factor the Jacobian of R = LLᵀ."""
        eta = self.numbers[0]
        if self.name == "lkj":
            logs: Tensor = (eta - 1) * torch.linalg.slogdet(x)[1]
        else:
            size = x.shape[-1]
            powers = size - 1 - torch.arange(size, dtype=x.dtype) + 2 * (eta - 1)
            powers[0] = 0
            logs = (powers * x.diagonal(dim1=-2, dim2=-1).log()).sum(-1)
        return logs.reshape(len(x), -1).sum(1)


# how many numbers each has; 0: any number, or none
DENSITIES = {
    **{"normal": 2, "studentt": 3, "cauchy": 2, "lognormal": 2, "halfnormal": 1, "halfstudentt": 2, "halfcauchy": 1},
    **{"exponential": 1, "gamma": 2, "inversegamma": 2, "beta": 2, "uniform": 2, "dirichlet": 0, "lkj": 1},
    **{"lkjcholesky": 1, "flat": 0},
}
# of those that are not of positive numbers; None: of all numbers, perhaps cut off by the model
SUPPORTS: dict[str, Transform | None] = {
    **dict.fromkeys(("normal", "cauchy", "studentt", "flat")),
    **{"beta": UNIT, "dirichlet": Simplex(), "lkj": Correlation(), "lkjcholesky": Correlation(factor=True)},
}


@dataclass(frozen=True, eq=False)
class Prior:
    """What is believed of u before any rows, the Jacobian included.

    Attributes:
        said: In a sentence, what it was taken from.
        density: log p(u) of rows [S, d], up to a constant.
        gaussian: The same as a Gaussian, where it is one wherever it is looked at.
        proper: Whether it can be compared with the pool.
        fit: How much of the log-prior's variation a quadratic explains, where it was fitted to values; 1 otherwise.
    """

    said: str
    density: Callable[[Tensor], Tensor]
    gaussian: Natural | None = None
    proper: bool = True
    fit: float = 1.0

    def natural(self, at: Tensor) -> Natural:
        """Write the prior as a Gaussian near a point [d]."""
        if self.gaussian is not None:
            return self.gaussian
        one: Callable[[Tensor], Tensor] = lambda u: self.density(u.unsqueeze(0))[0]
        slope = torch.func.grad(one)(at)
        curve: Tensor = -torch.func.hessian(one)(at)
        return Natural(slope + curve @ at, (curve + curve.mT) / 2)


def read_prior(given: Any) -> Given:
    """Read a prior that is given as a file or as an object of draws; every other one stays as it is.

    Args:
        given: What `pool` takes.
    """
    if holds_draws(given) or (isinstance(given, str) and given not in NAMED):
        return read(given, "the prior", PRIOR)
    known: Given = given
    return known


def supports(given: Given) -> dict[str, Transform]:
    """Say what named densities know of bounds.

    Args:
        given: The prior as it was given.
    """
    if not isinstance(given, Mapping):
        return {}
    known = {str(name): Density(str(text)).support for name, text in given.items()}
    return {name: support for name, support in known.items() if support is not None}


def prior_draws(given: Given, sites: Sequence[Draws]) -> Any:
    """Find the prior's draws: those given, or those in the sites' files; None where there are none."""
    if isinstance(given, Draws):
        return given.posterior
    if hasattr(given, "data_vars"):
        return given
    if given in (None, MODEL) and all(site.log_prior is None for site in sites):
        own = [site.prior for site in sites if site.prior is not None]
        if len(own) == len(sites):
            return own[0]
    return None


def make_prior(given: Given, sites: Sequence[Draws], space: Space, vectors: Sequence[Tensor]) -> Prior:
    """Put what was given into unconstrained space.

    Args:
        given: Draws; densities by name; `flat`; `fractional`, where each site used the prior to the power 1/K; a
            function of the parameters by name; or None for what the files carry.
        sites: Whose files may carry a log-prior or draws of the prior.
        vectors: The sites' draws [S, d].

    Raises:
        InputError: Nothing says which prior the sites used.
    """
    drawn = prior_draws(given, sites)
    if drawn is not None:
        whose = "given draws"
        if given in (None, MODEL):
            whose = f"the draws of the prior in {sites[0].name}'s file"
        return _from_draws(drawn, space, whose)
    if isinstance(given, Mapping):
        return _from_densities(cast("Mapping[str, str]", given), space)
    if given in (FLAT, FRACTIONAL):
        said = {FLAT: "flat", FRACTIONAL: "each site's share of it, p(θ)^(1/K), in its own posterior"}[str(given)]
        return Prior(said, space.log_jacobian, proper=False)
    if callable(given):
        return _from_function(given, space, vectors)
    if given in (None, MODEL) and all(site.log_prior is not None for site in sites) and sites:
        values = [torch.from_numpy(np.array(site.log_prior, dtype=np.float64)).reshape(-1) for site in sites]
        u = torch.cat([*vectors])
        return _from_values(torch.cat(values) + space.log_jacobian(u), u, "the log-prior in the sites' files")
    if given == MODEL:
        raise InputError("Not every file holds lprior, log_prior or draws of the prior: give the prior in another way.")
    raise InputError(
        "The prior shall count once, and nothing says which one the sites used: give its draws, densities as "
        "beta=normal(0,2.5), or flat."
    )


def _from_draws(drawn: Any, space: Space, whose: str) -> Prior:
    vectors = space.free(drawn, "The prior").flatten(0, 1)
    fitted = dense_moments(Samples({"u": vectors}))
    away: Callable[[Tensor], Tensor] = lambda u: (
        -0.5 * (((u - fitted.mean) @ fitted.precision) * (u - fitted.mean)).sum(1)
    )
    return Prior(whose, away, natural(fitted))


def _from_densities(given: Mapping[str, str], space: Space) -> Prior:
    known = {str(name): Density(str(text)) for name, text in given.items()}
    named = {p.name: p for p in space.parameters}
    for name in known:
        if name not in named:
            raise InputError(
                f"There is a prior of '{name}', which is not pooled: leave it out, or see that all sites have draws of "
                f"it (pooled: {', '.join(named)})."
            )
    for name, parameter in named.items():
        if name not in known:
            raise InputError(f"Nothing says which prior '{name}' has: give one for it, as {name}=normal(0,1) or flat.")
        _check_shape(known[name], parameter)

    def density(u: Tensor) -> Tensor:
        x = space.constrain(u)
        return torch.stack([known[name].log(x[name]) for name in known]).sum(0) + space.log_jacobian(u)

    said = ", ".join(f"{name} ~ {each.text}" for name, each in known.items())
    return Prior(said, density, proper=all(each.name != "flat" for each in known.values()))


def _check_shape(density: Density, parameter: Parameter) -> None:
    """Refuse a density over matrices or shares for numbers, and one below whose bounds the parameter may go."""
    of_numbers = not density.name.startswith("lkj") and density.name != "dirichlet"
    needed = density.support
    if not of_numbers and type(needed) is not type(parameter.transform):
        raise InputError(f"{density.text} is no prior of '{parameter.name}', which is taken for {parameter.transform}.")
    if density.name == "dirichlet" and len(density.numbers) not in (1, parameter.shape[-1]):
        raise InputError(f"'{parameter.name}' has {parameter.shape[-1]} shares: give {density.text} as many numbers.")
    if needed == POSITIVE_HALF and parameter.transform == REAL:
        raise InputError(f"{density.text} has no numbers below 0: declare {parameter.name}=positive.")


def _from_function(function: Callable[[dict[str, Any]], float], space: Space, vectors: Sequence[Tensor]) -> Prior:
    each = max(1, ASKED // max(1, len(vectors)))
    u = torch.cat([v[:: max(1, len(v) // each)] for v in vectors])

    def density(rows: Tensor) -> Tensor:
        return _values(function, space, rows) + space.log_jacobian(rows)

    fitted = _from_values(density(u), u, "a function")
    return Prior("a function", density, fitted.gaussian, fit=fitted.fit)


def evaluate(function: Callable[[dict[str, Any]], float], space: Space, u: Tensor) -> Tensor:
    """Evaluate a function of the parameters at rows [S, d].

    Raises:
        InputError: It is not finite.
    """
    logs = _values(function, space, u)
    if bool(torch.isnan(logs).any()):
        raise InputError("The function returned a value that is no number: let it return a finite log-density.")
    return logs


def _values(function: Callable[[dict[str, Any]], float], space: Space, u: Tensor) -> Tensor:
    """A function of the parameters at rows [S, d]; far from all draws it may be no number."""
    x = {name: values.numpy() for name, values in space.constrain(u).items()}
    with np.errstate(all="ignore"):
        found = [float(function({name: values[s] for name, values in x.items()})) for s in range(len(u))]
    return torch.tensor(found, dtype=torch.float64)


def _from_values(values: Tensor, u: Tensor, said: str) -> Prior:
    """A quadratic in u by least squares."""
    if not bool(torch.isfinite(values).all()):
        raise InputError("The log-prior is not finite at a site's draws: look at the model that wrote it.")
    d = u.shape[1]
    middle, width = u.mean(0), u.std(0).clamp(min=1e-12)
    z = (u - middle) / width
    rows, columns = torch.triu_indices(d, d)
    if len(u) < 10 * (1 + d + len(rows)):  # too few for all products
        rows = columns = torch.arange(d)
    features = torch.cat([torch.ones(len(u), 1, dtype=u.dtype), z, z[:, rows] * z[:, columns]], 1)
    found = torch.linalg.lstsq(features, values.unsqueeze(1), driver="gelsd").solution[:, 0]
    residual = values - features @ found
    spread = float(values.var())
    fit = 1.0
    if spread > 1e-18:
        fit = 1 - float(residual.var()) / spread
    curve = torch.zeros(d, d, dtype=u.dtype)
    curve[rows, columns] = -found[1 + d :]
    curve = curve + curve.mT
    precision = curve / width / width.unsqueeze(1)
    linear = found[1 : 1 + d] / width + precision @ middle
    density: Callable[[Tensor], Tensor] = lambda at: at @ linear - 0.5 * ((at @ precision) * at).sum(1)
    return Prior(said, density, Natural(linear, precision), fit=fit)


def at_mean(prior: Natural) -> Dense | None:
    """Write a prior by its mean, where its precision is positive; None otherwise."""
    if float(torch.linalg.eigvalsh(prior.precision).min()) <= 0:
        return None
    return Dense(torch.linalg.solve(prior.precision, prior.linear), prior.precision)
