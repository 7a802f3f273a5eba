"""The bounds of the gate: no honest reply of any method breaks them, and they follow prior, columns and rows."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import honest
import pytest
import studies
import torch

from consilience.distributions.posterior import Dense
from consilience.errors import InputError
from consilience.method import Bound, OnFeatures
from consilience.methods import METHODS
from consilience.study.protocol.columns import Column
from consilience.study.validation.gate import Refused
from consilience.study.validation.magnitudes import Bounds
from consilience.study.validation.rules import bounds_of

FEDERATED = sorted(name for name, method in METHODS.items() if not issubclass(method, Bound))
PRIORS = {"usual": {"prior_var": 1.0}, "narrow": {"prior_var": 0.01}, "wide": {"prior_var": 100.0}}
GAUSSIANS = {
    "dense Laplace": ("gaussian_product", ("inference.mode=Newton", "inference.dense=True")),
    "Fisher": ("gaussian_product", ("inference.mode=Newton", "inference.curvature=fisher")),
    "SWAG": ("gaussian_product", ("inference=SWAG",)),
    "samples": ("variational", ("inference=CyclicalSGHMC",)),
    "the released program": ("variational", ("inference.variant=ozer2022", "variant=ozer2022")),
    "a warm-up": ("variational", ("inference.warm_up=0.5",)),
    "dense factors": ("pvi", ("inference=Laplace", "inference.dense=True", "dense=True")),
}


def admitted(folder: Path, count: int = 40, **changes: Any) -> int:
    """Replies of honest sites over two rounds, all of which the gate must let in."""
    agreement = honest.agreement_of(folder, smallest=1, **changes)
    letters = 0
    for played in honest.honest_rounds(agreement, honest.tables(agreement, folder, count)):
        for reply in played.replies:
            assert played.admit(reply).client == reply.client
            letters += 1
    return letters


@pytest.mark.parametrize("name", FEDERATED)
def test_no_honest_reply_of_any_method_is_refused(name: str, tmp_path: Path) -> None:
    rounds = 1 if METHODS[name].about.one_shot else 2

    assert admitted(tmp_path, method=name, rounds=rounds) == 3 * rounds


@pytest.mark.slow
@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("name", FEDERATED)
def test_whatever_the_prior_the_model_and_the_target(
    name: str, kind: str, model: str, prior: str, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"method": name, "model": model, "rounds": 1 if METHODS[name].about.one_shot else 2}
    if issubclass(METHODS[name], OnFeatures) and model != "linear":
        pytest.skip("learns a linear layer only")
    if kind == "numbers":
        if "regression" not in METHODS[name].about.tasks:
            pytest.skip("predicts classes only")
        changes["target"] = honest.NUMBER
    for count in (14, 200):
        assert admitted(tmp_path, count, **changes, **PRIORS[prior])


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_no_honest_gaussian_is_refused_however_it_was_fitted(kind: str, tmp_path: Path) -> None:
    method, settings = GAUSSIANS[kind]

    assert admitted(tmp_path, method=method, settings=settings, rounds=1 if METHODS[method].about.one_shot else 2)


def test_the_default_study_is_held_to_what_its_rows_explain(tmp_path: Path) -> None:
    """A site's own certainty times a few hundred is refused, and any multiple of another's rows."""
    settings = ("inference.mode=Newton", "inference.dense=True")
    agreement = honest.agreement_of(tmp_path, method="gaussian_product", settings=settings, smallest=1)
    (played,) = honest.honest_rounds(agreement, honest.tables(agreement, tmp_path, 200))
    reply = played.replies[0]
    assert isinstance(reply.payload, Dense)
    bounds = bounds_of(agreement)
    trace = float(reply.payload.precision.diagonal().sum())

    assert trace < bounds.trace(200, 1.0) < 1000 * trace
    with pytest.raises(Refused, match="explain no more than"):
        played.admit(reply, send=reply.payload._replace(precision=1000 * reply.payload.precision))
    with pytest.raises(Refused, match="the prior and 10 rows explain"):  # fewer rows explain less
        played.admit(reply, send=reply.payload._replace(precision=100 * reply.payload.precision), size=torch.tensor(10))


@pytest.mark.parametrize("part", ["gradient", "curvature"])
def test_derivatives_are_held_to_what_rows_can_have(part: str, tmp_path: Path) -> None:
    """|Σ (p − y) φ| ≤ n ‖(x, 1)‖ and |Σ p (1 − p) φφᵀ| ≤ n ‖(x, 1)‖²/4; three times as much cannot be of these rows."""
    agreement = honest.agreement_of(tmp_path, method="glm", rounds=2, smallest=1)
    _, played = honest.honest_rounds(agreement, honest.tables(agreement, tmp_path, 40))  # the first sends sums
    reply = played.replies[0]
    rows, reach = float(reply.size), bounds_of(agreement).reach
    most = {"gradient": rows * reach, "curvature": rows * reach**2 / 4}[part]
    honest_part = getattr(reply.payload, part)

    assert float(honest_part.abs().max()) <= most
    with pytest.raises(Refused, match=f"'{part}' holds"):
        played.admit(reply, send=reply.payload._replace(**{part: honest_part + 3 * most}))


def test_bounds_follow_from_the_agreement(tmp_path: Path) -> None:
    bounds = bounds_of(studies.agreement(tmp_path))

    age, lactate = (100 - 50) / 15, (30 - 2) / 2  # the largest that the ranges allow, scaled
    assert bounds.reach == pytest.approx(math.sqrt(1 + age**2 + lactate**2 + 1 + 1))  # a mark and one level of a ward
    assert bounds.widest == lactate
    assert (bounds.classes, bounds.layers, bounds.parameters) == (2, 1, 2 * (6 + 1))


def test_a_fill_outside_the_range_counts(tmp_path: Path) -> None:
    column = Column("age", "number", "years", (0.0, 1.0), missing="mark", fill=-99.0)

    assert bounds_of(studies.agreement(tmp_path, columns=(column,))).widest == 99


def test_more_rows_allow_more_and_a_narrow_prior_less() -> None:
    bounds = Bounds(1.0, 10, 1.0, ((2, 4), (2,)), reach=5.0, widest=4.0, classes=2)
    narrow = bounds._replace(prior_var=0.01)

    assert bounds.norm(10) < bounds.norm(1000) and bounds.trace(10, 1.0) < bounds.trace(1000, 1.0)
    assert narrow.norm(100) < bounds.norm(100)
    assert bounds._replace(narrowest=1e-9).trace(10, 1.0) > bounds.trace(10, 1.0)


def test_bounds_of_absurd_agreements_are_loose_and_no_error() -> None:
    """Ranges near the largest number, and networks of fifty layers: nothing overflows."""
    deep = Bounds(1e6, 10**6, 1e3, ((9, 9),) * 50, reach=1e200, widest=1e200, classes=0, target=1e200)

    for bound in (deep.norm(10**8), deep.trace(10**8, 1e-9), deep.step(10**8), deep.score(10**8), deep.gain(10**8)):
        assert bound > 1e100


@pytest.mark.parametrize(
    "variances", [{"prior_var": 0.0}, {"prior_var": -1.0}, {"prior_var": math.inf}, {"noise": -1.0}]
)
def test_variances_are_above_nothing(tmp_path: Path, variances: dict[str, float]) -> None:
    agreement = dataclasses.replace(studies.agreement(tmp_path), **variances)

    with pytest.raises(InputError, match="are variances: write a number above 0"):
        agreement.check()
