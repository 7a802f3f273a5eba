"""Every network by name: its size is the known one, it takes the images it is for, and it learns."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

import consilience as co
from consilience.data.sites import Data
from consilience.distributions.posterior import Samples
from consilience.distributions.predictive import Categorical
from consilience.errors import InputError
from consilience.key import Key
from consilience.messages import Client
from consilience.models import MODELS, model
from consilience.models.cnn import cnn_hasan
from consilience.models.mlp import mlp
from consilience.models.mobilenet import mobilenetv2
from consilience.models.plain import Perceptron
from consilience.models.resnet import resnet

MNIST, CIFAR = (1, 28, 28), (3, 32, 32)
CONVOLUTIONAL = [name for name in MODELS if name.startswith(("cnn", "resnet", "mobilenet"))]
DEEPER = ("resnet32", "resnet44", "resnet56")  # the same code as resnet20, only slower
QUICK = [name for name in MODELS if not name.startswith(DEEPER)]
BY_BATCH = [name for name in MODELS if name.endswith("_batchnorm")]


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "features", "outputs", "parameters"),
    [
        # Weights and biases, layer by layer; GroupNorm(2, 50) has 50 factors and 50 shifts.
        ("linear", 4, 3, 4 * 3 + 3),
        ("mlp", 4, 3, (4 * 100 + 100) + (100 * 100 + 100) + (100 * 3 + 3)),
        ("mlp_swish", 1, None, (1 * 128 + 128) + 2 * (128 * 128 + 128) + (128 + 1)),
        ("mlp_groupnorm", 2, 2, (2 * 50 + 50) + 2 * (50 * 50 + 50) + 2 * 100 + (50 * 2 + 2)),
        # 32 → 30 → 15 → 13 → 6 → 4 → 2, so that 256·2·2 = 1024 numbers are flattened.
        ("cnn_hasan", CIFAR, 10, (27 * 64 + 64) + (576 * 128 + 128) + (1152 * 256 + 256) + (1024 * 10 + 10)),
        # The same convolutions, 370 816, then 1024 → 128 → 256 → 10.
        ("cnn_hasan_released", CIFAR, 10, 370_816 + (1024 * 128 + 128) + (128 * 256 + 256) + (256 * 10 + 10)),
        # The LeNet of PyTorch's CIFAR-10 tutorial, which Li et al. 2022 use: 62 006; on MNIST, 44 426.
        ("cnn_ozer", CIFAR, 10, 62_006),
        ("cnn_ozer", MNIST, 10, 44_426),
        # TensorFlow's CIFAR-10 tutorial has the same layers, and its summary says 122 570.
        ("cnn_chen", CIFAR, 10, 122_570),
        # TensorFlow Federated's EMNIST model with dropout says 1 199 882 for ten digits; 52 classes more are 52·129.
        ("cnn_dhondt", MNIST, 10, 1_199_882),
        ("cnn_dhondt", MNIST, 62, 1_206_590),
        # He et al., Table 6: 0.27, 0.46, 0.66, 0.85 million. With option A, by hand for n = 3: 432 (first) +
        # 6·2304 + (4608 + 5·9216) + (18432 + 5·36864) (weights) + 2·(7·16 + 6·32 + 6·64) (normalisation) + 650 (last).
        ("resnet20", CIFAR, 10, 432 + 13_824 + 50_688 + 202_752 + 1_376 + 650),
        # Two blocks more a stage: 4·(2304 + 9216 + 36864) weights and 4·2·(16 + 32 + 64) of the normalisation.
        ("resnet32", CIFAR, 10, 269_722 + 193_536 + 896),
        ("resnet44", CIFAR, 10, 269_722 + 2 * 194_432),
        ("resnet56", CIFAR, 10, 269_722 + 3 * 194_432),
        # torchvision documents 3 504 872 for 1000 classes; 990 fewer are 990·1281 fewer. Strides do not count.
        ("mobilenetv2", CIFAR, 10, 3_504_872 - 990 * 1281),
    ],
)
def test_sizes(name: str, features: int | tuple[int, ...], outputs: int | None, parameters: int) -> None:
    assert size(model(name, features, outputs)) == parameters


def test_sizes_are_those_the_papers_round_to() -> None:
    sizes = [size(model(f"resnet{depth}", CIFAR, 10)) / 1e6 for depth in (20, 32, 44, 56)]

    assert [round(s, 2) for s in sizes] == [0.27, 0.46, 0.66, 0.85]  # He et al., Table 6


def test_any_depth_of_6n_plus_2_has_a_name() -> None:
    # Two blocks more than 20 in every stage of 32: see above; n = 18 is 15 blocks more, 7.5 times that.
    assert size(model("resnet110_batchnorm", CIFAR, 10)) == 269_722 + 15 * 194_432 // 2


@pytest.mark.parametrize("features", [MNIST, CIFAR])
@pytest.mark.parametrize("name", list(MODELS))
def test_images_in_one_number_a_class_out(name: str, features: tuple[int, ...]) -> None:
    x = torch.zeros(2, *features)

    with torch.no_grad():
        assert model(name, features, 7)(x).shape == (2, 7)
    assert list(model(name, features, None).parameters())[-1].shape == (1,)  # regression: one number


@pytest.mark.parametrize("name", [name for name in QUICK if name not in BY_BATCH])
def test_vmap_over_weights_is_a_loop_over_them(name: str) -> None:
    nets, x = [model(name, MNIST, 3) for _ in range(2)], Key(0).normal((2, *MNIST))
    params, buffers = stack_module_state(nets)  # type: ignore[arg-type]

    with torch.no_grad():
        together = vmap(lambda p: functional_call(nets[0], (p, buffers), (x,)))(params)
        alone = torch.stack([net(x) for net in nets])

    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(alone[0], alone[1])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "mobilenetv2_batchnorm" else n for n in QUICK]
)
def test_one_epoch_of_sgd_moves_all_weights(name: str) -> None:
    data = Data.of(Key(2).normal((8, *MNIST)), torch.arange(8) % 3)
    task = co.classification(model(name, MNIST, 3))
    task.check(data, 3)
    start = task.init(Key(0))

    end = co.SGD(epochs=1, batch=8)(task, start, Client(data, (), Key(1)))

    assert all(torch.isfinite(p).all() for p in end.params.values())
    assert all(not torch.equal(p, start.params[k]) for k, p in end.params.items())


def test_the_same_key_starts_every_network_alike() -> None:
    task, twin = (co.classification(model("cnn_chen", MNIST, 3)) for _ in range(2))

    a, b, other = task.init(Key(0)), twin.init(Key(0)), task.init(Key(1))

    assert all(torch.equal(a.params[k], b.params[k]) for k in a.params)
    assert any(not torch.equal(a.params[k], other.params[k]) for k in a.params)


def test_a_plain_mlp_keeps_the_names_of_its_weights() -> None:
    # Stored runs go by these names.
    assert [k for k, _ in mlp(4, 2, hidden=(3,)).named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_normalisation_stands_before_the_activation_of_the_first_layers() -> None:
    layers = list(model("mlp_groupnorm", 2, 2).children())

    kinds = [type(layer).__name__ for layer in layers]

    assert kinds == ["Linear", "GroupNorm", "ReLU"] * 2 + ["Linear", "ReLU", "Linear"]
    assert [layer.num_groups for layer in layers if isinstance(layer, nn.GroupNorm)] == [2, 2]
    assert [type(layer) for layer in model("mlp_swish", 1, None).children()][1::2] == [nn.SiLU] * 3
    every = mlp(2, 2, hidden=(4, 4), norm=nn.LayerNorm)
    assert sum(isinstance(layer, nn.LayerNorm) for layer in every.children()) == 2


def test_no_network_keeps_statistics_unless_it_says_so_or_drops_out() -> None:
    for name in MODELS:
        network = model(name, CIFAR, 10)
        assert bool(list(network.buffers())) == (name in BY_BATCH), name
        assert not any(isinstance(layer, nn.modules.dropout._DropoutNd) for layer in network.modules()), name


@pytest.mark.parametrize("build", [resnet, mobilenetv2])
def test_batch_normalisation_can_be_asked_for(build: type) -> None:
    network = build(MNIST, 3, norm=nn.BatchNorm2d)
    data = Data.of(torch.zeros(2, *MNIST), torch.tensor([0, 1]))

    task = co.classification(network)
    task.check(data, 3)

    assert size(network) == size(build(MNIST, 3))  # a factor and a shift a channel, as for groups
    channels = sum(layer.num_features for layer in network.modules() if isinstance(layer, nn.BatchNorm2d))
    assert sum(task.like[name].numel() for name in task.statistics) == 2 * channels  # a mean and a variance a channel


def test_an_identity_is_carried_past_a_block_that_does_nothing() -> None:
    # With all of a block's weights zero, what comes out is relu(x), thinned out and padded where the shape changes.
    blocks = [layer for layer in resnet(MNIST, 3, depth=8).children() if type(layer).__name__ == "Residual"]
    x = torch.rand(1, 16, 8, 8)

    for block in blocks:
        for p in block.parameters():
            nn.init.zeros_(p)
    shapes = [x.shape]
    with torch.no_grad():
        y = x
        for block in blocks:
            y = block(y)
            shapes.append(y.shape)

    assert [tuple(s[1:]) for s in shapes] == [(16, 8, 8), (16, 8, 8), (32, 4, 4), (64, 2, 2)]
    assert torch.equal(y[:, :16], x[:, :, ::4, ::4])
    assert not y[:, 16:].any()


def test_mobilenet_halves_small_images_three_times() -> None:
    sides, x = [], torch.zeros(1, *CIFAR)
    for layer in mobilenetv2(CIFAR, 10).children():
        with torch.no_grad():
            x = layer(x)
        sides += [x.shape[-1]] if x.ndim == 4 else []

    assert [b for a, b in pairwise([32, *sides]) if b != a] == [16, 8, 4, 1]  # 1: the average at the end


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_rows_that_are_no_images(name: str) -> None:
    with pytest.raises(InputError, match="needs images"):
        model(name, 64, 10)


def test_networks_that_cannot_be() -> None:
    with pytest.raises(InputError, match="8 × 8 are too small"):
        cnn_hasan((1, 8, 8), 10)
    with pytest.raises(InputError, match=r"6n \+ 2"):
        resnet(CIFAR, 10, depth=18)
    with pytest.raises(InputError, match="Did you mean 'mobilenetv2'"):
        model("mobilenet", CIFAR, 10)


@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)])
def test_samples_predict_by_one_product_a_layer(hidden: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    task = co.classification(co.models.mlp(4, 3, hidden=hidden))
    each = [task.init(Key(i)).params for i in range(30)]
    samples = Samples({name: torch.stack([params[name] for params in each]) for name in each[0]})
    x = Key(1).normal((50, 4))
    one_by_one = torch.stack([task.outputs(params, x).softmax(-1) for params in each]).mean(0)
    passes = []
    monkeypatch.setattr(Perceptron, "passed", lambda *given: passes.append(given))

    p = task.predictive(samples)(x)

    assert isinstance(p, Categorical) and not passes
    torch.testing.assert_close(p.probs, one_by_one, rtol=0, atol=1e-6)


def test_many_samples_of_a_wide_network_are_passed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not grow with their number."""
    task = co.classification(co.models.mlp(4, 3, hidden=(64,)))
    samples = Samples({name: leaf.expand(20, *leaf.shape) for name, leaf in task.like.items()})
    x = Key(1).normal((1000, 4))
    monkeypatch.setattr(Perceptron, "passed_together", lambda *given: pytest.fail("too much at once"))

    assert task.predictive(samples)(x).log_probs.shape == (1000, 3)  # type: ignore[union-attr]
