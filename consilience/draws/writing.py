"""A pool as netCDF and as a table."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.draws.pooling import Pooled
from consilience.draws.reading import EXTRA, read
from consilience.draws.space import Space
from consilience.errors import InputError

if TYPE_CHECKING:
    import xarray


def to_netcdf(groups: Mapping[str, xarray.Dataset]) -> bytes:
    """Write groups as ArviZ does.

    Args:
        groups: Datasets by the names of their groups.

    Returns:
        The bytes of a netCDF file.
    """
    try:
        import h5netcdf  # noqa: F401 — to say so where it is missing
    except ImportError:
        raise InputError(EXTRA) from None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pool.nc"
        mode: Any = "w"
        for name, group in groups.items():
            group.to_netcdf(path, mode=mode, group=name, engine="h5netcdf")
            mode = "a"
        return path.read_bytes()


def pooled_netcdf(pooled: Pooled) -> bytes:
    """Write a pool, with how it was made in its attributes."""
    return to_netcdf({"posterior": pooled.posterior.assign_attrs(pooled.notes())})


def read_pooled(source: str | Path) -> Pooled:
    """Read what `pooled_netcdf` wrote.

    Raises:
        InputError: It is another file.
    """
    found = read(source)
    notes = found.posterior.attrs
    if "space" not in notes:
        raise InputError(f"{source} was not written by `consilience draws pool`: give what it wrote with --out.")
    space = Space.from_json(notes["space"])
    u = space.free(found.posterior, str(source)).flatten(0, 1)
    sites = tuple(json.loads(notes["sites"]))
    return Pooled(found.posterior, notes["rule"], notes["why"], (), space, sites, notes["prior"], u)


def summary(pooled: Pooled) -> list[dict[str, Any]]:
    """Describe each number of each parameter.

    Returns:
        Its name, mean, SD, and the quantiles at 3 % and 97 %, as `az.summary` has them by default.
    """
    transforms = {p.name: str(p.transform) for p in pooled.space.parameters}
    lines = []
    for name, variable in pooled.posterior.data_vars.items():
        values = variable.values.reshape(-1, *variable.shape[2:])
        labels = [variable.coords[dim].values if dim in variable.coords else range(n) for dim, n in _own(variable)]
        for index in np.ndindex(*values.shape[1:]):
            each = values[(slice(None), *index)]
            words = ", ".join(str(label[i]) for label, i in zip(labels, index, strict=True))
            low, high = np.quantile(each, (0.03, 0.97))
            lines.append(
                {
                    "parameter": f"{name}[{words}]" if index else str(name),
                    "mean": float(each.mean()),
                    "sd": float(each.std(ddof=1)),
                    "low": float(low),
                    "high": float(high),
                    "transform": transforms.get(str(name).removeprefix("new_"), "tau"),
                }
            )
    return lines


def _own(variable: Any) -> list[tuple[str, int]]:
    return list(zip(variable.dims[2:], variable.shape[2:], strict=True))
