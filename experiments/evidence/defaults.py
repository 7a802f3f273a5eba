"""Which inference, exponent and λ evidence pooling should come with, asked of validation rows alone.

A column is data/split/sites. A fifth of every site's training rows is set aside; all choices are scored on these rows,
pooled over the sites, and test rows are never touched. Seeds start at 100, so that no split is one of `table`'s.
"""

from __future__ import annotations

import consilience as co
from consilience.aggregation.evidence import class_log_probs, class_scores, strengths
from consilience.benchmark.reproduce import Experiment, Values
from consilience.benchmark.search import on_validation
from consilience.data import datasets
from consilience.data.splits.text import parse
from consilience.distributions.predictive import Categorical
from consilience.inference import Inference
from consilience.metrics.scores import scores
from consilience.task import smooth

BUDGET = {"digits": (50, 50), "heart_disease": (50, 20)}  # epochs, batch; 15 and 100 for the others
PENALTIES: tuple[float | None, ...] = (0.1, 0.3, 1.0, 3.0, 10.0, None)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, split, count = column.split("/")
    rows = datasets.load(name, data_dir)
    whole = rows.split(parse(split), int(count), validation=0.2, calibration=30, seed=100 + seed)
    sites = on_validation(whole)
    task = co.classification(co.models.mlp(sites.features, sites.classes))
    epochs, batch = BUDGET.get(name, (15, 100)) if scale == "full" else (10, 50)
    rows, values = sites.all_test, Values()
    chains: dict[str, Inference] = {
        "six samples": co.CyclicalSGHMC(epochs=epochs, batch=batch),
        "one point": co.SGD(epochs=epochs, batch=batch),
    }
    for label, inference in chains.items():
        method = co.methods.EvidencePooling(inference)
        state = co.run(method, task, sites, seed=seed, scored=False, engine=co.Compute(threads=1)).state
        z, total = method.views(task, state, rows.x), state.counts.sum(0)
        for exponent in (0.5, 1.0):
            for penalty in PENALTIES:
                fitted = class_scores(strengths(state.counts, exponent), penalty)(z)
                p = Categorical(class_log_probs(fitted, smooth(total), total > 0))
                row = f"{label}, exponent {exponent}, λ {'estimated' if penalty is None else penalty}"
                values[row] = {k: scores(p, rows.y)[k] for k in ("nll", "accuracy", "brier")}
    return values


SPLITS = (
    "dirichlet:0.1/5",
    "dirichlet:0.1/50",
    "dirichlet:0.3/10",
    "heterogeneous:0.6/5",
    "heterogeneous:0.9/5",
    "iid/5",
)
COLUMNS = tuple(f"digits/{s}" for s in SPLITS) + tuple(
    f"{n}/{s}" for n in ("fashion_mnist", "mnist") for s in ("dirichlet:0.1/5", "heterogeneous:0.9/5")
)

EXPERIMENT = Experiment(
    title="Evidence pooling's settings on validation rows: NLL per point",
    columns=(*COLUMNS, "heart_disease/natural/4"),
    trial=trial,
    score="nll",
    scales=("full", "smoke"),
)
