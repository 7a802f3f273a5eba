"""Train once, pool many times: the replies are kept, and other rules need no training."""

from time import perf_counter

import consilience as co

sites = co.datasets.digits().split(co.splits.dirichlet(0.3), sites=5, calibration=30, inputs=200, seed=0)
task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(32,)))

started = perf_counter()
trained = co.run(co.methods.Mixture(co.CyclicalSGHMC(epochs=20)), task, sites, seed=0, out="pool_again")
print(f"training and the mixture: {perf_counter() - started:.1f} s, NLL {trained.metrics['nll']:.3f}")

# Days later, in another process: the folder and the rows are enough.
replies = co.load("pool_again", sites=sites)
rules = {
    "product (BCM)": co.methods.BCM(),
    "robust product": co.methods.BCM(powers=co.aggregation.robust),
    "β between the two": co.methods.BetaPredictiveBayes(),
    "β, as one small network": co.methods.BetaPredictiveBayes(
        distil=co.aggregation.Distil(inference=co.Adam(epochs=30))
    ),
}
for name, rule in rules.items():
    started = perf_counter()
    pooled = replies.pool(rule)
    print(f"{name}: {perf_counter() - started:.1f} s, NLL {pooled.metrics['nll']:.3f}")
