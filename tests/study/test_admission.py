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
from lies import BASES, LIES, TABLE, UNKNOWABLE, as_markdown, size
from rounds import server_key

import consilience as co
from consilience.distributions.posterior import Dense, Gaussian, Point
from consilience.errors import InputError
from consilience.messages import Reply
from consilience.study.coordinator import pool
from consilience.study.protocol.members import Study
from consilience.study.validation.gate import ARRIVAL, CONTENT, Arrival, Gate, Refused, Rules
from consilience.study.validation.rules import group_answers, may_leave

needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs Flower")
DOORS = [pytest.param(by_files, id="files"), pytest.param(by_flower, id="flower", marks=needs_flower)]
ROOT = Path(__file__).parents[2]
HONEST = tuple(name for name in studies.NAMES if name != LIAR)


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


def test_every_rule_stands_in_the_table() -> None:
    assert set(TABLE) == {*ARRIVAL, *CONTENT}
    assert as_markdown() in (ROOT / "docs" / "study.md").read_text(encoding="utf-8")  # `lies.as_markdown` writes it


def lies_at_doors() -> list[Any]:
    """Every lie by files, and every other one over Flower, whose gate is the same; all of them in the slow suite."""
    pairs = []
    for place, name in enumerate(LIES):
        pairs.append(pytest.param(name, by_files, id=f"{name}-files"))
        marks = [needs_flower]
        if place % 2:
            marks.append(pytest.mark.slow)
        pairs.append(pytest.param(name, by_flower, id=f"{name}-flower", marks=marks))
    return pairs


@pytest.mark.parametrize(("name", "door"), lies_at_doors())
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


@pytest.mark.parametrize("name", UNKNOWABLE)
@pytest.mark.filterwarnings("ignore:Coresets can show")
def test_what_nobody_can_know_is_let_in_and_every_sites_influence_is_printed(
    name: str, homes: Callable[[str], tuple[Study, Path]], tmp_path: Path
) -> None:
    lie = UNKNOWABLE[name]
    study, home = homes(lie.base)

    found = by_files(study, home, tmp_path, lie)
    files = [*(home / f"{honest}.reply" for honest in HONEST), tmp_path / "lie.reply"]
    account = pool(study, files, server_key(home)).account

    assert found.names == studies.NAMES
    assert [site["site"] for site in account["per_site"]] == [*studies.NAMES]
    assert all(0 < site["influence"] < 1 for site in account["per_site"])


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

    may_leave(reply, co.methods.FedAvg(), Rules())
    with pytest.raises(InputError, match=f"The reply of fedavg stays here: {sentence}"):
        may_leave(reply, co.methods.FedAvg(), rules)


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
