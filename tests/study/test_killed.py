"""Real processes of a site, really killed: no mask is told beside a reply, no noise drawn twice, and the study ends."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import killing
import pytest
import studies
import torch
from rounds import server_key

from consilience.serialisation.codec import TYPES
from consilience.study.budget import read_budget
from consilience.study.coordinator import pool
from consilience.study.masking import book_path
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study
from consilience.study.protocol.text import study_text
from consilience.study.summing import drop_sites

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be killed")

FOUR = ("north", "south", "west", "east")
PROMISE: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-4, "noise_added": "once", "honest_sites": 3}
MASKED: dict[str, Any] = {"method": "exact", "settings": (), "fewest_sites": 3, "smallest": 1, "secure": True}
FIT = ["site", "fit", "sepsis.toml", "data.csv"]
TELL = ["site", "unmask", "sepsis.toml", "sepsis.drop"]
Run = Callable[[Path, str, list[str]], int]  # folder, when to die, words → exit code


class Place(NamedTuple):
    """A masked and private study of four sites, and the folder of each."""

    study: Study
    folder: Path

    def at(self, name: str) -> Path:
        return self.folder / name

    def fit(self, *names: str) -> None:
        for name in names:
            assert killing.fork(self.at(name), "0", FIT) == 0

    def book(self, name: str) -> dict[str, Any]:
        path = book_path(self.study, self.study.member(name), self.at(name))
        if not path.exists():
            return {}
        envelope = open_envelope(path)
        return {**dict(envelope.header.about["entries"]), "values": dict(envelope.value(TYPES))}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    study = studies.study(tmp_path, FOUR, **MASKED, **PROMISE)
    for site in study.sites:
        folder = tmp_path / site.name
        folder.mkdir()
        shutil.move(tmp_path / f"{site.name}.key", folder)
        studies.table(folder / "data.csv", studies.rows(site.number))
        (folder / "sepsis.toml").write_text(study_text(study))
    return Place(study, tmp_path)


def check_fit(place: Place, run: Run, when: str) -> bool:
    """Kill `site fit`, look at what is there, and go on; whether it was killed at all."""
    here = place.at("north")
    code = run(here, when, FIT)
    reply = here / "north.reply"
    left = reply.read_bytes() if reply.exists() else None
    masked = place.book("north")
    if left is not None:  # what has left is in the book and in the ledger
        sent = open_envelope(reply).value(TYPES)["send"].values
        assert torch.equal(sent, masked["values"]["1 reply"])
        assert len(read_budget(here / "north.ledger").releases) == 1
    if masked:  # nothing else is hidden under the same masks, whatever happened to the memory
        other = here.parent / "other"
        shutil.copytree(here, other)
        (other / "north.memory").unlink(missing_ok=True)
        studies.table(other / "data.csv", studies.rows(7))
        assert killing.fork(other, "0", [*FIT, "--replace"]) == 2
        shutil.rmtree(other)
    assert killing.fork(here, "0", FIT) == 0  # again, at no further cost
    assert len(read_budget(here / "north.ledger").releases) == 1
    assert left is None or reply.read_bytes() == left
    assert torch.equal(open_envelope(reply).value(TYPES)["send"].values, place.book("north")["values"]["1 reply"])
    return code == -signal.SIGKILL


def check_told(place: Place, run: Run, when: str, files: list[Path], after: Study) -> bool:
    """Kill `site unmask`, look at what is there, and go on without east; whether it was killed at all."""
    here = place.at("north")
    code = run(here, when, TELL)
    told = here / "north.unmask"
    left = told.read_bytes() if told.exists() else None
    if left is not None:
        assert place.book("north")["1 reply"]["told"] == [3]
    assert killing.fork(here, "0", TELL) == 0
    assert left is None or told.read_bytes() == left
    _, other = drop_sites(place.study, ["west"], server_key(place.folder), 1)
    (here / "other.drop").write_bytes(other)  # of a coordinator that says another site is missing
    assert killing.fork(here, "0", [*TELL[:3], "other.drop"]) == 2
    assert pool(after, [*files, told], server_key(place.folder)).facts.sites == tuple(sorted(FOUR[:3]))
    return code == -signal.SIGKILL


def without_east(place: Place) -> tuple[Study, list[Path]]:
    """All but east have answered, and all but north have told; what the coordinator has then."""
    place.fit(*FOUR[:3])
    after, request = drop_sites(place.study, ["east"], server_key(place.folder), 1)
    for name in FOUR:
        (place.at(name) / "sepsis.drop").write_bytes(request)
    for name in FOUR[1:3]:
        assert killing.fork(place.at(name), "0", TELL) == 0
    files = [place.at(name) / f"{name}.reply" for name in FOUR[:3]]
    return after, [*files, *(place.at(name) / f"{name}.unmask" for name in FOUR[1:3])]


@pytest.mark.parametrize("when", ["north.memory", "north.ledger"])
def test_killed_with_an_answer_masked_and_not_kept_or_kept_and_not_paid_for(place: Place, when: str) -> None:
    assert check_fit(place, killing.fork, when)


@pytest.fixture
def process() -> Run:
    """A process of its own, as people start it."""

    def run(folder: Path, when: str, words: list[str]) -> int:
        command = [sys.executable, killing.__file__, when, *words]
        return subprocess.run(command, check=False, cwd=folder, capture_output=True, timeout=600).returncode

    return run


def sweep(place: Place, check: Callable[[str], bool]) -> int:
    """Kill at the first change of a file, at the second, and so on, each time from the same beginning."""
    whole = place.folder / "north whole"
    shutil.copytree(place.at("north"), whole)
    count = 1
    while check(str(count)):
        shutil.rmtree(place.at("north"))
        shutil.copytree(whole, place.at("north"))
        count += 1
    return count


@pytest.mark.slow
def test_killed_at_every_file_of_an_answer(place: Place, process: Run) -> None:
    """Afterwards the other sites answer, and the study has its model."""
    assert sweep(place, partial(check_fit, place, process)) > 10
    place.fit(*FOUR[1:])
    files = [place.at(name) / f"{name}.reply" for name in FOUR]
    assert pool(place.study, files, server_key(place.folder)).facts.sites == tuple(sorted(FOUR))


@pytest.mark.slow
def test_killed_at_every_file_of_what_is_told(place: Place, process: Run) -> None:
    after, files = without_east(place)
    assert sweep(place, partial(check_told, place, process, files=files, after=after)) > 3


@pytest.mark.slow
def test_a_missing_site_that_is_killed_while_it_hears_of_it_sends_nothing(place: Place, process: Run) -> None:
    """It is told by the request, or by the study's file; its late answer would be read with its masks."""
    after, request = drop_sites(place.study, ["north"], server_key(place.folder), 1)
    here = place.at("north")
    (here / "sepsis.drop").write_bytes(request)

    def check(when: str) -> bool:
        code = process(here, when, TELL)
        known = bool(place.book("north"))
        if not known:  # then the study's file says so
            (here / "sepsis.toml").write_text(study_text(after))
        assert killing.fork(here, "0", FIT) == 2
        assert not (here / "north.reply").exists()
        return code == -signal.SIGKILL

    assert sweep(place, check) > 1
