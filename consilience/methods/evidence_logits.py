"""Evidence pooling without weights: scores on agreed inputs.  This project; docs/evidence.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.aggregation.distil import Distil, at_random
from consilience.aggregation.evidence import (
    Equations,
    class_log_probs,
    class_scores,
    normal_equations,
    solve,
    strengths,
)
from consilience.aggregation.summands import Summation, Total
from consilience.distributions.payload import Logits
from consilience.distributions.posterior import Point
from consilience.distributions.predictive import Categorical, Predictive
from consilience.errors import InputError
from consilience.inference import SGD, Adam, Inference
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import ONE_SHOT, About, BatchNormed, Method, Needs, Summable
from consilience.methods.evidence import EvidencePooling
from consilience.task import Task, smooth


class Agreed(NamedTuple):
    """The state of evidence pooling without weights, and its message.

    Attributes:
        posterior: The student.
        inputs: The inputs that everybody scores.
    """

    posterior: Point
    inputs: Tensor


class Scored(NamedTuple):
    """What a client sends where weights must not leave.

    Attributes:
        logits: z̃ₖ on the inputs.
        counts: nₖ.
    """

    logits: Logits
    counts: Tensor


@dataclass(frozen=True)
class EvidenceLogits(Summable, BatchNormed, Method):
    """One round; where weights must not leave, clients send C numbers for each of the server's inputs instead.

        the server sends its unlabelled inputs
        for each client k of K, in parallel
    1       infer as in evidence pooling; send z̃ₖ(x) for every input x, and the C counts nₖ
    2   pool the evidence at every input (lines 4–5 of evidence pooling)
    3   θ ← argmin of Σ KL(p(·|x) ‖ p(·|x, θ)) over the inputs

    Attributes:
        inference: How a client infers.
        penalty: λ, as in evidence pooling.
        exponent: α, as in evidence pooling.
        distil: How the server trains the student.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear", inputs=20)
        >>> len(co.run(co.methods.EvidenceLogits(), problem).replies)
        3
    """

    about = About(
        name="evidence_logits",
        sends="class scores for the server's inputs, and how often it saw each class",
        needs=Needs.INPUTS,
        tasks=("classification",),
        rounds=ONE_SHOT,
    )

    inference: Inference = SGD(epochs=50)
    penalty: float | None = 0.3
    exponent: float = 1.0
    distil: Distil = Distil(Adam(rate=1e-3, epochs=200, batch=100), at_random)

    def init(self, task: Task, server: Server) -> Agreed:
        if server.inputs is None:
            raise InputError("evidence_logits needs unlabelled rows at the server, for example `inputs=0.2`.")
        return Agreed(task.init(server.key), server.inputs)

    def broadcast(self, state: Agreed) -> Agreed:
        return state

    def local(self, task: Task, message: Agreed, client: Client) -> Reply:
        reply = EvidencePooling(self.inference).local(task, message.posterior, client)
        scores = task.predictive(reply.send.posterior)(message.inputs)[0]
        return Reply(Scored(Logits(scores), reply.send.counts), reply.size)  # 1

    def aggregate(self, task: Task, state: Agreed, replies: Sequence[Received], server: Server) -> Agreed:
        if isinstance(replies[0].payload, Equations):  # all sites' parts, added up
            s, counts = (leaf.to(state.inputs) for leaf in (solve(replies[0].payload), replies[0].payload.counts))
        else:
            z = torch.stack([r.payload.logits.values for r in replies])
            by_site = torch.stack([scored.counts for scored in payloads(replies)])
            s, counts = class_scores(strengths(by_site, self.exponent), self.penalty)(z), by_site.sum(0)
        pooled = Categorical(class_log_probs(s, smooth(counts), counts > 0))  # 2
        return state._replace(posterior=self.distil.student(task, lambda x: pooled, [], state.inputs, server.key))  # 3

    def summation(self) -> Summation | None:
        if not self.penalty:  # estimated from all sites' scores, or of sites that may not be linked
            return None
        exponent, penalty = self.exponent, self.penalty
        return Total(lambda sent: normal_equations(sent.logits.values, sent.counts, exponent, penalty))

    def predictive(self, task: Task, state: Agreed) -> Predictive:
        return self.distil.predictive(task, state.posterior)
