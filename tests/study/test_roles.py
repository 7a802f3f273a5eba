"""Who trains, tests and calibrates follows from a row alone, wherever anything is promised and in all new studies.

By its place in the table, one row put first gave others another role: of 200 rows, 38 were in only one of
two training sets, and what DP-SGD promised about one row was broken by all of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest
import studies
import torch
from scipy.stats import beta
from uncharged import fit

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.study.proposal import proposal
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.envelope import open_envelope
from consilience.study.protocol.members import Study, read
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import agreement_text
from consilience.study.rows import parts, rows_of

TRAINED = ("inference=DPSGD", "inference.epsilon=1", "inference.delta=1e-3", "inference.steps=3")


def private_training(folder: Path) -> Study:
    return studies.study(folder, committed=300, method="fedavg", settings=TRAINED, rounds=1)


def table(agreement: Agreement, path: Path, records: list[dict[str, str]]) -> Data:
    return rows_of(agreement, studies.table(path, records), one_class=True)[0]


def rows_that_moved(agreement: Agreement, whole: Data, fewer: Data) -> int:
    """Rows whose role is another in a table with one row less, that row included; equal rows are interchangeable."""
    moved = 0
    for more, less in zip(parts(agreement, 0, whole), parts(agreement, 0, fewer), strict=True):
        before, after = counted(more), counted(less)
        moved += ((before - after) + (after - before)).total()
    return moved


def counted(data: Data) -> Counter[tuple[float, ...]]:
    return Counter((*x, *y) for x, y in zip(data.x.tolist(), data.y.reshape(-1, 1).tolist(), strict=True))


@pytest.mark.parametrize("place", [0, 100, 199])
def test_one_row_more_changes_no_other_role_under_private_training(tmp_path: Path, place: int) -> None:
    """Also in an agreement that was signed before roles were agreed on; by place, 89 roles changed with row 0."""
    agreed = private_training(tmp_path).agreement
    whole = table(agreed, tmp_path / "t.csv", studies.rows(0, 200))
    fewer = Data(*(torch.cat([leaf[:place], leaf[place + 1 :]]) for leaf in whole))

    assert rows_that_moved(agreed, whole, fewer) == 1


def test_new_studies_deal_roles_by_content_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    old = studies.agreement(tmp_path)
    new = proposal("sepsis", old.server, old.target, old.columns)
    (tmp_path / "s.toml").write_text(agreement_text(new, "weights"))
    whole = table(new, tmp_path / "t.csv", studies.rows(0, 200))
    fewer = Data(*(leaf[1:] for leaf in whole))

    assert 'roles = "content"' in (tmp_path / "s.toml").read_text() and read(tmp_path / "s.toml").agreement == new
    assert "roles" not in old.fields
    assert rows_that_moved(new, whole, fewer) == 1
    assert rows_that_moved(old, whole, fewer) > 50  # what an agreement that nobody changed has always meant
    with pytest.raises(InputError, match="no way to give rows their roles"):
        dataclasses.replace(new, roles="luck").check()


def test_equal_rows_are_dealt_one_by_one_and_one_copy_more_is_one_row_more(tmp_path: Path) -> None:
    """A role for all copies would leave a table of few different rows with tests of only some of them."""
    agreed = dataclasses.replace(studies.agreement(tmp_path), roles="content", test=0.3)
    record = studies.rows(0, 1)
    whole = table(agreed, tmp_path / "t.csv", record * 200)
    fewer = Data(*(leaf[1:] for leaf in whole))

    assert rows_that_moved(agreed, whole, fewer) == 1
    assert len(parts(agreed, 0, whole).test.y) == pytest.approx(60, abs=5 * (200 * 0.3 * 0.7) ** 0.5)


@pytest.mark.slow
def test_a_row_put_first_cannot_be_told_from_private_training(tmp_path: Path) -> None:
    """The attack: rows whose role would change with one row more pull one way, and replies tell the tables apart.

    A guess of which of two neighbours a reply is from is right for at most δ + (1 − δ) e^ε/(1 + e^ε) of them.
    """
    study = private_training(tmp_path)
    agreed, key = study.agreement, read_key(tmp_path / "north.key")
    tables = worst_neighbours(agreed, tmp_path)
    replies: list[list[torch.Tensor]] = [[], []]
    for place, data in enumerate(tables):
        rows = parts(agreed, 0, data)
        for _ in range(200):
            (tmp_path / "r").write_bytes(fit(study, study.member("north"), key, rows).reply)
            sent = open_envelope(tmp_path / "r").tensors
            replies[place].append(
                torch.cat([leaf.reshape(-1).double() for name, leaf in sorted(sent.items()) if name != "tree.size"])
            )
    one, other = (torch.stack(each) for each in replies)
    direction = one[:100].mean(0) - other[:100].mean(0)  # found on one half, tried on the other
    middle = (one[:100].mean(0) + other[:100].mean(0)) @ direction / 2
    right = int((one[100:] @ direction > middle).sum() + (other[100:] @ direction <= middle).sum())
    lowest = float(beta.ppf(0.025, right, 200 - right + 1))  # Clopper and Pearson

    assert lowest <= 1e-3 + torch.sigmoid(torch.tensor(1.0)).item()


def worst_neighbours(agreed: Agreement, folder: Path) -> tuple[Data, Data]:
    """A table of 200 rows, and the same with one put first: rows that train in one of them alone are extreme."""
    data = table(agreed, folder / "t.csv", studies.rows(0, 200))
    extra = Data(*(leaf[:1] for leaf in data))
    y = torch.arange(200) % 2
    number = torch.arange(200).unsqueeze(1)
    by_place = Data(torch.cat([number.float(), torch.zeros(200, data.x.shape[1] - 1)], 1), y, data.w)
    shifted = Data(*(torch.cat([leaf[:1], leaf]) for leaf in by_place))
    alone = [{int(x) for x in parts(agreed, 0, each).train.x[:, 0]} for each in (by_place, shifted)]
    x = torch.zeros_like(data.x)
    for row in range(200):
        sign = (row in alone[0]) - float(row in alone[1])
        x[row, 0] = 3.0 * sign * (2 * int(y[row]) - 1)
        x[row, 1] = 0.01 * row
    made = Data(x, y, data.w)
    return made, Data(*(torch.cat([first, leaf]) for first, leaf in zip(extra._replace(y=y[:1]), made, strict=True)))
