"""One gate: every lie is refused with the same sentence by files and by Flower, and honest replies pass both."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from doors import LIAR, Lie, by_files, by_flower

import consilience as co
from consilience.admission import gate
from consilience.admission.gate import ARRIVAL, CONTENT, Arrival, Gate, Refused, Rules
from consilience.errors import InputError
from consilience.parties import Reply
from consilience.posterior import Dense, Gaussian, Point
from consilience.study.admission import group_answers, may_leave
from consilience.study.agreement import Study

needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs Flower")
DOORS = [pytest.param(by_files, id="files"), pytest.param(by_flower, id="flower", marks=needs_flower)]
HONEST = tuple(name for name in studies.NAMES if name != LIAR)

BASES: dict[str, dict[str, Any]] = {
    "samples": {"most_bytes": 20_000},
    "evidence": {"method": "evidence", "settings": ("inference.epochs=2",), "hand_out": "ensemble", "smallest": 5},
    "dense": {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=True")},
    "diagonal": {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=False")},
    "other kinds": {"leaves": ("Gaussian",)},  # than the method sends
}


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Study, Path]]:
    """A study of each kind with everybody's keys and rows, made once."""
    made: dict[str, tuple[Study, Path]] = {}

    def home(base: str) -> tuple[Study, Path]:
        if base not in made:
            folder = tmp_path_factory.mktemp(base.replace(" ", "-"))
            made[base] = (studies.study(folder, **BASES[base]), folder)
        return made[base]

    return home


Change = Callable[[dict[str, Any]], dict[str, Any]]


def params(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """Other samples."""
    return lambda value: {**value, "send": value["send"]._replace(params=change(dict(value["send"].params)))}


def weight(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Another first weight."""
    return params(lambda p: {**p, "0.weight": change(p["0.weight"])})


def size(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Another number of rows."""
    return lambda value: {**value, "size": change(value["size"])}


def counts(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Other class counts."""
    return lambda value: {**value, "send": value["send"]._replace(counts=change(value["send"].counts))}


def variance(factor: float) -> Change:
    """Another variance of every weight."""
    return lambda value: {
        **value,
        "send": value["send"]._replace(var={k: factor * v for k, v in value["send"].var.items()}),
    }


def few_of_one_class(n: torch.Tensor) -> torch.Tensor:
    """As many rows, but three of the first class."""
    return torch.stack([n[0] * 0 + 3, n.sum() - 3])


TABLE: dict[Callable[..., None], dict[str, Lie]] = {
    gate.check_form: {
        "other names": Lie(
            "its names are wrong: 'params.0.bias' is missing.",
            change=params(lambda p: {"9.bias" if k == "0.bias" else k: v for k, v in p.items()}),
        ),
        "more names": Lie(
            "its names are wrong: 'params.more' is not expected.",
            change=params(lambda p: {**p, "more": torch.zeros(2)}),
        ),
        "another order": Lie("put together in another way", change=params(lambda p: dict(reversed(p.items())))),
        "another kind": Lie("put together in another way", change=lambda v: {**v, "send": Point(v["send"].params)}),
        "more parts": Lie("it is not put together as replies are.", change=lambda v: {**v, "more": torch.zeros(1)}),
        "no size": Lie("it is not put together as replies are.", change=lambda v: {"send": v["send"]}),
        "another shape": Lie("'params.0.weight' has the shape (1, ", change=weight(lambda w: w[:1])),
        "another type": Lie("of float32 is expected.", change=weight(torch.Tensor.double)),
    },
    gate.check_finite: {
        "not a number": Lie("it holds numbers that are not finite", change=weight(lambda w: w * torch.nan)),
        "infinite": Lie("it holds numbers that are not finite", change=weight(lambda w: w / 0)),
    },
    gate.check_gaussians: {
        "not positive definite": Lie(
            "it has a precision matrix that is not positive definite.",
            base="dense",
            change=lambda v: {**v, "send": v["send"]._replace(precision=-v["send"].precision)},
        ),
        "not symmetric": Lie(
            "it has a precision matrix that is not positive definite.",
            base="dense",
            change=lambda v: {**v, "send": v["send"]._replace(precision=v["send"].precision.triu())},
        ),
        "a variance of nothing": Lie("it has a variance that is not positive.", base="diagonal", change=variance(0.0)),
        "a negative variance": Lie("it has a variance that is not positive.", base="diagonal", change=variance(-1.0)),
    },
    gate.check_size: {
        "a negative size": Lie("it claims -42 rows", change=size(torch.neg)),
        "half a row": Lie("it claims 42.5 rows", change=size(lambda n: n + 0.5)),
        "more rows than anybody has": Lie("it claims 4.2e+10 rows", change=size(lambda n: n * 1e9)),
        "fewer rows than agreed": Lie(
            "it claims 3 rows; 0 (withheld) or a whole number from 10", change=size(lambda n: n * 0 + 3)
        ),
        "two sizes": Lie("it claims nan rows", change=size(lambda n: torch.stack([n, n]))),
    },
    gate.check_counts: {
        "negative counts": Lie(
            "its class counts are negative or fractional.", base="evidence", change=counts(lambda n: n * 0 - 1)
        ),
        "fractional counts": Lie(
            "its class counts are negative or fractional.", base="evidence", change=counts(lambda n: n - 0.5)
        ),
        "a rare class": Lie(
            "it says that a class was seen fewer than 5 times", base="evidence", change=counts(few_of_one_class)
        ),
        "counts of more rows": Lie("its class counts add up to 62", base="evidence", change=counts(lambda n: n + 10)),
        "counts of fewer rows": Lie(
            "its class counts add up to 20", base="evidence", change=counts(lambda n: n * 0 + 10)
        ),
    },
    gate.check_kinds: {
        "a kind that may not leave": Lie(
            "it holds a 'Samples', which the study does not let leave", base="other kinds"
        ),
    },
    gate.check_bytes: {
        "too many bytes": Lie("more than the 20,000 agreed.", change=weight(lambda w: w.repeat(1, 1, 4000))),
    },
    gate.check_round: {"another round": Lie("it answers another round than round 1.", round=2)},
    gate.check_sender: {"another site": Lie("it answers in another site's name.", site="north")},
    gate.check_signature: {
        "unsigned": Lie("its signature is not that site's", signature="none"),
        "forged": Lie("its signature is not that site's", signature="forged"),
    },
    gate.check_once: {
        "a second answer": Lie(
            "there are 2 different answers of this site", change=size(lambda n: n + 1), honest="before"
        ),
    },
    gate.check_message: {
        "another message": Lie("it answers another message than the coordinator's of round 1", message="0" * 64),
    },
}
LIES = {name: lie for lies in TABLE.values() for name, lie in lies.items()}


def test_every_rule_stands_in_the_table() -> None:
    assert set(TABLE) == {*ARRIVAL, *CONTENT}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", LIES)
def test_every_lie_is_refused_at_either_door_with_the_same_sentence(
    name: str, door: Any, homes: Callable[[str], tuple[Study, Path]], tmp_path: Path
) -> None:
    lie = LIES[name]
    study, home = homes(lie.base)

    found = door(study, home, tmp_path, lie)

    assert LIAR not in found.names and lie.sentence in found.refused
    assert found.names == (() if lie.base == "other kinds" else HONEST)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("base", [base for base in BASES if base != "other kinds"])
def test_honest_replies_pass_either_door(
    base: str, door: Any, homes: Callable[[str], tuple[Study, Path]], tmp_path: Path
) -> None:
    study, home = homes(base)

    assert door(study, home, tmp_path, None) == (studies.NAMES, "")


HARMLESS = {
    "a withheld size": Lie("", change=size(lambda n: n * 0)),
    "a copy": Lie("", honest="before"),
    "a forged answer first": Lie("signature", change=size(lambda n: n + 1), signature="forged", honest="after"),
    "a forged answer later": Lie("signature", change=size(lambda n: n + 1), signature="forged", honest="before"),
    "an answer to another message": Lie("", change=size(lambda n: n + 1), message="0" * 64, honest="after"),
    "an old answer first": Lie("another round", change=size(lambda n: n + 1), round=2, honest="after"),
}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", HARMLESS)
def test_what_others_send_in_a_sites_name_does_it_no_harm(
    name: str, door: Any, homes: Callable[[str], tuple[Study, Path]], tmp_path: Path
) -> None:
    study, home = homes("samples")

    assert door(study, home, tmp_path, HARMLESS[name]).names == studies.NAMES


def test_answers_that_came_differently_are_not_held_against_each_other() -> None:
    honest, forged = Arrival("a", "a", 1, True, 10), Arrival("a", "a", 1, False, 99)

    groups = group_answers([(forged, "x", 0), (honest, "y", 1), (honest, "y", 2), (honest._replace(nbytes=12), "z", 3)])

    assert groups == [(forged, [0]), (honest._replace(nbytes=12, answers=2), [1, 3])]


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (Rules(leaves=("Samples",)), "it holds a 'Point'"),
        (Rules(smallest=50), "it claims 42 rows"),
    ],
)
def test_a_site_refuses_by_the_same_rules_before_anything_leaves(rules: Rules, sentence: str) -> None:
    reply = Reply(Point({"a": torch.zeros(2)}), torch.tensor(42.0))

    may_leave(reply, co.FedAvg(), Rules())
    with pytest.raises(InputError, match=f"The reply of fedavg stays here: {sentence}"):
        may_leave(reply, co.FedAvg(), rules)


def test_a_simulation_refuses_what_is_no_gaussian() -> None:
    """No study's rules, but the gate's own."""
    simulated = Gate(Rules(), None, 1)
    bad = {
        "not positive.": Gaussian({"a": torch.zeros(2)}, {"a": torch.tensor([1.0, 0.0])}),
        "not positive definite": Dense(torch.zeros(2), -torch.eye(2)),
    }
    for sentence, value in bad.items():
        with pytest.raises(Refused, match=sentence):
            simulated.admit(0, Arrival(0, 0, 1), lambda v=value: {"send": (v,), "size": torch.tensor(5.0)})
