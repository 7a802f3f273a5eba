"""The account of a study, as its report has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import studies
from rounds import replies, server_key, statistics_of

from consilience.study.coordinator import ChosenFiles, choose, pool
from consilience.study.model import read_model
from consilience.study.protocol.members import Study

EVIDENCE = {"method": "evidence", "settings": ("inference.epochs=2",), "hand_out": "ensemble"}


def chosen(study: Study, folder: Path, known: dict[str, Any] | None = None) -> tuple[ChosenFiles, Path]:
    """Pooled, judged by all sites, chosen; and where the chosen model lies."""
    model = folder / "sepsis.model"
    pooled = pool(study, replies(study, folder), server_key(folder))
    model.write_bytes(pooled.model)
    told = pooled.account if known is None else known
    made = choose(study, read_model(model), statistics_of(study, folder, model), server_key(folder), known=told or None)
    (folder / "chosen.model").write_bytes(made.model)
    return made, folder / "chosen.model"


def shown(folder: Path) -> dict[str, Any]:
    """What is told of a study whose sites sent how often they saw each class, and statistics."""
    return chosen(studies.study(folder, choose=0.3, smallest=9, **EVIDENCE), folder)[0].account
