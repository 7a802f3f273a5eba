"""A round's model is tried before it is kept: who spoils it is left out or named, and the last good round stays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.distributions.predictive import Categorical, Normal, finite_rows
from consilience.errors import Diverged, InputError
from consilience.messages import Received
from consilience.runs.engines import Sequential
from consilience.runs.engines.participation import Participation
from consilience.runs.engines.soundness import UNSOUND, NotFinite, predicts_finite, sift
from consilience.runs.store import Store

ROUNDS = 3


class Poisoned(Sequential):
    """In round 2 some sites send weights that are finite, and with which no network predicts a finite number."""

    liars: tuple[int, ...] = (2,)

    def gather(self, *words: Any) -> list[Received]:
        replies = super().gather(*words)
        if words[-1].round != 1:
            return replies
        return [self.spoil(reply) if reply.client in self.liars else reply for reply in replies]

    def spoil(self, reply: Received) -> Received:
        return reply._replace(payload=tree.map(lambda leaf: leaf * 0 + 3e38, reply.payload))


class AllPoisoned(Poisoned):
    liars = (0, 1, 2, 3)


def run(name: str, engine: type[Sequential], out: Path | None = None, **named: Any) -> co.Result:
    task, sites = tiny.classification()
    method = tiny.method(name)
    return co.run(method, task, sites, rounds=ROUNDS, engine=engine, out=out, **named)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedadam"])
def test_a_poisoned_round_goes_on_without_the_site_where_that_is_allowed(name: str, tmp_path: Path) -> None:
    result = run(name, Poisoned, tmp_path / "run", participation=Participation(min_replies=2))

    task, sites = tiny.classification()
    loaded = co.load(tmp_path / "run")
    assert predicts_finite(loaded.method, task, loaded.state, sites.all_test.x)
    assert result.report["failures"] == [{"site": sites.names[2], "round": 2, "why": UNSOUND}]
    assert any(f"Round 2 was pooled without {sites.names[2]}" in told for told in result.report["warnings"])


def test_a_site_that_is_left_out_remembers_what_it_remembered() -> None:
    before: list[dict[int, Any]] = []

    class Watched(Poisoned):
        def gather(self, *words: Any) -> list[Received]:
            before.append({k: [leaf.clone() for leaf in tree.leaves(memory)] for k, memory in self.memories.items()})
            return super().gather(*words)

    run("scaffold", Watched, participation=Participation(min_replies=2))

    assert tiny.equal(before[2][2], before[1][2])  # round 3 begins where round 2 began
    assert not tiny.equal(before[2][1], before[1][1])  # and not so for the others


@pytest.mark.parametrize(
    ("engine", "words"), [(Poisoned, {}), (AllPoisoned, {"participation": Participation(min_replies=1)})]
)
def test_a_poisoned_round_is_never_saved_and_a_resume_goes_on_from_the_last_good_one(
    engine: type[Sequential], words: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "run"

    with pytest.raises(Diverged, match=r"Round 2.* not finite.* Round 1 is saved: go on with resume=True"):
        run("fedavg", engine, out, **words)

    saved = Store(out).load(tiny.method("fedavg"))
    assert saved is not None and saved.rounds == 1 and tree.all_finite(saved.state)
    assert json.loads((out / "run.json").read_text())["finished"] is False
    Sequential.__name__, name = engine.__name__, Sequential.__name__  # the engine's name is part of a run's identity
    try:
        resumed = run("fedavg", Sequential, out, resume=True)
    finally:
        Sequential.__name__ = name
    whole = run("fedavg", Sequential)
    assert tiny.equal(tree.leaves(resumed.state), tree.leaves(whole.state))


def test_a_state_that_is_not_finite_is_not_read(tmp_path: Path) -> None:
    result = run("fedavg", Sequential)
    spoilt = tree.map(lambda leaf: leaf * torch.nan, result.state)
    assert result.checkpoint is not None
    wrong = dataclasses.replace(result, state=spoilt, checkpoint=result.checkpoint._replace(state=spoilt))
    wrong.save(tmp_path / "run")

    with pytest.raises(InputError, match="is not finite and cannot be used"):
        co.load(tmp_path / "run")


def test_predictions_that_are_not_finite_are_refused() -> None:
    _, sites = tiny.classification()
    result = run("fedavg", Sequential)
    large = dataclasses.replace(result, state=tree.map(lambda leaf: leaf * 0 + 3e38, result.state))

    with pytest.raises(Diverged, match=r"not finite for 3 of 3 rows \(first: row 1\)"):
        large.predict(sites.all_test.x[:3])


def test_a_probability_of_zero_is_finite_and_a_negative_variance_is_nothing() -> None:
    one = torch.ones(3)
    inf = torch.inf

    assert finite_rows(Categorical(torch.tensor([[0.0, -inf], [torch.nan, 0.0], [inf, 0.0]]))).tolist() == [
        True,
        False,
        False,
    ]
    assert finite_rows(Normal(torch.tensor([0.0, inf, 1.0]), torch.tensor([1.0, 1.0, -3.0]), one)).tolist() == [
        True,
        False,
        False,
    ]


def replies(*values: float) -> list[Received]:
    return [Received(k, torch.ones(()), torch.tensor(value)) for k, value in enumerate(values)]


def total(received: Sequence[Received]) -> torch.Tensor:
    if any(float(reply.payload) == -7 for reply in received):
        raise torch.linalg.LinAlgError("singular")
    return torch.stack([reply.payload for reply in received]).sum()


def is_small(state: torch.Tensor) -> bool:
    return abs(float(state)) < 10


@pytest.mark.parametrize(
    ("values", "left_out"),
    [
        ((1, 2, 3), ()),
        ((1, 50, 3), (1,)),
        ((1, 50, 3, 60), (1, 3)),  # two liars: neither's absence alone would do
        ((6, 5, 1), (0,)),  # each is fine alone: whose absence helps first
        ((1, -7, 3), (1,)),  # an error within the sum
    ],
)
def test_who_is_to_blame(values: tuple[float, ...], left_out: tuple[int, ...]) -> None:
    sifted = sift(replies(*values), total, is_small)

    assert sifted.left_out == left_out
    assert float(sifted.state) == sum(value for k, value in enumerate(values) if k not in left_out)
    assert {reply.client for reply in sifted.replies} == set(range(len(values))) - {*left_out}


def test_nobody_is_blamed_where_nobody_else_helps() -> None:
    with pytest.raises(NotFinite, match="whichever site is left out"):
        sift(replies(50, 60), total, is_small)
    with pytest.raises(torch.linalg.LinAlgError):
        sift(replies(-7), total, is_small)
