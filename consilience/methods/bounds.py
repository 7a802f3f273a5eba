"""Bounds: what a federated method is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.inference import CyclicalSGHMC, Inference, Sampler
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import Method, Needs, Pooled, State
from consilience.method.settings import prolong
from consilience.task import Task
from consilience.tree import Tree


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client keeps to itself; scores are each client's own, and their average.

        for each client k, in parallel
    1       p(θ | Dₖ), by any inference

    Attributes:
        inference: How a client infers.
    """

    title: ClassVar[str] = "Local only: no federation, the lower bound; in simulation only"
    name: ClassVar[str] = "local_only"
    sends: ClassVar[str] = "nothing outside a simulation"
    silent: ClassVar[bool] = True
    one_shot: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "counts", "survival")
    everyone: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True
    common: ClassVar[bool] = False

    inference: Inference = Sampler()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        return Pooled(state.posterior, payloads(replies), weights(replies))

    def predictive(self, task: Task, state: Pooled | State) -> Predictive:
        if isinstance(state, State):
            return task.predictive(state.posterior)
        raise InputError("local_only has a model for each site and none for all: use a method that pools, or mixture.")

    def personal(self, task: Task, state: Pooled, memories: Mapping[int, Tree]) -> dict[int, State]:
        return {k: State(state.posteriors[k]) for k in memories}


@dataclass(frozen=True)
class ServerOnly(Method):
    """Ask nobody; train on the server's calibration rows.

    1   p(θ | calibration rows), by any inference

    Attributes:
        inference: How the server infers: few rows need many passes.
    """

    title: ClassVar[str] = "Server only: trained on the labelled rows the server has; the bound that papers leave out"
    name: ClassVar[str] = "server_only"
    needs: ClassVar[Needs] = Needs.LABELS
    sends: ClassVar[str] = "nothing"
    silent: ClassVar[bool] = True
    one_shot: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "counts", "survival")
    tempers: ClassVar[bool] = False
    moves_statistics: ClassVar[bool] = True

    inference: Inference = CyclicalSGHMC(epochs=200, batch=10)

    def broadcast(self, state: State) -> tuple[()]:
        return ()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply((), torch.zeros(()))

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        assert server.calibration is not None
        return State(self.inference(task, state.posterior, Client(server.calibration, (), server.key)))  # 1


@dataclass(frozen=True)
class Centralised(Method):
    """Train on the pooled rows, as nobody here may.

    1   p(θ | D₁ ∪ … ∪ D_K), by any inference

    Attributes:
        inference: How the one client infers.
    """

    title: ClassVar[str] = "Centralised: all data in one place, the upper bound"
    sends: ClassVar[str] = "everything: this is the bound that federated learning avoids"
    one_shot: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "counts", "survival")
    pooled: ClassVar[bool] = True
    everyone: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True

    inference: Inference = Sampler()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        (only,) = replies
        return State(only.payload)


def bounds(inference: Inference | None, sites: int, labelled: bool, rounds: int = 1) -> dict[str, Method]:
    """List the bounds that a federated method is compared with.

    Each site alone and all rows in one place infer as the method's clients do, for as many passes over the rows as
    these make in all rounds, or until they converge.

    Args:
        inference: How the method's clients infer in a round. None: the bounds infer by their defaults.
        sites: How many sites there are; a single one is its own bound.
        labelled: Whether the server has labelled rows.
        rounds: How many the method runs for.

    Returns:
        Bounds by name: each site alone, the server's few rows alone, all rows in one place.
    """
    alone = LocalOnly()
    centralised = Centralised()
    if inference is not None:
        inference = prolong(inference, rounds)
        alone = LocalOnly(inference)
        centralised = Centralised(inference)
    methods: dict[str, Method] = {}
    if sites > 1:
        methods["local_only"] = alone
    if labelled:
        methods["server_only"] = ServerOnly()
    methods["centralised"] = centralised
    return methods
