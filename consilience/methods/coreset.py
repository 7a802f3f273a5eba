"""BPC-FL.  d'Hondt et al. 2024, One-shot federated learning with Bayesian pseudocoresets, Algorithms 1 and 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data, concatenate
from consilience.distributions.posterior import Posterior
from consilience.inference import SGD, Inference
from consilience.inference.coreset import BPCfKL, Learned, caution
from consilience.inference.hmc import infer
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import ONE_SHOT, About, Diagnosed, Method, Reusable
from consilience.task import Task


class CoresetState(NamedTuple):
    """The state of BPC-FL.

    Attributes:
        posterior: The posterior given the union of the coresets.
        seed: Seed of the trajectories' starts, the same at every client.
        learned: Every site's coreset.
        accepted: Share of HMC's proposals that were accepted; 1 for optimisers.
    """

    posterior: Posterior
    seed: Tensor
    learned: tuple[Learned, ...]
    accepted: Tensor


@dataclass(frozen=True)
class CoresetFL(Reusable, Diagnosed, Method):
    """One round; each client sends a few learned pseudo-rows whose posterior resembles that of its own rows.

        for each client m, in parallel
    1       (Zₘ, ŷₘ) ← BPC-fKL(Dₘ), from starts that depend on a shared seed, and send them
    2   (Z, ŷ) ← the union, client m's rows counting nₘ/K each
    3   p(θ | Z, ŷ), by any inference

    Attributes:
        learn: How a client learns its coreset.
        downstream: How the server infers on the union: SGD, Adam, HMC or any other.
        mass: How many rows the union counts for; None: as many as the sites have.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> small = co.inference.BPCfKL(rows=4, trajectories=1, steps=10, updates=2, data_steps=5, coreset_steps=5)
        >>> result = co.run(co.methods.CoresetFL(learn=small, downstream=co.SGD(epochs=5)), problem)
        >>> len(result.replies)
        3
    """

    about = About(
        name="coreset",
        sends=(
            "a few learned pseudo-rows, which can look like its own, how near they come to its rows, and how often "
            "their steps were halved"
        ),
        rounds=ONE_SHOT,
    )

    learn: BPCfKL = BPCfKL()
    downstream: Inference = SGD(epochs=200, batch=50)
    mass: float | None = None

    def init(self, task: Task, server: Server) -> CoresetState:
        return CoresetState(task.init(server.key), torch.as_tensor(server.key.fold(1).seed), (), torch.ones(()))

    def broadcast(self, state: CoresetState) -> Tensor:
        return state.seed

    def local(self, task: Task, message: Tensor, client: Client) -> Reply:
        return Reply(self.learn.learn(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: CoresetState, replies: Sequence[Received], server: Server) -> CoresetState:
        learned = payloads(sorted(replies, key=lambda r: r.client))
        union = self.union(learned)
        classes = None
        if not union.y.is_floating_point():
            classes = task.classes(union.x)
        caution(learned, classes)
        rows = Client(union, (), server.key)
        posterior, accepted = infer(self.downstream, task, state.posterior, rows)  # 3
        return CoresetState(posterior, state.seed, learned, accepted)

    def reply_settings(self) -> Any:
        return [CoresetFL, self.learn]  # what the server infers is not what the sites compute

    def union(self, learned: Sequence[Learned]) -> Data:
        """Return the rows of all coresets, weighted to count for `mass` rows together."""
        rows = concatenate(each.coreset for each in learned)  # 2
        if self.mass is None:
            return rows
        return rows._replace(w=rows.w * self.mass / rows.size)

    def diagnose(self, task: Task, state: CoresetState, x: Tensor) -> dict[str, Any]:
        coresets = []
        for learned in state.learned:
            distances = {name: float(value) for name, value in learned.near._asdict().items()}
            coresets.append({"halved": int(learned.halved), **distances})
        return {"accepted": float(state.accepted), "coresets": coresets}
