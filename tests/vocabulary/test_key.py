"""Keys: streams are named, and their numbers never change."""

from __future__ import annotations

import pytest

from consilience.key import Key, Stream

# The numbers of runs, resumes and signed studies made before streams had names.
NUMBERS = {"INIT": 0, "LOCAL": 1, "AGGREGATE": 2, "PARTICIPATION": 3, "ROLES": 3, "PROBE": 4, "SETS": 7}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_named_stream_folds_as_its_number_did(name: str) -> None:
    assert Key(7).fold(Stream[name]) == Key(7).fold(NUMBERS[name])
    assert int(Key(7).tensor.fold(Stream[name]).seed) == Key(7).fold(NUMBERS[name]).seed


def test_every_stream_is_listed() -> None:
    assert set(Stream.__members__) == set(NUMBERS)


def test_folding_is_splitmix64() -> None:
    """The first outputs of splitmix64 seeded with 0, from its published reference implementation."""
    word = 1 << 64
    assert int(Key(0).fold(0).seed) % word == 0xE220A8397B1DCDAF
    assert int(Key(0).fold(1).seed) % word == 0x6E789E6AA1B965F4
