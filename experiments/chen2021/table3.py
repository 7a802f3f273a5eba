"""Chen and Chao 2021, Table 3: who is in the ensemble; and the server's labels in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.distributions.posterior import Point, Posterior
from consilience.distributions.predictive import Categorical, Predictive
from consilience.key import Key

SETTING = module("chen2021/setting")
COLUMNS = ("step:convnet", "step:resnet20")
UNIONS = {  # samples, average, clients
    **{"A": (0, True, False), "S": (10, False, False), "S + A": (10, True, False)},
    **{"A + C": (0, True, True), "S + C": (10, False, True), "S + A + C": (10, True, True)},
}


@dataclass(frozen=True)
class Supervised(co.aggregation.Distil):
    """Distillation whose targets are the inputs' true labels, whatever the teacher says."""

    labels: tuple[int, ...] = ()
    classes: int = 10

    def student(
        self,
        task: co.Task,
        teacher: Predictive,
        posteriors: Sequence[Posterior],
        inputs: Tensor | None,
        key: Key,
    ) -> Point:
        assert inputs is not None
        truth = Categorical(one_hot(torch.tensor(self.labels), self.classes).to(inputs).log())
        return co.aggregation.Distil.student(self, task, lambda _: truth, posteriors, inputs, key)


def with_labels(job: Any) -> co.methods.FedBE:
    distil = Supervised(job.swa.inference, wide=False, labels=tuple(job.truth.y.tolist()), classes=job.sites.classes)
    return job.fedbe(ensemble=co.aggregation.Ensemble(samples=0, average=True, clients=False), distil=distil)


def union(name: str, members: tuple[int, bool, bool]) -> Callable[[Any], Any]:
    return SETTING.one(
        name, lambda job: job.fedbe(ensemble=co.aggregation.Ensemble(co.aggregation.GaussianModels(), *members))
    )


PAPER = """
A                   | 72.6±0.28 73.4±0.46
S                   | 73.1±0.46 75.2±0.61
S + A               | 73.9±0.33 76.1±0.47
A + C               | 73.0±0.36 75.4±0.38
S + C               | 74.0±0.66 77.9±0.56
S + A + C           | 74.5±0.51 77.5±0.42
Ground-truth labels | 76.6±0.21 80.2±0.23
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 3: FedBE's distillation targets, Step, %",
    [*(union(name, members) for name, members in UNIONS.items()), SETTING.one("Ground-truth labels", with_labels)],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
