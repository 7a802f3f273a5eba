"""MIME and MimeLite against their steps by hand, and against the centralised steps they mimic."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.penalties import decay
from consilience.distributions.posterior import Point
from consilience.distributions.prior import Flat
from consilience.inference import AdamSteps, Descent
from consilience.inference.gradient import full_gradient, gradient_of
from consilience.key import Key
from consilience.messages import Server
from consilience.runs.engines import Parallel, Sequential, Turn, Vectorised

CURVES, CENTRES, SIZES = (1.0, 4.0), (0.0, 3.0), (2, 6)  # fₖ(θ) = hₖ (θ − cₖ)²/2


def clients(strength: float = 0.0) -> tuple[co.Task, list[Data]]:
    """x = √h, y = √h·c, noise 1: the mean loss is h(θ − c)²/2 + const, and λθ²/2 where weights decay."""
    task = co.regression(nn.Linear(1, 1, bias=False), noise=1.0, prior=Flat())
    if strength:
        task = task.tilted(decay(strength))
    data = [
        Data.of(torch.full((n, 1), h**0.5), torch.full((n,), h**0.5 * c))
        for h, c, n in zip(CURVES, CENTRES, SIZES, strict=True)
    ]
    return task, data


def after(method: co.Method, exchanges: int, engine: type = Sequential, strength: float = 0.0) -> float:
    task, data = clients(strength)
    server, where = Server(None, None, Key(0), 2), engine(data)
    state = method.init(task, server)._replace(posterior=Point({"weight": torch.full((1, 1), 0.5)}))
    for t in range(exchanges):
        replies = where.gather(method, task, method.broadcast(state), [0, 1], Turn(t, Key(0)))
        state = method.aggregate(task, state, replies, server)
    return float(state.posterior.params["weight"])


def by_hand(rounds: int, rate: float, momentum: float, corrected: bool, strength: float = 0.0) -> float:
    """Two full-batch steps a round; sizes 2 and 6 of 8."""

    def gradient(k: int, x: float) -> float:
        return CURVES[k] * (x - CENTRES[k]) + strength * x

    x, v = 0.5, 0.0
    for _ in range(rounds):
        c = 0.25 * gradient(0, x) + 0.75 * gradient(1, x)
        ends = []
        for k in (0, 1):
            y = x
            for _ in range(2):
                g = gradient(k, y) - gradient(k, x) + c if corrected else gradient(k, y)
                y -= rate * (momentum * v + g)
            ends.append(y)
        x, v = 0.25 * ends[0] + 0.75 * ends[1], momentum * v + c
    return x


@pytest.mark.parametrize("engine", [Sequential, Vectorised, Parallel])
def test_both_take_the_steps_of_their_boxes(engine: type) -> None:
    descent = Descent(rate=0.05, momentum=0.6)
    mime = after(co.methods.Mime(descent, epochs=2, batch=10), 6, engine)
    lite = after(co.methods.MimeLite(descent, epochs=2, batch=10), 3, engine)
    assert mime == pytest.approx(by_hand(3, 0.05, 0.6, corrected=True), abs=1e-6)
    assert lite == pytest.approx(by_hand(3, 0.05, 0.6, corrected=False), abs=1e-6)
    assert mime != pytest.approx(lite, abs=1e-3)


@pytest.mark.parametrize("engine", [Sequential, Vectorised])
def test_a_tilt_counts_once(engine: type) -> None:
    descent, still = Descent(rate=0.05, momentum=0.6), Descent(rate=0.05, momentum=0.0)
    mime = after(co.methods.Mime(descent, epochs=2, batch=10), 6, engine, strength=0.5)
    lite = after(co.methods.MimeLite(descent, epochs=2, batch=10), 3, engine, strength=0.5)
    assert mime == pytest.approx(by_hand(3, 0.05, 0.6, corrected=True, strength=0.5), abs=1e-6)
    assert lite == pytest.approx(by_hand(3, 0.05, 0.6, corrected=False, strength=0.5), abs=1e-6)
    # The minimum of Σ nₖ/n (hₖ(θ − cₖ)² + λθ²)/2: Σ nₖhₖcₖ / Σ nₖ(hₖ + λ) = 72/(26 + 8·0.5).
    assert after(co.methods.Mime(still, epochs=3, batch=10), 80, engine, strength=0.5) == pytest.approx(
        72 / 30, abs=1e-4
    )


def test_mime_with_one_step_is_the_centralised_optimiser() -> None:
    # One local step from θ: ∇fₖ(θ) − ∇fₖ(θ) + c = c at every client: a round is one step of torch's Adam on Σ nₖ/n fₖ.
    found = after(co.methods.Mime(AdamSteps(rate=0.1), epochs=1, batch=10), 10)
    weight = torch.full((1,), 0.5, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=0.1)
    for _ in range(5):
        adam.zero_grad()
        (
            0.25 * 0.5 * CURVES[0] * (weight - CENTRES[0]) ** 2 + 0.75 * 0.5 * CURVES[1] * (weight - CENTRES[1]) ** 2
        ).sum().backward()
        adam.step()
    assert found == pytest.approx(weight.item(), abs=1e-5)


def test_mime_stands_still_at_the_common_optimum_where_mimelite_drifts() -> None:
    # Σ nₖ hₖ (θ − cₖ) = 0 at (6·4·3)/(2·1 + 6·4) = 72/26.
    best, still = 72 / 26, Descent(rate=0.05, momentum=0.0)
    assert after(co.methods.Mime(still, epochs=3, batch=10), 80) == pytest.approx(best, abs=1e-4)
    # MimeLite: three steps leave qₖ = (1 − ηhₖ)³ of the way, so it stands still where Σ nₖ (1 − qₖ)(θ − cₖ) = 0.
    first, second = 2 * (1 - 0.95**3), 6 * (1 - 0.8**3)
    drifted = second * 3 / (first + second)
    assert after(co.methods.MimeLite(still, epochs=3, batch=10), 40) == pytest.approx(drifted, abs=1e-4)


def test_the_gradient_over_all_rows_does_not_depend_on_the_pieces() -> None:
    g = torch.Generator().manual_seed(0)
    task = co.classification(co.models.mlp(3, 2, hidden=(4,)))
    data = Data.of(torch.randn(23, 3, generator=g), torch.randint(2, (23,), generator=g))
    like = task.init(Key(0)).params
    whole = gradient_of(task, like, data.size)(tree.ravel(like), data)
    torch.testing.assert_close(tree.ravel(full_gradient(task, like, data, 5)), whole, atol=1e-6, rtol=1e-5)
