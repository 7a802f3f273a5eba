"""The audit of methods: what leaks is found, what is noise is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import consilience as co
from consilience.data.sites import Data
from consilience.key import Key
from consilience.messages import Reply
from consilience.method import Method
from consilience.models.bounded import Bounded
from consilience.privacy.audit.canaries import corners
from consilience.privacy.dp.mechanisms import Clipped, Privacy
from consilience.privacy.entropy import Simulated
from consilience.runs.audit import audit_method, fit_coins


def canaries(count: int, features: int, classes: int | None, seed: int = 6) -> Data:
    return corners(-torch.ones(features), torch.ones(features), classes, count, Key(seed))


def test_samples_from_100_rows_refute_a_small_epsilon() -> None:
    """Of 200 canaries about 100 are in; they are all the rows there are."""
    task = co.classification(co.models.mlp(20, 10, (100,)))
    audited = audit_method(co.methods.Mixture(), task, None, canaries(200, 20, 10), Key(1), delta=1e-3)
    assert 80 <= int(audited.included.sum()) <= 120
    assert audited.attack == "likelihood"
    assert audited.bound.refutes(1.0)


def test_sums_tell_every_coin() -> None:
    """300 numbers of a Gram matrix are more than 60 coins, so that the coins are the only solution."""
    task = co.classification(co.models.linear(24, 2))
    known = canaries(50, 24, 2, seed=1)
    audited = audit_method(co.methods.ExactPooling(), task, known, canaries(60, 24, 2), Key(2))
    assert audited.attack == "sums"
    assert torch.equal(audited.scores > 0, audited.included)
    assert audited.bound.epsilon == audited.bound.ceiling


def test_a_reply_that_does_not_look_at_rows_is_refuted_no_more_often_than_the_confidence_allows() -> None:
    """One that always sends the same weights is 0-differentially private."""

    class Blind(co.methods.FedAvg):
        def local(self, task, message, client):  # type: ignore[no-untyped-def]
            return Reply(message, client.data.size)

    task = co.classification(co.models.linear(8, 2))
    method: Method = Blind()
    audits = [audit_method(method, task, None, canaries(40, 8, 2, seed), Key(seed), references=1) for seed in range(40)]
    refuted = sum(audited.bound.refutes(0.0) for audited in audits)
    assert refuted <= 6  # 5 % of 40 at most are expected, and three deviations of their number beyond that


def test_coins_are_found_in_a_sum_and_through_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = torch.randn(40, 300, generator=generator, dtype=torch.float64)
    coins = torch.rand(40, generator=generator) < 0.5
    total = coins.double() @ parts
    assert torch.allclose(fit_coins(parts, total) + 0.5, coins.double(), atol=1e-5)
    noisy = fit_coins(parts, total + 2 * torch.randn(300, generator=generator, dtype=torch.float64))
    assert float(((noisy > 0) == coins).double().mean()) > 0.95  # each part is √300 ≈ 17 long, the noise along it 2
    with pytest.raises(RuntimeError):
        fit_coins(parts, total[:-1])


def test_noise_that_is_known_is_not_taken_for_coins() -> None:
    """More coins than numbers: where the noise's variance is known, no linear guess is nearer on average than this one;
    guessing ½ each time, whatever was sent, is wrong by 0.25.
    """
    generator = torch.Generator().manual_seed(1)
    errors = {0.0: 0.0, 4.0: 0.0}
    for _ in range(20):
        parts = torch.randn(60, 20, generator=generator, dtype=torch.float64)
        coins = (torch.rand(60, generator=generator) < 0.5).double()
        total = coins @ parts + 2 * torch.randn(20, generator=generator, dtype=torch.float64)
        for var in errors:
            errors[var] += float((fit_coins(parts, total, var) + 0.5 - coins).square().mean()) / 20
    assert errors[4.0] < 0.25 and errors[4.0] < errors[0.0]


def test_the_guesser_of_private_sums_knows_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held against draws of it: of about 300 numbers 20 times, whose mean square has a deviation of 2 %."""
    used: list[tuple[int, float]] = []

    def note(parts: torch.Tensor, total: torch.Tensor, noise_var: float = 0.0) -> torch.Tensor:
        used.append((parts.shape[1], noise_var))
        return fit_coins(parts, total, noise_var)

    monkeypatch.setattr("consilience.runs.audit.fit_coins", note)
    task = co.classification(nn.Sequential(Bounded(2.0), nn.Linear(24, 2)))
    privacy = Privacy(3.0, 1e-4)
    known = canaries(50, 24, 2, seed=1)

    audited = audit_method(
        co.methods.ExactPooling(privacy=privacy), task, known, canaries(60, 24, 2), Key(2), delta=1e-4
    )

    numbers, noise_var = used[0]
    nothing = Clipped(torch.zeros(numbers, dtype=torch.float64))
    drawn = torch.cat([privacy.add_noise(nothing, Simulated(Key(i))).values for i in range(20)])
    assert audited.attack == "sums"
    assert noise_var == pytest.approx(float(drawn.double().square().mean()), rel=0.08)
    assert not audited.bound.refutes(3.0)
