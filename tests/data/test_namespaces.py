"""What `consilience.data`, `.datasets` and `.splits` hold under names that can be guessed, and what never changes."""

from __future__ import annotations

import pytest

from consilience import data
from consilience.data import datasets, splits
from consilience.data.dataset import Draw
from consilience.data.roles import Role

NAMES = {
    splits: "iid dirichlet heterogeneous natural sorted_feature step dominant shifted Rotation Noise parse Split",
    data: "Data Sites Dataset from_csv from_table from_frame from_arrays inputs_from map_sites",
    datasets: "load describe fetch DATASETS digits moons sine swiss_roll linear_gaussian",
}


@pytest.mark.parametrize("room", NAMES, ids=lambda room: room.__name__)
def test_names_can_be_guessed(room: object) -> None:
    names = NAMES[room].split()  # type: ignore[index]
    assert set(names) <= set(room.__all__)  # type: ignore[attr-defined]
    assert all(hasattr(room, name) for name in room.__all__)  # type: ignore[attr-defined]


def test_every_data_set_has_its_facts() -> None:
    assert list(datasets.FACTS) == list(datasets.DATASETS)


def test_the_draws_of_a_split_never_change() -> None:
    draws = {name: int(draw) for name, draw in Draw.__members__.items()}

    assert draws == {
        "TEST": 0,
        "SERVER": 1,
        "SITES": 2,
        "FOLLOW": 3,
        "VALIDATION": 4,
        "SHIFT": 5,
        "INPUTS": 5,
        "CONFORMAL": 6,
        "HOMES": 7,
    }
    assert [int(role) for role in (Role.TRAIN, Role.TEST, Role.VALIDATION)] == [0, 1, 2]
