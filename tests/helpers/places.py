"""A study's folders as people have them, and its commands run in them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import studies
from tiny import Invoke

from consilience.study.protocol.members import read
from consilience.study.rows import parts, rows_of

SHORT = ["--method", "mixture", *(word for setting in studies.SHORT for word in ("--set", setting))]


TARGET = 'name = "died"\nclasses = ["no", "yes"]'


COLUMNS = f"""
[target]
{TARGET}
[columns]
age = {{ type = "number", unit = "years", range = [18, 100], centre = 50, spread = 15, missing = "refuse" }}
lactate = {{ type = "number", range = [0, 30], centre = 2, spread = 2, missing = "mark", fill = 1, unknown = ["?"] }}
ward = {{ type = "category", levels = ["a", "b", "c"], missing = "mark" }}
"""


class Place:
    """Folders of a coordinator and its sites; every command runs in one of them."""

    def __init__(self, root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.invoke, self.monkeypatch = root, invoke, monkeypatch
        for name in ("server", *studies.NAMES):
            (root / name).mkdir()
        for number, name in enumerate(studies.NAMES):
            studies.table(root / name / "data.csv", studies.rows(number, 120))

    def at(self, where: str, *words: str) -> str:
        """A command that works; what it printed."""
        code, out, err = self.tried(where, *words)
        assert code == 0, err
        return out

    def tried(self, where: str, *words: str) -> tuple[int, str, str]:
        self.monkeypatch.chdir(self.root / where)
        return self.invoke(*words)

    def carry(self, name: str, giver: str, taker: str) -> None:
        shutil.copy(self.root / giver / name, self.root / taker / name)

    def begun(self, *words: str, target: str = TARGET) -> None:
        """A study that all sites signed."""
        (self.root / "server" / "columns.toml").write_text(COLUMNS.replace(TARGET, target))
        self.at("server", "study", "new", "sepsis", "--columns", "columns.toml", *words)
        for name in studies.NAMES:
            self.carry("sepsis.toml", "server", name)
            self.at(name, "site", "join", "sepsis.toml", name, "--rows", "120")
            self.carry(f"{name}.join", name, "server")
        self.at("server", "study", "add", "sepsis.toml", *(f"{name}.join" for name in studies.NAMES))
        self.everybody("sepsis.toml")

    def everybody(self, file: str) -> None:
        for name in studies.NAMES:
            self.carry(file, "server", name)

    def fitted(self, *words: str) -> None:
        for name in studies.NAMES:
            self.at(name, "site", "fit", "sepsis.toml", "data.csv", *words)
            self.carry(f"{name}.reply", name, "server")

    def dealt(self, role: str, *names: str) -> int:
        """How many rows of these sites, or of all, have a role."""
        count = 0
        for name in names or studies.NAMES:
            study = read(self.root / name / "sepsis.toml")
            data, _ = rows_of(study.agreement, self.root / name / "data.csv")
            count += len(getattr(parts(study.agreement, study.member(name).number, data), role).y)
        return count

    @property
    def files(self) -> list[str]:
        return [f"{name}.reply" for name in studies.NAMES]
