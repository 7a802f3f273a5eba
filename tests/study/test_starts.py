"""What a site starts from: every method's own messages, and none with chosen weights of 3 000."""

from __future__ import annotations

import pytest
import tiny
import torch
from torch import Tensor

import consilience as co
from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Gaussian, Natural, Point, Samples
from consilience.key import Key
from consilience.messages import Client, Server
from consilience.privacy.disclosure.hidden_rows import holds_rows
from consilience.runs.engines import Sequential, Turn
from consilience.study.protocol.rehearsal import Broadcasts
from consilience.study.validation.gate import Refused
from consilience.study.validation.message import check_first, check_message, largest_weight, limit_weights


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("most", [3, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "problem"), tiny.in_turn(bounds=False))
def test_the_messages_and_replies_of_every_method_pass_in_every_round(name: str, problem: str, most: int) -> None:
    task, sites = tiny.problem_of(name, problem)
    method = tiny.method(name)
    server = Server(sites.inputs, sites.calibration, Key(5), len(sites))
    state = method.init(task, server)
    broadcasts = Broadcasts(method, task, sites.train[0])
    engine = Sequential(sites.train)
    rounds = 1 if method.about.one_shot else 2 if method.about.everyone else most

    for t in range(rounds):
        message = method.broadcast(state)
        check_message(message, broadcasts.until(t + 1), task)
        replies = engine.gather(method, task, message, range(len(sites)), Turn(t, Key(3), t / rounds))
        for reply, data in zip(replies, sites.train, strict=True):
            limit_weights(reply.payload, task)
            assert not holds_rows(reply.payload, data)
        state = method.aggregate(task, state, replies, server._replace(key=Key(7).fold(t)))

    assert broadcasts.known and None not in broadcasts.known


@pytest.mark.parametrize("rounds", [1, 2])
def test_messages_of_later_rounds_are_of_their_own_form(rounds: int) -> None:
    """MIME sends weights, then weights with an optimiser's memory and a gradient."""
    task, sites = tiny.PROBLEMS["classification"]()
    method = tiny.method("mime")
    broadcasts = Broadcasts(method, task, sites.train[0])
    start = task.init(Key(1))
    later = method.init(task, Server(None, None, Key(1), 4))._replace(gradient=start.params)

    check_message(start, broadcasts.until(rounds), task)
    if rounds == 1:
        with pytest.raises(Refused, match="its names are wrong"):
            check_message(later, broadcasts.until(rounds), task)
    else:
        check_message(later, broadcasts.until(rounds), task)


def test_weights_are_bounded_in_whatever_they_come() -> None:
    task, _ = tiny.PROBLEMS["classification"]()
    like = task.like
    names = list(like)
    large = {k: torch.full_like(v, 3000.0) for k, v in like.items()}
    one = {k: torch.ones_like(v) for k, v in like.items()}
    count = sum(v.numel() for v in like.values())
    bad = [
        Point(large),
        Samples({k: v[None] for k, v in large.items()}),
        Gaussian(large, one),
        Dense(torch.full((count,), 3000.0), torch.eye(count)),
        Natural(large, one),
        Natural(torch.full((count,), 6000.0), 2 * torch.eye(count)),
        ({"inside": (Point({**one, names[0]: large[names[0]]}),)},),
    ]

    assert largest_weight(task) == 1000.0  # deviations of the prior's, which is 1; fresh weights are smaller
    for value in bad:
        with pytest.raises(Refused, match=r"it has a weight of 3e\+03, and none is larger than 1e\+03"):
            check_message(value, [], task)
    for value in bad[:4]:
        with pytest.raises(Refused, match="a weight of"):
            limit_weights(value, task)
    check_message(Point({k: 999 * v for k, v in one.items()}), [], task)


def test_a_first_message_is_the_one_that_a_site_computes() -> None:
    task, _ = tiny.PROBLEMS["classification"]()
    own = task.init(Key(1))

    check_first(own, own)
    check_first(Point({k: v * (1 + 1e-7) for k, v in own.params.items()}), own)  # another processor's
    check_first((own, torch.tensor(0.5)), (own, torch.tensor(0.25)))  # a damping, of two sites and of four
    for other in (task.init(Key(2)), Point({}), (own, torch.tensor(3))):
        with pytest.raises(Refused, match="not what this study begins with"):
            check_first(other, (own, torch.tensor(4)) if isinstance(other, tuple) and len(other) == 2 else own)


# --- the attack ------------------------------------------------------------------------------------------------------


def patients() -> Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(60, 9, generator=draw)
    return Data.of(x, (x[:, 0] + 0.5 * torch.randn(60, generator=draw) > 0).long())


def chosen(task: co.Task, scale: float) -> Point:
    """Units that only rows far along one direction switch on, and outputs that hardly depend on them."""
    params = task.init(Key(1)).params
    hidden, features = params["0.weight"].shape
    direction = torch.nn.functional.normalize(torch.ones(features), dim=0)
    thresholds = torch.linspace(0.5, 3.0, hidden)
    last = 0.1 * torch.tensor([[1.0], [-1.0]]).expand(2, hidden)
    first = {"0.weight": scale * direction.expand(hidden, features), "0.bias": -scale * thresholds}
    return Point({**first, "2.weight": last, "2.bias": torch.zeros(2)})


def read_out(task: co.Task, start: Point, data: Data) -> Tensor:
    """How far each unit's change, divided by that of its offset, is from the nearest patient, in the size of a row.

    Without data, momentum descent on the prior alone multiplies every weight by the same number, which the coordinator
    knows: what remains is the sum of the rows that switched a unit on.
    """
    method = co.methods.FedAvg(co.SGD(epochs=10, batch=1000))
    reply = method.local(task, start, Client(data, (), Key(2).tensor)).send.params
    shrunk, velocity = 1.0, 0.0
    for _ in range(10):
        velocity = 0.9 * velocity + shrunk / 60
        shrunk -= 0.05 * velocity
    weight, offset = (shrunk * start.params[k].double() - reply[k].double() for k in ("0.weight", "0.bias"))
    rows = (weight / offset[:, None])[offset.abs() > 1e-6]
    return torch.cdist(rows, data.x.double()).amin(1) / data.x.norm(dim=1).mean()


def test_chosen_weights_read_out_a_patient_and_those_of_3000_are_refused() -> None:
    task = co.classification(co.models.mlp(9, 2, hidden=(20,)))
    data = patients()
    start = chosen(task, 3000.0)

    assert float(read_out(task, start, data).min()) < 0.01  # a patient, to within 1 %
    with pytest.raises(Refused, match=r"a weight of .*, and none is larger than 1e\+03"):
        check_message(start, Broadcasts(co.methods.FedAvg(), task, data).until(2), task)


def test_chosen_weights_of_the_usual_size_still_read_out_a_patient() -> None:
    """What docs/privacy.md says remains: whether a unit is switched on does not depend on the size of its weights."""
    task = co.classification(co.models.mlp(9, 2, hidden=(20,)))
    data = patients()
    start = chosen(task, 0.3)

    check_message(start, Broadcasts(co.methods.FedAvg(), task, data).until(2), task)

    assert float(read_out(task, start, data).min()) < 0.01
