"""Counts with exposures and times with events in CSV files: read, refused, split and never scaled."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import consilience as co


def write(folder: Path, lines: list[str], header: str = "age,days,died,visits,years") -> str:
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
    return str(folder / "*.csv")


ROWS = [f"{40 + i},{10 * i + 5}.5,{i % 2},{i},{0.5 + i}" for i in range(8)]


def test_times_and_events_stay_as_they_are(tmp_path: Path) -> None:
    sites = co.from_csv(write(tmp_path, ROWS), time="days", event="died", drop=["visits", "years"], calibration=0)

    assert sites.kind == "survival"
    assert sites.feature_names == ("age",)
    days = torch.cat([part.y[:, 0] for part in (*sites.train, *sites.test)]).sort().values
    assert days.tolist() == sorted(2 * [10 * i + 5.5 for i in range(8)])
    assert abs(float(torch.cat([part.x for part in sites.train]).mean())) < 1e-5  # features are standardised


def test_counts_stand_beside_their_exposure(tmp_path: Path) -> None:
    pattern = write(tmp_path, ROWS)

    sites = co.from_csv(pattern, "visits", task="counts", exposure="years", drop=["days", "died"], calibration=0)

    assert sites.kind == "counts"
    y = torch.cat([part.y for part in (*sites.train, *sites.test)])
    torch.testing.assert_close(y[:, 1], y[:, 0] + 0.5)
    assert co.from_csv(pattern, "visits", task="counts", calibration=0).train[0].y.ndim == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"time": "days"}, "needs both columns"),
        ({"time": "days", "event": "died", "target": "age"}, "leave target"),
        ({}, "name it as target, or, for survival, name time and event"),
        ({"target": "visits", "exposure": "years"}, "task='counts'"),
        ({"time": "days", "event": "age"}, "neither 1"),
        ({"time": "day", "event": "died"}, "day"),
        ({"target": "days", "task": "counts"}, "whole numbers from 0"),
        ({"target": "visits", "task": "counts", "exposure": "died"}, "not above 0"),
        ({"time": "visits", "event": "one"}, "event at time 0"),
    ],
)
def test_what_cannot_be_a_target_is_refused(tmp_path: Path, arguments: dict[str, str], sentence: str) -> None:
    pattern = write(tmp_path, [f"{row},1" for row in ROWS], "age,days,died,visits,years,one")

    with pytest.raises(co.InputError, match=sentence):
        co.from_csv(pattern, **arguments, calibration=0)  # type: ignore[arg-type]


def test_arrays_of_whole_numbers_may_be_counts() -> None:
    data = co.from_arrays([[0.0], [1.0], [2.0], [3.0]], [1, 0, 2, 5], outcome="counts")

    assert data.classes is None and data.outcome == "counts"
    with pytest.raises(co.InputError, match="'counts'"):
        co.from_arrays([[0.0], [1.0]], [1, 0], outcome="count")
