"""Splits as people type them: read, written, and refused with a sentence that says what to type."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consilience.data.splits.labels import (
    Dirichlet,
    Heterogeneous,
    Iid,
    Natural,
    dirichlet,
    heterogeneous,
    iid,
    natural,
    sorted_feature,
)
from consilience.data.splits.skew import Dominant, Step, dominant, step
from consilience.data.splits.split import Split
from consilience.data.splits.text import parse
from consilience.errors import InputError

SPLITS = st.one_of(
    st.just(iid()),
    st.floats(0, 1).map(heterogeneous),
    st.floats(1e-320, 1e12).map(dirichlet),
    st.builds(step, st.integers(1, 4), st.integers(0, 20)),
    st.floats(0, 1, exclude_min=True).map(dominant),
)


@settings(max_examples=200)
@given(SPLITS)
def test_what_is_written_can_be_read(split: Split) -> None:
    assert parse(str(split)) == split


@pytest.mark.parametrize(
    ("split", "text"),
    [
        (iid(), "iid"),
        (natural(), "natural"),
        (dirichlet(0.1), "dirichlet:0.1"),
        (dirichlet(1), "dirichlet:1"),
        (heterogeneous(0.9), "heterogeneous:0.9"),
        (heterogeneous(0.3, "hasan2023"), "heterogeneous:0.3@hasan2023"),
        (heterogeneous(0.3, "hasan2023_ordered"), "heterogeneous:0.3@hasan2023_ordered"),
        (sorted_feature(), "sorted_feature"),
        (sorted_feature(12), "sorted_feature:12"),
        (step(2), "step:2:10"),
        (step(5, 1), "step:5:1"),
        (dominant(0.8), "dominant:0.8"),
        (dominant(1), "dominant:1"),
    ],
)
def test_text_is_what_people_type(split: Split, text: str) -> None:
    assert str(split) == text
    assert parse(text) == split


@pytest.mark.parametrize("text", ["iid+rotate:30", "dirichlet:0.3+noise:0.5", "step:1:2+rotate:15+noise:0.2"])
def test_shifts_are_read_and_written(text: str) -> None:
    assert str(parse(text)) == text


def test_defaults_and_spaces() -> None:
    assert parse(" dirichlet : 0.5 ") == Dirichlet(0.5)
    assert (parse("iid"), parse("natural"), parse("heterogeneous:1")) == (Iid(), Natural(), Heterogeneous(1.0))
    assert (parse("step:2"), parse(" step : 3 : 7 "), parse("dominant:0.8")) == (Step(2, 10), Step(3, 7), Dominant(0.8))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Known"),
        ("zebra", "Known: dirichlet, dominant, heterogeneous, iid, natural"),
        ("iid:3", "takes no number"),
        ("dirichlett:0.1", "Did you mean 'dirichlet'"),
        ("dirichlet", "type for example dirichlet:0.5"),
        ("dirichlet:much", "type for example dirichlet:0.5"),
        ("dirichlet:-1", "not a positive number"),
        ("dirichlet:nan", "not a positive number"),
        ("dirichlet:0.5@hasan2023", "has no variants: type dirichlet:0.5"),
        ("heterogeneous:", "type for example heterogeneous:0.5"),
        ("heterogeneous:1.5", "not between 0 and 1"),
        ("heterogeneous:0.3@hasan2024", "Did you mean 'hasan2023'"),
        ("heterogeneous:0.3@", "Known: hasan2023"),
        ("heterogeneous:2@hasan2023", "between 0 and 1"),
        ("sorted_feature:", "number of a feature"),
        ("sorted_feature:-1", "number of a feature"),
        ("sorted_feature:1@hasan2023", "number of a feature"),
        ("step", "type for example step:2:10"),
        ("step:", "type for example step:2:10"),
        ("step:2.5", "type for example step:2:10"),
        ("step:2:10:3", "type for example step:2:10"),
        ("step:0", "not a number of classes"),
        ("step:2:-1", "not a number of rows"),
        ("dominnant:0.8", "Did you mean 'dominant'"),
        ("dominant", "type for example dominant:0.8"),
        ("dominant:0.8:1", "type for example dominant:0.8"),
        ("dominant:0", "at most 1"),
        ("dominant:nan", "at most 1"),
        ("iid+rotat:3", "Did you mean 'rotate'"),
        ("iid+rotate:much", "needs a number"),
        ("iid+noise:-1", "is not a standard deviation"),
    ],
)
def test_text_that_cannot_be_read(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse(text)
