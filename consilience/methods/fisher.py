"""Fisher merging, by weight and by layer.  Matena and Raffel, NeurIPS 2022; Jhunjhunwala et al., AISTATS 2024."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consilience import tree
from consilience.aggregation.layer_merging import merge_by_layers, merge_by_weight
from consilience.distributions.posterior import Point, centre
from consilience.errors import InputError
from consilience.inference import SGD, Inference
from consilience.inference.laplace import ggn, sum_curvature
from consilience.inference.layers import Layers, curvature_root, layer_moments
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Method, State
from consilience.task import Task
from consilience.tree import Params


class Curved(NamedTuple):
    """What a client of Fisher merging sends.

    Attributes:
        point: Its weights.
        curvature: The diagonal of its Fisher information, summed over its rows.
    """

    point: Point
    curvature: Params


class Layered(NamedTuple):
    """What a client of layer-wise merging sends.

    Attributes:
        point: Its weights.
        layers: Second moments of its layers' inputs and gradients.
    """

    point: Point
    layers: Layers


@dataclass(frozen=True)
class FisherMerging(BatchNormed, Method):
    """One round; average every weight by the Fisher information that each client has about it.

        for each client k of K, in parallel
    1       θₖ ← training on client k's data
    2       fₖ ← Σ over its rows of the diagonal of E_{y ∼ p(·|x, θₖ)} ∇log p(y|x, θₖ) ∇log p(y|x, θₖ)ᵀ;  send both
    3   θ ← Σₖ fₖ θₖ / Σₖ fₖ

    Attributes:
        inference: How a client trains.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FisherMerging(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        name="fisher_merging",
        paper="Fisher merging.  Matena and Raffel, NeurIPS 2022",
        sends="its weights, and how sharply its rows determine each of them",
        rounds=ONE_SHOT,
    )

    inference: Inference = SGD(epochs=50)

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        point = centre(self.inference(task, message, client), task.like)  # 1
        diagonal = sum_curvature(task, point.params, client.data, ggn)
        uncertain = {name: point.params[name] for name in task.uncertain}
        return Reply(Curved(point, tree.unravel(diagonal, uncertain)), client.data.size)  # 2

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        points, curvatures = zip(*payloads(replies), strict=True)
        return State(merge_by_weight(points, curvatures, weights(replies)))  # 3


@dataclass(frozen=True)
class FedFisher(BatchNormed, Method):
    """One round; the weights that lose least at all clients together, by Kronecker-factored Fisher information.

        for each client k of K, in parallel
    1       θₖ ← training on client k's data
    2       for each layer: Aₖ ← Σ a aᵀ of its inputs, Bₖ ← Σ g gᵀ of gradients at its outputs, E over y ∼ p(·|x, θₖ)
    3   θ ← argmin Σₖ (θ − θₖ)ᵀ Fₖ (θ − θₖ),  Fₖ = Aₖ ⊗ Bₖ / nₖ + damping in each layer

    The paper descends and stops by labelled rows of the server; here it has none, and damping takes their place.

    Attributes:
        inference: How a client trains.
        damping: What holds θ where no rows have looked, in units of a layer's mean curvature.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedFisher(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        name="fedfisher",
        paper="FedFisher.  Jhunjhunwala, Wang and Joshi, AISTATS 2024 (K-FAC; solved, not descended)",
        sends="its weights, and second moments of its layers' inputs and gradients",
        rounds=ONE_SHOT,
        types=(Layers,),
    )

    inference: Inference = SGD(epochs=50)
    damping: float = 0.1

    def init(self, task: Task, server: Server) -> State:
        if not self.damping >= 0:
            raise InputError(f"damping={self.damping:g} is a share of the curvature: give 0 or more.")
        return State(task.init(server.key))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        point = centre(self.inference(task, message, client), task.like)  # 1
        layers = layer_moments(task, point.params, client.data, curvature_root)
        return Reply(Layered(point, layers), client.data.size)  # 2

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        points, layers = zip(*payloads(replies), strict=True)
        return State(merge_by_layers(points, layers, weights(replies), self.damping))  # 3
