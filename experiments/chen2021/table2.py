"""Chen and Chao 2021, Table 2: FedBE around FedProx and FedAvgM."""

from __future__ import annotations

import consilience as co
from consilience.benchmark.reproduce import module

SETTING = module("chen2021/setting")
COLUMNS = tuple(f"{split}:{network}" for split in ("step", "dirichlet") for network in SETTING.NETWORKS)
PAPER = """
FedProx         | 72.5±0.71 71.1±0.52 67.7±0.26 60.4±0.71 54.9±0.66 72.6±0.38 76.1±0.49 73.4±0.51 68.1±0.79 60.9±0.46
FedBE + FedProx | 74.9±0.38 77.7±0.45 72.9±0.44 64.5±0.37 60.1±0.62 74.6±0.35 78.7±0.49 77.3±0.60 71.7±0.43 66.5±0.41
FedAvgM         | 72.3±0.55 73.2±0.57 70.0±0.62 59.9±0.65 52.7±0.49 73.0±0.43 76.5±0.44 75.5±0.79 67.7±0.46 58.9±0.72
FedBE + FedAvgM | 74.5±0.47 78.0±0.46 73.6±0.50 65.5±0.40 59.7±0.51 74.4±0.49 78.5±0.66 78.5±0.26 72.0±0.51 67.0±0.55
"""

EXPERIMENT = SETTING.table(
    "Chen and Chao 2021, Table 2: FedBE with FedProx and FedAvgM on non-iid CIFAR-10, %",
    [
        SETTING.one("FedProx", lambda job: co.methods.FedProx(job.training)),
        SETTING.one("FedBE + FedProx", lambda job: job.fedbe(co.methods.FedProx(job.training))),
        SETTING.one("FedAvgM", lambda job: co.methods.FedAvgM(job.training)),
        SETTING.one("FedBE + FedAvgM", lambda job: job.fedbe(co.methods.FedAvgM(job.training))),
    ],
    COLUMNS,
    SETTING.read_printed(PAPER, COLUMNS),
)
