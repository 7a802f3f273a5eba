"""FedKT, votes of two tiers.  Li, He and Song, IJCAI 2021, Algorithm 1; Hasan 2023, §2.2.2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consilience import tree
from consilience.aggregation.distil import Distil, distil_pool
from consilience.data.sites import Data
from consilience.distributions.posterior import Point, Posterior, Samples
from consilience.distributions.predictive import Categorical, Predictive
from consilience.distributions.softmax import log_softmax
from consilience.errors import InputError
from consilience.inference import SGD, Inference
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Method, Pooled, Pooling, ShowsInputs, State
from consilience.method.settings import added
from consilience.task import Task


class Asked(NamedTuple):
    """What a client gets where its own teachers vote first.

    Attributes:
        posterior: What every training starts from.
        inputs: The server's unlabelled rows, on which the teachers vote.
    """

    posterior: Point
    inputs: Tensor


@dataclass(frozen=True)
class FedKT(Pooling, ShowsInputs, BatchNormed, Method):
    """One round; the clients' models vote on the server's inputs, and a student learns the winners.

        for each client k of K, in parallel
    1       cut client k's data at random into S parts; for each part s
                T = 1: θₖˢ ← training on the part
                T > 1: cut it into T again and train a teacher on each; θₖˢ ← training on their votes for the inputs
            send θₖ¹ … θₖˢ
    2   vₖ(c|x) ← how many of client k's models say c; with consistent voting, S if all do and else 0
    3   the teacher's label of x is the class with the most votes Σₖ vₖ(c|x), the first of those with as many
    4   θ ← training on the server's inputs with the teacher's labels

    Attributes:
        inference: How a client trains.
        models: S, the parts of a client's rows and so its models; 1 is plain voting.
        consistent: Whether only clients whose models agree count.
        distil: How the server trains one student; None: keep the votes.
        teachers: T, the teachers of each model at the client, the paper's inner tier; from 2 on the server's inputs are
            sent to the clients. 1 leaves the tier out, as the program of Hasan 2023 does.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear", inputs=20)
        >>> len(co.run(co.methods.FedKT(), problem).replies)
        3
    """

    about = About(sends="the weights of a few models", tasks=("classification",), rounds=ONE_SHOT)

    inference: Inference = SGD()
    models: int = 2
    consistent: bool = True
    distil: Distil | None = Distil()
    teachers: int = added(1)

    def __post_init__(self) -> None:
        for name, count in (("models", self.models), ("teachers", self.teachers)):
            if count < 1:
                raise InputError(f"{name}={count} trains nothing: give 1 or more.")

    @property
    def shows_inputs(self) -> bool:
        return self.teachers > 1

    def init(self, task: Task, server: Server) -> State | Asked:
        start = task.init(server.key)
        if self.teachers == 1:
            return State(start)
        if server.inputs is None:
            raise InputError(f"teachers={self.teachers} vote on unlabelled rows of the server, for example inputs=0.2.")
        return Asked(start, server.inputs)

    def broadcast(self, state: State | Asked) -> Posterior | Asked:
        if isinstance(state, Asked):
            return state
        return state.posterior

    def local(self, task: Task, message: Point | Asked, client: Client) -> Reply:
        parts = cut(client, self.models)
        if isinstance(message, Asked):
            models = [self.learn_votes(task, message, part) for part in parts]
        else:
            models = [self.inference(task, message, part) for part in parts]
        return Reply(Samples(tree.stack(models)[0]), client.data.size)  # 1

    def learn_votes(self, task: Task, message: Asked, part: Client) -> Posterior:
        """Train teachers on a part of a client's rows, and a model on their votes for the server's inputs."""
        teachers = [self.inference(task, message.posterior, share) for share in cut(part, self.teachers)]
        labels = count_votes(task, teachers, message.inputs).argmax(-1)
        pupil = part._replace(data=Data.of(message.inputs, labels), key=part.key.fold(self.teachers))
        return self.inference(task, message.posterior, pupil)

    def aggregate(self, task: Task, state: State | Asked, replies: Sequence[Received], server: Server) -> Pooled:
        pooled = Pooled(state.posterior, payloads(replies), weights(replies))
        return distil_pool(self.distil, task, pooled, lambda x: winners(self.votes(task, pooled, x)), server)  # 4

    def teacher(self, task: Task, state: Pooled) -> Predictive:
        return lambda x: Categorical(log_softmax((self.votes(task, state, x) + 0.5).log()))

    def votes(self, task: Task, state: Pooled, x: Tensor) -> Tensor:
        """Count the models that say each class.

        Returns:
            The votes, [N, C].
        """
        total = torch.zeros(())
        for posterior in state.posteriors:
            votes = count_votes(task, [Point(model) for model in tree.unstack(posterior[0], self.models)], x)
            if self.consistent:
                votes = votes * (votes == self.models)
            total = total + votes  # 2
        return total


def cut(client: Client, number: int) -> list[Client]:
    """Deal a client's rows at random.

    Args:
        client: The client, or a part of it.
        number: How many parts there are.

    Returns:
        The parts, each with a key of its own.
    """
    part = torch.argsort(client.key.order(client.data.w)) % number
    rows = [client.data._replace(w=client.data.w * (part == s)) for s in range(number)]
    return [client._replace(data=data, key=client.key.fold(s)) for s, data in enumerate(rows)]


def count_votes(task: Task, models: Sequence[Posterior], x: Tensor) -> Tensor:
    """Let models vote, each for its most probable class.

    Returns:
        How many of them say each class, [N, C].
    """
    votes = []
    for model in models:
        p = task.predictive(model)(x)
        assert isinstance(p, Categorical)
        votes.append(one_hot(p.log_probs.argmax(-1), p.log_probs.shape[-1]).to(x))
    return torch.stack(votes).sum(0)


def winners(votes: Tensor) -> Categorical:
    """Give all probability to the class with the most votes.

    Args:
        votes: For each input and class, [N, C].

    Returns:
        The teacher's labels, as a distribution.
    """
    return Categorical(one_hot(votes.argmax(-1), votes.shape[-1]).to(votes).log())  # 3
