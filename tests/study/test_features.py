"""A study on fixed features of its columns: agreed by name, drawn the same at every site."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import honest
import pytest
import studies
import torch

import consilience as co
from consilience.errors import InputError
from consilience.key import Key
from consilience.models.maps import longest_features
from consilience.study.proposal import consistent, proposal
from consilience.study.protocol.agreement import from_fields
from consilience.study.protocol.columns import Column
from consilience.study.protocol.members import read
from consilience.study.protocol.target import Target
from consilience.study.protocol.text import study_text
from consilience.study.validation.rules import bounds_of


@pytest.mark.parametrize("features", ["identity", "relu:20", "fourier:20:3"])
def test_features_are_part_of_what_is_signed(tmp_path: Path, features: str) -> None:
    plain = studies.agreement(tmp_path)
    made = studies.study(tmp_path, features=features)
    path = tmp_path / "sepsis.toml"
    path.write_text(study_text(made))

    again = read(path)

    assert again == made
    assert again.agreement.hash != plain.hash
    assert f'features = "{features}"' in path.read_text()
    assert from_fields(again.agreement.fields) == again.agreement  # as the Flower app holds it
    first, second = (agreement.build_task() for agreement in (made.agreement, again.agreement))
    x = Key(0).normal((4, len(plain.feature_names)))
    assert torch.equal(first.outputs(second.like, x), second.outputs(second.like, x))
    consistent(again.agreement)
    path.write_text(path.read_text().replace(f'features = "{features}"', 'features = "relu:21"'))
    with pytest.raises(InputError, match="is not for this agreement"):
        read(path)


def test_agreements_without_features_have_their_old_fields_and_text(tmp_path: Path) -> None:
    made = studies.study(tmp_path)
    assert "features" not in made.agreement.fields
    assert "features =" not in study_text(made)


@pytest.mark.parametrize(
    ("features", "sentence"),
    [("conv", "is for images"), ("forier", "Did you mean 'fourier'"), ("relu:99999", "features cannot be")],
)
def test_features_that_are_none_for_tables_are_refused(tmp_path: Path, features: str, sentence: str) -> None:
    agreement = dataclasses.replace(studies.agreement(tmp_path), features=features)
    with pytest.raises(InputError, match=sentence):
        agreement.check()


def test_a_draft_on_features_counts_the_heads_parameters() -> None:
    columns = (Column("age", "number", "years", (18.0, 110.0), 60.0, 15.0),)
    draft = proposal("sepsis", "", Target("died", ("no", "yes")), columns, features="fourier:30")
    assert draft.network == "linear on fourier:30"
    assert draft.parameters == 2 * 31


@pytest.mark.parametrize("features", ["relu:40", "fourier:40"])
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=True")},
        {"method": "fedavg", "rounds": 2, "settings": ("inference.epochs=5",)},
    ],
    ids=lambda changes: changes["method"],
)
def test_no_honest_reply_on_features_is_refused(tmp_path: Path, features: str, changes: dict[str, Any]) -> None:
    agreement = honest.agreement_of(tmp_path, smallest=1, features=features, **changes)
    for played in honest.honest_rounds(agreement, honest.tables(agreement, tmp_path, 200)):
        for reply in played.replies:
            assert played.admit(reply).client == reply.client


@pytest.mark.parametrize("name", ["identity", "relu:50", "relu:5", "fourier:50", "hats:50"])
def test_features_are_no_longer_than_the_bound(tmp_path: Path, name: str) -> None:
    map_ = co.models.features(name, 4)
    x = 3 * Key(1).normal((500, 4))
    longest = float(x.norm(dim=1).max())
    lengths = map_(x).norm(dim=1)
    bound = longest_features(map_, longest)
    assert float(lengths.max()) <= bound * (1 + 1e-6)
    assert bound < 10 * float(lengths.max())
    plain = bounds_of(studies.agreement(tmp_path))
    with_features = bounds_of(studies.agreement(tmp_path, features="fourier:50"))
    inside = math.sqrt(plain.reach**2 - 1)
    assert with_features.reach == pytest.approx(math.sqrt(1 + inside**2 + 2 * (50 - 6)))
