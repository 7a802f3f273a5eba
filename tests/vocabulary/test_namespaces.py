"""Rooms that a person can guess: what each of them offers by name, and says in its docstring."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

import consilience as co
from consilience import aggregation, metrics, models
from consilience.aggregation.merging import eaa
from consilience.distributions.predictive import mixture
from consilience.models.mlp import mlp


@pytest.mark.parametrize("room", [metrics, models, aggregation], ids=lambda room: room.__name__)
def test_a_room_offers_what_it_lists(room: ModuleType) -> None:
    assert len(set(room.__all__)) == len(room.__all__)
    for name in room.__all__:
        value = getattr(room, name)
        assert name.isupper() or name == "Factory" or (callable(value) and value.__doc__), name


def test_a_room_hands_out_the_functions_themselves() -> None:
    assert aggregation.mixture is mixture
    assert aggregation.eaa is eaa
    assert models.mlp is mlp


def test_the_package_names_every_namespace_it_lists() -> None:
    """That there are at most sixty names, tests/cli/test_start.py says."""
    spaces = {name for name in dir(co) if inspect.ismodule(getattr(co, name))}
    assert spaces == set(re.findall(r"`co\.(\w+)`", co.__doc__ or ""))
