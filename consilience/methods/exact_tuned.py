"""Exact pooling tuned by the sites.  This project; docs/exact.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from consilience.method import Method
from consilience.methods.exact import ExactPooling, ExactState, check_problem, classes_of, least_share, predict_with
from consilience.models.features import feature_map
from consilience.parties import Client, Received, Reply, Server, payloads
from consilience.pooling.heads import (
    SHARES,
    TEMPERATURES,
    Classes,
    Discriminant,
    Head,
    OneHot,
    Ridge,
    Spectrum,
    as_point,
    fit,
    prepared,
)  # fmt: skip
from consilience.pooling.summands import Summation
from consilience.pooling.sums import Sums, in_chunks
from consilience.predictive import Predictive, log_prob, tempered
from consilience.task import Task
from consilience.tree import Tree

GRID = [(share, t) for share in SHARES for t in TEMPERATURES]


@dataclass(frozen=True)
class ExactTuned(Method):
    """Two rounds; exact pooling, then one small message a client to choose head, λ and temperature. No row set aside.

        for each client k of K, in parallel
    1       send the sums Sₖ (line 1 of exact pooling)
    2   send S = Σₖ Sₖ to every client
        for each client k of K, in parallel
    3       for each head, λ and t: Σ log p(y | x, S without this row) over its rows, in closed form; send these sums
    4   head, λ, t ← the largest total;  fit the head to S

    Attributes:
        candidates: The heads to choose from; None: Bayesian linear regression for numbers, `OneHot` and `Discriminant`
            for classes. They use the same sums.
        wire: The precision in which sums are sent: float64, float32 or float16.
    """

    name: ClassVar[str] = "exact_tuned"
    sends: ClassVar[str] = "sums over its rows, as exact pooling does, then one number for each setting tried"
    usual_rounds: ClassVar[int] = 2
    everyone: ClassVar[bool] = True
    sums: ClassVar[bool] = True
    heads: ClassVar[bool] = True
    carries: ClassVar[tuple[type, ...]] = (Sums, Spectrum, Classes, ExactState)

    candidates: tuple[Head, ...] | None = None
    wire: str = "float64"

    def init(self, task: Task, server: Server) -> ExactState:
        for head in self.chosen_heads(task):
            check_problem(task, head)
        return self.pool(task).init(task, server)

    def broadcast(self, state: ExactState) -> Any:
        if isinstance(state.totals, Sums):
            return state.totals  # 2
        return ()

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        if not isinstance(message, Sums):
            return self.pool(task).local(task, message, client)  # 1
        features = feature_map(task.model)
        scores = torch.zeros(len(self.chosen_heads(task)), len(GRID), dtype=torch.float64)
        for part in in_chunks(client.data):
            phi = features(part.x)
            scores = scores + torch.stack([self.score(head, message, phi, part) for head in self.chosen_heads(task)])
        return Reply(scores, client.data.size)  # 3

    def aggregate(self, task: Task, state: ExactState, replies: Sequence[Received], server: Server) -> ExactState:
        if not isinstance(state.totals, Sums):
            return self.pool(task).aggregate(task, state, replies, server)
        best = int(sum(payloads(replies)).argmax())  # 4
        index, setting = divmod(best, len(GRID))
        share, temperature = GRID[setting]
        head = self.chosen_heads(task)[index]
        fitted = fit(head, state.totals, max(share, least_share(self.wire, state.totals)))
        chosen = torch.tensor([index, share, temperature], dtype=torch.float64)
        return ExactState(as_point(head.linear(fitted), fitted, task.like), fitted, state.totals, chosen)

    def predictive(self, task: Task, state: ExactState) -> Predictive:
        if not len(state.chosen):
            return self.pool(task).predictive(task, state)
        index, _, temperature = torch.as_tensor(state.chosen).tolist()
        model = predict_with(task, self.chosen_heads(task)[int(index)], state)
        return lambda x: tempered(model(x), temperature)

    def diagnose(self, task: Task, state: ExactState, x: Tensor) -> dict[str, Any]:
        if not len(state.chosen):
            return self.pool(task).diagnose(task, state, x)
        index, share, temperature = torch.as_tensor(state.chosen).tolist()
        head = type(self.chosen_heads(task)[int(index)]).__name__
        return {"head": head, "penalty_per_row": share, "temperature": temperature}

    def doubt(self, task: Task, message: Any, send: Any) -> str | None:
        if isinstance(send, Sums):
            return self.pool(task).doubt(task, message, send)
        if classes_of(task) is not None and bool((send > 0).any()):
            return "it sums log-probabilities to more than 0."
        return None

    def hand_out(self, state: ExactState, ensemble: bool) -> Tree:
        return ExactPooling().hand_out(state, ensemble)

    def summation(self) -> Summation | None:
        return ExactPooling(wire=self.wire).summation()

    def pool(self, task: Task) -> ExactPooling:
        """Return exact pooling with the first head."""
        return ExactPooling(self.chosen_heads(task)[0], None, self.wire)

    def chosen_heads(self, task: Task) -> tuple[Head, ...]:
        """Return the candidates, or the usual ones for the task."""
        if self.candidates is not None:
            return self.candidates
        if classes_of(task) is None:
            return (Ridge(),)
        return OneHot(), Discriminant()

    def score(self, head: Head, totals: Sums, phi: Tensor, part: Any) -> Tensor:
        """Sum the log-scores of rows left out, one for each λ and temperature."""
        predictions = head.left_out(prepared(head, totals), phi, part.y, SHARES)
        w = part.w.double()
        return torch.stack([w @ log_prob(tempered(p, t), part.y).double() for p in predictions for t in TEMPERATURES])
