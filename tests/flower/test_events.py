"""Counts and times to an event over Flower's messages: the numbers of the same study by files."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
from event_studies import COUNTS, TIMES, make_study, play
from rounds import same_numbers, server_key

from consilience.study.flower.server import rounds
from consilience.study.flower.site import site_of
from consilience.study.model import read_model, select_hand_out
from consilience.study.protocol.signature import read_key

TARGETS = {"counts": COUNTS, "survival": TIMES}


@pytest.mark.parametrize("kind", [pytest.param("counts", marks=pytest.mark.slow), "survival"])
def test_messages_give_the_files_model(tmp_path: Path, kind: str) -> None:
    study = make_study(tmp_path, TARGETS[kind], prior_var=1.0, rounds=2)
    sites = [
        site_of(study, m, read_key(tmp_path / f"{m.name}.key"), tmp_path / f"{m.name}.csv", tmp_path / f"{m.name}.site")
        for m in study.active
    ]

    grid = loopback.Loopback(sites, None)
    deployed = rounds(study, server_key(tmp_path), grid, tmp_path / "run", wait=0.2, deadline=5.0)

    assert deployed.report["task"] == kind
    _, _, state = select_hand_out(study.agreement, deployed.method, deployed.state)
    assert same_numbers(read_model(play(study, tmp_path), study).state, state)
