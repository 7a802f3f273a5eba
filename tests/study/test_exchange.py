"""A new exchange is one class: made past the ledger, masked where that was agreed, checked and added up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import studies
import torch
import uncharged
from rounds import rows

from consilience.errors import InputError
from consilience.serialisation.codec import TYPES
from consilience.study.budget import read_budget
from consilience.study.exchange import File, Made, Part, add, check_rows, hear
from consilience.study.protocol.envelope import open_envelope, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.site import Site

SECURE: dict[str, Any] = {"method": "exact", "settings": (), "fewest_sites": 3, "secure": True}


class Ages(File):
    """The sum of the first column over the training rows, at most 10 a row."""

    kind = title = "ages"
    part = "train"

    @property
    def masked(self) -> str:
        return self.title if self.study.agreement.secure else ""

    def make(self, site: Site) -> Made:
        data = site.role(self.part)
        return Made({"sum": data.x[:, :1].double().sum(0), "count": torch.tensor(len(data.y))}, len(data.y), data)

    def form(self) -> Any:
        return {"sum": torch.zeros(1, dtype=torch.float64), "count": torch.tensor(0)}

    def summand(self, value: Any) -> Any:
        return value["sum"]

    def check(self, part: Part, most: int, where: str) -> None:
        check_rows(part.rows, self.study.agreement.smallest, most, where)
        if float(part.table.abs()) > 10 * part.rows:
            raise InputError(f"{where} is not used: nobody is that old.")


def answered(study: Study, folder: Path) -> list[Path]:
    paths = []
    for name, own in rows(study, folder).items():
        words = {"ledger": folder / f"{name}.ledger", "book": folder / f"{name}.masks"}
        site = uncharged.site_of(study, study.member(name), read_key(folder / f"{name}.key"), own, **words)
        paths.append(folder / f"{name}.ages")
        paths[-1].write_bytes(site.answer(Ages(study)).content)
        assert [release.what for release in read_budget(site.ledger).releases] == ["ages"]
    return paths


@pytest.mark.parametrize("settings", [{}, SECURE], ids=["open", "masked"])
def test_a_new_exchange_is_charged_and_adds_up(settings: dict[str, Any], tmp_path: Path) -> None:
    study = studies.study(tmp_path, **settings)

    parts, refused = hear(Ages(study), answered(study, tmp_path))

    whole = torch.cat([own.train.x[:, 0] for own in rows(study, tmp_path).values()]).double()
    assert not refused and len(parts) == (1 if settings else 3)
    assert float(add(parts)) == pytest.approx(float(whole.sum()), abs=1e-3)
    assert sum(part.rows for part in parts) == len(whole)


def test_what_cannot_be_is_left_out_by_name(tmp_path: Path) -> None:
    study = studies.study(tmp_path)
    paths = answered(study, tmp_path)
    honest = open_envelope(paths[2])
    value = {**honest.value(TYPES), "sum": torch.tensor([1e6], dtype=torch.float64)}
    paths[2].write_bytes(seal(value, honest.header, read_key(tmp_path / "west.key")))

    parts, refused = hear(Ages(study), paths)

    assert [part.sites for part in parts] == [("north",), ("south",)]
    assert len(refused) == 1 and "west.ages is not used: nobody is that old" in refused[0]
