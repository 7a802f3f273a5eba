"""RegMean.  Jin et al., ICLR 2023."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consilience.aggregation.layer_merging import merge_by_inputs
from consilience.distributions.posterior import Point, centre
from consilience.errors import InputError
from consilience.inference import SGD, Inference
from consilience.inference.layers import Layers, layer_moments
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Method, State
from consilience.methods.fisher import Layered
from consilience.task import Task


@dataclass(frozen=True)
class RegMean(BatchNormed, Method):
    """One round; every layer does on each client's inputs what that client's own layer does, by least squares.

        for each client k of K, in parallel
    1       θₖ ← training on client k's data
    2       for each layer: Gₖ ← Σ a aᵀ of its inputs a (a 1 at their end for the bias);  send both
    3   W ← (Σₖ Wₖ G̃ₖ) (Σₖ G̃ₖ)⁻¹ for each layer, G̃ = α G + (1 − α) diag G

    Attributes:
        inference: How a client trains.
        off_diagonal: α, how much of the moments off the diagonal is kept.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.RegMean(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        sends="its weights, and second moments of its layers' inputs",
        rounds=ONE_SHOT,
        types=(Layers, Layered),
    )

    inference: Inference = SGD(epochs=50)
    off_diagonal: float = 0.9

    def init(self, task: Task, server: Server) -> State:
        if not 0 <= self.off_diagonal <= 1:
            raise InputError(f"off_diagonal={self.off_diagonal:g} is a share: give a number from 0 to 1.")
        return State(task.init(server.key))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        point = centre(self.inference(task, message, client), task.like)  # 1
        return Reply(Layered(point, layer_moments(task, point.params, client.data)), client.data.size)  # 2

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        points, layers = zip(*payloads(replies), strict=True)
        return State(merge_by_inputs(points, layers, weights(replies), self.off_diagonal))  # 3
