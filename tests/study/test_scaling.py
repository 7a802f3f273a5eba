"""Scaling constants come from sums that tables of the agreed columns can have, and from sites that can be asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import studies
import torch
from places import COLUMNS, SHORT, Place
from tiny import Invoke
from torch import Tensor
from uncharged import scaling_file as sums_file

from consilience.data.cells import Cell
from consilience.errors import InputError
from consilience.models.hats import LEVELS
from consilience.serialisation.codec import TYPES
from consilience.study.joining import draft_hash
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column, inspect
from consilience.study.protocol.envelope import Header, open_envelope, seal
from consilience.study.protocol.members import Sender, Study, read, signed_words
from consilience.study.protocol.signature import new_key, public, read_key, sign
from consilience.study.protocol.text import agreement_text, study_text
from consilience.study.protocol.toml import check_column
from consilience.study.scaling import GRID, with_scaling


def drafted(folder: Path) -> Agreement:
    return studies.agreement(folder, scaling="sums", fewest_sites=3)


def sums(agreed: Agreement, folder: Path) -> list[Path]:
    """Honest sums of three sites."""
    made = []
    for number, name in enumerate(studies.NAMES):
        table = studies.table(folder / f"{name}.csv", studies.rows(number))
        key = new_key(folder / f"{name}.key")
        made.append(folder / f"{name}.sums")
        made[-1].write_bytes(sums_file(agreed, name, inspect(table, agreed.columns, agreed.target), key))
    return made


def change(row: int, column: int, value: float) -> Callable[[Tensor], Tensor]:
    """Another number in the table of sums: rows are age, lactate, ward, died; columns count, Σ, Σ²."""

    def changed(honest: Tensor) -> Tensor:
        lie = honest.clone()
        lie[row, column] = value
        return lie

    return changed


LIES: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "a negative count": (change(0, 0, -60), "cannot have the sum"),
    "a count that makes the total 0": (change(0, 0, -120), "cannot have the sum"),
    "a fraction of a row": (change(0, 0, 59.5), "cannot have the sum"),
    "more rows than anybody has": (lambda t: t * 2.0**55, "cannot have the sum"),
    "fewer rows than may be shown": (lambda t: t * torch.tensor([[1 / 60]] * 4), "cannot have the sum"),
    "a sum without rows": (change(0, 0, 0), "cannot have the sum"),
    "a sum beyond the range": (change(0, 1, 60 * 101.0), "cannot have the sum"),
    "a sum below the range": (change(0, 1, 60 * 17.0), "cannot have the sum"),
    "squares below the mean's": (change(0, 2, 10.0), "cannot have the sum"),
    "squares beyond the range": (change(0, 2, 60 * 100.0**2), "cannot have the sum"),
    "sums of a category": (change(2, 0, 60), "cannot have the sum"),
    "sums of a target of classes": (change(3, 1, 1.0), "cannot have the sum"),
    "more lactates than rows": (lambda t: torch.stack([t[0], t[1] * 2, t[2], t[3]]), "same number of rows"),
    "not a number": (change(0, 1, float("nan")), "not finite"),
    "infinity": (change(1, 2, float("inf")), "not finite"),
    "another shape": (lambda t: t[:2], "shape"),
}


@pytest.mark.parametrize("lie", LIES)
def test_sums_that_no_table_has_are_refused(tmp_path: Path, lie: str) -> None:
    agreed = drafted(tmp_path)
    north, south, west = sums(agreed, tmp_path)
    tell, said = LIES[lie]
    honest = torch.tensor([[60, 3600.0, 230_000.0], [54, 130.0, 600.0], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    header = Header("sums", draft_hash(agreed), agreed.name, "west")
    west.write_bytes(seal(honest, header, read_key(tmp_path / "west.key")))
    with_scaling(Study(agreed), [north, south, west])  # what the lie is made from is possible
    west.write_bytes(seal(tell(honest), header, read_key(tmp_path / "west.key")))

    with pytest.raises(InputError, match=said) as refused:
        with_scaling(Study(agreed), [north, south, west])
    assert "west.sums" in str(refused.value)


def test_honest_sums_scale_and_say_whose_they_are(tmp_path: Path) -> None:
    agreed = drafted(tmp_path)
    files = sums(agreed, tmp_path)

    scaled, senders = with_scaling(Study(agreed), files)

    assert senders == tuple(Sender(name, public(read_key(tmp_path / f"{name}.key"))) for name in studies.NAMES)
    assert 50 < scaled.columns[0].centre < 70 and 10 < scaled.columns[0].spread < 25
    with pytest.raises(InputError, match="Sums of 2 sites are here and the study asks for 3"):
        with_scaling(Study(agreed), files[:2])
    with pytest.raises(InputError, match="a second file of 'north'"):
        with_scaling(Study(agreed), [*files, files[0]])
    copy = tmp_path / "north2.sums"
    table = tmp_path / "north.csv"
    inspection = inspect(table, agreed.columns, agreed.target)
    copy.write_bytes(sums_file(agreed, "north2", inspection, read_key(tmp_path / "north.key")))
    with pytest.raises(InputError, match="a second file of 'north2'"):  # one key, two names
        with_scaling(Study(agreed), [*files, copy])


def test_a_name_that_gave_sums_joins_with_the_key_it_signed_them_with(tmp_path: Path) -> None:
    agreed = drafted(tmp_path)
    _, senders = with_scaling(Study(agreed), sums(agreed, tmp_path))
    study = Study(agreed, sums=senders, text=agreement_text(agreed, agreed.build_method().about.sends))
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(study))
    assert read(path) == study
    words = signed_words(agreed, "west", 60)
    stranger = new_key(tmp_path / "stranger.key")
    own = read_key(tmp_path / "west.key")

    with pytest.raises(InputError, match="sums of 'west' were signed with another key"):
        study.with_member("west", public(stranger), sign(stranger, "agreement", words), 60)
    joined = study.with_member("west", public(own), sign(own, "agreement", words), 60)
    path.write_text(study_text(joined))
    assert read(path) == joined


def test_the_commands_show_the_keys_and_refuse_a_stranger(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, invoke, monkeypatch)
    (tmp_path / "server" / "columns.toml").write_text(COLUMNS)
    place.at("server", "study", "new", "sepsis", "--columns", "columns.toml", "--scaling", "sums", *SHORT)
    for name in studies.NAMES:
        place.carry("sepsis.toml", "server", name)
        place.at(name, "site", "sums", "sepsis.toml", "data.csv", "--site", name)
        place.carry(f"{name}.sums", name, "server")

    told = place.at("server", "study", "scale", "sepsis.toml", *(f"{name}.sums" for name in studies.NAMES))
    place.everybody("sepsis.toml")
    place.at("north", "site", "join", "sepsis.toml", "west", "--rows", "60")  # with a new key
    code, _, err = place.tried("server", "study", "add", "sepsis.toml", "../north/west.join")
    place.at("west", "site", "join", "sepsis.toml", "west", "--rows", "60")
    place.at("server", "study", "add", "sepsis.toml", "../west/west.join")

    for name in studies.NAMES:
        key = public(read_key(tmp_path / name / f"{name}.key"))
        assert f"Sums of {name}, signed with the key {key[8:20]}…" in told
    assert code == 2 and "were signed with another key" in " ".join(err.split())


def test_constants_that_are_no_constants_are_not_written(tmp_path: Path) -> None:
    agreed = drafted(tmp_path)
    wide = tuple(dataclasses.replace(c, range=(-1e308, 1e308)) for c in agreed.columns[:1])
    agreed = dataclasses.replace(agreed, columns=(*wide, *agreed.columns[1:]), fewest_sites=1)
    value = torch.tensor([[60, 6e200, 1e308], [0, 0, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.float64)
    path = tmp_path / "x.sums"
    path.write_bytes(seal(value, Header("sums", draft_hash(agreed), agreed.name, "x"), new_key(tmp_path / "x.key")))

    with pytest.raises(InputError):
        with_scaling(Study(agreed), [path])


def test_a_missing_number_may_become_the_mean_without_a_mark() -> None:
    """`missing = "centre"`: the agreed mean, or under scaling by sums the mean of all sites."""
    column = Column("lactate", "number", "mmol/l", (0.0, 30.0), 2.5, 2.0, missing="centre")
    cells = [Cell(text, "a.csv", 2 + i) for i, text in enumerate(("4.5", "", "2.5"))]
    assert column.names == ["lactate"]
    assert column.features(cells).tolist() == [[1.0], [0.0], [0.0]]
    check_column(column)


def test_quantiles_come_with_the_sums_where_features_ask_for_them_and_no_count_is_small(tmp_path: Path) -> None:
    agreed = studies.agreement(tmp_path, scaling="sums", fewest_sites=3, features="hats:60")
    files = sums(agreed, tmp_path)
    table = open_envelope(files[0], "sums").value(TYPES)
    assert table.shape == (4, 3 + GRID)
    counts = table[:, 3:]
    assert ((counts == 0) | (counts >= agreed.smallest)).all() and counts[0].sum() == table[0, 0]
    assert not counts[2:].any()  # neither of a category nor of the target

    scaled, senders = with_scaling(Study(agreed), files)

    ages = [float(row["age"]) for number in range(3) for row in studies.rows(number)]
    width = (agreed.columns[0].range[1] - agreed.columns[0].range[0]) / GRID
    found = np.array(scaled.columns[0].quantiles)
    assert np.abs(found - np.quantile(ages, LEVELS)).max() < agreed.smallest * width + 4
    assert scaled.columns[2].quantiles == ()
    hats = scaled.build_feature_map()
    assert hats.knots[0] == pytest.approx((found - scaled.columns[0].centre) / scaled.columns[0].spread)
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(Study(scaled, sums=senders, text=agreement_text(scaled, "sums"))))
    assert read(path).agreement == scaled and draft_hash(scaled) == draft_hash(agreed) != scaled.hash
    header = Header("sums", draft_hash(agreed), agreed.name, "west")
    for row, column, value in ((0, 5, 3.0), (0, 5, 1000.0), (3, 5, 10.0), (1, 7, -10.0), (0, 9, 10.5)):
        lie = open_envelope(files[2], "sums").value(TYPES).clone()
        lie[row, column] = value
        forged = tmp_path / "forged.sums"
        forged.write_bytes(seal(lie, header, read_key(tmp_path / "west.key")))
        with pytest.raises(InputError, match=r"forged.* on the agreed grid"):
            with_scaling(Study(agreed), [*files[:2], forged])
    with pytest.raises(InputError, match="write 9 quantiles in order"):
        check_column(dataclasses.replace(scaled.columns[0], quantiles=(3.0, 2.0)))
