"""One-shot federated learning.  Guha et al., 2019; Hasan 2023, App. B (average of logits)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from consilience.aggregation.distil import Distil, distil_pool
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Predictive, logarithmic
from consilience.inference import SGD, Inference
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import ONE_SHOT, About, BatchNormed, Method, Pooled, Pooling, ReplyKind, State
from consilience.task import Task


@dataclass(frozen=True)
class OneShotFL(Pooling, BatchNormed, Method):
    """One round; average the logits of the clients' models and distil.

        for each client k of K, in parallel
    1       θₖ ← training on client k's data, and send it
    2   z(x) = (1/K) Σₖ zₖ(x), the logits; for numbers, the mixture of the clients' Normals
    3   θ ← argmin of Σ KL(softmax z(x) ‖ p(·|x, θ)) over the server's inputs

    Attributes:
        inference: How a client trains.
        distil: How the server trains one student; None: keep the ensemble.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear", inputs=20)
        >>> len(co.run(co.methods.OneShotFL(), problem).replies)
        3
    """

    about = About(name="oneshot", rounds=ONE_SHOT, reply=ReplyKind.POSTERIOR)

    inference: Inference = SGD()
    distil: Distil | None = Distil()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        equal = torch.full((len(replies),), 1 / len(replies))
        pooled = Pooled(state.posterior, payloads(replies), equal)
        return distil_pool(self.distil, task, pooled, self.teacher(task, pooled), server)  # 3

    def teacher(self, task: Task, state: Pooled) -> Predictive:
        clients = [task.predictive(posterior) for posterior in state.posteriors]
        return lambda x: logarithmic([p(x) for p in clients], state.weights)  # 2
