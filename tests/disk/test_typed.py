"""JSON as values of declared types: what no number can be, and what lies out of its range, is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import pytest

from consilience.disk.typed import AMONG, Rows, Share, Size, Under, checked, matches, parse_json, plain, restore_fields
from consilience.errors import InputError


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


@dataclass(frozen=True)
class Inner:
    count: Annotated[Rows, Under("n")]
    share: Share | None = None


@dataclass(frozen=True)
class Outer:
    own: Annotated[Inner, AMONG]
    parts: Sequence[Inner]
    whole: Part | None
    named: Annotated[Mapping[str, float], Under("named", always=True)] = field(default_factory=dict)
    kind: str = "usual"


OUTER = Outer(Inner(3), [Inner(4, 0.5), Inner(5)], WHOLE)
WRITTEN = {
    "n": 3,
    "parts": [{"n": 4, "share": 0.5}, {"n": 5}],
    "whole": {"rows": 3, "share": 0.5, "sizes": [0.0, None], "point": [1.0, 2.0]},
    "named": {},
}


def test_types_inside_types_are_written_as_declared_and_read_again() -> None:
    assert plain(OUTER) == WRITTEN
    assert restore_fields(Outer, WRITTEN, others=True) == OUTER


def test_keys_of_nobody_are_passed_over_only_where_that_is_asked_for() -> None:
    more = {**WRITTEN, "further": 1}
    assert restore_fields(Outer, more, others=True) == OUTER
    with pytest.raises(InputError, match="'further = 1' is not a field of a Outer"):
        restore_fields(Outer, more)


@pytest.mark.parametrize(
    "damage", [{"n": -1}, {"parts": [{"n": "4"}]}, {"parts": {}}, {"whole": {"rows": 3}}, {"named": None, "n": None}]
)
def test_damage_inside_types_is_refused(damage: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="the file is damaged"):
        restore_fields(Outer, {**WRITTEN, **damage}, others=True)
