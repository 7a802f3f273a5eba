"""FLamby's Fed-TCGA-BRCA (du Terrail et al., NeurIPS 2022): concordance of survival in six regions, with its folds.

The published numbers are FLamby's own result files (flamby/results/results_benchmark_fed_tcga_brca, seeds 42 to 46, 100
updates a round): means and standard errors over the seeds, on all test rows and as means of the six regions. Our rows
draw no random numbers, so one seed is enough; their intervals are about the test rows, of which 32 have an event. The
prior is N(0, 1) on standardised columns, or chosen on validation rows that are cut from the training fold.
"""

from __future__ import annotations

import statistics

import consilience as co
from consilience.benchmark.reproduce import Experiment, Values
from consilience.data import datasets
from consilience.data.dataset import Dataset
from consilience.distributions.prior import Isotropic
from consilience.inference.newton import Newton
from consilience.metrics.evaluate import Scorer

ALL, REGIONS = "all test rows", "mean of regions"
LAPLACE = co.Laplace(mode=Newton(), dense=True)
METHODS = {
    "Product of Laplace posteriors, one round": co.methods.GaussianProduct(LAPLACE),
    "Newton rounds, stratified by region": co.methods.GLM(),
    "Pooled rows, one stratum": co.methods.Centralised(LAPLACE),
}
CHOSEN = ("Product of Laplace posteriors, one round", "Newton rounds, stratified by region")
VARIANCES = (0.01, 0.03, 0.1, 0.3, 1.0)
PUBLISHED = {  # on all test rows with its standard error, and the mean of the regions
    "FedAvg": (73.53, 7.83, 73.19),
    "FedProx": (71.67, 7.25, 72.90),
    "SCAFFOLD": (69.95, 1.55, 68.69),
    "Cyclic": (66.07, 3.35, 65.82),
    "FedAdagrad": (83.38, 0.33, 81.29),
    "FedAdam": (84.21, 0.75, 81.52),
    "FedYogi": (84.21, 0.74, 81.52),
    "Pooled training": (70.41, 5.12, 67.59),
}


def choose_variance(method: co.Method, rows: Dataset) -> float:
    """The prior's variance with the best log-score on a fifth of the training rows, over five ways to set it aside."""
    means = {}
    for variance in VARIANCES:
        found = []
        for seed in range(100, 105):
            sites = rows.split(rows.usual_split(), calibration=0, validation=0.2, seed=seed)
            task = co.survival(co.models.linear(sites.features, None), Isotropic(variance))
            result = co.run(method, task, sites, seed=seed, scored=False)
            found.append(Scorer(method, task, sites).history(result.state, result.memories)["validation_nll"])
        means[variance] = statistics.fmean(found)
    return min(means, key=lambda variance: means[variance])


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    rows = datasets.load("tcga_brca", data_dir)
    sites = rows.split(rows.usual_split(), calibration=0)
    values: Values = {}
    settings = [(name, method, 1.0) for name, method in METHODS.items()]
    for name in CHOSEN:
        settings.append((f"{name}, prior chosen", METHODS[name], choose_variance(METHODS[name], rows)))
    for name, method, variance in settings:
        task = co.survival(co.models.linear(sites.features, None), Isotropic(variance))
        result = co.run(method, task, sites, seed=seed)
        if column == REGIONS:
            each = [entry["metrics"].get("concordance") for entry in result.report["per_site"]]
            values[name] = {"concordance": 100 * statistics.fmean(value for value in each if value is not None)}
            continue
        low, high = result.report["intervals"]["concordance"]
        values[name] = {
            "concordance": 100 * result.metrics["concordance"],
            "low": 100 * low,
            "high": 100 * high,
            "ibs": result.metrics["ibs"],
            "nll": result.metrics["nll"],
            "variance": variance,
        }
    return values


EXPERIMENT = Experiment(
    title="FLamby, Fed-TCGA-BRCA: concordance, %; 1 088 patients of six regions, 32 events among the test rows",
    columns=(ALL, REGIONS),
    trial=trial,
    score="concordance",
    digits=1,
    paper={name: {ALL: (mean, error), REGIONS: (regions, 0.0)} for name, (mean, error, regions) in PUBLISHED.items()},
)
