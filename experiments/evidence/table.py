"""Evidence pooling under our protocol, beside every rival it names, its ablations, and where its assumption breaks.

A column is data/split/sites, optionally followed by /labels:N (labelled rows at the server), /rotate:DEGREES or
/noise:DEVIATION (a shift of the features from site to site, where the method's assumption fails). All rows share
split, start, passes over the data and server rows; λ = 1 and exponent ½ throughout unless the row says otherwise, and
nothing is chosen on test rows. 'As it comes' is the method's default, which `defaults` chose on validation rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor

import consilience as co
from consilience.aggregation.evidence import class_log_probs, fit, solver, strengths
from consilience.benchmark.reproduce import Experiment, Values
from consilience.data import datasets
from consilience.data.splits.text import parse
from consilience.distributions.predictive import Categorical, Distribution, Predictive, mixture, temperature, tempered
from consilience.inference import Inference
from consilience.key import Key
from consilience.metrics.scores import scores
from consilience.models import model
from consilience.models.remembered import remember_values
from consilience.runs.result import Result
from consilience.task import label_counts, smooth

SHOWN = ("accuracy", "nll", "brier", "ece", "ece_debiased")


class Size(NamedTuple):
    epochs: int
    batch: int
    inputs: int  # unlabelled rows at the server
    distilled: int  # epochs of a student
    network: str = "mlp"
    rows: int | None = None  # of the training rows, all if None


SIZES = {
    "digits": Size(50, 50, 200, 150),
    "mnist": Size(15, 100, 5000, 30),
    "fashion_mnist": Size(15, 100, 5000, 30),
    "femnist": Size(40, 50, 2000, 60),
    "cifar10": Size(15, 50, 2000, 30, "cnn_chen", 12_000),
}
SMOKE = Size(epochs=10, batch=50, inputs=40, distilled=3)


def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    with remember_values():  # many rows pool the same replies
        return score_column(column, seed, scale, data_dir)


def score_column(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
    name, split, count, *rest = column.split("/")
    labels = next((int(part.removeprefix("labels:")) for part in rest if part.startswith("labels:")), 30)
    how = parse("+".join([split, *(part for part in rest if not part.startswith("labels:"))]))
    size = SIZES[name] if scale == "full" else SMOKE
    rows = datasets.load(name, data_dir)
    if size.rows is not None:
        some = Key(seed).fold(9).permutation(len(rows.x))[: size.rows]
        rows = dataclasses.replace(rows, x=rows.x[some], y=rows.y[some])
    sites = rows.split(how, int(count), calibration=labels, inputs=size.inputs, seed=seed)
    if name == "femnist":
        sites = sites.map_x(lambda x: 1 - x)  # ink on paper → light on dark, mostly zeros
    task = co.classification(model(size.network, sites.features, sites.classes))
    epochs, batch = size.epochs, size.batch
    sampler, training = co.CyclicalSGHMC(epochs=epochs, batch=batch), co.SGD(epochs=epochs, batch=batch)
    distil = co.aggregation.Distil(co.Adam(epochs=size.distilled, batch=100))
    tenth = co.SGD(epochs=max(1, round(epochs / 10)), batch=batch)

    def execute(method: co.Method, rounds: int | None = None) -> Result:
        return co.run(method, task, sites, rounds=rounds, seed=seed, scored=False, engine=co.Compute(threads=1))

    sampled = execute(co.methods.Mixture(sampler))
    local = execute(co.methods.FedAvg(training), 1)
    evidence = execute(evidence_pooling(sampler))
    server = co.methods.ServerOnly(dataclasses.replace(sampler, epochs=200, batch=10))

    def pool(method: co.Method, replies: Result = sampled) -> Result:
        return replies.pool(method, scored=False)

    results = {
        "Centralised": execute(co.methods.Centralised(sampler)),
        "Server only": execute(server),
        "FedAvg, 1 round": local,
        "FedAvg, 10 rounds": execute(co.methods.FedAvg(tenth), 10),
        "Mixture": sampled,
        "BCM": pool(co.methods.BCM()),
        "β": pool(co.methods.BetaPredictiveBayes()),
        "One-shot FL": pool(co.methods.OneShotFL(distil=distil), local),
        "FedKT": execute(co.methods.FedKT(training, distil=distil)),
        "Evidence": evidence,
        "Evidence, from sites": execute(co.methods.EvidenceTuned(sampler, exponent=0.5)),
        "Evidence, distilled": pool(evidence_pooling(distil=distil), evidence),
        "Evidence, λ = 0.1": pool(evidence_pooling(penalty=0.1), evidence),
        "Evidence, λ = 10": pool(evidence_pooling(penalty=10.0), evidence),
        "Evidence, λ = ∞ (no offsets)": pool(evidence_pooling(penalty=1e6), evidence),
        "Evidence, exponent 0": pool(evidence_pooling(exponent=0.0), evidence),
        "Evidence, exponent 1": pool(evidence_pooling(exponent=1.0), evidence),
        "Evidence, one point": execute(evidence_pooling(training)),
    }
    results["Evidence, as it comes"] = pool(co.methods.EvidencePooling(), results["Evidence, one point"])
    models = {row: (r.method.predictive(task, r.state), r.report["ledger"]["up_bytes"]) for row, r in results.items()}
    up = evidence.report["ledger"]["up_bytes"]
    models["Evidence, likelihood not adjusted"] = (divided_afterwards(task, sites, sampled), up)
    models["Evidence, adjusted, pooled by a mixture"] = (mixed_evidence(task, evidence), up)
    test, labelled = sites.all_test, sites.calibration
    assert labelled is not None

    def score_model(model: Predictive) -> dict[str, float | None]:
        """Scores plain and with the temperature of the server's labelled rows."""
        p: Distribution = model(test.x)
        warm = scores(tempered(p, temperature(model(labelled.x), labelled.y)), test.y)
        metrics = scores(p, test.y)
        return {**{k: metrics[k] for k in SHOWN}, **{f"{k}_tempered": warm[k] for k in SHOWN}}

    values = {row: score_model(model) | {"up_bytes": float(sent)} for row, (model, sent) in models.items()}
    local_scores = [score_model(task.predictive(r.payload)) for r in sampled.replies]
    values["Local only"] = {k: sum(v[k] or 0 for v in local_scores) / len(local_scores) for k in SHOWN}
    rounded = add_noise(evidence, seed)
    for row, result in rounded.items():
        values[row] = score_model(result.method.predictive(task, result.state))
    values["Evidence"] |= diagnostics(task, evidence, sites)
    return values


def evidence_pooling(inference: Inference = co.CyclicalSGHMC(), **settings: Any) -> co.methods.EvidencePooling:
    """λ = 1 and exponent ½, as in the design note, unless given."""
    return co.methods.EvidencePooling(inference, **{"penalty": 1.0, "exponent": 0.5, **settings})


def divided_afterwards(task: co.Task, sites: co.Sites, sampled: Result) -> Predictive:
    """The fit without the adjusted likelihood: ordinary posteriors, divided by the site's frequencies afterwards."""
    counts = torch.stack([label_counts(d, sites.classes or 0) for d in sites.train])
    r, clients = strengths(counts, 0.5), [task.predictive(reply.payload) for reply in sampled.replies]
    solve, total = solver(r, 1.0), counts.sum(0)

    def predict(x: Tensor) -> Categorical:
        logs = [p(x)[0] - smooth(n).log() for p, n in zip(clients, counts, strict=True)]
        z = torch.stack([z.log_softmax(-1) for z in logs])
        return Categorical(class_log_probs(fit(z, r, 1.0, solve).scores, smooth(total), total > 0))

    return predict


def mixed_evidence(task: co.Task, evidence: Result) -> Predictive:
    """The adjusted likelihood without the fit: a mixture of posteriors under the pooled frequencies."""
    state = evidence.state
    prior = smooth(state.counts.sum(0)).log()
    clients = [task.predictive(p) for p in state.posteriors]
    return lambda x: mixture([Categorical((p(x)[0] + prior).log_softmax(-1)) for p in clients], state.weights)


def add_noise(evidence: Result, seed: int) -> dict[str, Result]:
    """What counts rounded to tens, or with Laplace noise of scale 5, cost; the likelihood stays with the site."""
    counts, g = evidence.state.counts, torch.Generator().manual_seed(seed)
    uniform = torch.rand(counts.shape, generator=g) - 0.5
    laplace = -5 * uniform.sign() * torch.log1p(-2 * uniform.abs())
    versions = {
        "Evidence, counts rounded to 10": (counts / 10).round() * 10,
        "Evidence, counts ± Laplace(5)": (counts + laplace).clamp(min=0),
    }
    return {row: dataclasses.replace(evidence, state=evidence.state._replace(counts=n)) for row, n in versions.items()}


def diagnostics(task: co.Task, evidence: Result, sites: co.Sites) -> dict[str, float | None]:
    """The weighted root mean square of the fit's residuals, in nats."""
    state = evidence.state
    r = strengths(state.counts, 0.5)
    z = torch.stack([task.predictive(p)(sites.all_test.x)[0] for p in state.posteriors])
    e, w = fit(z, r, 1.0).residuals, r.to(z).unsqueeze(1)
    return {"residual": float(((w * e**2).sum() / (w.expand_as(e)).sum()).sqrt())}


SPLITS = (
    *("dirichlet:0.05", "dirichlet:0.1", "dirichlet:0.3", "dirichlet:0.5"),
    *("heterogeneous:0.3", "heterogeneous:0.6", "heterogeneous:0.9", "iid"),
)
DIGITS = tuple(f"digits/{split}/5" for split in SPLITS) + tuple(f"digits/dirichlet:0.1/{k}" for k in (10, 50))
ATTACKS = tuple(
    f"digits/dirichlet:0.3/5/{a}" for a in ("rotate:15", "rotate:30", "rotate:60", "noise:0.3", "noise:0.6")
)
LABELS = tuple(f"digits/dirichlet:0.1/5/labels:{n}" for n in (10, 100, 300))
IMAGES = tuple(
    f"{n}/{s}"
    for n in ("mnist", "fashion_mnist")
    for s in ("dirichlet:0.1/5", "heterogeneous:0.9/5", "dirichlet:0.3/10")
)
CIFAR = ("cifar10/dirichlet:0.1/5", "cifar10/dirichlet:0.5/5")

EXPERIMENT = Experiment(
    title="Evidence pooling and its rivals: NLL per point",
    columns=(*DIGITS, *ATTACKS, *LABELS, *IMAGES, "femnist/natural/50", *CIFAR),
    trial=trial,
    score="nll",
    digits=3,
    scales=("full", "smoke"),
)
