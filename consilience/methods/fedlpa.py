"""FedLPA: layer-wise posterior aggregation.  Liu et al., NeurIPS 2024."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from consilience.aggregation.layer_merging import damp_factors, merge_by_layers
from consilience.distributions.posterior import Point, centre
from consilience.errors import InputError
from consilience.inference import SGD, Inference
from consilience.inference.layers import Layers, label_gradient, layer_moments
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Method, State
from consilience.methods.fisher import Layered
from consilience.task import Task


@dataclass(frozen=True)
class FedLPA(BatchNormed, Method):
    """One round; multiply the clients' layer-wise Gaussian posteriors, and take the product's mean.

        for each client k of K, in parallel
    1       θₖ ← training on client k's data
    2       for each layer: Aₖ ← Σ a aᵀ of its inputs, Bₖ ← Σ g gᵀ of the loss's gradients at its outputs
    3   Σₖ⁻¹ = nₖ (Aₖ/nₖ + √λ) ⊗ (Bₖ/nₖ + √λ) in each layer
    4   θ ← (Σₖ Σₖ⁻¹)⁻¹ Σₖ Σₖ⁻¹ θₖ

    As in the release each factor is damped by √λ: without, directions in which a client's gradients vanish follow
    whoever still has some. Line 4 is solved exactly, where the release descends.

    Attributes:
        inference: How a client trains.
        ridge: λ, the precision that each row gives to each weight beside the curvature.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedLPA(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        sends="its weights, and second moments of its layers' inputs and gradients",
        rounds=ONE_SHOT,
        types=(Layers, Layered),
    )

    inference: Inference = SGD(epochs=50)
    ridge: float = 1e-3

    def init(self, task: Task, server: Server) -> State:
        if not self.ridge >= 0:
            raise InputError(f"ridge={self.ridge:g} is a precision: give 0 or more.")
        return State(task.init(server.key))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        point = centre(self.inference(task, message, client), task.like)  # 1
        layers = layer_moments(task, point.params, client.data, label_gradient)
        return Reply(Layered(point, layers), client.data.size)  # 2

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        points, layers = zip(*payloads(replies), strict=True)
        damped = [damp_factors(of_client, math.sqrt(self.ridge)) for of_client in layers]  # 3
        return State(merge_by_layers(points, damped, weights(replies)))  # 4
