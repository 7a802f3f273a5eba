"""A site's ledger: what was released about which rows, and when that is enough."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from consilience.errors import InputError
from consilience.privacy.dp.accountant import epsilon_of, mu_of
from consilience.privacy.dp.subsampled import Steps
from consilience.study.budget import (
    UNBOUNDED,
    Budget,
    Cost,
    People,
    Release,
    add_costs,
    hash_rows,
    read_budget,
    write_budget,
)

SECRET = b"site"
MU = mu_of(1.0, 1e-5)


def release(study: str = "s", rows: range = range(10), mu: float = MU, round: int = 1) -> Release:
    x = torch.arange(100).reshape(100, 1).double()[list(rows)]
    names = hash_rows((x, x), SECRET)
    people = People("patients id", names)
    return Release(study, study, "reply", round, Cost(mu), "2024-01-31", names, people=people)


TRAINED = release("trained")._replace(cost=Cost(steps=(Steps(1.0, 0.1, 25),)), whole=False)


def test_releases_compose_and_stop_at_the_budget() -> None:
    """Four releases of μ are one of 2μ; the fifth would be √5·μ."""
    limit = epsilon_of(1e-5, 2 * MU)
    budget = Budget().limit(limit, 1e-5)
    for study in "abcd":
        budget = budget.charge(release(study))
    assert budget.spent().mu == pytest.approx(2 * MU)
    with pytest.raises(InputError, match="Nothing is sent"):
        budget.charge(release("e"))


def test_one_row_in_common_is_enough_and_other_rows_are_free() -> None:
    budget = Budget().limit(1.0, 1e-5).charge(release("a", range(10)))
    budget.charge(release("b", range(10, 20)))
    with pytest.raises(InputError, match="Nothing is sent"):
        budget.charge(release("b", range(9, 20)))


def test_the_same_numbers_again_are_free_and_new_noise_is_not() -> None:
    budget = Budget().limit(1.0, 1e-5).charge(release())
    assert budget.charge(release(), repeated=True) == budget
    with pytest.raises(InputError, match="Nothing is sent"):
        budget.charge(release())


def test_a_repetition_that_was_never_entered_is_charged() -> None:
    """Power was lost between remembering a reply and the ledger."""
    assert len(Budget().limit(1.0, 1e-5).charge(release(), repeated=True).releases) == 1


def test_after_a_release_without_noise_nothing_can_be_promised() -> None:
    budget = Budget().limit(9.0, 1e-5).charge(release("plain", mu=math.inf))
    assert len(budget.charge(release("plain", mu=math.inf)).releases) == 1  # once is enough
    with pytest.raises(InputError, match="released without noise before \\(plain\\)"):
        budget.charge(release("private"))


def test_a_ledger_survives_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    assert read_budget(path) == Budget()
    budget = Budget().limit(2.0, 1e-5).charge(release()).charge(release("p", range(50, 60), math.inf))
    write_budget(path, budget)
    again = read_budget(path)
    assert (again.epsilon, again.delta, again.spent()) == (2.0, 1e-5, UNBOUNDED)
    assert np.array_equal(again.releases[0].rows, budget.releases[0].rows)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": 1, "epsilon": 1, "delta": 1e-5, "releases": [{}]}'])
def test_a_damaged_ledger_is_no_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.ledger"
    path.write_text(text)
    with pytest.raises(InputError, match=r"damaged|version"):
        read_budget(path)


def test_hashes_name_rows_by_content_and_hide_them() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    y = torch.tensor([0, 1, 0])
    here = hash_rows((x, y), SECRET)
    assert len(here) == 3 and len(set(here.tolist())) == 2  # a copy is a row more
    assert np.array_equal(here, hash_rows((x.flip(0), y.flip(0)), SECRET))
    assert not np.isin(here, hash_rows((x, y), b"elsewhere")).any()


def test_steps_and_gaussian_noise_compose_as_one_gaussian_where_every_row_is_in_every_step() -> None:
    """Four steps of σ = 2 are μ = 1, and beside a release of μ = 1 they are μ = √2 (Dong, Roth and Su 2022)."""
    steps = Cost(steps=(Steps(2.0, 1.0, 3), Steps(2.0, 1.0, 1)))
    together = add_costs([Cost(1.0), steps])
    assert together.steps == (Steps(2.0, 1.0, 4),)
    exact = epsilon_of(1e-5, math.sqrt(2))
    assert exact <= together.epsilon(1e-5) <= exact + 0.01


def test_private_training_counts_against_the_budget_and_survives_the_file(tmp_path: Path) -> None:
    """Steps on a tenth of the rows, σ = 1: the ε of a hundred is the budget, and one more study is too much."""
    hundred = Cost(steps=(Steps(1.0, 0.1, 100),))
    budget = Budget().limit(hundred.epsilon(1e-5), 1e-5)
    for round in range(1, 5):
        budget = budget.charge(release("trained", round=round)._replace(cost=Cost(steps=(Steps(1.0, 0.1, 25),))))
    write_budget(tmp_path / "n.ledger", budget)
    again = read_budget(tmp_path / "n.ledger")
    assert again.spent() == hundred
    with pytest.raises(InputError, match="Nothing is sent: ε would become"):
        again.charge(release("sums"))
    assert len(again.charge(release("sums", range(50, 60))).releases) == 5


def test_a_promise_about_what_has_noise_alone_is_entered_after_a_release_without_noise() -> None:
    """The ledger goes on to say that nothing holds for all that left about these rows."""
    budget = Budget().limit(9.0, 1e-5).charge(release("scaling", mu=math.inf))
    budget = budget.charge(TRAINED)
    assert len(budget.releases) == 2 and budget.spent().epsilon(1e-5) == math.inf


def test_a_promise_about_what_has_noise_alone_has_a_budget_after_a_release_without_noise() -> None:
    """The budget is what one study takes; a second one adds to it, whatever left without noise."""
    budget = Budget().limit(TRAINED.cost.epsilon(1e-5), 1e-5).charge(release("scaling", mu=math.inf)).charge(TRAINED)
    assert budget.spent(noisy=True) == TRAINED.cost
    with pytest.raises(InputError, match="Nothing is sent: ε would become"):
        budget.charge(TRAINED._replace(agreement="another"))


def test_what_a_promise_is_about_survives_the_file(tmp_path: Path) -> None:
    write_budget(tmp_path / "n.ledger", Budget().limit(9.0, 1e-5).charge(TRAINED).charge(release()))
    assert [r.whole for r in read_budget(tmp_path / "n.ledger").releases] == [False, True]


@pytest.mark.parametrize("steps", ["[[NaN, 0.1, 5]]", "[[1.0, 0.0, 5]]", "[[1.0, 0.1, -5]]", "[[1.0]]"])
def test_steps_that_cannot_be_are_damage(tmp_path: Path, steps: str) -> None:
    path = tmp_path / "n.ledger"
    cost = Cost(steps=(Steps(1.0, 0.1, 5),))
    write_budget(path, Budget().limit(9.0, 1e-5).charge(release()._replace(cost=cost)))
    value = json.loads(path.read_text())
    value["releases"][0]["steps"] = json.loads(steps)
    path.write_text(json.dumps(value))
    with pytest.raises(InputError, match="is damaged"):
        read_budget(path)
