"""Evidence pooling, λ and temperature from the sites.  This project; docs/evidence.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience.inference import CyclicalSGHMC, Inference
from consilience.method import Method, State
from consilience.methods.evidence import Evidence, EvidencePooling, EvidenceState
from consilience.parties import Client, Received, Reply, Server, payloads
from consilience.posterior import Point, Posterior
from consilience.predictive import Predictive, log_prob, tempered
from consilience.task import Task

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
TEMPERATURES = (0.4, 0.5, 0.63, 0.8, 1.0, 1.26, 1.6, 2.0, 2.5)
GRID = [(penalty, t) for penalty in PENALTIES for t in TEMPERATURES]


class Tuned(NamedTuple):
    posterior: Posterior
    posteriors: tuple[Posterior, ...]
    weights: Tensor
    counts: Tensor  # [K, C]
    chosen: Tensor  # λ and temperature


@dataclass(frozen=True)
class EvidenceTuned(Method):
    """Two rounds; evidence pooling, then one small message a client to choose λ and a temperature. No server data.

        for each client k of K, in parallel
    1       set a share of its rows aside, and send evidence from the others (lines 1–2 of evidence pooling)
    2   send all clients' evidence to every client
        for each client k of K, in parallel
    3       for each (λ, t) of a grid: the summed log-score of the pool on the rows set aside; send these sums
    4   λ, t ← the largest total
    """

    name: ClassVar[str] = "evidence_tuned"
    sends: ClassVar[str] = "what evidence pooling sends, then one number for each λ and temperature tried"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    usual_rounds: ClassVar[int] = 2
    everyone: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True
    inference: Inference = CyclicalSGHMC()  # how a client samples
    exponent: float = 0.5  # α, as in evidence pooling
    aside: float = 0.2  # share of a client's rows to choose by

    def broadcast(self, state: State | Tuned) -> Any:
        return state if isinstance(state, Tuned) else state.posterior  # 2

    def local(self, task: Task, message: Point | Tuned, client: Client) -> Reply:
        data = client.data
        if isinstance(message, Tuned):
            p = [self.pool(penalty).teacher(task, EvidenceState(*message[:4]))(data.x) for penalty in PENALTIES]
            sums = [(client.memory * log_prob(tempered(q, t), data.y)).sum() for q in p for t in TEMPERATURES]  # 3
            return Reply(torch.stack(sums), data.size, client.memory)
        rank = torch.argsort(client.key.fold(-1).order(data.w)) < self.aside * (data.w > 0).sum()
        own = client._replace(data=data._replace(w=data.w * ~rank))
        sent: Evidence = self.pool(1.0).local(task, message, own).send
        return Reply(sent, data.size, data.w * rank)  # 1

    def aggregate(self, task: Task, state: Any, replies: Sequence[Received], server: Server) -> Tuned:
        if isinstance(state, Tuned):
            return state._replace(chosen=torch.tensor(GRID[int(sum(payloads(replies)).argmax())]))  # 4
        return Tuned(*self.pool(1.0).aggregate(task, state, replies, server), torch.ones(2))

    def predictive(self, task: Task, state: Tuned) -> Predictive:
        penalty, temperature = state.chosen.tolist()
        teacher = self.pool(penalty).teacher(task, EvidenceState(*state[:4]))
        return lambda x: tempered(teacher(x), temperature)

    def pool(self, penalty: float) -> EvidencePooling:
        return EvidencePooling(self.inference, penalty, self.exponent)
