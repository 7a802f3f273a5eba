"""Chen and Chao 2021, Table 4: the server's inputs from another data set. Tiny-ImageNet's rows are absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import consilience as co
from consilience.benchmark.reproduce import module
from consilience.data import datasets
from consilience.data.inputs import inputs_from
from consilience.runs.result import Result

SETTING = module("chen2021/setting")
COLUMNS = tuple(f"{split}:{network}" for split in ("step", "dirichlet") for network in SETTING.NETWORKS)


def other(name: str, data: str) -> Callable[[Any], Any]:
    """The same sites and as many inputs, from elsewhere."""

    def row(job: Any) -> dict[str, Result]:
        assert job.sites.inputs is not None
        rows = datasets.load(data, job.data_dir)
        count = None if job.scale == "full" else min(len(job.sites.inputs), len(rows.x))
        return {name: job.run(job.fedbe(), sites=inputs_from(job.sites, rows, count, job.seed))}

    return row


PAPER = """
CIFAR-10      | 74.5±0.51 77.5±0.42 72.7±0.27 65.5±0.32 60.7±0.45 73.9±0.45 78.2±0.36 77.7±0.45 71.5±0.38 67.0±0.30
CIFAR-100     | 74.4±0.45 78.2±0.58 72.2±0.35 65.1±0.37 61.0±0.49 73.5±0.41 78.6±0.63 76.5±0.61 72.0±0.71 66.9±0.57
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 4: FedBE with unlabelled data from elsewhere, %",
    [
        SETTING.one("CIFAR-10", lambda job: job.fedbe()),
        other("CIFAR-100", "cifar100"),
        other("SVHN", "svhn"),
        SETTING.one("FedAvg", lambda job: co.methods.FedAvg(job.training)),
    ],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
