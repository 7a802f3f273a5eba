"""Rules that make one out of many: pure functions, which methods apply to what the sites send.

Of predictions (`consilience.distributions.predictive`):
    `mixture`, `product` with the powers `shared` or `robust`, `geometric` between two, `tempered`
Of posteriors (`consilience.distributions.posterior`):
    `average`, `median` and `trimmed` mean of weights, `pooled_variance` for their noise; `multiply` of Gaussians,
    `cap_evidence` before it
Of Gaussians weight by weight (`merging`):
    `merge` by one of the rules `eaa`, `gaa`, `aalv`, `ppa`, `cf`; `spread` of the outcome
Of models into ensembles (`ensembles`):
    `Ensemble` with members drawn from `GaussianModels` or `DirichletModels`
Of any teacher into one student (`distil`):
    `Distil`, started `at_random`, `at_client` or `at_average`
Of densities estimated from samples (`kernels`):
    `multiply_kernels`, `multiply_semiparametric`
Of draws that keep their shape (`affine`):
    `consensus`, `barycentre`

`importance` smooths weights and says whether they can be believed.

`evidence` holds the two-way fit behind evidence pooling.
"""

from consilience.aggregation.averages import cap_evidence, median, pooled_variance, trimmed
from consilience.aggregation.distil import Distil, at_average, at_client, at_random
from consilience.aggregation.ensembles import DirichletModels, Ensemble, GaussianModels
from consilience.aggregation.merging import aalv, cf, eaa, gaa, merge, ppa, spread
from consilience.distributions.posterior import average, multiply
from consilience.distributions.predictive import geometric, mixture, product, robust, shared, tempered

__all__ = [
    "DirichletModels",
    "Distil",
    "Ensemble",
    "GaussianModels",
    "aalv",
    "at_average",
    "at_client",
    "at_random",
    "average",
    "cap_evidence",
    "cf",
    "eaa",
    "gaa",
    "geometric",
    "median",
    "merge",
    "mixture",
    "multiply",
    "pooled_variance",
    "ppa",
    "product",
    "robust",
    "shared",
    "spread",
    "tempered",
    "trimmed",
]
