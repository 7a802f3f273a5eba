"""Evidence pooling.  This project; derivation, limits and relatives in docs/evidence.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from consilience.aggregation.distil import Distil, distil_pool
from consilience.aggregation.evidence import class_log_probs, class_scores, diagnosis, strengths
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Categorical, Predictive
from consilience.inference import SGD, Inference
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import (
    ONE_SHOT,
    About,
    BatchNormed,
    Diagnosed,
    Knob,
    Method,
    Pooling,
    Releasable,
    State,
    Tunable,
    keep_fields,
)
from consilience.task import Task, label_counts, smooth
from consilience.tree import Tree

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)  # values of λ that clients or sites can choose from


class Evidence(NamedTuple):
    """What a client of evidence pooling sends.

    Attributes:
        posterior: The client's posterior under the adjusted likelihood.
        counts: nₖ, how often each class was seen.
    """

    posterior: Posterior
    counts: Tensor


class EvidenceState(NamedTuple):
    """The state of evidence pooling.

    Attributes:
        posterior: What the round started from, or the student.
        posteriors: One for each client that replied, under its adjusted likelihood.
        weights: nₖ / n.
        counts: How often each client saw each class, [K, C].
        chosen: λ and temperature, where the clients chose them.
    """

    posterior: Posterior
    posteriors: tuple[Posterior, ...]
    weights: Tensor
    counts: Tensor
    chosen: Tensor | tuple[()] = ()


@dataclass(frozen=True)
class EvidencePooling(Pooling, Tunable, Releasable, Diagnosed, BatchNormed, Method):
    """One round; pool what each client knows about a class, not how often it sees it. Nothing is needed at the server.

        for each client k of K, in parallel
    1       π̂ₖ(c) ∝ nₖ(c) + ½;  infer θₖ¹ … θₖˢ (S = 1: a point) under the likelihood softmax(z + log π̂ₖ)
    2       send them and the C counts nₖ
    3   z̃ₖ(x) = log (1/S) Σₛ softmax z(x, θₖˢ): evidence, up to an offset that does not depend on the class
    4   s, a ← argmin Σₖc r_kc (s_c + a_k − z̃_kc)² + λ Σₖ r_k a_k²,   r_kc = nₖ(c)^α
    5   p(y|x) ∝ π(y) exp s_y,  π the pooled frequencies

    Attributes:
        inference: How a client infers: a point, samples or a Gaussian.
        penalty: λ: 0 leaves offsets free, ∞ averages normalised evidence; None: estimated for each input.
        exponent: α: how much more a class seen more often counts.
        distil: How the server trains one student; None: keep the ensemble.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.EvidencePooling(), problem).metrics["accuracy"] > 0.7
        True
    """

    about = About(
        name="evidence",
        sends="its weights (or samples of them), and how often it saw each class",
        tasks=("classification",),
        rounds=ONE_SHOT,
    )
    inference: Inference = SGD(epochs=50)
    penalty: float | None = 0.3
    exponent: float = 1.0
    distil: Distil | None = None

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        counts = label_counts(client.data, task.classes(client.data.x))
        posterior = self.inference(task.adjusted(smooth(counts).log()), message, client)  # 1
        return Reply(Evidence(posterior, counts), client.data.size)  # 2

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> EvidenceState:
        posteriors, counts = zip(*payloads(replies), strict=True)
        pooled = EvidenceState(state.posterior, posteriors, weights(replies), torch.stack(counts))
        return distil_pool(self.distil, task, pooled, self.teacher(task, pooled), server)

    def diagnose(self, task: Task, state: EvidenceState, x: Tensor) -> dict[str, Any]:
        return diagnosis(self.views(task, state, x), state.counts, self.exponent)

    def knob(self, state: EvidenceState) -> Knob | None:
        if not state.posteriors:
            return None
        return Knob("penalty", "λ", PENALTIES, self.penalty)

    def turn(self, state: EvidenceState, value: float) -> tuple[Self, EvidenceState]:
        return replace(self, penalty=value), state

    def hand_out(self, state: EvidenceState, ensemble: bool) -> Tree:
        if ensemble:
            return state
        return keep_fields(state, ("posterior",))

    def teacher(self, task: Task, state: EvidenceState, frequencies: Tensor | None = None) -> Predictive:
        """Return the pool's prediction, which a student learns from.

        Args:
            frequencies: π, how often each class is to be expected, [C]; None: as often as the clients saw it.
        """
        total = state.counts.sum(0)
        if frequencies is None:
            frequencies = smooth(total)
        scores = class_scores(strengths(state.counts, self.exponent), self.penalty)  # 4
        return lambda x: Categorical(class_log_probs(scores(self.views(task, state, x)), frequencies, total > 0))  # 5

    def views(self, task: Task, state: EvidenceState, x: Tensor) -> Tensor:
        """Return every client's evidence for inputs, [K, N, C]."""
        return torch.stack([task.predictive(posterior)(x)[0] for posterior in state.posteriors])  # 3
