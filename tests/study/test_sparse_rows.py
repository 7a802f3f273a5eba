"""Patients that a combination of columns sets apart: the attack on what a site really sends, and the guard against it.

The attacker knows the columns. G v = Σ φ (φ·v), and where v is "dose given less dose planned" or "the total less its
parts", that is one patient.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from torch import Tensor
from uncharged import fit

from consilience.distributions.posterior import Dense, Natural
from consilience.errors import InputError
from consilience.glm.own_fit import Told, take_summands
from consilience.glm.sums import Sums, square_matrix
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.rows import parts, rows_of, training_rows

EXACT: dict[str, Any] = {"method": "exact", "settings": ()}
SENDERS: dict[str, dict[str, Any]] = {
    "exact": EXACT,
    "glm": {"method": "glm", "settings": (), "rounds": 8},
    "gaussian_product": {
        "method": "gaussian_product",
        "settings": ("inference.mode=Newton", "inference.dense=True"),
    },
    "hierarchical": {"method": "hierarchical", "settings": ()},
}
DOSE = {"range": (0.0, 12.0), "centre": 4.0, "spread": 2.0}
COLUMNS = (
    Column("age", "number", "years", (18.0, 100.0), 50.0, 15.0),
    Column("planned", "number", "mg", **DOSE),  # type: ignore[arg-type]
    Column("given", "number", "mg", **DOSE),  # type: ignore[arg-type]
    Column("oral", "number", "mg", **DOSE),  # type: ignore[arg-type]
    Column("total", "number", "mg", (0.0, 24.0), 8.0, 4.0),
    Column("sex", "category", levels=("f", "m")),
)
WIDTH = 7  # features


def patients(odd: str, count: int = 100, few: int = 1, alive: bool = False) -> list[dict[str, str]]:
    """Rows whose doses agree and add up, but for a few; or whose sex says how it ended, but for a few."""
    draw = random.Random(4)
    made = []
    for i in range(count):
        planned, oral = draw.randint(1, 10), draw.randint(1, 10)
        given = planned
        total = given + oral
        if odd == "pair":
            given = draw.randint(1, 10)
            planned = given + (i < few)
            total = draw.randint(4, 20)
        elif odd == "total":
            planned = draw.randint(1, 10)
            total += i < few
        else:
            planned, total = draw.randint(1, 10), draw.randint(4, 20)
        sex = draw.choice("fm")
        died = draw.choice(("no", "yes"))
        if odd == "outcome":
            died = "yes" if (sex == "m") != (i < few) else "no"
        numbers = {"planned": planned, "given": given, "oral": oral, "total": total}
        made.append({"age": str(draw.randint(30, 90)), **{k: str(v) for k, v in numbers.items()}, "sex": sex})
        made[-1]["died"] = died
    return made


def gram(send: Sums | Told | Dense | Natural, agreement: Agreement) -> Tensor:
    """What the reply says of Σ w φφᵀ, w = 1 or p (1 − p), with the constant last."""
    send = take_summands(send)
    if isinstance(send, Sums):
        return square_matrix(send.gram.double(), send.features).roll((-1, -1), (0, 1))
    width = len(agreement.feature_names)
    precision = send.precision.double()
    if isinstance(send, Dense):
        precision = precision - torch.eye(len(precision)) / agreement.prior_var
    own = [*range(width, 2 * width), 2 * width + 1]  # weights [2, D] come first, then biases [2]
    return precision[own][:, own]


VECTORS = {  # age, planned, given, oral, total, f, m, constant; doses in units of 2, totals of 4
    "pair": [0, 1, -1, 0, 0, 0, 0, 0],
    "total": [0, 0, 1, 1, -2, 0, 0, 0],
    "none": [0, 1, -1, 0, 0, 0, 0, 0],
}


def read_out(lines: Tensor, x: Tensor) -> float:
    """How far the read row is from the nearest true one, as a share of its length."""
    if not abs(float(lines[-1])) > 1e-4:
        return float("inf")
    row = lines[:-1] / lines[-1]
    away = (x.double() - row).norm(dim=1) / x.double().norm(dim=1)
    return float(away.min())


def sent(folder: Path, records: list[dict[str, str]], guarded: bool = True, **words: Any) -> tuple[Any, Agreement, Any]:
    """What a site sends of a table, the agreement, and its training rows as they are in the table."""
    study = studies.study(folder, committed=400, columns=COLUMNS, test=0.0, choose=0.0, calibrate=0.0, **words)
    agreement = study.agreement
    if not guarded:
        agreement = dataclasses.replace(agreement, smallest=1)
        study = dataclasses.replace(study, agreement=agreement)
    own = parts(agreement, 0, rows_of(agreement, studies.table(folder / "data.csv", records))[0])
    fitted = fit(study, study.member("north"), read_key(folder / "north.key"), own)
    return fitted, agreement, own.train


@pytest.mark.parametrize("odd", ["pair", "total"])
@pytest.mark.parametrize("sender", SENDERS)
def test_no_patient_is_read_out_of_columns_that_agree_in_all_rows_but_one(
    sender: str, odd: str, tmp_path: Path
) -> None:
    vector = torch.tensor(VECTORS[odd], dtype=torch.float64)
    records = patients(odd)

    bare, agreed, table = sent(tmp_path, records, guarded=False, **SENDERS[sender])
    shown = read_out(gram(bare.send, agreed) @ vector, table.x)
    fitted, agreed, table = sent(tmp_path, records, **SENDERS[sender])
    after = read_out(gram(fitted.send, agreed) @ vector, table.x)

    assert shown < 1e-3  # the attack works: the patient is read to a thousandth
    assert after > 0.1
    assert len(fitted.training.data.y) == len(table.y) - 1
    said = " ".join(fitted.training.notes)
    assert "is the same in all but fewer than 10 rows; they are left out" in said
    assert ("'planned', 'given'" if odd == "pair" else "'given', 'oral', 'total'") in said


@pytest.mark.parametrize("few", [2, 9, 12])
def test_few_patients_are_left_out_and_as_many_as_the_smallest_count_are_not(few: int, tmp_path: Path) -> None:
    fitted, _, table = sent(tmp_path, patients("total", few=few), **EXACT)

    assert len(table.y) - len(fitted.training.data.y) == few * (few < 10)


def test_an_outcome_that_is_a_column_in_all_rows_but_one_shows_nobody(tmp_path: Path) -> None:
    def attack(send: Sums, agreement: Agreement) -> Tensor:
        """The sum over the dead, less that over men, is the man who lived less the woman who died."""
        return send.cross[1].roll(-1) - gram(send, agreement)[:, WIDTH - 1]

    records = patients("outcome")
    bare, agreed, table = sent(tmp_path, records, guarded=False, **EXACT)
    shown = read_out(attack(bare.send, agreed), table.x)
    fitted, agreed, table = sent(tmp_path, records, **EXACT)

    assert shown < 1e-6 and read_out(attack(fitted.send, agreed), table.x) > 0.1
    assert len(fitted.training.data.y) == len(table.y) - 1
    assert "'sex', 'died' is the same in all but" in " ".join(fitted.training.notes)


def test_sums_by_class_show_no_row_that_is_alone_in_its_class(tmp_path: Path) -> None:
    """Enough doses are other than planned, but one of them among the dead."""
    records = patients("pair", count=120, few=0)
    dead = [row for row in records if row["died"] == "yes"]
    alive = [row for row in records if row["died"] == "no"]
    for row in (dead[0], *alive[:14]):
        row["planned"] = str(int(row["planned"]) + 1)
    by_class = {"method": "exact", "settings": ("head=Dirichlet",)}
    vector = torch.tensor(VECTORS["pair"], dtype=torch.float64)

    def attack(send: Sums, agreement: Agreement, x: Tensor) -> float:
        own = send._replace(gram=send.gram[1])
        return read_out(gram(own, agreement) @ vector, x)

    bare, agreed, table = sent(tmp_path, records, guarded=False, **by_class)
    shown = attack(bare.send, agreed, table.x)
    fitted, agreed, table = sent(tmp_path, records, **by_class)
    together, _, _ = sent(tmp_path, records, **EXACT)

    assert shown < 1e-6 and attack(fitted.send, agreed, table.x) > 0.1
    assert len(fitted.training.data.y) == len(table.y) - 1
    assert len(together.training.data.y) == len(table.y)  # where classes are summed together the 15 hide each other


def test_features_that_the_study_draws_are_looked_at_too(tmp_path: Path) -> None:
    records = patients("pair", count=300)
    vector = torch.zeros(21, dtype=torch.float64)
    vector[1], vector[2] = 1, -1
    words = {**EXACT, "features": "relu:20"}

    def attack(send: Sums, x: Tensor) -> float:
        lines = square_matrix(send.gram.double(), send.features).roll((-1, -1), (0, 1)) @ vector
        return read_out(lines[[*range(WIDTH), -1]], x)  # the columns are the first of the features

    bare, _, table = sent(tmp_path, records, guarded=False, **words)
    fitted, _, _ = sent(tmp_path, records, **words)

    assert attack(bare.send, table.x) < 1e-6 and attack(fitted.send, table.x) > 0.1
    assert len(table.y) - 3 < len(fitted.training.data.y) < len(table.y)  # one feature is above 0 in a single row
    assert "A combination of the model's features is the same" in " ".join(fitted.training.notes)


def test_a_study_that_refuses_rare_values_refuses_these(tmp_path: Path) -> None:
    study = studies.study(tmp_path, columns=COLUMNS, rare="refuse", test=0.0, **EXACT)
    own = parts(study.agreement, 0, rows_of(study.agreement, studies.table(tmp_path / "t.csv", patients("pair")))[0])

    with pytest.raises(InputError, match="A combination of 'planned', 'given' is the same in all but fewer than 10"):
        training_rows(study.agreement, own.train)


def test_a_number_that_is_predicted_is_a_column_like_others(tmp_path: Path) -> None:
    """Length of stay, say, and the days that were paid."""
    target = Target("died", (), "", (0.0, 12.0), 4.0, 2.0)
    records = patients("none")
    for i, row in enumerate(records):
        row["died"] = str(int(row["oral"]) + (i == 3))

    fitted, _, table = sent(tmp_path, records, target=target, noise=0.5, **EXACT)

    assert len(fitted.training.data.y) == len(table.y) - 1


def test_honest_rows_are_all_used(tmp_path: Path) -> None:
    fitted, _, table = sent(tmp_path, patients("none"), **EXACT)

    assert len(fitted.training.data.y) == len(table.y) and not fitted.training.notes


def test_who_is_censored_before_any_event_hides_nobody(tmp_path: Path) -> None:
    """Twelve doses are other than planned, but eleven of these patients left before anybody died: they count nowhere.

    H v = (φⱼ·v) Σ (φⱼ − m)/s₀ with m the mean of those at risk, which is nearly that of the column.
    """
    draw = random.Random(0)
    records = patients("pair", count=120, few=12)
    for i, row in enumerate(records):
        row |= {"days": str(draw.randint(50, 900)), "died": str(int(draw.random() < 0.6))}
        if 0 < i < 12:
            row |= {"days": "10", "died": "0"}
    records[0] |= {"days": "950", "died": "1", "planned": "11", "given": "1", "oral": "10"}
    years = Target("days", unit="days", range=(0.0, 4000.0), event="died", times=(200.0, 400.0, 800.0), horizon=400.0)
    words = {"method": "glm", "settings": (), "rounds": 8, "target": years}
    vector = torch.tensor(VECTORS["pair"][:-1], dtype=torch.float64)

    def attack(send: Any, x: Tensor) -> Tensor:
        """How nearly what was read points from the mean to this patient."""
        line = square_matrix(take_summands(send).curvature, WIDTH) @ vector
        return torch.cosine_similarity(line, x[0].double() - x.double().mean(0), dim=0).abs()

    bare, _, table = sent(tmp_path, records, guarded=False, **words)
    fitted, _, _ = sent(tmp_path, records, **words)

    assert attack(bare.send, table.x) > 0.98
    assert len(fitted.training.data.y) == len(table.y) - 1 and attack(fitted.send, table.x) < 0.9
    assert "'planned', 'given' is the same in all but fewer than 10" in " ".join(fitted.training.notes)
