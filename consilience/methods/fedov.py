"""FedOV: open-set voting.  Diao, Li and He, ICLR 2023, Algorithm 1 (data destruction; no adversarial outliers)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import nn

from consilience.data.sites import Data
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Categorical, Distribution, Predictive, mixture
from consilience.distributions.softmax import log_softmax
from consilience.errors import InputError
from consilience.inference import SGD, Inference
from consilience.inference.layers import last_linear, resized
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import ONE_SHOT, About, BatchNormed, Method, Pooled, Pooling, State
from consilience.task import Task


@dataclass(frozen=True)
class FedOV(Pooling, BatchNormed, Method):
    """One round; clients learn to say "unknown", and the known part of their votes is added up.

        for each client k of K, in parallel
    1       outliers ← the client's rows, destroyed: two rows cut together at random, one of them moved
    2       θₖ ← training on rows and outliers, with "unknown" as a class of its own;  send θₖ
    3   p(c|x) ∝ Σₖ p(c | x, θₖ) over the known classes c: who does not know x has little to say

    Attributes:
        inference: How a client trains.
        outliers: How many outliers there are for each row.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> len(co.run(co.methods.FedOV(), problem).replies)
        3
    """

    about = About(
        sends="its weights, with one more output for the unknown",
        tasks=("classification",),
        rounds=ONE_SHOT,
    )

    inference: Inference = SGD(epochs=50)
    outliers: int = 1

    def init(self, task: Task, server: Server) -> State:
        if self.outliers < 1:
            raise InputError(f"outliers={self.outliers} teaches nothing about the unknown: give 1 or more.")
        return State(open_set(task).init(server.key))

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        unknown = task.classes(client.data.x)
        destroyed = [destroy(client.data, unknown, client.key.fold(i)) for i in range(self.outliers)]  # 1
        beside = [torch.stack(leaves, 1) for leaves in zip(client.data, *destroyed, strict=True)]  # padding stays last
        rows = Data(*(leaf.flatten(0, 1) for leaf in beside))
        view = client._replace(data=rows, key=client.key.fold(self.outliers))
        return Reply(self.inference(open_set(task), message, view), client.data.size)  # 2

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        return Pooled(state.posterior, payloads(replies), torch.full((len(replies),), 1 / len(replies)))

    def teacher(self, task: Task, state: Pooled) -> Predictive:
        if isinstance(state, State):
            return lambda x: known(open_set(task).predictive(state.posterior)(x))
        voters = [open_set(task).predictive(posterior) for posterior in state.posteriors]
        return lambda x: known(mixture([voter(x) for voter in voters], state.weights))  # 3


def known(p: Distribution) -> Categorical:
    """Leave the unknown out.

    Args:
        p: Probabilities of the classes and, last, the unknown.

    Returns:
        The probabilities of the classes.
    """
    return Categorical(log_softmax(p[0][:, :-1]))


def open_set(task: Task) -> Task:
    """Give a task's network one more output.

    Returns:
        The task with the unknown as its last class.
    """
    return replace(task, model=_widened(task.model))


@lru_cache(maxsize=8)  # made once, before tensors are fake, as in rehearsals
def _widened(model: nn.Module) -> nn.Module:
    """The network with one more output."""
    wider = copy.deepcopy(model)
    name = last_linear(wider)
    layer = wider.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    last = resized(layer, layer.in_features, layer.out_features + 1)
    if not name:
        return last
    wider.set_submodule(name, last)
    return wider


def destroy(data: Data, unknown: int, key: Key) -> Data:
    """Make outliers of rows: one part of a row, and the rest of another, moved along.

    Args:
        data: A client's rows; padding stays at its place.
        unknown: The label of outliers.

    Returns:
        As many outliers, labelled unknown.
    """
    flat = data.x.flatten(1)
    width = flat.shape[1]
    other = flat[key.fold(0).order(data.w)]
    where = key.fold(1).uniform(len(flat), flat).unsqueeze(1)  # the first place of the other row, as a share
    shift = max(1, width // 3)
    cut = (torch.arange(width, device=flat.device) / width - where) % 1.0 < 0.5
    x = torch.where(cut, other.roll(shift, 1), flat)
    return Data(x.reshape(data.x.shape), torch.full_like(data.y, unknown), data.w)
