"""The same study by files, over Flower and simulated prints the same table of effects, the sites' own lines with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import numpy as np
import studies
from rounds import replies, rows, server_key

import consilience as co
from consilience.biostatistics.effects import Effects, from_json
from consilience.data.sites import Sites
from consilience.study.coordinator import pool
from consilience.study.effects import pooled_effects
from consilience.study.flower.server import rounds
from consilience.study.protocol.members import Study
from consilience.study.protocol.target import Target
from consilience.study.rows import training_rows

AGREED: dict[str, Any] = {"method": "glm", "settings": (), "rounds": 5, "smallest": 1, "choose": 0.0}
ONE: dict[str, Any] = {**AGREED, "rounds": 1, "model": "linear"}
METHODS: dict[str, dict[str, Any]] = {
    "glm": AGREED,
    "gaussian_product": {**ONE, "method": "gaussian_product", "settings": ("inference=VariationalGaussian",)},
    "hierarchical": {**ONE, "method": "hierarchical"},
}


def by_files(study: Study, folder: Path) -> Effects:
    message = after = None
    for _ in range(study.agreement.rounds):
        pooled = pool(study, replies(study, folder, message), server_key(folder), after=after)
        if pooled.message and pooled.state:
            message, after = folder / "message", folder / "state"
            message.write_bytes(pooled.message)
            after.write_bytes(pooled.state)
    return from_json(pooled.account["effects"])


def over_flower(study: Study, folder: Path) -> Effects:
    grid = loopback.Loopback(loopback.study_sites(study, folder, ()), None)
    played = rounds(study, server_key(folder), grid, folder / "run", wait=0.2, deadline=5.0)
    names = [study.active[reply.client].name for reply in played.replies]
    table = pooled_effects(study.agreement, played.state, names, played.replies)
    assert table is not None
    return table


def simulated(study: Study, folder: Path) -> Effects:
    agreement = study.agreement
    parts = tuple(training_rows(agreement, own.train).data for own in rows(study, folder).values())
    classes = len(agreement.target.classes) or None
    sites = Sites(parts, parts, None, None, None, classes, parts[0].x.shape[1], "died", "natural", studies.NAMES)
    task = agreement.build_task()
    result = co.run(agreement.build_method(), task, sites, rounds=agreement.rounds, scored=False)
    table = pooled_effects(agreement, result.state, studies.NAMES, result.replies)
    assert table is not None
    return table


def numbers(table: Effects) -> np.ndarray:
    """Every number of the table and of the sites' lines; none stands for one that is not known."""
    lines = [[value for value in row if not isinstance(value, str)] for row in table]
    own = [[found.estimate, found.error] for part in table.by_site.values() for found in part]
    return np.array([float(value if value is not None else 0.0) for line in (*lines, *own) for value in line])


@pytest.mark.parametrize(
    "method", ["glm", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gaussian_product", "hierarchical"))]
)
def test_three_ways_of_a_study_print_one_table(tmp_path: Path, method: str) -> None:
    study = studies.study(tmp_path, hand_out="ensemble", **METHODS[method])
    files = by_files(study, tmp_path)
    alone = set(studies.NAMES) if method != "hierarchical" else set()  # whose sites have no models without the others
    assert set(files.by_site) == alone and files.rows[1].sites == len(alone)
    for other in (over_flower(study, tmp_path), simulated(study, tmp_path)):
        np.testing.assert_allclose(numbers(other), numbers(files), rtol=1e-6, atol=1e-9)


NUMBER = Target("died", unit="mmHg", range=(-20.0, 20.0), centre=0.0, spread=3.0)
CENTRED = [
    ("classes", "fixed"),
    ("classes", "random"),
    *(("numbers", centre) for centre in ("none", "fixed", "random")),
]
FAST = {("numbers", "random")}


@pytest.mark.parametrize(
    ("target", "centre"), [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in CENTRED]
)
def test_three_ways_print_one_table_whatever_the_intercepts(tmp_path: Path, target: str, centre: str) -> None:
    """Sites' own lines are fits of their own rows, which no kind of intercept changes."""
    words = {**AGREED, "settings": (f"centre={centre}",), **({"target": NUMBER} if target == "numbers" else {})}
    study = studies.study(tmp_path, hand_out="ensemble", **words)
    files = by_files(study, tmp_path)
    assert set(files.by_site) == set(studies.NAMES) and max(row.sites for row in files) == 3
    for other in (over_flower(study, tmp_path), simulated(study, tmp_path)):
        np.testing.assert_allclose(numbers(other), numbers(files), rtol=1e-6, atol=1e-9)
        if files.centres is not None and other.centres is not None:
            pairs = zip(other.centres.plain, files.centres.plain, strict=True)
            assert all(a.estimate == pytest.approx(b.estimate, rel=1e-6, nan_ok=True) for a, b in pairs)
            assert other.centres.tau == (files.centres.tau and pytest.approx(files.centres.tau, rel=1e-6))
        assert (files.centres is None) == (other.centres is None) == (centre == "none")


def test_a_site_s_own_fit_stays_there_where_replies_are_masked(tmp_path: Path) -> None:
    study = studies.study(tmp_path, hand_out="ensemble", secure=True, **{**AGREED, "fewest_sites": 3, "rounds": 1})
    files = by_files(study, tmp_path)
    assert not files.by_site and {row.sites for row in files} == {0}
