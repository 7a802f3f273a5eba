"""Evidence pooling tuned by the sites: λ and a temperature from their own rows.  This project; docs/evidence.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from consilience.distributions.posterior import Point
from consilience.distributions.predictive import Predictive, log_prob, tempered
from consilience.inference import SGD, Inference
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import About, BatchNormed, Diagnosed, Method, Pooling, Releasable, Rounds, State, Validated
from consilience.methods.evidence import PENALTIES, Evidence, EvidencePooling, EvidenceState
from consilience.task import Task
from consilience.tree import Tree

TEMPERATURES = (0.4, 0.5, 0.63, 0.8, 1.0, 1.26, 1.6, 2.0, 2.5)
GRID = [(penalty, t) for penalty in PENALTIES for t in TEMPERATURES]


@dataclass(frozen=True)
class EvidenceTuned(Pooling, Validated, Releasable, Diagnosed, BatchNormed, Method):
    """Two rounds; evidence pooling, then one small message a client to choose λ and a temperature. No server data.

        for each client k of K, in parallel
    1       hold out a share of its rows, and send evidence from the others (lines 1–2 of evidence pooling)
    2   send all clients' evidence to every client
        for each client k of K, in parallel
    3       for each (λ, t) of a grid: the summed log-score of the pool on the rows held out; send these sums
    4   λ, t ← the largest total

    Attributes:
        inference: How a client infers.
        exponent: α, as in evidence pooling.
        aside: Share of a client's rows to choose by.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.EvidenceTuned(), problem).report["rounds"]
        2
    """

    about = About(
        name="evidence_tuned",
        sends="what evidence pooling sends, then one number for each λ and temperature tried",
        tasks=("classification",),
        rounds=Rounds(2),
        everyone=True,
        types=(Evidence, EvidenceState),
    )
    inference: Inference = SGD(epochs=50)
    exponent: float = 1.0
    aside: float = 0.2

    def broadcast(self, state: State | EvidenceState) -> Any:
        if isinstance(state, EvidenceState):
            return state  # 2
        return state.posterior

    def local(self, task: Task, message: Point | EvidenceState, client: Client) -> Reply:
        data = client.data
        if isinstance(message, EvidenceState):
            p = [self.pool(penalty).teacher(task, message)(data.x) for penalty in PENALTIES]
            sums = [(client.memory * log_prob(tempered(q, t), data.y)).sum() for q in p for t in TEMPERATURES]  # 3
            return Reply(torch.stack(sums), data.size, client.memory)
        rank = torch.argsort(client.key.fold(-1).order(data.w)) < self.aside * (data.w > 0).sum()
        others = client._replace(data=data._replace(w=data.w * ~rank))
        evidence: Evidence = self.pool(1.0).local(task, message, others).send
        return Reply(evidence, data.size, data.w * rank)  # 1

    def aggregate(self, task: Task, state: Any, replies: Sequence[Received], server: Server) -> EvidenceState:
        if isinstance(state, EvidenceState):
            return state._replace(chosen=torch.tensor(GRID[int(sum(payloads(replies)).argmax())]))  # 4
        return self.pool(1.0).aggregate(task, state, replies, server)._replace(chosen=torch.ones(2))

    def doubt(self, task: Task, message: Point | EvidenceState, send: Any) -> str | None:
        if isinstance(send, Tensor) and bool((send > 0).any()):
            return "it sums log-probabilities to more than 0."
        return None

    def teacher(self, task: Task, state: EvidenceState) -> Predictive:
        penalty, temperature = torch.as_tensor(state.chosen).tolist()
        teacher = self.pool(penalty).teacher(task, state)
        return lambda x: tempered(teacher(x), temperature)

    def diagnose(self, task: Task, state: EvidenceState, x: Tensor) -> dict[str, Any]:
        return self.pool(1.0).diagnose(task, state, x)

    def hand_out(self, state: EvidenceState, ensemble: bool) -> Tree:
        return self.pool(1.0).hand_out(state, ensemble)

    def fewest(self, reply: Reply) -> Tensor:
        return (torch.as_tensor(reply.keep) > 0).sum()  # the rows held out, behind the sums

    def pool(self, penalty: float) -> EvidencePooling:
        """Return evidence pooling with this λ."""
        return EvidencePooling(self.inference, penalty, self.exponent)
