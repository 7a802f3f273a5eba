"""CCVR: classifier calibration with virtual representations.  Luo et al., NeurIPS 2021, Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from consilience.data.sites import Data
from consilience.distributions.posterior import Point, average, centre
from consilience.errors import InputError
from consilience.glm.sums import Sums, add, square_matrix, summarise
from consilience.inference import SGD, Inference
from consilience.inference.layers import last_features, last_linear
from consilience.key import Key
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Method, Rounds
from consilience.task import Task, classification


class CCVRState(NamedTuple):
    """The state of CCVR.

    Attributes:
        posterior: The weights, whose last layer was fitted again if `done` says so.
        done: How many rounds have been played, [].
    """

    posterior: Point
    done: Tensor


class Question(NamedTuple):
    """Asks clients what the classes look like to the last layer.

    Attributes:
        point: The weights to look with.
    """

    point: Point


@dataclass(frozen=True)
class CCVR(BatchNormed, Method):
    """Federated averaging; then the last layer is fitted again to draws from Gaussians, one a class.

        for the first rounds, federated averaging
    1       θ ← Σₖ (nₖ / n) θₖ
        then, for each client k of K, in parallel
    2       send, of each class, the number of rows and Σ φ, Σ φφᵀ of what the last layer gets under θ
    3   μ_c, Σ_c ← mean and covariance of class c over all clients
    4   draw M features of each class from N(μ_c, Σ_c);  fit the last layer to them, each counted n_c / M times

    Attributes:
        inference: How a client trains.
        before: Rounds of federated averaging.
        draws: M, features drawn of each class.
        refit: How the server fits the last layer.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid")
        >>> co.run(co.methods.CCVR(inference=co.SGD(epochs=1)), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        sends="its weights; then, of each class, the mean and covariance of what the last layer gets",
        tasks=("classification",),
        rounds=Rounds(2),
        types=(Sums,),
    )

    inference: Inference = SGD(epochs=50)
    before: int = 1
    draws: int = 200
    refit: Inference = SGD(epochs=50)

    def init(self, task: Task, server: Server) -> CCVRState:
        last_linear(task.model)
        if self.before < 1 or self.draws < 1:
            raise InputError(f"before={self.before} and draws={self.draws} are counts: give 1 or more.")
        return CCVRState(task.init(server.key), torch.zeros((), dtype=torch.int64))

    def broadcast(self, state: CCVRState) -> Any:
        if int(state.done) < self.before:
            return state.posterior
        return Question(state.posterior)

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        if not isinstance(message, Question):
            return Reply(centre(self.inference(task, message, client), task.like), client.data.size)  # 1
        classes = task.classes(client.data.x)
        looks = lambda x: last_features(task, message.point.params, x)
        return Reply(summarise(looks, client.data, classes, by_class=True), client.data.size)  # 2

    def aggregate(self, task: Task, state: CCVRState, replies: Sequence[Received], server: Server) -> CCVRState:
        if int(state.done) < self.before:
            return CCVRState(average(payloads(replies), weights(replies)), state.done + 1)  # 1
        features = draw_features(add(payloads(replies)), self.draws, server.key.fold(0))
        return CCVRState(self.fit_last(task, state.posterior, features, server.key.fold(1)), state.done + 1)

    def fit_last(self, task: Task, point: Point, features: Data, key: Key) -> Point:
        """Fit the last layer to drawn features, from where it stands."""
        name = last_linear(task.model)
        layer = task.model.get_submodule(name)
        own = {k: f"{name}.{k}" for k, _ in layer.named_parameters()}
        start = Point({k: point.params[whole] for k, whole in own.items()})
        assert isinstance(layer, nn.Linear)
        head = classification(layer, task.prior)
        like = next(iter(start.params.values()))
        rows = Data(features.x.to(like), features.y, features.w.to(like))
        fitted = centre(self.refit(head, start, Client(rows, (), key)), head.like).params  # 4
        return Point({**point.params, **{whole: fitted[k] for k, whole in own.items()}})


def draw_features(totals: Sums, draws: int, key: Key) -> Data:
    """Draw features from one Gaussian a class.

    Args:
        totals: Sums over all clients' rows, with a Gram matrix a class.
        draws: How many of each class.

    Returns:
        Features with their classes; each counts as many rows as its class has for every draw.
    """
    size = totals.cross.shape[1]
    x, y, w = [], [], []
    for c, count in enumerate(totals.counts):
        if float(count) < 2:
            continue  # no covariance; such a class stays as the average knows it
        mean = totals.cross[c, 1:] / count
        gram = square_matrix(totals.gram[c], size)[1:, 1:]
        covariance = (gram - count * torch.outer(mean, mean)) / (count - 1)  # 3
        values, vectors = torch.linalg.eigh(covariance)
        normal = key.fold(c).normal((draws, len(mean)), mean)
        x.append(mean + normal * values.clamp(min=0).sqrt() @ vectors.mT)
        y.append(torch.full((draws,), c))
        w.append((count / draws).expand(draws))
    return Data(torch.cat(x), torch.cat(y), torch.cat(w))
