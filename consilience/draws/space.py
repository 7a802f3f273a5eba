"""Which parameters are pooled, and how each is written by unconstrained numbers: the same for all sites."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from consilience.draws.reading import CHAIN, DRAW, Draws, load_xarray
from consilience.draws.transforms import BY_NAME, Transform, infer, parse
from consilience.errors import InputError

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True)
class Parameter:
    """One parameter that all sites have.

    Attributes:
        name: Its name.
        dims: The names of its dimensions.
        coords: The labels along each.
        transform: How it is written by unconstrained numbers.
        declared: Whether somebody said so, or the draws did.
    """

    name: str
    dims: tuple[str, ...]
    coords: tuple[tuple[Any, ...], ...]
    transform: Transform
    declared: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """How many labels there are along each dimension."""
        return tuple(map(len, self.coords))

    @property
    def width(self) -> int:
        """How many unconstrained numbers stand for it."""
        return self.transform.width(self.shape)

    @property
    def labels(self) -> list[str]:
        """What each unconstrained number is called."""
        if self.width == 1 and math.prod(self.shape) == 1:
            return [self.name]
        if self.width != math.prod(self.shape):  # a simplex, a correlation: no number is one of the parameter's own
            return [f"{self.name}({i})" for i in range(self.width)]
        names = []
        for index in np.ndindex(*self.shape):
            words = (str(labels[i]) for labels, i in zip(self.coords, index, strict=True))
            names.append(f"{self.name}[{', '.join(words)}]")
        return names


@dataclass(frozen=True)
class Space:
    """All pooled parameters, one after another, as a vector u.

    Attributes:
        parameters: In the order of the vector.
    """

    parameters: tuple[Parameter, ...]

    @property
    def width(self) -> int:
        """How long the vector is."""
        return sum(p.width for p in self.parameters)

    @property
    def labels(self) -> list[str]:
        """What each number of the vector is called."""
        return [label for p in self.parameters for label in p.labels]

    def free(self, group: xarray.Dataset, whose: str) -> Tensor:
        """Write draws by unconstrained numbers.

        Args:
            whose: Named where a draw is out of bounds.

        Returns:
            Chains of vectors [chain, draw, width], in double precision.

        Raises:
            InputError: A draw is out of bounds or not finite.
        """
        parts = []
        for p in self.parameters:
            x = values_of(group, p.name, whose)
            u = p.transform.free(x.reshape(-1, *x.shape[2:]))
            if not bool(torch.isfinite(u).all()):
                raise InputError(
                    f"{whose} has draws of '{p.name}' that are no {p.transform} numbers: "
                    f"declare another transform, as {p.name}=real."
                )
            parts.append(u.reshape(*x.shape[:2], -1))
        return torch.cat(parts, -1)

    def constrain(self, u: Tensor) -> dict[str, Tensor]:
        """Write vectors [S, width] by the parameters, each [S, …]."""
        parts = u.split([p.width for p in self.parameters], -1)
        return {p.name: p.transform.constrain(part, p.shape) for p, part in zip(self.parameters, parts, strict=True)}

    def log_jacobian(self, u: Tensor) -> Tensor:
        """Evaluate log |dx/du| of vectors [S, width]."""
        parts = u.split([p.width for p in self.parameters], -1)
        logs = [p.transform.log_jacobian(part, p.shape) for p, part in zip(self.parameters, parts, strict=True)]
        return torch.stack(logs).sum(0)

    def dataset(self, u: Tensor, chains: int = 1, prefix: str = "") -> xarray.Dataset:
        """Make draws with the names, dimensions and coordinates of the sites.

        Args:
            u: Vectors [S, width].
            chains: Into how many chains they are dealt.
            prefix: Put before every name.
        """
        variables = {}
        coords: dict[str, Any] = {CHAIN: np.arange(chains), DRAW: np.arange(len(u) // chains)}
        x = self.constrain(u)
        for p in self.parameters:
            array = x[p.name].numpy().reshape(chains, -1, *p.shape)
            variables[prefix + p.name] = ((CHAIN, DRAW, *p.dims), array)
            coords |= {dim: list(labels) for dim, labels in zip(p.dims, p.coords, strict=True)}
        made: xarray.Dataset = load_xarray().Dataset(variables, coords)
        return made

    def to_json(self) -> str:
        """Write the space, so that sites can agree on it."""
        return json.dumps(
            [
                {"name": p.name, "dims": p.dims, "coords": p.coords, "transform": str(p.transform)}
                for p in self.parameters
            ]
        )

    @staticmethod
    def from_json(text: str) -> Space:
        """Read what `to_json` wrote."""
        found = []
        for entry in json.loads(text):
            coords = tuple(map(tuple, entry["coords"]))
            found.append(Parameter(str(entry["name"]), tuple(entry["dims"]), coords, parse(entry["transform"])))
        return Space(tuple(found))


def values_of(group: xarray.Dataset, name: str, whose: str) -> Tensor:
    """Take a parameter's draws [chain, draw, …], in double precision.

    Raises:
        InputError: It is not there, or holds no real numbers.
    """
    if name not in group.data_vars:
        raise InputError(f"{whose} has no parameter '{name}': leave it out of the parameters to pool.")
    array = group[name].transpose(CHAIN, DRAW, ...).values
    if array.dtype.kind not in "fiu":
        raise InputError(f"{whose}: '{name}' holds no real numbers: leave it out of the parameters to pool.")
    values = torch.from_numpy(np.array(array, dtype=np.float64))
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"{whose} has draws of '{name}' that are not finite: run its model again.")
    return values


def shared_space(
    sites: Sequence[Draws],
    names: Collection[str] | None = None,
    transforms: Mapping[str, str | Transform] | None = None,
    prior: xarray.Dataset | None = None,
    supports: Mapping[str, Transform] | None = None,
) -> Space:
    """Find what all sites have in common: parameters of the same name with the same labels.

    Args:
        names: What to pool; by default whatever all sites have.
        transforms: Declared by name; the others are inferred.
        prior: Draws of the prior, which show bounds best.
        supports: What a prior's density says of bounds.

    Raises:
        InputError: Nothing is shared, or a declared name is not.
    """
    given = dict(transforms or {})
    shared = names
    if shared is None:
        shared = [str(name) for name in sites[0].posterior.data_vars if _is_shared(sites, str(name))]
    if not shared:
        have = "; ".join(f"{site.name}: {', '.join(map(str, site.posterior.data_vars))}" for site in sites)
        raise InputError(f"No parameter is the same at all sites ({have}): name those to pool, or rename them.")
    for name in given:
        if name not in shared:
            raise InputError(f"'{name}' has a transform and is not pooled: leave its transform out, or pool it.")
    found = []
    for name in dict.fromkeys(shared):
        for site in sites:
            values_of(site.posterior, name, site.name)
        if not _is_shared(sites, name):
            raise InputError(f"'{name}' has other labels at other sites: pool what all sites share, or rename it.")
        found.append(_parameter(name, sites, given.get(name), prior, (supports or {}).get(name)))
    return Space(tuple(found))


def _parameter(
    name: str, sites: Sequence[Draws], given: str | Transform | None, prior: Any, support: Transform | None
) -> Parameter:
    """A parameter with its transform: declared, the prior's own, or inferred."""
    first = sites[0].posterior[name]
    dims = tuple(str(dim) for dim in first.dims if dim not in (CHAIN, DRAW))
    coords = labels_of(first)
    draws = [values_of(site.posterior, name, site.name).flatten(0, 1) for site in sites]
    for site, x in zip(sites, draws, strict=True):
        if sites[0].posterior[name].dtype.kind in "iu" or torch.equal(x, x.round()):
            raise InputError(
                f"{site.name}: '{name}' holds whole numbers only: sum discrete parameters out of the model, "
                "or leave them out of the parameters to pool."
            )
    if isinstance(given, str):
        given = parse(given)
    transform = given or support
    declared = transform is not None
    if transform is None:
        before = None
        if prior is not None and name in prior.data_vars:
            before = values_of(prior, name, "The prior").flatten(0, 1)
        transform = infer(draws, before)
    shape = tuple(map(len, coords))
    if transform in (BY_NAME["correlation"], BY_NAME["cholesky"]) and (len(shape) < 2 or shape[-1] != shape[-2]):
        raise InputError(f"'{name}' is no matrix: declare another transform for it.")
    if str(transform) in ("simplex", "ordered") and not dims:
        raise InputError(f"'{name}' is one number: declare another transform for it.")
    return Parameter(name, dims, coords, transform, declared)


def labels_of(array: xarray.DataArray) -> tuple[tuple[Any, ...], ...]:
    """Take the labels along each of a parameter's own dimensions, as plain values."""
    return tuple(_labels(array, dim) for dim in array.dims if dim not in (CHAIN, DRAW))


def _labels(array: Any, dim: Any) -> tuple[Any, ...]:
    if dim in array.coords:
        return tuple(value.item() if hasattr(value, "item") else value for value in array.coords[dim].values)
    return tuple(range(array.sizes[dim]))


def _is_shared(sites: Sequence[Draws], name: str) -> bool:
    """Whether all sites have a parameter of this name with the same labels."""
    forms = []
    for site in sites:
        if name not in site.posterior.data_vars:
            return False
        array = site.posterior[name]
        dims = [str(dim) for dim in array.dims if dim not in (CHAIN, DRAW)]
        forms.append((dims, labels_of(array)))
    return all(form == forms[0] for form in forms)
