"""A bound is one thing: a run and a comparison hold a method against the same numbers, and say how long it trained."""

from __future__ import annotations

import dataclasses

import pytest

import consilience as co
from consilience.benchmark.plan import Plan
from consilience.inference import Laplace
from consilience.inference.newton import Newton
from consilience.methods import method
from consilience.report.schema.run_findings import read_run
from consilience.runs.bounds import bounds_of, trained
from consilience.runs.problem import Problem
from consilience.runs.recipe import Recipe
from consilience.serialisation.settings import configure

PROBLEM = Problem("moons", sites=3, model="linear")
SET = ("inference.epochs=2",)


@pytest.mark.parametrize(("name", "rounds"), [("fedavg", 3), pytest.param("mixture", 1, marks=pytest.mark.slow)])
def test_a_run_and_a_comparison_have_the_same_bounds(name: str, rounds: int) -> None:
    recipe = Recipe(name, PROBLEM, settings=(*SET, *(["inference.keep=1"] * (name == "mixture"))))
    result = co.run(*recipe.build(), rounds=rounds)
    word = f"{name}[{','.join(recipe.settings)}]"
    compared = co.compare([word], PROBLEM, seeds=[0], rounds=rounds)

    told = {key: bound["metrics"]["nll"] for key, bound in result.bounds.items()}
    frame = compared.to_frame()
    nll = frame[frame["score"] == "nll"].set_index("row")["value"]
    assert told.keys() == {"local_only", "server_only", "centralised"}
    assert {key: nll[key] for key in told} == pytest.approx(told, abs=1e-6)
    title = f"Centralised, {2 * rounds} passes"
    assert title in compared._repr_html_()
    names = {key: shown for key, shown, _ in read_run({**result.report, "bounds": result.bounds}).scored_bounds}
    assert names["centralised"] == title


def test_a_bound_takes_the_passes_of_all_rounds() -> None:
    fedavg = configure(method("fedavg"), ["inference.epochs=4"])

    listed = bounds_of(fedavg, 5, sites=3, labelled=True)

    assert {key: trained(bound) for key, bound in listed.items()} == {
        "local_only": "20 passes",
        "server_only": "200 passes",  # its default: few rows need many
        "centralised": "20 passes",
    }
    converged = dataclasses.replace(method("gaussian_product"), inference=Laplace(Newton()))  # type: ignore[type-var]
    assert trained(bounds_of(converged, 1, 3, labelled=False)["centralised"]) == "converged"
    assert trained(bounds_of(fedavg, 5, 3, labelled=False, by_rows=False)["centralised"]) == "converged"


def test_a_bound_is_the_same_whether_it_is_named_or_added() -> None:
    added = {r.word: r for r in Plan(("fedavg",), PROBLEM).rows(None)}
    named = {r.word: r for r in Plan(("fedavg", "centralised"), PROBLEM).rows(None)}

    assert named["centralised"] == added["centralised"]
    own = {r.word: r for r in Plan(("fedavg", "centralised[inference.epochs=7]"), PROBLEM).rows(None)}
    assert trained(own["centralised[inference.epochs=7]"].method) == "7 passes"
