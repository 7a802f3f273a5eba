"""Studies of times to an event and of counts: three sites whose tables lie in a folder."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd
import studies
from uncharged import fit, sums_file

from consilience.study.coordinator import pool
from consilience.study.masking import book_path
from consilience.study.model import read_model
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.rows import Parts, parts, rows_of

COLUMNS = (
    Column("age", "number", "years", (18.0, 100.0), 60.0, 10.0),
    Column("treated", "number", "", (0.0, 1.0)),
)
TIMES = Target("days", unit="days", range=(0.0, 4000.0), event="died", times=(200.0, 400.0, 800.0), horizon=400.0)
COUNTS = Target("visits", range=(0.0, 60.0), counts=True, exposure="years", exposure_range=(0.0, 5.0))
ROWS = 80
FLAT: dict[str, Any] = {"prior_var": 1e6, "settings": (), "choose": 0.0}


def make_rows(site: int, count: int = ROWS) -> list[dict[str, str]]:
    """Patients whose hazard and rate grow with age; many times are tied, and about a third are censored."""
    draw = random.Random(site)
    rows = []
    for _ in range(count):
        age, treated, years = draw.gauss(60, 10), draw.randint(0, 1), draw.choice([0.5, 1.0, 2.0, 4.0])
        effect = 0.04 * (age - 60) - 0.5 * treated
        time = 10 * int(draw.expovariate(2.718 ** (effect + 0.3 * site)) * 60 + 1)
        seen = 10 * draw.randint(20, 150)
        visits = sum(draw.random() < 0.02 * years * 2.718**effect for _ in range(100))
        rows.append(
            {
                "age": f"{min(max(age, 20), 99):.1f}",
                "treated": str(treated),
                "days": str(min(time, seen)),
                "died": str(int(time <= seen)),
                "visits": str(visits),
                "years": f"{years:g}",
            }
        )
    return rows


def make_study(folder: Path, target: Target, method: str = "glm", **changes: Any) -> Study:
    """A signed study; the sites' tables are written beside their keys."""
    words = {**FLAT, "method": method, "fewest_sites": 3, "smallest": 5, **changes}
    if method == "glm":
        words.setdefault("rounds", 8)
    study = studies.study(folder, committed=ROWS, target=target, columns=COLUMNS, **words)
    for site in study.sites:
        studies.table(folder / f"{site.name}.csv", make_rows(site.number))
    return study


def read_parts(study: Study, folder: Path) -> dict[str, Parts]:
    """Every site's rows by role."""
    found = {}
    for site in study.sites:
        data, _ = rows_of(study.agreement, folder / f"{site.name}.csv")
        found[site.name] = parts(study.agreement, site.number, data)
    return found


def training_table(study: Study, folder: Path) -> pd.DataFrame:
    """All training rows in one place, as the network sees them, with the targets and the site."""
    frames = []
    for k, own in enumerate(read_parts(study, folder).values()):
        frame = pd.DataFrame(own.train.x.double().numpy(), columns=["age", "treated"])
        first, second = own.train.y.double().unbind(1)
        frames.append(frame.assign(first=first.numpy(), second=second.numpy(), site=k))
    return pd.concat(frames)


def sum_files(study: Study, folder: Path, model: Path) -> list[Path]:
    """What the sites send about a model's baseline."""
    pooled = read_model(model, study)
    paths = []
    for name, own in read_parts(study, folder).items():
        member = study.member(name)
        key = read_key(folder / f"{name}.key")
        paths.append(folder / f"{name}.statistics")
        paths[-1].write_bytes(sums_file(study, member, key, own.train, pooled, book_path(study, member, folder)))
    return paths


def play(study: Study, folder: Path) -> Path:
    """All rounds by files, as the commands make them."""
    message = after = None
    for _ in range(study.agreement.rounds):
        replies = []
        for name, own in read_parts(study, folder).items():
            key = read_key(folder / f"{name}.key")
            fitted = fit(study, study.member(name), key, own, message, folder / f"{name}.memory")
            (folder / f"{name}.memory").write_bytes(fitted.memory)
            replies.append(folder / f"{name}.reply")
            replies[-1].write_bytes(fitted.reply)
        pooled = pool(study, replies, read_key(folder / "server.key"), after=after)
        if pooled.message and pooled.state:
            message, after = folder / "message", folder / "state"
            message.write_bytes(pooled.message)
            after.write_bytes(pooled.state)
    (folder / "study.model").write_bytes(pooled.model)
    return folder / "study.model"
