"""A small study: three sites with two numbers and a category each, and keys for everybody."""

from __future__ import annotations

import csv
import dataclasses
import random
from pathlib import Path
from typing import Any

from consilience.privacy.secure_aggregation.masks import derive_key, public_half
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import Study, signed_words
from consilience.study.protocol.rehearsal import would_leave
from consilience.study.protocol.signature import new_key, public, read_key, sign
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import agreement_text

COLUMNS = (
    Column("age", "number", "years", (18.0, 100.0), 50.0, 15.0),
    Column("lactate", "number", "mmol/l", (0.0, 30.0), 2.0, 2.0, missing="mark", fill=1.0, unknown=("?",)),
    Column("ward", "category", levels=("a", "b", "c"), missing="mark"),
)
SHORT = ("inference.epochs=2", "inference.cycles=1", "inference.keep=2", "inference.batch=16")
NAMES = ("north", "south", "west")
FREE: dict[str, Any] = {"rows_per_parameter": 0.0, "fewest_sites": 1}  # networks on few rows, pools of one or two sites
ROWS = 100  # that each site commits to; `rows` gives fewer


def agreement(folder: Path, **changes: Any) -> Agreement:
    """Who made it: the server's key in the folder."""
    path = folder / "server.key"
    key = read_key(path) if path.exists() else new_key(path)
    words = {"method": "mixture", "settings": SHORT, **FREE, **changes}
    target = words.pop("target", Target("died", ("no", "yes")))
    made = Agreement("sepsis", public(key), target, words.pop("columns", COLUMNS), **words)
    return dataclasses.replace(made, leaves=made.leaves or leaves_of(made))


LEAVES: dict[str, tuple[str, ...]] = {}


def leaves_of(made: Agreement) -> tuple[str, ...]:
    """What would leave, rehearsed once for all studies that differ in their coordinator alone."""
    asked = repr(dataclasses.replace(made, server=""))
    if asked not in LEAVES:
        LEAVES[asked] = would_leave(made)[0]
    return LEAVES[asked]


def study(folder: Path, names: tuple[str, ...] = NAMES, committed: int = ROWS, **changes: Any) -> Study:
    """Signed by all sites, whose keys lie in the folder, with the rows that each commits to."""
    agreed = agreement(folder, **changes)
    made = Study(agreed, text=agreement_text(agreed, agreed.build_method().about.sends))
    for name in names:
        path = folder / f"{name}.key"
        key = read_key(path) if path.exists() else new_key(path)
        masks = public_half(derive_key(key, agreed.hash)) if agreed.secure else ""
        signature = sign(key, "agreement", signed_words(agreed, name, committed, masks))
        made = made.with_member(name, public(key), signature, committed, masks)
    return made


def rows(site: int, count: int = 60, number: bool = False) -> list[dict[str, str]]:
    """Patients of a site; the old, and those with much lactate, die more often."""
    draw, made = random.Random(site), []
    for _ in range(count):
        age, lactate, ward = draw.uniform(30, 90), draw.expovariate(0.4), draw.choice("abc")
        risk = 0.05 * (age - 60) + 0.6 * (lactate - 2) + draw.gauss(0, 1) + 0.3 * site
        died = f"{risk:.3f}" if number else ("yes" if risk > 0 else "no")
        gap = draw.random() < 0.1
        made.append(
            {"age": f"{age:.1f}", "lactate": "?" if gap else f"{min(lactate, 29):.2f}", "ward": ward, "died": died}
        )
    return made


def table(path: Path, records: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path
