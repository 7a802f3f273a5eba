"""FENS: a one-shot ensemble and a small aggregator that clients train together.  Allouah et al., NeurIPS 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from consilience.distributions.posterior import Point, Posterior, average, centre
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.inference import SGD, Inference
from consilience.inference.layers import last_linear, resized
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Method, Pooling, Rounds, State
from consilience.task import Task, classification


class FENSState(NamedTuple):
    """The state of FENS after its first round.

    Attributes:
        posterior: What the first round started from.
        posteriors: The clients' models.
        weights: nₖ / n.
        aggregator: The weights of the network on the models' outputs.
    """

    posterior: Posterior
    posteriors: tuple[Posterior, ...]
    weights: Tensor
    aggregator: Point


class Stack(NamedTuple):
    """What clients get once there are models.

    Attributes:
        models: All clients' weights.
        aggregator: The network on the models' outputs, to go on from.
    """

    models: tuple[Posterior, ...]
    aggregator: Point


@dataclass(frozen=True)
class FENS(Pooling, BatchNormed, Method):
    """One round of training; then light rounds in which clients learn how to combine the models.

        for each client k of K, in parallel, in the first round
    1       θₖ ← training on client k's data, and send it
    2   send all θ₁ … θ_K to every client
        for each client k of K, in parallel, in every other round
    3       z(x) = the probabilities of all K models for its rows;  λₖ ← training of the aggregator on z, from λ
    4   λ ← Σₖ (nₖ / n) λₖ
    5   p(y|x) = the aggregator's prediction for z(x)

    Attributes:
        inference: How a client trains its model.
        light: How a client trains the aggregator in one round.
        hidden: How many units the aggregator has.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FENS(), problem, rounds=3).report["rounds"]
        3
    """

    about = About(
        sends="its weights; then those of a small network on all clients' outputs",
        tasks=("classification",),
        rounds=Rounds(11),
    )

    inference: Inference = SGD(epochs=50)
    light: Inference = SGD(epochs=5)
    hidden: int = 64

    def init(self, task: Task, server: Server) -> State:
        if self.hidden < 1:
            raise InputError(f"hidden={self.hidden} units cannot combine anything: give 1 or more.")
        return State(task.init(server.key))

    def broadcast(self, state: Any) -> Any:
        if isinstance(state, State):
            return state.posterior
        return Stack(state.posteriors, state.aggregator)  # 2

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        if not isinstance(message, Stack):
            return Reply(self.inference(task, message, client), client.data.size)  # 1
        z = stack_outputs(task, message.models, client.data.x)
        view = client._replace(data=client.data._replace(x=z))
        combine = self.combination(task, len(message.models))
        return Reply(centre(self.light(combine, message.aggregator, view), combine.like), client.data.size)  # 3

    def aggregate(self, task: Task, state: Any, replies: Sequence[Received], server: Server) -> FENSState:
        if isinstance(state, FENSState):
            return state._replace(aggregator=average(payloads(replies), weights(replies)))  # 4
        models = payloads(replies)
        start = start_aggregator(self.combination(task, 1), len(models), server.key)
        return FENSState(state.posterior, models, weights(replies), start)

    def teacher(self, task: Task, state: Any) -> Predictive:
        if isinstance(state, State):
            return task.predictive(state.posterior)
        model = self.combination(task, len(state.posteriors)).predictive(state.aggregator)
        return lambda x: model(stack_outputs(task, state.posteriors, x))  # 5

    def combination(self, task: Task, models: int) -> Task:
        """Make the task of combining the outputs of some models."""
        last = task.model.get_submodule(last_linear(task.model))
        assert isinstance(last, nn.Linear)
        first = resized(last, models * last.out_features, self.hidden)
        second = resized(last, self.hidden, last.out_features)
        return classification(nn.Sequential(first, nn.ReLU(), second))


def start_aggregator(combine: Task, models: int, key: Key) -> Point:
    """Draw an aggregator that begins by treating all models alike.

    Args:
        combine: The task of combining one model's outputs.

    Returns:
        The aggregator's weights, for that many models.
    """
    params = combine.init(key).params
    return Point({**params, "0.weight": params["0.weight"].repeat(1, models) / models})


@torch.no_grad()
def stack_outputs(task: Task, models: Sequence[Posterior], x: Tensor) -> Tensor:
    """Predict with every model.

    Returns:
        Their probabilities side by side, [N, K · C].
    """
    return torch.cat([task.predictive(model)(x)[0].exp() for model in models], 1)
