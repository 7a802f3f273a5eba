"""Draws from files and objects: ArviZ netCDF and zarr, CmdStan's CSV, NumPyro, PyMC, or arrays by name."""

from __future__ import annotations

import csv
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from consilience.errors import InputError, refuse_damage

if TYPE_CHECKING:
    import xarray

CHAIN, DRAW = "chain", "draw"
UNNAMED = "site"  # what objects are called, and arrays, where nobody names them
POSTERIOR, PRIOR = "posterior", "prior"  # groups, as ArviZ names them
SUFFIXES = (".nc", ".nc4", ".netcdf", ".h5", ".hdf5")
GROUPS = (POSTERIOR, PRIOR, "log_prior", "log_likelihood", "sample_stats")  # that matter here
LOG_PRIORS = ("lprior", "log_prior")  # as brms and priorsense name a model's own log-prior
LOG_LIKELIHOODS = ("log_lik", "log_likelihood")
EXTRA = "Draws need arviz and h5netcdf: pip install 'consilience[draws]'."


@dataclass(frozen=True, eq=False)
class Draws:
    """What one site knows: draws of its posterior, by name, with dimensions and coordinates.

    Attributes:
        name: Who sends them.
        posterior: Parameters with the dimensions chain, draw and their own.
        prior: Draws of the prior, where the file has them.
        log_prior: The model's own log-prior at each draw [chain, draw], of the constrained parameters.
        log_likelihood: log p(D | θ) at each draw, of all rows of the site together.
        log_density: Up to a constant, the log-density that the draws are from, in unconstrained space.
    """

    name: str
    posterior: xarray.Dataset
    prior: xarray.Dataset | None = None
    log_prior: xarray.DataArray | None = None
    log_likelihood: xarray.DataArray | None = None
    log_density: xarray.DataArray | None = None

    @property
    def chains(self) -> int:
        """How many chains there are."""
        return int(self.posterior.sizes[CHAIN])

    @property
    def count(self) -> int:
        """How many draws there are in all chains together."""
        return int(self.posterior.sizes[CHAIN] * self.posterior.sizes[DRAW])


def load_xarray() -> Any:
    """Import xarray, which comes with arviz.

    Raises:
        InputError: It is not installed.
    """
    try:
        import xarray
    except ImportError:
        raise InputError(EXTRA) from None
    return xarray


def read(source: Any, name: str | None = None, group: str = POSTERIOR) -> Draws:
    """Read the draws of one site.

        co.draws.read("north.nc")                       # ArviZ: netCDF, or a folder north.zarr
        co.draws.read("north-*.csv")                    # CmdStan: a file for each chain
        co.draws.read(mcmc, "north")                    # NumPyro, after mcmc.run
        co.draws.read(pm.sample(), "north")             # PyMC, or any InferenceData or DataTree
        co.draws.read({"beta": beta}, "north")          # arrays [chain, draw, …]

    Args:
        source: A path, a pattern, or an object.
        name: What the site is called; a file's name by default.
        group: What is asked for: `posterior`, or `prior`, which is taken where there is one.

    Returns:
        The draws, without those of warm-up.

    Raises:
        InputError: There are none, or they cannot be pooled.

    Example:
        >>> import consilience as co
        >>> import numpy as np
        >>> draws = np.random.default_rng(0).normal(size=(4, 100))
        >>> site = co.draws.read({"beta": draws}, "north")
        >>> site.name, site.chains, site.count
        ('north', 4, 400)
    """
    xarray = load_xarray()
    if isinstance(source, Draws):
        return source
    if isinstance(source, (str, Path)):
        groups, title = _read_files(xarray, str(source))
    elif isinstance(source, dict) and "posterior" not in source:
        groups, title = {"posterior": _from_arrays(xarray, source)}, UNNAMED
    else:
        groups, title = _from_object(xarray, source), UNNAMED
    if group in groups:
        groups = {**groups, POSTERIOR: groups[group]}
    if POSTERIOR not in groups:
        raise InputError(
            f"{name or title}: there is no group '{POSTERIOR}' in it: give a path, InferenceData, DataTree, a NumPyro "
            "MCMC, or arrays [chain, draw, …] by name."
        )
    return _assemble(name or title, groups)


def holds_draws(given: Any) -> bool:
    """Say whether something is a path or an object that `read` takes, and not densities by name or a function."""
    if isinstance(given, Mapping) and given and all(isinstance(value, str) for value in given.values()):
        return False
    objects = ("children", "groups", "get_samples", "varnames")
    arrays = isinstance(given, Mapping) and bool(given)
    return isinstance(given, Path) or arrays or any(hasattr(given, name) for name in objects)


def _read_files(xarray: Any, source: str) -> tuple[dict[str, Any], str]:
    """The groups of a file, of a store or of the chains that a pattern names; and what to call it."""
    path = Path(source)
    if path.is_dir() and path.suffix != ".zarr" and not (path / "zarr.json").exists():
        source = str(path / "*.csv")
    files = [path]
    if not path.exists() or path.is_dir():
        files = sorted(map(Path, glob.glob(source))) or files
    first = files[0]
    if not first.exists():
        raise InputError(f"{source} is not here: give a file of draws, or a quoted pattern of CmdStan's CSV files.")
    title = path.stem.rstrip("-_*.") or path.parent.name or UNNAMED
    damaged = f"{source} cannot be read as draws: write it again, as netCDF by ArviZ or as CSV by CmdStan."
    with refuse_damage(damaged):
        if first.suffix == ".csv":
            return _read_stan(xarray, files), title
        if first.suffix == ".zarr" or first.is_dir():
            return _read_groups(xarray, first, "zarr"), title
        if first.suffix in SUFFIXES:
            return _read_groups(xarray, first, "h5netcdf"), title
    raise InputError(f"{first}: '{first.suffix}' is none of .nc, .zarr and .csv: write the draws in one of these.")


def _read_groups(xarray: Any, path: Path, engine: str) -> dict[str, Any]:
    """The groups of a netCDF file or a zarr store that matter here."""
    try:
        __import__(engine)
    except ImportError:
        raise InputError({"zarr": f"{path} needs zarr: pip install zarr."}.get(engine, EXTRA)) from None
    groups = {}
    for name in GROUPS:
        try:
            with xarray.open_dataset(path, group=name, engine=engine, decode_times=False) as found:
                groups[name] = found.load()
        except (OSError, KeyError, ValueError, FileNotFoundError):
            continue
    if not {POSTERIOR, PRIOR} & groups.keys():
        raise InputError(f"{path} has no group '{POSTERIOR}': write the draws with ArviZ.")
    return groups


def _read_stan(xarray: Any, files: Sequence[Path]) -> dict[str, Any]:
    """CmdStan's CSV files, one a chain: comments, a header as `beta.1`, and a row a draw."""
    chains = [_read_chain(path) for path in files]
    header = chains[0][0]
    for path, (other, _) in zip(files, chains, strict=True):
        if other != header:
            raise InputError(f"{path} and {files[0]} have different columns: give chains of one model.")
    shortest = min(len(values) for _, values in chains)
    table = np.stack([values[:shortest] for _, values in chains])
    parts: dict[str, dict[tuple[int, ...], int]] = {}
    for column, word in enumerate(header):
        name, *indices = word.split(".")
        parts.setdefault(name, {})[tuple(int(index) - 1 for index in indices)] = column
    arrays = {}
    everything: Any = slice(None)
    for name, cells in parts.items():
        shape = tuple(1 + max(index[axis] for index in cells) for axis in range(len(next(iter(cells)))))
        array = np.full((*table.shape[:2], *shape), np.nan)
        for index, column in cells.items():
            array[(everything, everything, *index)] = table[:, :, column]
        arrays[name] = array
    posterior = {name: array for name, array in arrays.items() if not name.endswith("__")}
    groups = {"posterior": _from_arrays(xarray, posterior)}
    stats = {name.rstrip("_"): array for name, array in arrays.items() if name.endswith("__")}
    if stats:
        groups["sample_stats"] = _from_arrays(xarray, stats)
    return groups


def _read_chain(path: Path) -> tuple[list[str], Any]:
    """The header and the draws of one file, without warm-up."""
    facts: dict[str, str] = {}
    rows: list[list[str]] = []
    with path.open(newline="", encoding="utf-8") as file:
        for line in file:
            if line.startswith("#"):
                key, found, value = line[1:].partition("=")
                if found:
                    facts.setdefault(key.strip(), value.replace("(Default)", "").strip())
            elif line.strip():
                rows.append(next(csv.reader([line])))
    if len(rows) < 2:
        raise InputError(f"{path} holds no draws: run the chain to its end.")
    header, *draws = rows
    values = np.array([[float(cell) for cell in row] for row in draws if len(row) == len(header)])
    if facts.get("save_warmup", "0") in ("1", "true"):
        warm = -(-int(facts.get("num_warmup", "1000")) // int(facts.get("thin", "1")))
        values = values[warm:]
    return header, values


def _from_object(xarray: Any, source: Any) -> dict[str, Any]:
    """The groups of what a sampler returned."""
    if isinstance(source, xarray.Dataset):
        return {"posterior": source}
    if hasattr(source, "get_samples"):  # NumPyro's MCMC
        grouped = source.get_samples(group_by_chain=True)
        return {"posterior": _from_arrays(xarray, grouped)}
    if hasattr(source, "varnames") and hasattr(source, "get_values"):  # PyMC's MultiTrace
        names = [name for name in source.varnames if not name.endswith("__")]
        arrays = {name: np.stack(source.get_values(name, combine=False, squeeze=False)) for name in names}
        return {"posterior": _from_arrays(xarray, arrays)}
    groups = {}
    for name in GROUPS:
        group = None
        if hasattr(source, "children") or isinstance(source, Mapping):  # DataTree, or groups by name
            if name in source:
                group = source[name]
        else:
            group = getattr(source, name, None)
        if group is not None:
            groups[name] = group
    if not groups:
        raise InputError(
            f"A {type(source).__name__} holds no draws that are known here: give a path, InferenceData, DataTree, "
            "a NumPyro MCMC, or arrays [chain, draw, …] by name."
        )
    return {name: group if isinstance(group, xarray.Dataset) else group.to_dataset() for name, group in groups.items()}


def _from_arrays(xarray: Any, arrays: Mapping[str, Any]) -> Any:
    """Name the dimensions of arrays as ArviZ does."""
    variables = {}
    for name, given in arrays.items():
        array = np.asarray(given)
        if array.ndim < 2:
            raise InputError(f"'{name}' has {array.ndim} dimensions: give draws as [chain, draw, …].")
        dims = (CHAIN, DRAW, *(f"{name}_dim_{axis}" for axis in range(array.ndim - 2)))
        variables[name] = (dims, array)
    made = xarray.Dataset(variables)
    return made.assign_coords({dim: np.arange(size) for dim, size in made.sizes.items()})


def _assemble(name: str, groups: dict[str, Any]) -> Draws:
    """Put the groups of one site in order: dimensions first, log-prior and log-likelihood apart."""
    posterior = groups["posterior"]
    if CHAIN not in posterior.dims:
        posterior = posterior.expand_dims(CHAIN)
    if DRAW not in posterior.dims:
        raise InputError(f"{name}: the draws have no dimension 'draw': write them with ArviZ.")
    log_prior = _own(posterior, LOG_PRIORS)
    if log_prior is None and "log_prior" in groups:
        log_prior = _summed(groups["log_prior"])
    log_likelihood = _own(posterior, LOG_LIKELIHOODS)
    if log_likelihood is None and "log_likelihood" in groups:
        log_likelihood = _summed(groups["log_likelihood"])
    elif log_likelihood is not None:
        log_likelihood = _summed(log_likelihood.to_dataset(name="log_lik"))
    posterior = posterior.drop_vars([n for n in (*LOG_PRIORS, *LOG_LIKELIHOODS) if n in posterior.data_vars])
    stats = groups.get("sample_stats")
    density = None
    if stats is not None and "log_density" in stats:
        density = stats["log_density"]
    prior = groups.get("prior")
    if prior is not None:
        prior = _in_order(prior)
    return Draws(name, _in_order(posterior), prior, log_prior, log_likelihood, density)


def _own(posterior: Any, names: Sequence[str]) -> Any:
    """The variable among the parameters that is none of them."""
    for name in names:
        if name in posterior.data_vars:
            return posterior[name]
    return None


def _summed(group: Any) -> Any:
    """Add up all variables of a group over everything but chains and draws."""
    total = 0.0
    for variable in group.data_vars.values():
        total = total + variable.sum([dim for dim in variable.dims if dim not in (CHAIN, DRAW)])
    return total


def _in_order(group: Any) -> Any:
    """Chain and draw come first."""
    if CHAIN not in group.dims:
        group = group.expand_dims(CHAIN)
    return group.transpose(CHAIN, DRAW, ...)
