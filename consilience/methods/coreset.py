"""BPC-FL.  d'Hondt et al. 2024, One-shot federated learning with Bayesian pseudocoresets, Algorithms 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data, concatenate
from consilience.inference import SGD, Inference
from consilience.inference.coreset import BPCfKL, Learned, caution
from consilience.inference.hmc import infer
from consilience.method import Method
from consilience.parties import Client, Received, Reply, Server, payloads
from consilience.posterior import Posterior
from consilience.task import Task


class CoresetState(NamedTuple):
    posterior: Posterior
    seed: Tensor  # of the trajectories' starts, the same at every client
    learned: tuple[Learned, ...]  # every site's coreset
    accepted: Tensor  # share of HMC's proposals; 1 for optimisers


@dataclass(frozen=True)
class CoresetFL(Method):
    """One round; each client sends a few learned pseudo-rows whose posterior resembles that of its own rows.

        for each client m, in parallel
    1       (Zₘ, ŷₘ) ← BPC-fKL(Dₘ), from starts that depend on a shared seed, and send them
    2   (Z, ŷ) ← the union, client m's rows counting nₘ/K each
    3   p(θ | Z, ŷ), by any inference
    """

    name: ClassVar[str] = "coreset"
    sends: ClassVar[str] = (
        "a few learned pseudo-rows, which can look like its own, how near they come to its rows, and how often their "
        "steps were halved"
    )
    one_shot: ClassVar[bool] = True

    learn: BPCfKL = BPCfKL()  # how a client learns its coreset
    downstream: Inference = SGD(epochs=200, batch=50)  # how the server infers on the union: SGD, Adam, HMC or any other
    mass: float | None = None  # rows the union counts for; None: as many as the sites have

    def init(self, task: Task, server: Server) -> CoresetState:
        return CoresetState(task.init(server.key), torch.as_tensor(server.key.fold(1).seed), (), torch.ones(()))

    def broadcast(self, state: CoresetState) -> Tensor:
        return state.seed

    def local(self, task: Task, message: Tensor, client: Client) -> Reply:
        return Reply(self.learn.learn(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: CoresetState, replies: Sequence[Received], server: Server) -> CoresetState:
        learned = payloads(sorted(replies, key=lambda r: r.client))
        union = self.union(learned)
        caution(learned, None if union.y.is_floating_point() else task.classes(union.x))
        rows = Client(union, (), server.key)
        posterior, accepted = infer(self.downstream, task, state.posterior, rows)  # 3
        return CoresetState(posterior, state.seed, learned, accepted)

    def reply_settings(self) -> Any:
        return [CoresetFL, self.learn]  # what the server infers is not what the sites compute

    def union(self, learned: Sequence[Learned]) -> Data:
        rows = concatenate(each.coreset for each in learned)  # 2
        return rows if self.mass is None else rows._replace(w=rows.w * self.mass / rows.size)

    def diagnose(self, task: Task, state: CoresetState, x: Tensor) -> dict[str, Any]:
        sites = [{"halved": int(s.halved), **{k: float(v) for k, v in s.near._asdict().items()}} for s in state.learned]
        return {"accepted": float(state.accepted), "coresets": sites}
