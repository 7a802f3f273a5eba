"""Hasan 2023, Table 3.2: MSE on regression, as the thesis sums it; the trials are those of hasan2024/table2."""

from __future__ import annotations

from consilience.benchmark.reproduce import Experiment, load

NLL = load("hasan2024/table2")

PAPER = {  # air quality, bike, wine, real estate, forest fire
    "FedAvg, 5 rounds": [(6.128, 0.074), (0.293, 0.018), (2.815, 0.018), (0.360, 0.008), (2.791, 0.051)],
    "FedPA, 5 rounds": [(9.163, 0.155), (1.561, 0.136), (3.077, 0.144), (0.592, 0.009), (2.837, 0.043)],
    "FedAvg, 1 round": [(6.344, 0.087), (0.337, 0.026), (2.821, 0.019), (0.354, 0.006), (2.789, 0.054)],
    "FedPA, 1 round": [(6.556, 0.129), (1.663, 0.035), (2.870, 0.028), (0.454, 0.009), (2.792, 0.051)],
    "EP-MCMC": [(6.297, 0.036), (0.350, 0.016), (2.488, 0.044), (0.327, 0.007), (2.803, 0.045)],
    "FedProx": [(6.210, 0.064), (0.200, 0.014), (2.479, 0.036), (1.292, 0.178), (3.129, 0.068)],
    "AdaptFL": [(6.497, 0.118), (2.158, 0.053), (3.263, 0.029), (0.405, 0.009), (3.528, 0.240)],
    "D-FedBE": [(9.263, 0.239), (2.479, 0.069), (3.455, 0.016), (0.845, 0.008), (2.786, 0.038)],
    "D-OneshotFL": [(9.477, 0.253), (2.476, 0.070), (3.452, 0.012), (0.847, 0.009), (2.790, 0.064)],
    "Product": [(6.172, 0.037), (0.337, 0.015), (2.374, 0.038), (0.319, 0.006), (2.803, 0.044)],
    "D-BCM": [(6.187, 0.044), (0.330, 0.013), (2.378, 0.039), (0.322, 0.006), (2.815, 0.034)],
}

EXPERIMENT = Experiment(
    title="Hasan 2023, Table 3.2: MSE on regression, as the thesis sums it",
    columns=NLL.columns,
    trial=NLL.trial,
    score="mse_sum",
    digits=3,
    paper={row: dict(zip(NLL.columns, cells, strict=True)) for row, cells in PAPER.items()},
    scales=NLL.scales,
)
