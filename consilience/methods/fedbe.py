"""FedBE, federated Bayesian ensembles.  Chen and Chao, ICLR 2021, Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from consilience import tree
from consilience.aggregation.distil import Distil
from consilience.aggregation.ensembles import Ensemble, Ensembled
from consilience.distributions.posterior import Point, Samples
from consilience.distributions.predictive import Categorical, Distribution, Predictive, tempered
from consilience.errors import InputError
from consilience.inference import SWA
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import BatchNormed, Bound, Diagnosed, Method, Pooling, name
from consilience.methods.fedavg import FedAvg
from consilience.task import Task


@dataclass(frozen=True)
class FedBE(Pooling, Diagnosed, BatchNormed, Method):
    """Take the clients' models for draws of one posterior, draw more, and distil their ensemble into the next start.

    for each round
        for each client k, in parallel
    1       θₖ ← what the inner method does at a client, started at θ
    2   θ̄ ← what the inner method does at the server: Σₖ (nₖ/n) θₖ, unless it has momentum or control variates
    3   fit p(θ|D) to the θₖ, weighted by nₖ; draw θ¹ … θᴹ from it; the ensemble is {θ¹ … θᴹ} ∪ {θ̄} ∪ {θₖ}
    4   p̂(y|x) ← the ensemble's mean prediction for the server's inputs, to the power s and normalised
    5   θ ← SWA on the cross-entropy from p̂, started at θ̄

    Attributes:
        inner: How clients train and the server averages: fedavg, fedprox, fedavgm, scaffold and others.
        ensemble: Who is in the ensemble.
        sharpen: s, for classes; 2 as the paper's text and program have it, 1 leaves the pseudo-labels as they are.
        distil: How the server trains one student; None: keep the ensemble, and go on from θ̄.
        monitor: Whether to score ensemble and student, or average, side by side in every round.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear", inputs=20)
        >>> co.run(co.methods.FedBE(), problem, rounds=1).report["rounds"]
        1
    """

    inner: Method = FedAvg()
    ensemble: Ensemble = Ensemble()
    sharpen: float = 2.0
    distil: Distil | None = Distil(SWA(epochs=40, batch=20), wide=False)
    monitor: bool = False

    def __post_init__(self) -> None:
        if self.inner.about.one_shot or isinstance(self.inner, (Bound, FedBE)):
            raise InputError("FedBE wraps a method of many rounds: set `inner` to fedavg, fedprox or scaffold.")

    def init(self, task: Task, server: Server) -> Ensembled:
        inner = self.inner.init(task, server)
        return Ensembled.of(inner, Samples(tree.stack([inner.posterior.params])))

    def broadcast(self, state: Ensembled) -> Any:
        return self.inner.broadcast(state.inner)

    def memory(self, message: Any) -> Any:
        return self.inner.memory(message)

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        return self.inner.local(task, message, client)  # 1

    def aggregate(self, task: Task, state: Ensembled, replies: Sequence[Received], server: Server) -> Ensembled:
        replies = sorted(replies, key=lambda reply: reply.client)
        inner = self.inner.aggregate(task, state.inner, replies, server)  # 2
        points = points_of(self.inner, replies)
        members = self.ensemble(points, weights(replies), inner.posterior, server.key.fold(0))  # 3
        ensembled = Ensembled.of(inner, members)
        if self.distil is None or (len(replies) < 2 and self.distil.keeps_shape(task)):
            return ensembled
        teacher = lambda x: sharpened(task.predictive(members)(x), self.sharpen)  # 4
        student = self.distil.student(task, teacher, [inner.posterior], server.inputs, server.key.fold(1))  # 5
        return ensembled.taught(student, self.distil.keeps_shape(task))

    def teacher(self, task: Task, state: Ensembled) -> Predictive:
        return task.predictive(state.posteriors[0])

    def monitored(self, task: Task, state: Ensembled) -> dict[str, Predictive]:
        if not self.monitor:
            return {}
        if self.distil is None:
            return {"average": task.predictive(state.posterior)}
        return {"ensemble": task.predictive(state.posteriors[0])}


def points_of(inner: Method, replies: Sequence[Received]) -> tuple[Point, ...]:
    """Find the clients' weights in what they sent: alone, or first of several things.

    Args:
        inner: What the clients did.

    Raises:
        InputError: The clients send no weights.
    """
    points = []
    for payload in payloads(replies):
        point = payload if isinstance(payload, Point) else next(iter(payload), None)
        if isinstance(point, Point):
            points.append(point)
    if len(points) < len(replies):
        raise InputError(
            f"Clients of {name(inner)} do not send their weights: choose another inner method, for example fedavg."
        )
    return tuple(points)


def sharpened(p: Distribution, power: float) -> Distribution:
    """Raise pseudo-labels to a power.

    Args:
        p: What the ensemble predicts.

    Returns:
        p^s, normalised, for classes; a Normal as it is, because the spread of its members is what the student learns.
    """
    if not isinstance(p, Categorical):
        return p
    return tempered(p, 1 / power)
