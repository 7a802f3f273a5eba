"""Bounds: what a federated method is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.inference import CyclicalSGHMC, Inference, Sampler
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Bound, Method, Needs, Pooled, ReplyKind, State
from consilience.method.settings import prolong
from consilience.task import Task


@dataclass(frozen=True)
class LocalOnly(BatchNormed, Bound):
    """Every client keeps to itself; scores are each client's own, and their average.

        for each client k, in parallel
    1       p(θ | Dₖ), by any inference

    Attributes:
        inference: How a client infers.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.LocalOnly(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        name="local_only",
        paper="Local only: no federation, the lower bound; in simulation only",
        sends="nothing outside a simulation",
        tasks=("classification", "regression", "counts", "survival"),
        rounds=ONE_SHOT,
        everyone=True,
        reply=ReplyKind.POSTERIOR,
    )
    silent = True
    common = False

    inference: Inference = Sampler()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        return Pooled(state.posterior, payloads(replies), weights(replies))

    def predictive(self, task: Task, state: Pooled | State) -> Predictive:
        if isinstance(state, State):
            return task.predictive(state.posterior)
        raise InputError("local_only has a model for each site and none for all: use a method that pools, or mixture.")

    def alone(self, state: Pooled, client: int) -> State:
        return State(state.posteriors[client])


@dataclass(frozen=True)
class ServerOnly(BatchNormed, Bound):
    """Ask nobody; train on the server's calibration rows.

    1   p(θ | calibration rows), by any inference

    Attributes:
        inference: How the server infers: few rows need many passes.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.ServerOnly(), problem).report["rows"]["calibration"]
        30
    """

    about = About(
        name="server_only",
        paper="Server only: trained on the labelled rows the server has; the bound that papers leave out",
        sends="nothing",
        needs=Needs.LABELS,
        tasks=("classification", "regression", "counts", "survival"),
        rounds=ONE_SHOT,
    )
    silent = True
    tempers = False

    inference: Inference = CyclicalSGHMC(epochs=200, batch=10)

    def broadcast(self, state: State) -> tuple[()]:
        return ()

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply((), torch.zeros(()))

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        assert server.calibration is not None
        return State(self.inference(task, state.posterior, Client(server.calibration, (), server.key)))  # 1


@dataclass(frozen=True)
class Centralised(BatchNormed, Bound):
    """Train on the pooled rows, as nobody here may.

    1   p(θ | D₁ ∪ … ∪ D_K), by any inference

    Attributes:
        inference: How the one client infers.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.Centralised(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        paper="Centralised: all data in one place, the upper bound",
        sends="everything: this is the bound that federated learning avoids",
        tasks=("classification", "regression", "counts", "survival"),
        rounds=ONE_SHOT,
        everyone=True,
    )
    pooled = True

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
