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
from consilience import tree
from consilience.admission import gate
from consilience.admission.gate import ARRIVAL, CONTENT, Arrival, Gate, Refused, Rules
from consilience.errors import InputError
from consilience.parties import Reply
from consilience.posterior import Dense, Gaussian, Point
from consilience.study.admission import group_answers, may_leave
from consilience.study.agreement import Study
from consilience.study.columns import Target

needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs Flower")
DOORS = [pytest.param(by_files, id="files"), pytest.param(by_flower, id="flower", marks=needs_flower)]
HONEST = tuple(name for name in studies.NAMES if name != LIAR)

BASES: dict[str, dict[str, Any]] = {
    "samples": {"most_bytes": 20_000},
    "evidence": {"method": "evidence", "settings": ("inference.epochs=2",), "hand_out": "ensemble", "smallest": 5},
    "dense": {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=True")},
    "diagonal": {"method": "gaussian_product", "settings": ("inference.mode=Newton", "inference.dense=False")},
    "other kinds": {"leaves": ("Gaussian",)},  # than the method sends
    "point": {"method": "fedavg", "settings": ("inference.epochs=2",)},
    "control": {"method": "scaffold", "settings": ("inference.epochs=2",)},
    "beta": {"method": "beta", "hand_out": "ensemble"},
    "bcm": {"method": "bcm", "hand_out": "ensemble"},
    "fitted": {"method": "variational", "settings": ("inference.epochs=2",)},
    "factor": {"method": "pvi", "settings": ("inference.epochs=2",)},
    "dense factor": {
        "method": "pvi",
        "settings": ("inference=Laplace", "inference.mode.epochs=2", "inference.dense=True", "dense=True"),
    },
    "rows": {
        "method": "coreset",
        "settings": ("learn.updates=1", "learn.steps=2", "learn.data_steps=1", "learn.coreset_steps=1"),
    },
    "lessons": {"method": "dosfl", "settings": ("learn.updates=1", "learn.steps=2")},
    "number": {
        "method": "gaussian_product",
        "settings": ("inference.mode=Newton", "inference.dense=True"),
        "target": Target("died", (), "", (-20.0, 20.0), 0.0, 2.0),
        "noise": 0.5,
    },
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


def send(change: Callable[[Any], Any]) -> Change:
    """Other things sent."""
    return lambda value: {**value, "send": change(value["send"])}


def scaled(factor: float) -> Change:
    """All that is sent, times a factor."""
    return send(lambda sent: tree.map(lambda leaf: leaf * factor if leaf.is_floating_point() else leaf, sent))


def certain(precision: float) -> Change:
    """The opposite of what was found, with this certainty."""
    return send(lambda sent: Dense(-sent.mean, precision * torch.eye(len(sent.mean)).to(sent.mean)))


def coreset(change: Callable[[Any], Any]) -> Change:
    """Other pseudo-rows."""
    return send(lambda sent: sent._replace(coreset=change(sent.coreset)))


def factor(change: Callable[[Any], Any]) -> Change:
    """Another change of a factor."""
    return send(lambda sent: (change(sent[0]), *sent[1:]))


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
        "a thousand million rows": Lie("it claims 1e+09 rows", change=size(lambda n: n * 0 + 1e9)),
        "1e14 rows": Lie("it claims 1e+14 rows", change=size(lambda n: n * 0 + 1e14)),
        "7.5 rows": Lie("it claims 7.5 rows", change=size(lambda n: n * 0 + 7.5)),
        "one row more than it committed to": Lie(
            "it claims 101 rows; 0 (withheld) or a whole number from 10 to 100", change=size(lambda n: n * 0 + 101)
        ),
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
        "counts of 2⁶² rows": Lie(
            "its class counts add up to 9.22337e+18", base="evidence", change=counts(lambda n: n * 0 + 2**62)
        ),
        "counts of more rows than it committed to, size withheld": Lie(
            "its class counts add up to 120, more than the 100 rows",
            base="evidence",
            change=lambda v: counts(lambda n: n * 0 + 60)(size(lambda n: n * 0)(v)),
        ),
        "counts of fewer rows": Lie(
            "its class counts add up to 20", base="evidence", change=counts(lambda n: n * 0 + 10)
        ),
    },
    gate.check_kinds: {
        "a kind that may not leave": Lie(
            "it holds a 'Samples', which the study does not let leave", base="other kinds"
        ),
    },
    gate.check_weights: {
        "a mean of 3e38": Lie(
            "it holds weights of norm", base="dense", change=send(lambda s: s._replace(mean=s.mean * 0 + 3e38))
        ),
        "a diagonal mean of 3e38": Lie(
            "it holds weights of norm",
            base="diagonal",
            change=send(lambda s: s._replace(mean={k: m * 0 + 3e38 for k, m in s.mean.items()})),
        ),
        "samples × 1e30": Lie("it holds weights of norm", change=scaled(1e30)),
        "samples × 1e30 for β": Lie("it holds weights of norm", base="beta", change=scaled(1e30)),
        "samples × 1e30 for a product": Lie("it holds weights of norm", base="bcm", change=scaled(1e30)),
        "weights × 1e30": Lie("it holds weights of norm", base="point", change=scaled(1e30)),
        "weights × 1e30 beside a control variate": Lie("it holds weights of norm", base="control", change=scaled(1e30)),
        "weights × 1e30 under class counts": Lie(
            "it holds weights of norm",
            base="evidence",
            change=send(lambda s: s._replace(posterior=tree.scale(s.posterior, 1e30))),
        ),
        "one weight of a thousand": Lie(
            "it holds weights of norm",
            base="point",
            change=send(lambda s: Point({k: torch.full_like(v, 1e3) for k, v in s.params.items()})),
        ),
    },
    gate.check_precisions: {
        "a precision of 1e15, the mean negated": Lie("its precision adds up to", base="dense", change=certain(1e15)),
        "a precision of 1e5, the mean negated": Lie("its precision adds up to", base="dense", change=certain(1e5)),
        "a precision of 1e15 for a number": Lie("its precision adds up to", base="number", change=certain(1e15)),
        "less certain than the prior": Lie("it is less certain than the prior", base="dense", change=certain(1e-3)),
        "a variance of 1e-45": Lie(
            "its precision adds up to",
            base="diagonal",
            change=send(lambda s: s._replace(var={k: v * 0 + 1e-45 for k, v in s.var.items()})),
        ),
        "a variance of 1e-45 of a fitted Gaussian": Lie(
            "its precision adds up to",
            base="fitted",
            change=send(lambda s: s._replace(var={k: v * 0 + 1e-45 for k, v in s.var.items()})),
        ),
        "a variance of 1e9": Lie("it is less certain than the prior", base="diagonal", change=variance(1e9)),
        "a variance of 1e9 of a fitted Gaussian": Lie(
            "wider than its weights can lie apart", base="fitted", change=variance(1e12)
        ),
        "a factor of precision 1e15": Lie(
            "it changes a precision by 1e+15",
            base="factor",
            change=factor(lambda n: n._replace(precision={k: p * 0 + 1e15 for k, p in n.precision.items()})),
        ),
        "a factor that moves the weights by 1e30": Lie(
            "it moves the weights by a term of 1e+30",
            base="factor",
            change=factor(lambda n: n._replace(linear={k: p * 0 + 1e30 for k, p in n.linear.items()})),
        ),
        "a dense factor of precision 1e15": Lie(
            "it changes a precision by 1e+15",
            base="dense factor",
            change=factor(lambda n: n._replace(precision=1e15 * torch.eye(len(n.precision)).to(n.precision))),
        ),
    },
    gate.check_pseudo_rows: {
        "pseudo-rows of negative weight": Lie(
            "weights below 0", base="rows", change=coreset(lambda c: c._replace(w=-c.w))
        ),
        "pseudo-rows for 1e9 rows": Lie(
            "its pseudo-rows count for 1e+09 rows",
            base="rows",
            change=coreset(lambda c: c._replace(w=c.w * 0 + 1e9 / len(c.w))),
        ),
        "labels of no class": Lie(
            "labels that are none of the 2 classes", base="rows", change=coreset(lambda c: c._replace(y=c.y + 2))
        ),
        "negative labels": Lie(
            "labels that are none of the 2 classes", base="rows", change=coreset(lambda c: c._replace(y=c.y - 1))
        ),
        "pseudo-rows far out": Lie(
            "far beyond the agreed ranges", base="rows", change=coreset(lambda c: c._replace(x=c.x * 0 + 1e30))
        ),
        "lessons with labels of no class": Lie(
            "labels that are none of the 2 classes", base="lessons", change=send(lambda s: s._replace(y=s.y + 2))
        ),
    },
    gate.check_numbers: {
        "a control variate × 1e30": Lie(
            "and nothing above",
            base="control",
            change=send(lambda s: (s[0], {k: c * 0 + 1e30 for k, c in s[1].items()})),
        ),
        "steps halved 1e30 times": Lie(
            "'halved' holds 1e+30", base="rows", change=send(lambda s: s._replace(halved=s.halved * 0 + 1e30))
        ),
    },
    gate.check_method: {
        "a factor with a negative precision": Lie(
            "no posterior has a negative precision",
            base="factor",
            change=factor(lambda n: n._replace(precision={k: p * 0 - 10 for k, p in n.precision.items()})),
        ),
        "a dense factor with a negative precision": Lie(
            "no posterior has a negative precision",
            base="dense factor",
            change=factor(lambda n: n._replace(precision=-10 * torch.eye(len(n.precision)).to(n.precision))),
        ),
        "steps of length 1000": Lie(
            "it asks for steps", base="lessons", change=send(lambda s: s._replace(rates=s.rates * 0 + 1e3))
        ),
    },
    gate.check_bytes: {
        "too many bytes": Lie("more than the 20,000 agreed.", change=weight(lambda w: w.repeat(1, 1, 4000))),
    },
    gate.check_round: {"another round": Lie("it answers another round than round 1.", round=2)},
    gate.check_sender: {
        "another site": Lie("it answers in another site's name", site="north"),
        "another number": Lie("under another number than the study lists for it", number=7),
    },
    gate.check_signature: {
        "unsigned": Lie("its signature is not that site's", signature="none"),
        "forged": Lie("its signature is not that site's", signature="forged"),
    },
    gate.check_once: {
        "a second answer": Lie(
            "there are 2 different answers of this site", change=size(lambda n: n + 1), honest="before"
        ),
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

    assert door(study, home, tmp_path, None)[:2] == (studies.NAMES, "")


HARMLESS = {
    "a withheld size": Lie("", change=size(lambda n: n * 0)),
    "a copy": Lie("", honest="before"),
    "a forged answer first": Lie("signature", change=size(lambda n: n + 1), signature="forged", honest="after"),
    "a forged answer later": Lie("signature", change=size(lambda n: n + 1), signature="forged", honest="before"),
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
