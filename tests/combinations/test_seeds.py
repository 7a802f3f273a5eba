"""What is random changes with the seed and only with it, whatever layers a network has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import consilience as co
from consilience.data.sites import Sites
from consilience.errors import InputError
from consilience.inference import SGD
from consilience.key import Key
from consilience.tree import Params

QUICK = co.methods.FedAvg(SGD(epochs=1))


class Attention(nn.Module):
    """Attention over the columns, with a scale of ones that no layer draws."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(1, 4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True)
        self.scale = nn.Parameter(torch.ones(4))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.lift(x.unsqueeze(-1))
        tokens = tokens + self.attend(tokens, tokens, tokens, need_weights=False)[0]
        return self.last(tokens.mean(1) * self.scale)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.LSTM(1, 3, batch_first=True)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.read(x.unsqueeze(-1))[0][:, -1])


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.look_up = nn.Embedding(6, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.look_up(x).mean(1))


class Own(nn.Module):
    """A layer with weights of its own, which it draws as torch's layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.PReLU(), nn.Dropout(0.5), nn.Linear(4, 2))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "recurrent": Recurrent,
    "words": Words,
    "own": Own,
    "normalised": normalised,
}


def sites(tokens: bool = False) -> Sites:
    draw = np.random.default_rng(0)
    x = draw.integers(0, 6, (24, 3)) if tokens else draw.normal(size=(24, 3))
    data = co.from_arrays(x, (x[:, 0] > x.mean()).astype(int), np.arange(24) % 2, tokens=tokens)
    return data.split(co.splits.natural(), calibration=0, seed=0)


def trained(kind: str, seed: int) -> Params:
    result = co.run(
        QUICK, co.classification(NETWORKS[kind]()), sites(kind == "words"), rounds=1, seed=seed, scored=False
    )
    return result.state.posterior.params  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_same_seed_gives_the_same_weights_however_often_the_network_is_built(kind: str) -> None:
    first = trained(kind, 0)
    again = trained(kind, 0)  # built from where torch's generator stands by now

    assert all(torch.equal(weight, again[name]) for name, weight in first.items())


@pytest.mark.parametrize("kind", NETWORKS)
def test_another_seed_draws_every_weight_anew(kind: str) -> None:
    task = co.classification(NETWORKS[kind]())

    first, other = (task.init(Key(seed)).params for seed in (0, 1))

    constant = {name for name, weight in first.items() if bool((weight == weight.flatten()[0]).all())}
    assert {name for name in first if torch.equal(first[name], other[name])} == constant  # scales of ones, say


def test_layers_that_always_drew_from_the_key_keep_their_numbers() -> None:
    # What `Task.init` was before it looked after other layers: each layer in turn, from the key's generator.
    network = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.LSTM(6, 3), nn.Embedding(5, 3), nn.Linear(3, 2))
    drawn = co.classification(network).init(Key(3)).params

    torch.default_generator.manual_seed(int(Key(3).fold(0).seed))
    for layer in network:
        if not isinstance(layer, nn.Flatten):
            layer.reset_parameters()

    assert all(torch.equal(drawn[name], weight) for name, weight in network.named_parameters())


def test_attention_starts_as_torch_starts_it() -> None:
    # Xavier: uniform within √(6/(4 + 12)) for the stacked projections, and no bias.
    params = co.classification(Attention()).init(Key(0)).params

    assert 0.8 < float(params["attend.in_proj_weight"].abs().max()) / (6 / 16) ** 0.5 <= 1
    assert not params["attend.in_proj_bias"].any()
    assert not params["attend.out_proj.bias"].any()


def test_a_resumed_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    def start(rounds: int, out: str, resume: bool = False) -> Params:
        task = co.classification(Attention())
        where = tmp_path / out
        result = co.run(QUICK, task, sites(), rounds=rounds, out=where, resume=resume, scored=False)
        return result.state.posterior.params  # type: ignore[no-any-return]

    start(1, "halved")
    halved, whole = start(2, "halved", resume=True), start(2, "whole")

    assert all(torch.equal(weight, halved[name]) for name, weight in whole.items())


class Bare(nn.Module):
    """A network that makes something of its inputs with numbers drawn when it is built."""

    def __init__(self, give: Callable[[nn.Module], object]) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)
        give(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


class DrawnBuffer(Bare):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.noise)  # type: ignore[arg-type]


class DrawnElsewhere(Bare):
    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.token.copy_(torch.from_numpy(np.random.default_rng().normal(size=3)))  # type: ignore[operator,union-attr]


def with_token(network: nn.Module) -> None:
    network.token = nn.Parameter(torch.randn(3))


def with_list(network: nn.Module) -> None:
    network.tokens = nn.ParameterList([torch.randn(3)])


def with_buffer(network: nn.Module) -> None:
    network.register_buffer("noise", torch.randn(3))


def with_norm(network: nn.Module) -> None:
    torch.nn.utils.parametrizations.weight_norm(network.first)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Bare(with_token), r"the weight 'token'.*: give Bare a method `reset_parameters`"),
        (lambda: Bare(with_list), r"the weight 'tokens.0'.*: give Bare a method"),
        (lambda: Bare(with_norm), r"'first.parametrizations.weight.original0'.*: leave the parametrisation out"),
        (lambda: DrawnBuffer(with_buffer), "the buffer 'noise'"),
        (lambda: DrawnElsewhere(with_token), r"the weight 'token': its `reset_parameters` draws other numbers"),
    ],
)
def test_what_the_seed_cannot_set_is_refused_by_name(build: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(InputError, match=said):
        co.run(QUICK, co.classification(build()), sites(), rounds=1, scored=False)


def test_a_run_is_resumed_with_the_constants_it_began_with(tmp_path: Path) -> None:
    co.run(QUICK, co.classification(Bare(with_buffer)), sites(), rounds=1, out=tmp_path / "run", scored=False)

    with pytest.raises(InputError, match="was made with another method, model"):
        co.run(QUICK, co.classification(Bare(with_buffer)), sites(), rounds=2, out=tmp_path / "run", resume=True)
