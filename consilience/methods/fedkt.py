"""FedKT, without its inner tier of teachers.  Li, He and Song, IJCAI 2021, Algorithm 1; Hasan 2023, §2.2.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.inference import SGD, Inference
from consilience.method import Method, Pooled, State
from consilience.models.softmax import log_softmax
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.pooling.distil import Distil, distil_pool
from consilience.posterior import Point, Posterior, Samples
from consilience.predictive import Categorical, Predictive
from consilience.task import Task


@dataclass(frozen=True)
class FedKT(Method):
    """One round; the clients' models vote on the server's inputs, and a student learns the winners.

        for each client k of K, in parallel
    1       cut client k's data at random into S parts; θₖˢ ← training on part s; send all
    2   vₖ(c|x) ← how many of client k's models say c; with consistent voting, S if all do and else 0
    3   the teacher's label of x is the class with the most votes Σₖ vₖ(c|x), the first of those with as many
    4   θ ← training on the server's inputs with the teacher's labels

    Attributes:
        inference: How a client trains.
        models: S, the parts of a client's rows and so its models; 1 is plain voting.
        consistent: Whether only clients whose models agree count.
        distil: How the server trains one student; None: keep the votes.
    """

    sends: ClassVar[str] = "the weights of a few models"
    tasks: ClassVar[tuple[str, ...]] = ("classification",)
    one_shot: ClassVar[bool] = True
    by_site: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True

    inference: Inference = SGD()
    models: int = 2
    consistent: bool = True
    distil: Distil | None = Distil()

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        number = torch.argsort(client.key.order(client.data.w)) % self.models
        parts = [client.data._replace(w=client.data.w * (number == s)) for s in range(self.models)]
        views = [client._replace(data=rows, key=client.key.fold(s)) for s, rows in enumerate(parts)]
        models = [self.inference(task, message, view) for view in views]
        return Reply(Samples(tree.stack(models)[0]), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        pooled = Pooled(state.posterior, payloads(replies), weights(replies))
        return distil_pool(self.distil, task, pooled, lambda x: winners(self.votes(task, pooled, x)), server)  # 4

    def predictive(self, task: Task, state: Pooled) -> Predictive:
        if self.distil:
            return self.distil.predictive(task, state.posterior)
        return lambda x: Categorical(log_softmax((self.votes(task, state, x) + 0.5).log()))

    def votes(self, task: Task, state: Pooled, x: Tensor) -> Tensor:
        """Count the models that say each class.

        Args:
            task: The statistical problem.
            state: The clients' models.
            x: N inputs.

        Returns:
            The votes, [N, C].
        """
        total = torch.zeros(())
        for posterior in state.posteriors:
            models = tree.unstack(posterior[0], self.models)
            votes = torch.stack([ballots(task, Point(model), x) for model in models]).sum(0)
            if self.consistent:
                votes = votes * (votes == self.models)
            total = total + votes  # 2
        return total


def ballots(task: Task, model: Posterior, x: Tensor) -> Tensor:
    """Let one model vote.

    Args:
        task: The statistical problem.
        model: The model's weights.
        x: N inputs.

    Returns:
        1 at the most probable class of each input, else 0, [N, C].
    """
    p = task.predictive(model)(x)
    assert isinstance(p, Categorical)
    return torch.nn.functional.one_hot(p.log_probs.argmax(-1), p.log_probs.shape[-1]).to(x)


def winners(votes: Tensor) -> Categorical:
    """Give all probability to the class with the most votes.

    Args:
        votes: For each input and class, [N, C].

    Returns:
        The teacher's labels, as a distribution.
    """
    return Categorical(torch.nn.functional.one_hot(votes.argmax(-1), votes.shape[-1]).to(votes).log())  # 3
