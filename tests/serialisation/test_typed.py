"""JSON as values of declared types: what no number can be, and what lies out of its range, is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from consilience.errors import InputError
from consilience.serialisation.typed import Rows, Share, Size, checked, matches, parse_json


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "1" + 400 * "0", '"\\ud800"'])
def test_what_can_neither_be_reckoned_with_nor_written_is_not_json(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|too large|surrogates not allowed"):
        parse_json(text)


def test_other_json_is_read_as_it_stands() -> None:
    assert parse_json('{"a": [1, 2.5, null, true, "\\ud83d\\ude00", 1e308]}') == {
        "a": [1, 2.5, None, True, "\U0001f600", 1e308]
    }


class Part(NamedTuple):
    rows: Rows
    share: Share | None
    sizes: Sequence[Size | None]
    point: tuple[float, float]


WHOLE = Part(3, 0.5, [0.0, None], (1.0, 2.0))


@pytest.mark.parametrize("share", [0, 1, 1 + 1e-12, None])
def test_ends_of_a_range_belong_to_it_and_rounding_does_no_harm(share: float | None) -> None:
    part = WHOLE._replace(share=share)
    assert checked(part) is part


@pytest.mark.parametrize(
    "damage",
    [
        {"rows": -1},
        {"rows": 1.5},
        {"rows": True},
        {"share": 1.01},
        {"share": float("nan")},
        {"share": "0.5"},
        {"sizes": [-1.0]},
        {"sizes": "12"},
        {"point": (1.0,)},
        {"point": [1.0, 2.0]},
    ],
)
def test_what_is_not_as_declared_is_refused(damage: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"'{next(iter(damage))} = .* is not what a Part holds"):
        checked(WHOLE._replace(**damage))


def test_no_number_is_a_truth() -> None:
    assert matches(float, 1) and not matches(float, True)
