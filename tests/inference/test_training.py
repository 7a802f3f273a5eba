"""Training: layers that draw, running statistics, weight decay, schedules over rounds, unequal numbers of passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import tiny
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.distributions.prior import Flat, Isotropic
from consilience.inference import SWA, CropAndFlip, Inference
from consilience.inference.chain import draw_epochs
from consilience.inference.gradient import pass_of
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server
from consilience.method import BatchNormed, State
from consilience.methods import METHODS
from consilience.models.batchnorm import BatchNorm
from consilience.models.resnet import resnet
from consilience.models.seeded import Dropout, normals, seed_draws, uniforms
from consilience.runs.engines import Parallel, Sequential, Turn, Vectorised


def rows(count: int, shape: tuple[int, ...] = (4,), classes: int = 3, seed: int = 0) -> Data:
    g = torch.Generator().manual_seed(seed)
    return Data.of(2 * torch.randn(count, *shape, generator=g) + 1, torch.randint(classes, (count,), generator=g))


def gathered(engine: str, method: co.Method, task: co.Task, data: list[Data]) -> list[Received]:
    where = {"sequential": Sequential, "vectorised": Vectorised, "parallel": Parallel}[engine](data)
    state = method.init(task, Server(None, None, Key(2), len(data)))
    return where.gather(method, task, method.broadcast(state), range(len(data)), Turn(0, Key(3)))


def furthest(a: object, b: object) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def dropout_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 3))


def batchnorm_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def noisy_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), Noisy(), nn.Linear(6, 3))


class Noisy(nn.Module):
    """Another layer that draws, as a variational one does."""

    seed: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        seed_draws(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + normals(self.seed, x.shape, x) if self.training else x


NETWORKS = {
    "dropout": (dropout_mlp, (4,)),
    "noise": (noisy_mlp, (4,)),
    "batchnorm": (batchnorm_mlp, (4,)),
    "resnet": (lambda: resnet((1, 8, 8), 3, depth=8, norm=nn.BatchNorm2d), (1, 8, 8)),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("inference", [co.SGD(0.02, epochs=2, batch=16), co.CyclicalSGHMC(0.01, 0.1, 2, 1, 1, 1, 16)])
def test_engines_agree_on_unequal_clients(name: str, inference: Inference) -> None:
    network, shape = NETWORKS[name]
    data = [rows(n, shape, seed=n) for n in (33, 20, 16)]  # last batches of 1, 4 and 16 rows
    task, method = co.classification(network()), co.methods.FedAvg(inference)

    alone = gathered("sequential", method, task, data)

    for engine in ("vectorised", "parallel"):
        again = gathered(engine, method, task, data)
        assert furthest([r.payload for r in alone], [r.payload for r in again]) <= 1e-5


def test_draws_do_not_depend_on_padding() -> None:
    like, seed = torch.zeros(()), torch.tensor(7)
    for draws in (uniforms, normals):
        assert torch.equal(draws(seed, (9, 5), like), draws(seed, (40, 5), like)[:9])


def test_normals_are_standard() -> None:
    # Kolmogorov's distance of 10⁵ draws is below 1.63/√10⁵ = 0.0052 in 99 runs of 100.
    drawn = normals(torch.tensor(3), (100_000,), torch.zeros((), dtype=torch.float64)).sort().values
    levels = torch.arange(1, 100_001) / 100_000
    assert float((torch.special.ndtr(drawn) - levels).abs().max()) < 0.0052


def test_dropout_keeps_the_share_and_the_mean() -> None:
    layer = Dropout(0.3)
    out = layer(torch.ones(1000, 100))
    # 10⁵ numbers: the kept share's deviation is √(0.3·0.7/10⁵) = 0.0014.
    assert (out > 0).double().mean().item() == pytest.approx(0.7, abs=0.006)
    assert out[out > 0].unique().tolist() == pytest.approx([1 / 0.7])
    assert torch.equal(layer.eval()(torch.ones(3, 2)), torch.ones(3, 2))
    whole = Dropout(0.5, channels=True)(torch.ones(50, 4, 3, 3)).flatten(2)
    assert bool((whole.amin(-1) == whole.amax(-1)).all())


def test_dropout_draws_anew_at_every_step_and_in_every_layer() -> None:
    task, data = co.classification(dropout_mlp()), rows(30)
    like = task.like
    vector, learn = tree.ravel(like), pass_of(task, task.like, data.size)
    gradients = [learn(vector, data, key, step)[1].clone() for key in (Key(0), Key(1)) for step in (0, 1)]
    assert all(not torch.equal(a, b) for i, a in enumerate(gradients) for b in gradients[:i])
    assert torch.equal(gradients[0], learn(vector, data, Key(0), 0)[1])
    # The same p, one after the other: equal seeds would give equal masks, and 0.5² of the ones would come through.
    twice = co.classification(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5), nn.Linear(400, 2, bias=False)))
    ones = Data.of(torch.ones(1, 400), torch.zeros(1, dtype=torch.int64))
    found = pass_of(twice.with_prior(Flat()), twice.like, ones.size)(tree.ravel(twice.like), ones, Key(0), 0)[1]
    assert (found[:400] != 0).double().mean().item() == pytest.approx(0.25, abs=0.08)  # deviation √(¼·¾/400) = 0.022


def test_predictions_have_no_noise() -> None:
    task, x = co.classification(dropout_mlp()), rows(5).x
    p = task.predictive(task.init(Key(0)))
    assert torch.equal(p(x)[0], p(x)[0])


def test_batch_normalisation_is_torchs() -> None:
    theirs, ours = nn.BatchNorm2d(3), BatchNorm(3)
    weights = torch.tensor([1.5, -0.5, 2.0])
    for layer in (theirs, ours):
        layer.weight.data.copy_(weights)  # type: ignore[union-attr]
    x = rows(7, (3, 4, 5)).x
    padded = torch.cat([x, torch.full((4, 3, 4, 5), 99.0)])
    expected = theirs(x)
    ours.rows = torch.cat([torch.rand(7) + 0.1, torch.zeros(4)])  # any weight above 0 counts once

    torch.testing.assert_close(ours(padded)[:7], expected)
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_running_statistics_are_those_of_torch_and_nothing_else_moves_them() -> None:
    network, data = batchnorm_mlp(), rows(32)
    task = co.classification(network, prior=Isotropic(0.01)).tilted(co.task.decay(0.5))  # both would shrink them

    point = co.SGD(rate=1e-9, momentum=0.0, epochs=3, batch=100)(task, Point(task.like), Client(data, (), Key(0)))

    # At a rate of nearly 0 the inputs of the layer never change: three passes of momentum 0.1 over one batch.
    inside = data.x @ network[0].weight.T.detach() + network[0].bias.detach()  # type: ignore[operator, union-attr]
    left = 0.9**3
    torch.testing.assert_close(point.params["1.running_mean"], (1 - left) * inside.mean(0), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(point.params["1.running_var"], left + (1 - left) * inside.var(0), atol=1e-5, rtol=1e-4)


def test_samplers_add_no_noise_to_running_statistics() -> None:
    task, data = co.classification(batchnorm_mlp()), rows(32)
    start, client = task.init(Key(1)), Client(data, (), Key(0))
    hot = co.SGLD(rate=1e-12, epochs=2, burn=1, every=1, batch=100, temperature=1e14)(task, start, client)
    cold = co.SGD(rate=1e-12, momentum=0.0, epochs=1, batch=100)(task, start, client)
    # The first pass sees the start's weights, whatever noise the step then adds: its statistics are known.
    once = co.SGLD(rate=1e-12, epochs=1, burn=0, every=1, batch=100, temperature=1e14)(task, start, client)
    for name in task.statistics:
        torch.testing.assert_close(once.params[name][0], cold.params[name])
    assert furthest(hot.params["0.weight"][0], start.params["0.weight"]) > 0.1


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if issubclass(m, BatchNormed)))
def test_methods_that_move_statistics_do(name: str) -> None:
    _, sites = tiny.classification()
    task = co.classification(nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))

    result = co.run(tiny.method(name), task, sites, rounds=1, engine="sequential")

    assert all(torch.isfinite(torch.tensor(v)) for v in result.metrics.values())
    if name in ("fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "scaffold"):
        points = [r.payload[0] if name == "scaffold" else r.payload for r in result.replies]
        shares = torch.ones(4) if name == "scaffold" else co.messages.weights(result.replies)
        mean = co.aggregation.average(points, shares).params
        for statistic in task.statistics:
            torch.testing.assert_close(result.state.posterior.params[statistic], mean[statistic])
            assert furthest(mean[statistic], task.like[statistic]) > 1e-3


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if not issubclass(m, BatchNormed)))
def test_other_methods_refuse_them(name: str) -> None:
    _, sites = tiny.classification()
    task = co.classification(nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    with pytest.raises(co.InputError, match="running statistics"):
        co.run(tiny.method(name), task, sites, rounds=1)


def test_an_inference_of_ones_own_must_say_that_it_moves_them() -> None:
    _, sites = tiny.classification()
    task = co.classification(nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))
    with pytest.raises(co.InputError, match="running statistics"):
        co.run(co.methods.FedAvg(lambda task, start, client: start), task, sites, rounds=1)


def spectral(steps: int = 1) -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5), n_power_iterations=steps)


UNCONTROLLED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "alpha dropout": (lambda: nn.AlphaDropout(0.5), "no key controls"),
    "random gradients": (nn.RReLU, "different outputs"),
    "no statistics": (lambda: nn.BatchNorm1d(5, track_running_stats=False), "running statistics and a fixed momentum"),
    "no momentum": (lambda: nn.BatchNorm1d(5, momentum=None), "running statistics and a fixed momentum"),
    "spectral norm": (spectral, "would not move"),
}


@pytest.mark.parametrize("name", UNCONTROLLED)
def test_what_cannot_be_controlled_is_refused(name: str) -> None:
    layer, words = UNCONTROLLED[name]
    _, sites = tiny.classification()
    network = nn.Sequential(nn.Linear(2, 5), layer(), nn.Linear(5, 2))
    with pytest.raises(co.InputError, match=words):
        co.run(tiny.method("fedavg"), co.classification(network), sites)


def test_a_buffer_that_stands_still_until_the_weights_move_is_refused_too() -> None:
    """A converged power iteration leaves its buffers as they are: only moved weights show that they are used."""
    layer = spectral(steps=500)
    layer.train()(torch.zeros(1, 5))
    _, sites = tiny.classification()
    with pytest.raises(co.InputError, match="would not move"):
        co.run(tiny.method("fedavg"), co.classification(nn.Sequential(nn.Linear(2, 5), layer, nn.Linear(5, 2))), sites)


def test_the_users_network_stays_as_it_was() -> None:
    network = batchnorm_mlp()
    task = co.classification(network)
    co.SGD(epochs=1)(task, Point(task.like), Client(rows(20), (), Key(0)))
    assert network.training and isinstance(network[1], nn.BatchNorm1d)
    assert torch.equal(network[1].running_var, torch.ones(6))  # type: ignore[arg-type]


# --- Augmentation ---


def test_crop_and_flip_gives_what_a_loop_over_images_gives() -> None:
    x, key = rows(200, (2, 5, 6)).x, Key(4)
    found = CropAndFlip(padding=1)(x, key)
    # Every image must be one of 3 · 3 crops of the padded one or its mirror image; all eighteen appear about equally.
    padded = nn.functional.pad(x, [1] * 4)
    seen = torch.zeros(200, 3, 3, 2, dtype=torch.bool)
    for top in range(3):
        for left in range(3):
            crop = padded[:, :, top : top + 5, left : left + 6]
            for mirrored, image in enumerate((crop, crop.flip(3))):
                seen[:, top, left, mirrored] = (image == found).flatten(1).all(1)
    assert bool((seen.flatten(1).sum(1) == 1).all())
    counts = seen.sum(0).double()  # 200/18 = 11.1 each, deviation 3.2
    assert counts.min() >= 2 and counts.max() <= 24
    assert abs(float(counts[..., 0].sum()) - 100) < 25  # deviation 7.1


@pytest.mark.parametrize("inference", [co.SGD(0.02, 0.9, 2, 16), SWA(epochs=2, batch=16, begin=2, every=2)])
def test_augmented_training_is_the_same_on_every_engine(inference: co.SGD | SWA) -> None:
    data = [rows(n, (1, 6, 6), seed=n) for n in (33, 20, 16)]
    task = co.classification(nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)))
    method = co.methods.FedAvg(dataclasses.replace(inference, augment=CropAndFlip()))

    alone, plain = (
        gathered("sequential", method, task, data),
        gathered("sequential", co.methods.FedAvg(inference), task, data),
    )

    assert furthest([r.payload for r in alone], [r.payload for r in plain]) > 1e-4
    for engine in ("vectorised", "parallel"):
        again = gathered(engine, method, task, data)
        assert furthest([r.payload for r in alone], [r.payload for r in again]) <= 1e-5


def test_only_images_can_be_cropped() -> None:
    with pytest.raises(co.InputError, match="not images and cannot be cropped"):
        CropAndFlip()(torch.zeros(3, 4), Key(0))


# --- Optimisers ---


def quadratic(centre: float, count: int = 4) -> tuple[co.Task, Data]:
    """x = 1, y = centre, noise 1: the mean loss is (θ − centre)²/2 + const, its gradient θ − centre."""
    task = co.regression(nn.Linear(1, 1, bias=False), noise=1.0, prior=Flat())
    return task, Data.of(torch.ones(count, 1), torch.full((count,), centre))


def at(value: float) -> Point:
    return Point({"weight": torch.full((1, 1), value)})


def test_weight_decay_is_torchs() -> None:
    task, data = quadratic(1.0)
    for ours, theirs in (
        (co.SGD(0.1, 0.9, 5, 10, weight_decay=0.3), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.3)),
        (co.Adam(0.1, 5, 10, weight_decay=0.3), lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.3)),
    ):
        weight = torch.full((1,), 2.0, requires_grad=True)
        optimiser = theirs([weight])
        for _ in range(5):
            optimiser.zero_grad()
            (0.5 * (weight - 1) ** 2).sum().backward()
            optimiser.step()
        found = ours(task, at(2.0), Client(data, (), Key(0)))
        assert float(found.params["weight"]) == pytest.approx(weight.item(), abs=1e-6)


def test_the_rate_falls_over_the_rounds() -> None:
    # Chen and Chao 2021, App. B.2: 1 if r < 0.3R, a tenth if r < 0.6R, else a hundredth; here R = 10.
    factors = [float(co.inference.stepwise(torch.tensor(r / 10, dtype=torch.float64))) for r in range(10)]
    assert factors == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01])


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "parallel"])
def test_every_engine_tells_its_clients_how_far_the_run_is(engine: str) -> None:
    task, data = quadratic(1.0)
    method = co.methods.FedAvg(co.SGD(0.5, 0.0, 1, 10, decay=co.inference.stepwise))
    where = {"sequential": Sequential, "vectorised": Vectorised, "parallel": Parallel}[engine]([data] * 2)
    # One step of rate ½·factor from 0 towards 1.
    for progress, expected in ((0.0, 0.5), (0.3, 0.05), (0.6, 0.005)):
        replies = where.gather(method, task, at(0.0), [0, 1], Turn(0, Key(0), progress))
        assert [float(r.payload.params["weight"]) for r in replies] == pytest.approx([expected] * 2)


@dataclasses.dataclass(frozen=True)
class Clock(co.Method):
    """Says how far the run is.

    1   send it
    """

    def local(self, task: co.Task, message: object, client: Client) -> Reply:
        return Reply({"progress": client.progress}, client.data.size)

    def aggregate(self, task: co.Task, state: State, replies: list[Received], server: Server) -> State:
        return state


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "parallel"])
def test_a_run_tells_the_part_of_its_rounds_that_is_done(engine: str) -> None:
    task, sites = tiny.classification()
    result = co.run(Clock(), task, sites, rounds=4, engine=engine)
    assert [float(r.payload["progress"]) for r in result.replies] == [0.75] * 4  # before the last of four


def test_passes_are_drawn_evenly_and_equal_on_every_engine() -> None:
    task, data = quadratic(1.0)
    method = co.methods.FedAvg(co.SGD(0.5, 0.0, epochs=4, batch=10, fewest=2))
    cohort, found = range(40), {}
    for name, where in (
        ("sequential", Sequential),
        ("vectorised", Vectorised),
        ("parallel", Parallel),
    ):
        replies = where([data] * 40).gather(method, task, at(0.0), cohort, Turn(0, Key(0)))
        found[name] = [float(r.payload.params["weight"]) for r in replies]
    # After e steps of rate ½ from 0 towards 1 stands 1 − ½ᵉ: ¾, ⅞ or 15⁄16; each in a third of 40 clients.
    counts = [found["sequential"].count(v) for v in (0.75, 0.875, 0.9375)]
    assert sum(counts) == 40 and min(counts) >= 5  # below 5 of 40 at a third each: probability 0.002
    assert found["vectorised"] == pytest.approx(found["sequential"]) == found["parallel"]


def test_scaffold_counts_the_passes_made() -> None:
    _, data = quadratic(1.0)
    inference = co.SGD(0.5, 0.0, epochs=6, batch=2, fewest=1)
    for seed in range(5):
        client = Client(data, (), Key(seed))
        own = draw_epochs(client, 1, 6)
        assert own is not None and float(inference.steps(client)) == 2 * float(own)  # two batches of two rows


def test_fewer_than_one_pass_is_refused() -> None:
    task, data = quadratic(1.0)
    with pytest.raises(co.InputError, match="at least one pass"):
        co.SGD(fewest=0)(task, at(0.0), Client(data, (), Key(0)))


@pytest.mark.parametrize("engine", ["sequential", "vectorised", "parallel"])
@pytest.mark.parametrize(
    "inference",
    [co.SGD(rate=0.1, momentum=0.9, epochs=3, batch=4, shuffle=False), co.Adam(epochs=3, batch=4, shuffle=False)],
)
def test_training_that_does_not_shuffle_takes_the_rows_as_they_stand(engine: str, inference: Inference) -> None:
    data = [rows(11, seed=1), rows(7, seed=2)]  # of unequal size, so that one is padded
    network = nn.Linear(4, 3)
    task = co.classification(network, prior=Flat())

    replies = gathered(engine, co.methods.FedAvg(inference), task, data)

    start = co.methods.FedAvg().init(task, Server(None, None, Key(2), 2)).posterior
    for part, reply in zip(data, replies, strict=True):
        network.load_state_dict(start.params)
        made: torch.optim.Optimizer = torch.optim.Adam(network.parameters(), 1e-3)
        if isinstance(inference, co.SGD):
            made = torch.optim.SGD(network.parameters(), 0.1, 0.9)
        for _ in range(3):
            for x, y in zip(part.x.split(4), part.y.split(4), strict=True):
                made.zero_grad()
                nn.functional.cross_entropy(network(x), y).backward()
                made.step()
        for name, leaf in network.state_dict().items():
            torch.testing.assert_close(reply.payload.params[name], leaf, atol=1e-5, rtol=1e-4)


def test_a_sampler_that_does_not_shuffle_depends_on_the_order_of_the_rows() -> None:
    data = rows(40)
    turned = Data(*(leaf.flip(0) for leaf in data))
    task = co.classification(nn.Linear(4, 3), prior=Flat())

    def ends(shuffle: bool, part: Data, seed: int) -> torch.Tensor:
        sampler = co.CyclicalSGHMC(epochs=4, cycles=1, samples=1, keep=1, batch=8, temperature=0.0, shuffle=shuffle)
        samples = sampler(task, task.init(Key(0)), Client(part, (), Key(seed)))
        return tree.ravel(samples.params)

    assert ends(False, data, 1).equal(ends(False, data, 2))  # no draw is left
    assert not ends(True, data, 1).equal(ends(True, data, 2))
    assert not ends(False, data, 1).equal(ends(False, turned, 1))
