"""Counts for prediction sets under masks and with noise: the plain thresholds, nothing of one site, no lie taken."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from rounds import pooled_model, replies, rows, server_key
from uncharged import Counted, count, site_of

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.prediction_sets.kinds import find_guarantee, site_table
from consilience.prediction_sets.sets import Guarantee
from consilience.privacy.dp.accountant import sigma_of
from consilience.serialisation.codec import TYPES
from consilience.study import exchange
from consilience.study.budget import read_budget
from consilience.study.counting import KEPT, Counts, score_rows
from consilience.study.masking import MaskBook, book_path, counts_of
from consilience.study.model import Model, read_model
from consilience.study.prediction_sets import calibrate
from consilience.study.protocol.envelope import Envelope, open_envelope, seal
from consilience.study.protocol.guarantees import describe_counts, read_calibration
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.rows import Parts, parts, rows_of
from consilience.study.site import Site, kept_path
from consilience.study.summing import drop_sites

SETS: dict[str, Any] = {"method": "exact", "settings": (), "fewest_sites": 3, "level": 0.8, "calibrate": 0.4}
MASKED: dict[str, Any] = {**SETS, "choose": 0.0, "smallest": 4, "cells": 1, "secure": True}  # single scores are shown
PRIVATE: dict[str, Any] = {**SETS, "choose": 0.0, "test": 0.0, "epsilon": 8.0, "delta": 1e-3, "grid": 4}
FOUR = (*studies.NAMES, "east")


class Made:
    """A study with its model, and what its sites count."""

    def __init__(self, folder: Path, names: tuple[str, ...] = studies.NAMES, **changes: Any) -> None:
        self.folder = folder
        self.study = studies.study(folder, names, **changes)
        self.model = read_model(pooled_model(self.study, folder, replies(self.study, folder)), self.study)
        self.rows = rows(self.study, folder)

    def count(self, name: str, own: Data | None = None, **words: Any) -> Counted:
        member = self.study.member(name)
        book = book_path(self.study, member, self.folder)
        key = read_key(self.folder / f"{name}.key")
        if own is None:
            own = self.rows[name].calibrate
        kept = kept_path(self.study, member, KEPT, self.folder)
        return count(self.study, member, key, own, self.model, **{"book": book, "kept": kept, **words})

    def site(self, name: str, **words: Any) -> Site:
        member = self.study.member(name)
        words.setdefault("book", book_path(self.study, member, self.folder))
        return site_of(self.study, member, read_key(self.folder / f"{name}.key"), self.rows[name], **words)

    def files(self, own: dict[str, Data] | None = None) -> list[Path]:
        made = []
        for name in self.rows:
            made.append(self.folder / f"{name}.calibration")
            made[-1].write_bytes(self.count(name, (own or {}).get(name)).file)
        return made

    def calibrate(self, files: list[Path], study: Study | None = None) -> Guarantee:
        found = calibrate(study or self.study, self.model, files, server_key(self.folder))
        (self.folder / "calibrated.model").write_bytes(found.model)
        guarantee = read_model(self.folder / "calibrated.model", self.study).guarantee
        assert guarantee is not None
        return guarantee

    def plain(self, own: dict[str, Data] | None = None) -> Guarantee:
        """The thresholds by the theorem, from all sites' rows in one place."""
        plan = read_calibration(self.study.agreement)
        parts_ = {name: (own or {}).get(name, part.calibrate) for name, part in self.rows.items()}
        tables = []
        for name, data in parts_.items():
            scores = score_rows(self.model, plan, self.study.member(name).number, data)
            tables.append(site_table(plan, scores, data.y))
        sizes = [len(data.y) for data in parts_.values()]
        return find_guarantee(plan, torch.stack(tables).sum(0), sizes, [*parts_])


def nothing(data: Data) -> Data:
    return Data(*(leaf[:0] for leaf in data))


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("masked"), **MASKED)


def test_masked_thresholds_are_the_plain_ones(masked: Made) -> None:
    files = masked.files()

    found = masked.calibrate(files)

    plain = masked.plain()
    assert found.thresholds == plain.thresholds and found.rows == plain.rows and found.least == plain.least
    assert found.sites == studies.NAMES
    assert set(open_envelope(files[0]).tensors) == {f"tree.masked.{name}" for name in ("values", "sites", "roster")}
    assert set(open_envelope(files[0]).header.about) == {"model", "kind", "number"}  # nobody's number of rows


def test_masked_intervals_are_the_plain_ones_also_where_a_site_has_no_rows(tmp_path: Path) -> None:
    """Two of three sites have rows: the mixture is of two, ⌈0.8 (N + 2)⌉, as in the open."""
    target = Target("died", (), "points", (-100.0, 100.0), 0.0, 2.0)
    made = Made(tmp_path, **{**MASKED, "target": target})
    own = {"west": nothing(made.rows["west"].calibrate)}

    found = made.calibrate(made.files(own))

    plain = made.plain(own)
    assert (found.kind, found.score) == ("pooled", "residual")
    assert found.thresholds == plain.thresholds and found.rows == plain.rows
    assert found.least == plain.least


def test_counts_go_on_without_a_site(tmp_path: Path) -> None:
    made = Made(tmp_path, FOUR, **MASKED)
    files = made.files()
    with pytest.raises(InputError, match="Nothing of east is here"):
        made.calibrate(files[:3])

    what = counts_of(made.model.checksum)
    after, request = drop_sites(made.study, ["east"], server_key(tmp_path), 1, what)
    (tmp_path / "sepsis.drop").write_bytes(request)
    told = []
    for name in studies.NAMES:
        member = made.study.member(name)
        book = MaskBook(book_path(made.study, member, tmp_path), made.study, member, read_key(tmp_path / f"{name}.key"))
        told.append(tmp_path / f"{name}.unmask")
        told[-1].write_bytes(book.tell(tmp_path / "sepsis.drop"))
    found = made.calibrate([*files, *told], after)

    assert found.sites == studies.NAMES
    assert sum(found.rows) == sum(len(made.rows[name].calibrate.y) for name in studies.NAMES)


def test_small_cells_are_merged_before_they_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a difference of two sums would show of a site has no cell with fewer rows than may be shown."""
    made = Made(tmp_path, **{**MASKED, "cells": 0})
    under: list[torch.Tensor] = []
    monkeypatch.setattr(exchange, "mask_table", lambda book, what, content, table, rows: under.append(table.values))

    made.count("north")

    cells = under[0][under[0] > 0]
    assert len(cells) > 0 and float(cells.min()) >= 4


def test_the_same_question_has_the_same_answer_and_another_is_refused(masked: Made) -> None:
    first = masked.count("north").file
    fewer = Data(*(leaf[1:] for leaf in masked.rows["north"].calibrate))

    assert masked.count("north").file == first
    with pytest.raises(InputError, match="has masked another answer"):
        masked.count("north", fewer)


def resealed(envelope: Envelope, key: Path, value: Any = None, **header: Any) -> bytes:
    if value is None:
        value = envelope.value(TYPES)
    return seal(value, envelope.header._replace(**header), read_key(key))


def changed(envelope: Envelope, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    value = envelope.value(TYPES)
    return {"masked": value["masked"]._replace(values=change(value["masked"].values))}


def flip(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values[:7], values[7:8] ^ 1, values[8:]])


def add_rows(values: torch.Tensor) -> torch.Tensor:
    """2²⁰ steps are one row more in a cell, and none more in the number of rows."""
    return torch.cat([values[:7], values[7:8] + 2**20, values[8:]])


ATTACKS: dict[str, tuple[str, Callable[[Envelope, Path], bytes]]] = {
    "wrong round": ("another round than round 1", lambda e, key: resealed(e, key, round=2)),
    "another model": (
        "about another model",
        lambda e, key: resealed(e, key, about={**e.header.about, "model": "0" * 64}),
    ),
    "another site's name": ("in another site's name", lambda e, key: resealed(e, key, sender="south")),
    "another study": ("belongs to the study", lambda e, key: resealed(e, key, study="0" * 64)),
    "another grid": ("has the shape", lambda e, key: resealed(e, key, changed(e, lambda v: v[1:]))),
    "in the open": ("not used", lambda e, key: resealed(e, key, {"conformal": torch.zeros(2, 1001)})),
    "a bit of a mask": ("cannot be one of rows", lambda e, key: resealed(e, key, changed(e, flip))),
    "a row more": ("cannot be one of rows", lambda e, key: resealed(e, key, changed(e, add_rows))),
    "other masks": ("do not cancel", lambda e, key: resealed(e, key, changed(e, lambda v: v.flip(0)))),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_masked_counts_is_refused(name: str, masked: Made, tmp_path: Path) -> None:
    sentence, attack = ATTACKS[name]
    files = masked.files()
    lie = tmp_path / "west.calibration"
    lie.write_bytes(attack(open_envelope(files[2]), masked.folder / "west.key"))

    with pytest.raises(InputError, match=sentence):
        masked.calibrate([*files[:2], lie])


def test_a_changed_file_a_second_answer_and_an_old_one_are_refused(masked: Made, tmp_path: Path) -> None:
    files = masked.files()
    content = bytearray(files[2].read_bytes())
    content[-3] ^= 4
    broken = tmp_path / "west.calibration"
    broken.write_bytes(bytes(content))
    second = tmp_path / "second.calibration"
    second.write_bytes(
        resealed(open_envelope(files[2]), masked.folder / "west.key", changed(open_envelope(files[2]), flip))
    )
    other = tmp_path / "other"
    other.mkdir()
    elsewhere = Made(other, **{**MASKED, "seed": 5})

    with pytest.raises(InputError, match="Nothing of west is here"):
        masked.calibrate([*files[:2], broken])
    with pytest.raises(InputError, match="Nothing of west is here"):
        masked.calibrate([*files, second])
    with pytest.raises(InputError, match="belongs to the study"):
        masked.calibrate([*files[:2], elsewhere.files()[2]])
    copied = tmp_path / "copy.calibration"
    copied.write_bytes(files[2].read_bytes())
    assert masked.calibrate([*files, copied]) == masked.calibrate(files)  # the same file twice counts once


# Noise


def many(study: Study, folder: Path) -> dict[str, Parts]:
    """Rows enough for noise: 1 200 a site."""
    found = {}
    for site in study.sites:
        data, _ = rows_of(
            study.agreement, studies.table(folder / f"{site.name}.many.csv", studies.rows(site.number, 1200))
        )
        found[site.name] = parts(study.agreement, site.number, data)
    return found


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("private")
    made = Made(folder, committed=1200, **{**PRIVATE, "delta": 1e-4})
    made.rows = many(made.study, folder)
    return made


def test_counts_with_noise_are_drawn_once_and_hide_how_many_rows(private: Made) -> None:
    first = private.count("north")
    redrawn = private.count("north")
    kept = kept_path(private.study, private.study.member("north"), KEPT, private.folder)
    kept.write_bytes(first.kept)
    again = private.count("north")
    fewer = Data(*(leaf[1:] for leaf in private.rows["north"].calibrate))
    with pytest.raises(InputError, match="counts of other rows"):
        private.count("north", fewer)
    kept.unlink()

    assert first.file != redrawn.file  # nobody can compute the noise from the seed
    assert again.file == first.file and again.repeated and not first.repeated
    path = private.folder / "first"
    path.write_bytes(first.file)
    value = open_envelope(path).value(TYPES)
    assert int(value["count"]) == 0 and value["conformal"].dtype == torch.float64


def test_the_noise_is_what_the_accountant_asks_for(private: Made) -> None:
    """σ of (8, 10⁻⁴) for one row in one cell; steps of 2⁻²⁰ in 10 cells add 3 · 10⁻⁶ of it."""
    plan = read_calibration(private.study.agreement)
    assert math.sqrt(plan.noise) == pytest.approx(sigma_of(8.0, 1e-4), rel=1e-5)
    empty = nothing(private.rows["north"].calibrate)
    drawn = []
    for i in range(60):
        path = private.folder / "noise"
        path.write_bytes(private.count("north", empty, kept=private.folder / f"none{i}").file)
        drawn.append(open_envelope(path).value(TYPES)["conformal"].flatten())
    noise = torch.cat(drawn)
    n = len(noise)
    assert float(noise.var()) == pytest.approx(plan.noise, rel=5 * (2 / n) ** 0.5)
    assert float(noise.mean()) == pytest.approx(0, abs=5 * math.sqrt(plan.noise / n))


def test_noise_costs_level_and_not_validity(private: Made) -> None:
    found = private.calibrate(private.files())
    plain = private.plain()

    assert found.noise == pytest.approx(3 * read_calibration(private.study.agreement).noise)  # all of it at each site
    assert all(noisy >= exact for noisy, exact in zip(found.thresholds, plain.thresholds, strict=True))
    assert all(math.isfinite(threshold) for threshold in found.thresholds)
    for noisy, exact in zip(found.rows, plain.rows, strict=True):
        assert noisy == pytest.approx(exact, abs=5 * math.sqrt(5 * found.noise))


def test_the_ledger_is_charged_once_and_refuses_a_second_model(private: Made, tmp_path: Path) -> None:
    """Calibration rows train nobody, so that they have the whole ε to themselves, and no more."""
    ledger = tmp_path / "north.ledger"
    site = private.site("north", ledger=ledger, memory=tmp_path / "north.memory", folder=tmp_path)

    first = site.answer(Counts(private.study, private.model))
    assert site.answer(Counts(private.study, private.model)).content == first.content

    budget = read_budget(ledger)
    assert len(budget.releases) == 1 and budget.spent().epsilon(1e-4) == pytest.approx(8.0, rel=1e-6)
    other: Model = dataclasses.replace(private.model, checksum="0" * 64)
    with pytest.raises(InputError, match="budget is 8"):
        site.answer(Counts(private.study, other))
    site.kept(KEPT).unlink()
    with pytest.raises(InputError, match="budget is 8"):
        site.answer(Counts(private.study, private.model))  # drawn again


def test_counts_in_the_open_are_entered_as_without_a_bound(masked: Made, tmp_path: Path) -> None:
    ledger = tmp_path / "north.ledger"

    masked.site("north", ledger=ledger).answer(Counts(masked.study, masked.model))

    assert read_budget(ledger).spent().mu == math.inf


def test_under_masks_noise_is_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three sites adds a third of the variance: the sum has what one site alone would add in the open."""
    # Noisy thresholds are above exact ones but for a few draws in a hundred: here the draws are always the same.
    monkeypatch.setattr("consilience.privacy.entropy.os.urandom", random.Random(1).randbytes)
    words = {**PRIVATE, "delta": 1e-4, "secure": True, "noise_added": "once", "honest_sites": 3}
    made = Made(tmp_path, committed=1200, **words)
    made.rows = many(made.study, tmp_path)

    found = made.calibrate(made.files())

    assert math.sqrt(found.noise) == pytest.approx(sigma_of(8.0, 1e-4), rel=1e-5)
    assert all(noisy >= exact for noisy, exact in zip(found.thresholds, made.plain().thresholds, strict=True))


def test_wild_counts_with_noise_are_refused(private: Made, tmp_path: Path) -> None:
    files = private.files()
    envelope = open_envelope(files[2])
    lie = tmp_path / "west.calibration"
    for change in (lambda t: t + 2000, lambda t: t * math.nan, lambda t: t.long()):
        value = envelope.value(TYPES)
        key = private.folder / "west.key"
        lie.write_bytes(resealed(envelope, key, {**value, "conformal": change(value["conformal"])}))
        with pytest.raises(InputError, match=r"The counts of 2 site\(s\) can be used"):
            private.calibrate([*files[:2], lie])


def test_the_agreement_says_what_leaves(tmp_path: Path) -> None:
    masked = describe_counts(studies.agreement(tmp_path, **MASKED))
    private = describe_counts(studies.agreement(tmp_path, **PRIVATE))
    plain = describe_counts(studies.agreement(tmp_path, **{**MASKED, "secure": False, "cells": 0}))

    assert "2,002 counts" in masked and "masked" in masked and "fewer than 1 rows" in masked
    assert "10 counts" in private and "noise of SD 0.48" in private and "ε = 8" in private
    assert "fewer than 4 rows" in plain
    assert describe_counts(studies.agreement(tmp_path)) == ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"guarantee": "quantile"}, "sends none"),
        ({"cells": 3}, "cells = 0"),
        ({"patient": "id"}, "calibrate = 0"),
    ],
)
def test_what_noise_cannot_hide_is_refused(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    good = studies.agreement(tmp_path, **PRIVATE)
    good.check()
    with pytest.raises(InputError, match=sentence):
        dataclasses.replace(good, **changes).check()


@pytest.mark.parametrize("score", ["hinge", "aps"])
def test_one_row_more_changes_one_cell_by_one(score: str, private: Made) -> None:
    """Roles and random parts of scores by content: neighbours differ in one count, or in none."""
    agreed = dataclasses.replace(private.study.agreement, nonconformity=score, grid=100)
    data, _ = rows_of(agreed, private.folder / "north.many.csv")
    plan = read_calibration(agreed)
    tables = []
    for rows_ in (data, Data(*(leaf[1:] for leaf in data)), Data(*(leaf[2:] for leaf in data))):
        own = parts(agreed, 0, rows_).calibrate
        tables.append(site_table(plan, score_rows(private.model, plan, 0, own), own.y))
    for more, less in itertools.pairwise(tables):
        assert int((more - less).abs().sum()) <= 1
    assert len(parts(agreed, 0, data).calibrate.y) == pytest.approx(0.4 * 1200, abs=5 * math.sqrt(1200 * 0.24))
