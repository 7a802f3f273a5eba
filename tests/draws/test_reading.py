"""Draws from every form that samplers write, with names, dimensions and coordinates kept."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import arviz
import numpy as np
import pytest
import xarray

import consilience as co
from consilience.draws.writing import to_netcdf
from consilience.errors import InputError

STAN = Path(__file__).parent / "stan"


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"beta": rng.normal(size=(2, 50, 3)), "sigma": rng.gamma(9, 0.1, size=(2, 50))}


def with_coords() -> arviz.InferenceData:
    return arviz.from_dict(
        posterior=arrays(), prior=arrays(), coords={"column": ["age", "dose", "sex"]}, dims={"beta": ["column"]}
    )


def test_netcdf_keeps_dimensions_coordinates_and_the_prior(tmp_path: Path) -> None:
    with_coords().to_netcdf(str(tmp_path / "north.nc"))

    draws = co.draws.read(tmp_path / "north.nc")

    assert draws.name == "north" and (draws.chains, draws.count) == (2, 100)
    assert draws.posterior["beta"].dims == ("chain", "draw", "column")
    assert list(draws.posterior["column"].values) == ["age", "dose", "sex"]
    assert draws.prior is not None and "sigma" in draws.prior


def test_zarr_is_read(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    xarray.DataTree.from_dict({"/posterior": with_coords().posterior}).to_zarr(tmp_path / "south.zarr")

    assert co.draws.read(tmp_path / "south.zarr").posterior["beta"].dims == ("chain", "draw", "column")


def test_objects_and_arrays_are_read() -> None:
    one = co.draws.read(with_coords(), "north")
    tree = xarray.DataTree.from_dict({"/posterior": with_coords().posterior})
    numpyro = SimpleNamespace(get_samples=lambda group_by_chain: arrays())
    pymc = SimpleNamespace(
        varnames=["beta", "sigma_log__", "sigma"], get_values=lambda name, combine, squeeze: [*arrays()[name]]
    )

    for other in (tree, numpyro, pymc, arrays(), with_coords().posterior):
        np.testing.assert_array_equal(co.draws.read(other).posterior["beta"], one.posterior["beta"])


def test_a_models_log_prior_and_log_likelihood_are_no_parameters() -> None:
    rng = np.random.default_rng(0)
    draws = co.draws.read({**arrays(), "lprior": rng.normal(size=(2, 50)), "log_lik": rng.normal(size=(2, 50, 7))})

    assert set(draws.posterior.data_vars) == {"beta", "sigma"}
    assert draws.log_prior is not None and draws.log_prior.shape == (2, 50)
    assert draws.log_likelihood is not None and draws.log_likelihood.shape == (2, 50)  # summed over the rows


def test_stan_files_are_read_without_warm_up() -> None:
    for site in ("north", "south"):  # the second chain in the south saved its warm-up
        draws = co.draws.read(str(STAN / f"{site}-*.csv"))

        assert draws.name == site and (draws.chains, draws.count) == (2, 500)
        assert draws.posterior["beta"].shape == (2, 250, 2)
        assert float(abs(draws.posterior["beta"]).max()) < 10
        np.testing.assert_allclose(draws.posterior["share"].sum("share_dim_0"), 1, atol=1e-5)


def test_stan_s_indices_may_be_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("m.1.1,m.2.1,m.1.2,m.2.2\n11,21,12,22\n11,21,12,22\n")

    assert co.draws.read(tmp_path / "a.csv").posterior["m"].values[0, 0].tolist() == [[11, 12], [21, 22]]


def test_the_stored_stan_files_are_what_their_program_writes(tmp_path: Path) -> None:
    runpy.run_path(str(STAN / "make.py"))["write"](tmp_path)

    for path in STAN.glob("*.csv"):
        assert (tmp_path / path.name).read_text() == path.read_text()


def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "a.nc").write_bytes(b"nothing")
    (tmp_path / "b.csv").write_text("# a comment\nbeta.1\n")
    (tmp_path / "c.csv").write_text("beta.1\n0.5\nx\n")
    (tmp_path / "d.txt").write_text("")
    shutil.copy(STAN / "north-1.csv", tmp_path / "e-1.csv")
    (tmp_path / "e-2.csv").write_text("beta.1\n0.5\n0.6\n")
    (tmp_path / "f.nc").write_bytes(to_netcdf({"other": xarray.Dataset({"x": ("draw", np.ones(3))})}))
    for source, sentence in {
        "a.nc": "write",
        "b.csv": "holds no draws",
        "c.csv": "cannot be read",
        "d.txt": "is none of",
        "e-*.csv": "different columns",
        "f.nc": "no group 'posterior'",
        "g.nc": "is not here",
    }.items():
        with pytest.raises(InputError, match=sentence):
            co.draws.read(str(tmp_path / source))
    for thing, sentence in ((3.0, "float holds no draws"), ({"x": np.ones(4)}, "1 dimensions")):
        with pytest.raises(InputError, match=sentence):
            co.draws.read(thing)
