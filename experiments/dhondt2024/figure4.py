"""d'Hondt et al. 2024, Figure 4: Figure 2 again with 20 points a site, where FedAvg is said to overfit."""

from __future__ import annotations

from consilience.benchmark.reproduce import Experiment, load, module

FIGURE2 = load("dhondt2024/figure2")
draw = module("dhondt2024/figure2").draw

EXPERIMENT = Experiment(
    title="d'Hondt et al. 2024, Figure 4: NLL per test point, 20 points a site",
    columns=module("dhondt2024/figure2").columns(20),
    trial=FIGURE2.trial,
    score="nll",
    scales=FIGURE2.scales,
)
