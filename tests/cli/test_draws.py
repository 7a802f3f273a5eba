"""`consilience draws`: from CmdStan's files to a pool that ArviZ reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import Invoke

import consilience as co
from consilience.draws.writing import to_netcdf

STAN = Path(__file__).parents[1] / "draws" / "stan"
PRIOR = ("--prior", "beta=normal(0,2)", "--prior", "share=dirichlet(2)")
SITES = (str(STAN / "north-*.csv"), str(STAN / "south-*.csv"))


def truth() -> tuple[np.ndarray, np.ndarray]:
    """The posterior of both sites' rows, by the conjugate formula."""
    import runpy

    names = runpy.run_path(str(STAN / "make.py"))
    parts = [names["rows"](site) for site in ("north", "south")]
    mean, var = names["posterior"](np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    return mean, np.sqrt(np.diag(var))


def test_stan_s_files_are_pooled_written_and_corrected(invoke: Invoke) -> None:
    code, out, err = invoke("draws", "pool", *SITES, *PRIOR, "--out", "pooled.nc")

    assert code == 0, out + err
    assert "Monte Carlo error" in out + err and "The pool can be used" in out + err  # of 500 draws a site
    assert "simplex" in out + err
    mean, sd = truth()
    pooled = co.draws.read("pooled.nc").posterior
    beta = pooled["beta"].values.reshape(-1, 2)
    assert np.abs((beta.mean(0) - mean) / sd).max() < 0.2  # 500 draws a site
    np.testing.assert_allclose(beta.std(0), sd, rtol=0.15)

    code, out, err = invoke("draws", "ask", "pooled.nc", "--draws", "500", "--out", "ask.nc")
    assert code == 0 and "Next: at each site" in out + err
    asked = co.draws.read("ask.nc").posterior
    for name, counts in {"north": (9, 4, 7), "south": (6, 8, 10)}.items():

        def log_likelihood(theta: dict[str, Any], counts: tuple[int, ...] = counts) -> float:
            line = -(((theta["beta"] - mean) / sd) ** 2).sum() / 4
            return float(line + (np.array(counts) * np.log(theta["share"])).sum())

        said = co.draws.answer(asked, log_likelihood)
        Path(f"{name}.nc").write_bytes(to_netcdf({"posterior": said}))
    code, out, err = invoke(
        "draws",
        "correct",
        "ask.nc",
        "north.nc",
        "south.nc",
        "--prior",
        "beta=flat",
        "--prior",
        "share=dirichlet(2)",
        "--out",
        "better.nc",
    )
    assert code == 0, out + err
    np.testing.assert_allclose(co.draws.read("better.nc").posterior["beta"].values.reshape(-1, 2).std(0), sd, rtol=0.3)


def test_moments_take_the_place_of_draws(invoke: Invoke) -> None:
    for site, files in zip(("north", "south"), SITES, strict=True):
        code, out, err = invoke("draws", "moments", files, "--rows", "40", "--out", f"{site}.json")
        assert code == 0 and "'share=simplex'" in out + err

    _, by_moments, _ = invoke("draws", "pool", "north.json", "south.json", *PRIOR, "--rule", "gaussian", "--json")
    _, by_draws, _ = invoke("draws", "pool", *SITES, *PRIOR, "--rule", "gaussian", "--json")

    one, two = (json.loads(out)["parameters"] for out in (by_moments, by_draws))
    assert [line["mean"] for line in one] == pytest.approx([line["mean"] for line in two], abs=1e-6)
    assert [line["parameter"] for line in one] == [line["parameter"] for line in two]


def test_a_pool_that_should_not_be_used_has_its_own_exit_code(invoke: Invoke) -> None:
    rng = np.random.default_rng(0)
    for name, mean in (("a", 0.0), ("b", 9.0)):
        site = co.draws.read({"x": rng.normal(mean, 1, size=(2, 300))}).posterior
        Path(f"{name}.nc").write_bytes(to_netcdf({"posterior": site}))

    code, out, err = invoke("draws", "pool", "a.nc", "b.nc", "--prior", "flat", "--out", "p.nc")

    assert code == 3
    assert "Do not use this pool: The sites differ more than chance allows" in out + err
    assert not Path("p.nc").exists()
    assert invoke("draws", "pool", "a.nc", "b.nc", "--prior", "flat", "--out", "p.nc", "--anyway")[0] == 3
    assert co.draws.read("p.nc").posterior.attrs["usable"] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("pool", "a.nc", "b.nc"), "a.nc is not here"),
        (("pool", *SITES), "The prior shall count once"),
        (("pool", *SITES, "--prior", "beta=normal"), "has 0 numbers and needs 2"),
        (("pool", *SITES, "--prior", "flat", "--transform", "beta"), "--transform beta: write it as"),
        (("pool", *SITES, *PRIOR, *PRIOR), "names 'beta' twice"),
        (("pool", *SITES, "--prior", "flat", "--prior", "beta=flat"), "Give --prior once"),
        (("moments", SITES[0], "--rows", "39"), "39 rows are too few for 4 numbers"),
        (("ask", SITES[0]), "was not written by"),
        (("correct", SITES[0], *SITES, "--prior", "flat"), "was not made by"),
        (("correct", SITES[0], *SITES), "give it with --prior"),
    ],
)
def test_mistakes_end_with_a_sentence(invoke: Invoke, words: tuple[str, ...], sentence: str) -> None:
    code, out, err = invoke("draws", *words)

    assert code == 2 and sentence in out + err


def test_help_loads_no_library() -> None:
    script = """
import contextlib, io, sys
import consilience.cli
for words in ("draws --help", "draws pool --help"):
    sys.argv = ["consilience", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        consilience.cli.main()
print(sorted({"torch", "numpy", "arviz", "xarray", "jax", "h5py"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
