"""A figure for a paper: NLL over seeds for three rules, with one standard error, as figure.pdf."""

import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import consilience as co

RULES = {"mixture": co.methods.Mixture(), "product": co.methods.BCM(), "β": co.methods.BetaPredictiveBayes()}
SEEDS = range(2)  # ten in a paper
SAMPLER = co.CyclicalSGHMC(epochs=10)
ALPHAS = (0.1, 1.0, 10.0)

found: dict[str, dict[float, list[float]]] = {name: {alpha: [] for alpha in ALPHAS} for name in RULES}
for alpha in ALPHAS:
    for seed in SEEDS:  # a seed decides split, start and draws: rows are paired
        sites = co.datasets.moons(n=300).split(co.splits.dirichlet(alpha), sites=4, seed=seed)
        task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(8,)))
        trained = co.run(co.methods.Mixture(SAMPLER), task, sites, seed=seed)
        for name, rule in RULES.items():
            found[name][alpha].append(trained.pool(rule).metrics["nll"])

figure, axes = plt.subplots(figsize=(3.3, 2.4), layout="constrained")
for name, values in found.items():
    means = [statistics.fmean(values[alpha]) for alpha in ALPHAS]
    errors = [statistics.stdev(values[alpha]) / len(SEEDS) ** 0.5 for alpha in ALPHAS]
    axes.errorbar(ALPHAS, means, errors, marker="o", capsize=2, label=name)
axes.set(xscale="log", xlabel="Dirichlet α (left: more heterogeneous)", ylabel="NLL")
axes.legend(frameon=False)
figure.savefig("figure.pdf", metadata={"CreationDate": None})  # the same bytes every time
print("figure.pdf")
