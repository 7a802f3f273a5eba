"""The protocols with this library: replies once, every rule on them, the teacher predicted once."""

from __future__ import annotations

import dataclasses

import consilience as co
from benchmarks.problems import BATCH, DECAY, FRICTION, Problem
from consilience import tree
from consilience.distributions.posterior import Point
from consilience.distributions.predictive import score
from consilience.distributions.prior import Flat
from consilience.methods.fedpa import delta
from consilience.models.remembered import remember_values
from consilience.runs.result import Result


def protocol(p: Problem, threads: int) -> dict[str, float]:
    """Everything, from training to the NLL of every rule on the test rows."""
    with remember_values():
        return measure(p, threads)


def measure(p: Problem, threads: int) -> dict[str, float]:
    network = co.models.mlp(p.sites.features, p.sites.classes)
    if p.sites.classes:
        task = dataclasses.replace(co.classification(network), prior=Flat()).tilted(co.task.decay(DECAY))
        predicts = task
    else:
        task = co.regression(network, noise=0.5, prior=Flat()).tilted(co.task.decay(DECAY))
        predicts = co.regression(network, noise=2.0, prior=Flat(), latent=False)
    sampler = co.CyclicalSGHMC(p.rate, FRICTION, p.epochs, p.cycles, p.samples, p.keep, BATCH, p.temperature)
    start = co.aggregation.at_client if p.sites.classes else co.aggregation.at_random
    distil = co.aggregation.Distil(co.Adam(rate=p.distil_rate, epochs=p.distil_epochs, batch=BATCH), start=start)

    sampled = co.run(
        co.methods.Mixture(sampler), task, p.sites, seed=0, engine=co.Compute(threads=threads), scored=False
    )
    sampled = dataclasses.replace(sampled, task=predicts)
    results = {
        name: nll(sampled.pool(rule, scored=False), p)
        for name, rule in {
            "EP-MCMC": co.methods.EPMCMC(),
            "mixture": co.methods.Mixture(),
            "product": co.methods.BCM(),
            "β": co.methods.BetaPredictiveBayes(),
            "distilled β": co.methods.BetaPredictiveBayes(distil=distil),
        }.items()
    }
    begin = tree.ravel(task.init(sampled.server.key).params)
    steps = [delta(begin, tree.ravel(r.payload.params, batch_dims=1), 0.4) for r in sampled.replies]
    fedpa = Point(tree.unravel(begin - sum(steps) / len(steps), task.like))
    results["FedPA"] = -score(predicts.predictive(fedpa)(p.test.x), p.test.y)
    for k, reply in enumerate(sampled.replies):
        results[f"client {k} alone"] = -score(predicts.predictive(reply.payload)(p.test.x), p.test.y)
    return results


def nll(result: Result, p: Problem) -> float:
    return -score(result.method.predictive(result.task, result.state)(p.test.x), p.test.y)
