"""Posteriors of the sites' own models in a study: what leaves, once, under which rules, and what it pools to."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import studies
import torch
from tiny import Invoke

import consilience as co
from consilience.draws.writing import to_netcdf
from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.study.budget import read_budget
from consilience.study.posteriors import pool_posteriors
from consilience.study.protocol.agreement import from_toml
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.posteriors import space_of
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import agreement_text, study_text

SD = 2.5  # of the prior of both coefficients; the noise has SD 1
AGREED: dict[str, Any] = {"posteriors": ("beta[level, ward] ~ normal(0, 2.5)",), "fewest_sites": 3, "smallest": 5}
MASKED: dict[str, Any] = {"method": "exact", "settings": (), "secure": True}
WAYS: dict[str, dict[str, Any]] = {
    "draws": {},
    "moments": {"posteriors_as": "moments"},
    "masked": {"posteriors_as": "moments", **MASKED},
}
Lie = Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]


def exact(records: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """The posterior of age, scaled, on whether the ward is a: mean and covariance."""
    x = np.array([[1.0, float(row["ward"] == "a")] for row in records])
    y = np.array([(float(row["age"]) - 60) / 15 for row in records])
    var = np.linalg.inv(x.T @ x + np.eye(2) / SD**2)
    return var @ x.T @ y, var


def write_draws(path: Path, records: list[dict[str, str]], seed: int = 0, count: int = 750) -> Path:
    mean, var = exact(records)
    draws = np.random.default_rng(seed).multivariate_normal(mean, var, size=(4, count))
    path.write_bytes(to_netcdf({"posterior": co.draws.read({"beta": draws}).posterior}))
    return path


def prepare(folder: Path, way: str, **changes: Any) -> Study:
    """A signed study, with each site's table and draws, in one folder."""
    study = studies.study(folder, **{**AGREED, **WAYS[way], **changes})
    (folder / "sepsis.toml").write_text(study_text(study))
    for number, name in enumerate(studies.NAMES):
        records = studies.rows(number)
        studies.table(folder / f"{name}.csv", records)
        write_draws(folder / f"{name}.nc", records, number)
    return study


class Prepared(NamedTuple):
    """A study, and the folder of all its files."""

    study: Study
    folder: Path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Nothing has left."""
    folder = tmp_path_factory.mktemp("prepared")
    return Prepared(prepare(folder, "draws"), folder)


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Every site sends its draws, in the first test that asks for it."""
    folder = tmp_path_factory.mktemp("sent")
    return Prepared(prepare(folder, "draws"), folder)


def send(invoke: Invoke, name: str, *words: str) -> tuple[int, str]:
    code, said, error = invoke(
        "site", "draws", "sepsis.toml", f"{name}.csv", f"{name}.nc", *words, "--key", f"{name}.key"
    )
    return code, " ".join((said + error).split())


@pytest.mark.parametrize("way", WAYS)
def test_from_the_sites_draws_to_the_posterior_of_all_rows(
    way: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, way)
    monkeypatch.chdir(tmp_path)
    for name in studies.NAMES:
        code, said = send(invoke, name)
        assert code == 0, said
        assert "fitted to 20 rows or more" in said and "nobody can check but you" in said
    files = [f"{name}.posterior" for name in studies.NAMES]

    code, out, err = invoke("study", "draws", "sepsis.toml", *files, "--out", "pooled.nc")

    assert code == 0, out + err
    mean, var = exact([row for number in range(3) for row in studies.rows(number)])
    pooled = co.draws.read("pooled.nc").posterior
    assert [str(label) for label in pooled["beta_dim_0"].values] == ["level", "ward"]
    found = pooled["beta"].values.reshape(-1, 2)
    sd = np.sqrt(np.diag(var))
    assert np.abs((found.mean(0) - mean) / sd).max() < 0.1  # of 3 000 draws a site, and 4 000 of the pool
    np.testing.assert_allclose(found.std(0), sd, rtol=0.08)
    value = open_envelope(Path("north.posterior")).value(TYPES)
    kinds = {"draws": {"draws", "count"}, "moments": {"mean", "covariance", "count"}, "masked": {"masked"}}
    assert {*value} == kinds[way]
    assert [release.what for release in read_budget(Path("north.ledger")).releases] == ["posterior"]


def test_masks_change_nothing_but_who_can_read(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    means = {}
    for way in ("moments", "masked"):
        folder = tmp_path / way
        folder.mkdir()
        study = prepare(folder, way, pool_by="gaussian")
        monkeypatch.chdir(folder)
        for name in studies.NAMES:
            assert send(invoke, name)[0] == 0
        files = [Path(f"{name}.posterior") for name in studies.NAMES]
        pooled, shares, refused = pool_posteriors(study, files)
        assert not refused and pooled.usable
        assert sum(shares.values()) == pytest.approx(1.0 if way == "moments" else 0.0)
        means[way] = pooled.unconstrained
    assert torch.allclose(means["moments"], means["masked"], atol=1e-4)  # steps of 1e-6 of the prior's precision


def test_sites_that_differ_are_seen_through_the_masks(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = prepare(tmp_path, "masked")
    monkeypatch.chdir(tmp_path)
    moved = [{**row, "age": str(min(99.0, float(row["age"]) + 20))} for row in studies.rows(2)]
    write_draws(Path("west.nc"), moved)
    for name in studies.NAMES:
        assert send(invoke, name)[0] == 0

    pooled, _, _ = pool_posteriors(study, [Path(f"{name}.posterior") for name in studies.NAMES])

    assert not pooled.usable and "The sites differ more than chance allows" in pooled.verdict


def test_one_posterior_leaves_and_no_second_one(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: asked twice, once without a row, or by a model that leaves it out."""
    prepare(tmp_path, "draws")
    monkeypatch.chdir(tmp_path)
    assert send(invoke, "north")[0] == 0
    first = Path("north.posterior").read_bytes()
    assert send(invoke, "north")[0] == 0
    assert Path("north.posterior").read_bytes() == first  # should it be lost

    write_draws(Path("north.nc"), studies.rows(0)[1:])
    code, said = send(invoke, "north")
    assert code == 2 and "sent another posterior in this study" in said
    studies.table(Path("north.csv"), studies.rows(0)[1:])
    code, said = send(invoke, "north", "--replace")
    assert code == 0, said  # the site says that the first was never handed over
    assert len(read_budget(Path("north.ledger")).releases) == 2
    studies.table(Path("north.csv"), studies.rows(0)[2:])
    write_draws(Path("north.nc"), studies.rows(0)[2:])
    Path("north.posterior").unlink()
    for kept in Path().glob("*.kept-posterior"):
        kept.unlink()
    code, said = send(invoke, "north")
    assert code == 2 and "from other rows" in said


def spoiled(name: str) -> None:
    draws = np.random.default_rng(0).normal(size=(4, 750, 2))
    if name == "stands still":
        draws[:, 1:] = draws[:, :1]
    elif name == "apart":
        draws += 9 * np.arange(4)[:, None, None]
    elif name == "few":
        draws = draws[:, :100]
    elif name == "wide":
        draws *= 30
    elif name == "narrow":
        draws *= 1e-7
    elif name == "shape":
        draws = draws[..., :1]
    elif name == "infinite":
        draws[0, 0] = np.inf
    elif name == "follow":
        draws[..., 1] = draws[..., 0]
    read = co.draws.read({"beta" if name != "name" else "b": draws}).posterior
    if name == "labels":
        read = read.assign_coords(beta_dim_0=["ward", "level"])
    Path("north.nc").write_bytes(to_netcdf({"posterior": read}))


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("stands still", "run them longer"),
        ("apart", "do not agree"),
        ("few", "400 draws, and the study agreed on 1,000"),
        ("wide", "times as wide as the agreed prior"),
        ("narrow", "narrower than 60 rows can make it"),
        ("shape", "'beta' is 1, and the study agreed on 2"),
        ("infinite", "not finite"),
        ("follow", "follow from each other"),
        ("name", "no draws of 'beta'"),
        ("labels", "put them in this order"),
    ],
)
def test_what_is_no_posterior_stays(
    what: str, sentence: str, prepared: Prepared, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepared.folder)
    spoiled(what)

    code, said = send(invoke, "north")

    assert code == 2 and sentence in said
    assert not Path("north.posterior").exists() and not Path("north.ledger").exists()


def test_few_rows_stay(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, "draws", rows_per_number=31)
    monkeypatch.chdir(tmp_path)

    code, said = send(invoke, "north")

    assert code == 2 and "60 rows are too few for 2 numbers" in said and "rule: rows per parameter" in said


LIES: dict[str, Lie] = {
    "most of its draws are the same": lambda value: {
        **value,
        "draws": value["draws"][:1, :1].expand(4, 250, 2).clone(),
    },
    "are all the same": lambda value: {**value, "draws": value["draws"] * torch.tensor([1.0, 0.0]).double()},
    "times as wide": lambda value: {**value, "draws": value["draws"] * 1000},
    "narrower than": lambda value: {**value, "draws": value["draws"] * 1e-9},
    "it speaks for 5,000 rows": lambda value: {**value, "count": torch.tensor(5000)},
    "it speaks for 19 rows": lambda value: {**value, "count": torch.tensor(19)},
    "not finite": lambda value: {**value, "draws": value["draws"] * float("nan")},
    "has the shape (4, 250, 1)": lambda value: {**value, "draws": value["draws"][..., :1].clone()},
}


@pytest.mark.parametrize("sentence", LIES)
def test_lies_are_left_out_by_name(
    sentence: str, sent: Prepared, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (sent.folder / "west.posterior").exists():
        monkeypatch.chdir(sent.folder)
        for name in studies.NAMES:
            assert send(invoke, name)[0] == 0
    monkeypatch.chdir(tmp_path)
    for name in studies.NAMES:
        Path(f"{name}.posterior").write_bytes((sent.folder / f"{name}.posterior").read_bytes())
    path = Path("west.posterior")
    honest = open_envelope(path)
    path.write_bytes(seal(LIES[sentence](honest.value(TYPES)), honest.header, read_key(sent.folder / "west.key")))

    with pytest.raises(InputError, match="2 posteriors can be used") as error:
        pool_posteriors(sent.study, [Path(f"{name}.posterior") for name in studies.NAMES])

    assert sentence in str(error.value) and "west.posterior" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"posteriors": ("beta",)}, "no parameter with its prior"),
        ({"posteriors": ("beta[] ~ normal(0, 1)",)}, "between the brackets"),
        ({"posteriors": ("beta ~ normal(0)",)}, "needs 2"),
        ({"posteriors": ("share as simplex ~ dirichlet(1)",)}, "give its size"),
        ({"posteriors": ("b ~ flat", "b ~ flat")}, "names 'b' twice"),
        ({"posteriors_as": "rows"}, "rows"),
        ({"pool_by": "kernel", "posteriors_as": "moments"}, "needs draws, and moments leave"),
        ({**MASKED}, "Draws do not add up"),
        ({**MASKED, "posteriors_as": "moments", "pool_by": "hierarchical"}, "is no sum"),
        ({"posterior_draws": 402}, "a multiple of 4"),
        ({"epsilon": 1.0, "delta": 1e-6, "method": "glm", "settings": (), "rounds": 4}, "is not known"),
    ],
)
def test_what_cannot_be_pooled_is_refused_before_anybody_signs(
    changes: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    agreement = studies.agreement(tmp_path, leaves=("numbers",), **{**AGREED, **changes})

    with pytest.raises(InputError, match=sentence.replace("(", r"\(")):
        agreement.check()


def test_the_agreement_says_what_leaves_and_can_be_read_again(tmp_path: Path) -> None:
    posteriors = ("beta[age, sex] ~ normal(0, 2.5)", "sigma ~ exponential(1)", "R[2; 2] as correlation ~ lkj(2)")
    made = studies.agreement(tmp_path, **{**AGREED, "posteriors": posteriors})
    text = agreement_text(made, "")

    assert from_toml(tomllib.loads(text), "text") == made
    assert "posteriors" not in studies.agreement(tmp_path).fields
    space = space_of(made)
    assert [str(p.transform) for p in space.parameters] == ["real", "positive", "correlation"]
    assert space.labels == ["beta[age]", "beta[sex]", "sigma", "R(0)"]


def test_new_studies_propose_it(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    studies.table(Path("north.csv"), studies.rows(0))
    words = ("study", "new", "own", "--like", "north.csv", "--target", "died", "--method", "mixture")

    code, said, error = invoke(*words, "--posterior", "beta[2] ~ normal(0, 1)", "--posterior-as", "moments")

    assert code == 0, error
    assert 'posteriors = ["beta[2] ~ normal(0, 1)"]' in Path("own.toml").read_text()
    code, said, error = invoke("study", "show", "own.toml")
    assert code == 0 and "mean and covariance of the posterior of 2 numbers (beta)" in " ".join((said + error).split())
    code, said, error = invoke(*words[:2], "other", *words[3:], "--posterior-as", "moments")
    assert code == 2 and "give --posterior too" in said + error
    code, said, error = invoke("study", "draws", "own.toml", "north.csv")
    assert code == 2
