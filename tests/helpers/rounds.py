"""Rounds of a small study by files: rows, replies, pools and statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import studies
import tiny
import torch
from uncharged import fit, statistics

from consilience import tree
from consilience.study.coordinator import pool
from consilience.study.masking import book_path
from consilience.study.model import read_model
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.rows import Parts, parts, rows_of


def rows(study: Study, folder: Path) -> dict[str, Parts]:
    """Each site's table on disk, read and given its roles."""
    found = {}
    for site in study.sites:
        records = studies.rows(site.number, number=not study.agreement.target.classes)
        data, _ = rows_of(study.agreement, studies.table(folder / f"{site.name}.csv", records))
        found[site.name] = parts(study.agreement, site.number, data)
    return found


def replies(study: Study, folder: Path, message: Path | None = None) -> list[Path]:
    """Every site fits and writes its file."""
    made = []
    for name, own in rows(study, folder).items():
        key = read_key(folder / f"{name}.key")
        if any(s.name == name and s.left for s in study.sites):
            continue
        fitted = fit(study, study.member(name), key, own, message, folder / f"{name}.memory")
        (folder / f"{name}.memory").write_bytes(fitted.memory)
        path = folder / f"{name}.reply"
        path.write_bytes(fitted.reply)
        made.append(path)
    return made


def server_key(folder: Path) -> Any:
    return read_key(folder / "server.key")


def same_numbers(a: tree.Tree, b: tree.Tree) -> bool:
    return tiny.equal(*([torch.as_tensor(leaf) for leaf in tree.leaves(value)] for value in (a, b)))


def pooled_model(study: Study, folder: Path, files: list[Path]) -> Path:
    path = folder / "sepsis.model"
    path.write_bytes(pool(study, files, server_key(folder)).model)
    return path


def statistics_of(study: Study, folder: Path, model: Path) -> list[Path]:
    read, made = read_model(model, study), []
    for name, own in rows(study, folder).items():
        key = read_key(folder / f"{name}.key")
        made.append(folder / f"{name}.statistics")
        member = study.member(name)
        book = book_path(study, member, folder)
        made[-1].write_bytes(statistics(study, member, key, own.choose, read.method, read.state, read.checksum, book))
    return made
