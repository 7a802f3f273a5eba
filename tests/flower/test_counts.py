"""Counts for prediction sets over Flower: the files of `site calibrate`, masked or not, and one model a site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")

import loopback
import studies
from flwr.app import Message
from rounds import pooled_model, replies, rows, server_key
from uncharged import count

from consilience.errors import InputError
from consilience.prediction_sets.sets import Guarantee
from consilience.study.budget import read_budget
from consilience.study.flower.carrying import CountFiles, ask_counts
from consilience.study.flower.wire import carry
from consilience.study.model import read_model
from consilience.study.prediction_sets import calibrate
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.signature import read_key

AGREED: dict[str, Any] = {
    **{"method": "exact", "settings": (), "fewest_sites": 3, "smallest": 1},
    **{"level": 0.8, "calibrate": 0.4, "choose": 0.0, "cells": 1},
}


class Served:
    """A study whose model was pooled, and its sites behind a grid."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder = folder
        self.study = studies.study(folder, **{**AGREED, **changes})
        self.model = pooled_model(self.study, folder, replies(self.study, folder))
        self.sites = loopback.study_sites(self.study, folder)
        self.grid = loopback.Loopback(self.sites)

    def ask(self, model: bytes | None = None) -> CountFiles:
        content = model or self.model.read_bytes()
        return ask_counts(self.study, self.grid, content, self.folder, wait=0.2, deadline=5.0)

    def guarantee(self, files: list[Path]) -> Guarantee:
        found = calibrate(self.study, read_model(self.model, self.study), files, server_key(self.folder))
        path = self.folder / "calibrated.model"
        path.write_bytes(found.model)
        guarantee = read_model(path, self.study).guarantee
        assert guarantee is not None
        return guarantee


def by_files(served: Served) -> Guarantee:
    """In the open, as people carry files."""
    files = []
    for name, own in rows(served.study, served.folder).items():
        member = served.study.member(name)
        key = read_key(served.folder / f"{name}.key")
        files.append(served.folder / f"{name}.carried")
        files[-1].write_bytes(count(served.study, member, key, own.calibrate, read_model(served.model)).file)
    return served.guarantee(files)


def test_messages_give_the_thresholds_of_files_masked_or_not(tmp_path: Path) -> None:
    plain_folder, masked_folder = tmp_path / "plain", tmp_path / "masked"
    plain_folder.mkdir()
    masked_folder.mkdir()
    plain = Served(plain_folder)
    masked = Served(masked_folder, secure=True)

    in_the_open = plain.guarantee([*plain.ask().paths])
    under_masks = masked.guarantee([*masked.ask().paths])
    again = masked.guarantee([*masked.ask().paths])  # a lost answer is given again, as it was

    assert in_the_open == by_files(plain)
    assert under_masks == again
    assert under_masks.thresholds == in_the_open.thresholds and under_masks.rows == in_the_open.rows
    ledger = read_budget(masked_folder / "north.site" / "north.ledger")
    assert [release.what[:6] for release in ledger.releases] == ["counts"]


def test_counts_with_noise_are_drawn_once_and_paid_for(tmp_path: Path) -> None:
    """Asked again, a site sends the same bytes; a kill after they were kept costs nothing and draws nothing."""
    served = Served(tmp_path, epsilon=8.0, delta=1e-3, cells=0)
    first = [path.read_bytes() for path in served.ask().paths]
    ledger = tmp_path / "north.site" / "north.ledger"
    spent = read_budget(ledger).releases
    ledger.unlink()  # as if it had been killed before it was written
    again = [path.read_bytes() for path in served.ask().paths]

    assert first == again and len(first) == 3
    assert [release.what[:6] for release in spent] == ["counts"] and spent[0].bounded
    assert read_budget(ledger).spent() == read_budget(tmp_path / "south.site" / "south.ledger").spent()
    north = rows(served.study, tmp_path)["north"].calibrate
    assert float(open_envelope(tmp_path / "north.calibration").tensors["tree.conformal"].sum()) != len(north.y)


def test_a_site_counts_for_one_model_of_its_coordinator(tmp_path: Path) -> None:
    served = Served(tmp_path)
    files = served.ask()
    second = calibrate(served.study, read_model(served.model, served.study), [*files.paths], server_key(tmp_path)).model
    content = bytearray(served.model.read_bytes())
    content[-5] ^= 1

    refused = served.ask(second)
    changed = Served(tmp_path).ask(bytes(content))

    assert not files.lost and len(files.paths) == 3
    assert not refused.paths and all("has counted for another model" in sentence for sentence in refused.lost)
    assert not changed.paths and len(changed.lost) == 3


def test_a_site_without_an_agreement_on_sets_sends_no_counts(tmp_path: Path) -> None:
    served = Served(tmp_path, level=0.0, calibrate=0.0, cells=0)

    assert all("no counts for prediction sets are agreed on" in sentence for sentence in served.ask().lost)


def test_answers_that_carry_no_counts_are_refused_by_name(tmp_path: Path) -> None:
    served = Served(tmp_path)
    honest = served.grid.app

    def lie(message: Message, context: Any) -> Message:
        reply = honest(message, context)
        if message.metadata.message_type.endswith("counts") and context.node_id == 102:
            return Message(carry(b"no envelope"), reply_to=message)
        return reply

    served.grid.app = lie  # type: ignore[assignment]
    files = served.ask()

    with pytest.raises(InputError, match=r"The counts of 2 site\(s\) can be used.*west"):
        served.guarantee([*files.paths])
