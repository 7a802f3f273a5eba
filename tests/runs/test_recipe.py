"""Recipes: what they build, and what they refuse."""

from __future__ import annotations

import math

import pytest

import consilience as co
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.runs.problem import Problem
from consilience.runs.recipe import Recipe


@pytest.mark.parametrize("data", ["moons", "sine"])
def test_the_prior_of_every_weight_is_the_one_that_is_asked_for(data: str) -> None:
    asked = Problem(data, model="mlp", prior_var=100.0)
    assert asked.build()[0].prior == Isotropic(100.0)
    assert Problem(data).build()[0].prior == Isotropic(1.0)
    assert Recipe.from_json(Recipe("fedavg", asked).to_json()) == Recipe("fedavg", asked)
    assert "prior_var" not in Problem(data).to_json()  # as recipes were before


@pytest.mark.parametrize("var", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_variance_is_refused(var: float) -> None:
    with pytest.raises(InputError, match="not a variance"):
        Problem("digits", prior_var=var).settle([co.methods.GLM()])


def test_a_prior_that_nobody_looks_at_is_refused() -> None:
    with pytest.raises(InputError, match="exact weighs a prior of its own"):
        Problem("digits", prior_var=10.0).settle([co.methods.ExactPooling()])
    with pytest.raises(InputError, match="weighs a prior of its own"):
        Recipe("", Problem("digits", prior_var=10.0)).choose()
    both = Problem("digits", prior_var=10.0).settle([co.methods.ExactPooling(), co.methods.GLM()])
    assert both.features is not None and both.prior_var == 10.0
