"""Chen and Chao 2021, Table 1: what the released program does otherwise, one thing at a time; ResNet-20, Step CIFAR-10.

`no skips`: until 2021-11-06 the identity blocks of its ResNets carried nothing past their convolutions. `mean over
classes`: its distillation loss is one, so that with ten classes its steps are a tenth as long. `Kaiming`: weights start
normal with variance 2 / fan-in. `no crops`: its `--aug` is off in the script. The first column is Table 1's own.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable

from torch import nn

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.distributions.posterior import Point
from consilience.key import Key
from consilience.models.resnet import Residual

TABLE1 = module("chen2021/table1")
SETTING = TABLE1.SETTING
SKIPS, CLASSES, KAIMING, CROPS = READINGS = ("no skips", "mean over classes", "Kaiming", "no crops")
COLUMN = "step:resnet20"


class KaimingTask(co.Task):
    """Weights that begin normal with variance 2 / fan-in; biases and normalisation as torch's layers begin them."""

    def init(self, key: Key) -> Point:
        """Draw fresh weights from the key."""
        generator = key.generator()
        params = super().init(key).params
        for leaf in params.values():
            if leaf.ndim > 1:
                leaf.normal_(0.0, (2 / leaf[0].numel()) ** 0.5, generator=generator)
        return Point(params)


def without_skips(network: nn.Module) -> nn.Module:
    """A residual network whose blocks carry their input only where the shape changes."""
    assert isinstance(network, nn.Sequential)
    layers = [copy.deepcopy(layer) for layer in network]
    for i, layer in enumerate(layers):
        if isinstance(layer, Residual) and layer.stride == 1 and layer.extra == 0:
            layers[i] = nn.Sequential(layer.body, nn.ReLU())
    return nn.Sequential(*layers)


@dataclasses.dataclass(frozen=True)
class Released(SETTING.Job):  # type: ignore[misc, name-defined]
    """A job with one thing as the release has it."""

    @property
    def training(self) -> co.SGD:
        step: co.SGD = super().training
        if self.reading == CROPS:
            return dataclasses.replace(step, augment=None)
        return step

    @property
    def swa(self) -> co.aggregation.Distil:
        made: co.aggregation.Distil = super().swa
        if self.reading == CLASSES:
            shorter = {name: getattr(made.inference, name) / self.sites.classes for name in ("rate", "low")}
            return dataclasses.replace(made, inference=dataclasses.replace(made.inference, **shorter))
        return made

    def task(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> co.Task:
        task: co.Task = super().task(norm)
        if self.reading == SKIPS:
            return co.classification(without_skips(task.model), prior=task.prior)
        if self.reading == KAIMING:
            return KaimingTask(**{field.name: getattr(task, field.name) for field in dataclasses.fields(task)})
        return task


COLUMNS = (COLUMN, *(f"{COLUMN}:{reading}" for reading in READINGS))
EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 1 with one thing at a time as released: accuracy on Step CIFAR-10, ResNet-20, %",
    [SETTING.fedavg, SETTING.fedbe],
    COLUMNS,
    {
        row: dict.fromkeys(COLUMNS, cells[COLUMN])
        for row, cells in SETTING.read_printed(TABLE1.PAPER, TABLE1.COLUMNS).items()
        if row in ("FedAvg", "FedBE")
    },
    make=Released,
)
