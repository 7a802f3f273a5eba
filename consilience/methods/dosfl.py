"""Distilled one-shot federated learning.  Zhou et al. 2020; d'Hondt et al. 2024, App. C.3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Point
from consilience.inference.pseudo_rows import starts
from consilience.inference.unrolled import Distillation, Lessons, join_lessons, train_on_lessons
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, Method, Validated
from consilience.task import Task


class Taught(NamedTuple):
    """The state of DOSFL.

    Attributes:
        posterior: The weights.
        seed: Seed of the one start, the same at every client.
        lessons: What each client sent.
    """

    posterior: Point
    seed: Tensor
    lessons: tuple[Lessons, ...]


@dataclass(frozen=True)
class DOSFL(Validated, Method):
    """One round; each client sends pseudo-rows that teach one common start what its own rows would.

        for each client k, in parallel
    1       xₖ, yₖ, ηₖ ← distilled by training the common start on them, unrolled, and send them
    2   for each epoch, for each step s:  θ ← θ − η̄ₛ ∇ Σₖ (nₖ/n) ℓ(θ; xₖₛ, yₖₛ)

    Attributes:
        learn: How a client distils.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> short = co.inference.Distillation(steps=2, updates=3)
        >>> len(co.run(co.methods.DOSFL(learn=short), problem).replies)
        3
    """

    about = About(sends="learned pseudo-rows and the steps to take on them", rounds=ONE_SHOT)

    learn: Distillation = Distillation()

    def init(self, task: Task, server: Server) -> Taught:
        return Taught(task.init(server.key), torch.as_tensor(server.key.fold(1).seed), ())

    def broadcast(self, state: Taught) -> Tensor:
        return state.seed

    def local(self, task: Task, message: Tensor, client: Client) -> Reply:
        return Reply(self.learn(task, message, client), client.data.size)  # 1

    def doubt(self, task: Task, message: Tensor, send: Lessons) -> str | None:
        longest = self.learn.rate + 10 * self.learn.updates * self.learn.rate_rate  # Adam's steps, ten times as long
        if not bool(((send.rates >= 0) & (send.rates <= 1.001 * longest)).all()):
            return f"it asks for steps that are not from 0 to {longest:g}, further than learning can have brought them."
        return None

    def aggregate(self, task: Task, state: Taught, replies: Sequence[Received], server: Server) -> Taught:
        ordered = sorted(replies, key=lambda r: r.client)
        lessons, w = join_lessons(list(payloads(ordered)), weights(ordered))
        start = starts(task, state.seed, 1)[0]
        theta = train_on_lessons(task, task.like, start, lessons, self.learn.epochs, w).detach()  # 2
        return Taught(Point(tree.unravel(theta, task.like)), state.seed, payloads(ordered))
