"""Statistics of a site that lies are refused by name, and the others choose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from rounds import pooled_model, replies, server_key, statistics_of

from consilience.serialisation.codec import TYPES
from consilience.study.coordinator import choose
from consilience.study.model import read_model
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key

Change = Callable[[dict[str, Any]], Any]


def count(number: int) -> Change:
    """Another number of rows."""
    return lambda value: {**value, "count": torch.tensor(number)}


def scores(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Other sums."""
    return lambda value: {**value, "log_scores": change(value["log_scores"])}


LIES: dict[str, tuple[str, Change]] = {
    "2⁶² rows": ("it speaks for 4,611,686,018,427,387,904 rows, and its site may for 10 to 100", count(2**62)),
    "one row more than it committed to": ("it speaks for 101 rows", count(101)),
    "a negative count": ("it speaks for -1 rows", count(-1)),
    "half a row": ("'count' has the shape () of float32", lambda v: {**v, "count": torch.tensor(20.5)}),
    "scores of −1e300": ("larger than the study's model can give", scores(lambda s: s * 0 - 1e300)),
    "scores of −1e12": ("larger than the study's model can give", scores(lambda s: s * 0 - 1e12)),
    "scores above 0": ("cannot be a sum of log-probabilities", scores(torch.neg)),
    "no numbers": ("not finite", scores(lambda s: s * torch.nan)),
    "another grid": ("has the shape", scores(lambda s: s[:, 1:])),
    "another structure": ("its names are wrong", lambda v: (v["count"],)),
    "text": ("is not used", lambda v: ()),
}


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Path, Path]:
    folder = tmp_path_factory.mktemp("statistics")
    study = studies.study(folder, choose=0.3)
    model = pooled_model(study, folder, replies(study, folder))
    statistics_of(study, folder, model)
    return study, folder, model


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_scores_is_refused_and_the_others_choose(
    name: str, chosen: tuple[Study, Path, Path], tmp_path: Path
) -> None:
    study, folder, model = chosen
    sentence, change = LIES[name]
    honest = open_envelope(folder / "west.statistics")
    lie = tmp_path / "west.statistics"
    lie.write_bytes(seal(change(honest.value(TYPES)), honest.header, read_key(folder / "west.key")))
    files = [folder / "north.statistics", folder / "south.statistics", lie]

    found = choose(study, read_model(model, study), files, server_key(folder))

    assert found.facts.statistics_from == ("north", "south")
    assert len(found.refused) == 1 and sentence in found.refused[0]


def test_statistics_made_under_another_number_are_refused(chosen: tuple[Study, Path, Path], tmp_path: Path) -> None:
    study, folder, model = chosen
    honest = open_envelope(folder / "west.statistics")
    header = honest.header._replace(about={**honest.header.about, "number": 7})
    lie = tmp_path / "west.statistics"
    lie.write_bytes(seal(honest.value(TYPES), header, read_key(folder / "west.key")))

    found = choose(study, read_model(model, study), [folder / "north.statistics", lie], server_key(folder))

    assert found.facts.statistics_from == ("north",) and "under another number" in found.refused[0]
