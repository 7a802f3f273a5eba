"""Exact pooling tuned by the sites.  This project; docs/exact.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from consilience.aggregation.summands import Summation
from consilience.distributions.predictive import Predictive, log_prob, tempered
from consilience.errors import InputError
from consilience.glm.fitting import (
    SHARES,
    TEMPERATURES,
    Head,
    as_point,
    at_an_end,
    check_problem,
    fit,
    least_share,
    prepared,
)
from consilience.glm.heads import Classes, Discriminant, OneHot, Ridge
from consilience.glm.linear_model import classes_of, warn_of_few_rows
from consilience.glm.noisy import LOG_TEMPERATURES, choose_temperature, fit_replies, sum_scores
from consilience.glm.predictions import predict_with
from consilience.glm.spectrum import Spectrum
from consilience.glm.sums import Sums, in_chunks, whole_gram
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import (
    About,
    Diagnosed,
    Method,
    OnFeatures,
    Private,
    Releasable,
    ReplyKind,
    Rounds,
    Streaming,
    Summable,
    Validated,
)
from consilience.method.settings import added
from consilience.methods.exact import ExactPooling, ExactState
from consilience.models.maps import feature_map
from consilience.privacy.dp.mechanisms import Privacy, Released, add_released
from consilience.privacy.entropy import Source
from consilience.task import Task
from consilience.tree import Tree

SAME = 1e-5  # nats a row, within which settings are as good as each other
SCORES = 0.1  # the share of μ² that the second message of a private run takes
GRID = [(share, t) for share in SHARES for t in TEMPERATURES]


@dataclass(frozen=True)
class ExactTuned(OnFeatures, Summable, Private, Validated, Releasable, Diagnosed, Streaming, Method):
    """Two rounds; exact pooling, then one small message a client to choose head, λ and temperature. No row held out.

        for each client k of K, in parallel
    1       send the sums Sₖ (line 1 of exact pooling)
    2   send S = Σₖ Sₖ to every client
        for each client k of K, in parallel
    3       for each head, λ and t: Σ log p(y | x, S without this row) over its rows, in closed form; send these sums
    4   head, λ, t ← the largest total;  fit the head to S

    With `privacy`, S has noise, 2 sends the head fitted to it, and 3 scores temperatures alone, clipped and with noise.

    Attributes:
        candidates: The heads to choose from; None: Bayesian linear regression for numbers, `OneHot` and `Discriminant`
            for classes. They use the same sums.
        wire: The precision in which sums are sent: float64, float32 or float16.
        privacy: Differential privacy of all that is sent, on bounded features; None: none.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=2, split="iid")
        >>> co.run(co.methods.ExactTuned(), problem).report["rounds"]
        2
    """

    about = About(
        name="exact_tuned",
        sends="sums over its rows, as exact pooling does, then one number for each setting tried",
        rounds=Rounds(2),
        everyone=True,
        reply=ReplyKind.SUM,
        types=(Sums, Spectrum, Classes, ExactState, Released),
    )
    own_prior = True

    candidates: tuple[Head, ...] | None = None
    wire: str = "float64"
    privacy: Privacy | None = added(None)

    def init(self, task: Task, server: Server) -> ExactState:
        for head in self.chosen_heads(task):
            check_problem(task, head)
        if self.privacy is not None and self.candidates is not None:
            raise InputError("Under noise the head is the task's usual one: leave candidates as they are.")
        return self.pool(task).init(task, server)

    def broadcast(self, state: ExactState) -> Any:
        if isinstance(state.totals, Sums):
            return state.totals  # 2
        if self.privacy is not None and isinstance(state.fit, Spectrum):
            return state.fit  # 2, which holds S as far as it is known
        return ()

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        features = feature_map(task.model)
        if isinstance(message, Spectrum):
            clipped = sum_scores(self.pool(task).noisy_head(task), message, features, client.data)
            return Reply(clipped, 0 * client.data.size)  # 3
        if not isinstance(message, Sums):
            return self.pool(task).local(task, message, client)  # 1
        scores = torch.zeros(len(self.chosen_heads(task)), len(GRID), dtype=torch.float64)
        for part in in_chunks(client.data):
            phi = features(part.x)
            scores = scores + torch.stack([self.score(head, message, phi, part) for head in self.chosen_heads(task)])
        return Reply(scores, client.data.size)  # 3

    def spends(self, round: int) -> float:
        if round == 1:
            return 1 - SCORES
        return SCORES

    def protect(self, reply: Reply, source: Source) -> Reply:
        if self.privacy is None:
            return reply
        return reply._replace(send=self.privacy.add_noise(reply.send, source, part_of(reply.send.values)))

    def aggregate(self, task: Task, state: ExactState, replies: Sequence[Received], server: Server) -> ExactState:
        if self.privacy is not None:
            return aggregate_private(self.pool(task), self.privacy, task, state, replies)
        if not isinstance(state.totals, Sums):
            return self.pool(task).aggregate(task, state, replies, server)
        index, share, temperature = choose_setting(sum(payloads(replies)), state.totals)  # 4
        head = self.chosen_heads(task)[index]
        share = max(share, least_share(self.wire, state.totals))
        fitted = fit(head, state.totals, share)
        chosen = torch.tensor([index, share, temperature], dtype=torch.float64)
        return ExactState(as_point(head.linear(fitted), fitted, task.like), fitted, state.totals, chosen)

    def fold(self, replies: Sequence[Received]) -> list[Received]:
        warn_of_few_rows(replies, whole=False)
        return super().fold(replies)

    def predictive(self, task: Task, state: ExactState) -> Predictive:
        if not len(state.chosen):
            return self.pool(task).predictive(task, state)
        index, _, temperature = torch.as_tensor(state.chosen).tolist()
        model = self.pool(task).predictive(task, state)
        if self.privacy is None:
            model = predict_with(task, self.chosen_heads(task)[int(index)], state.fit, state.posterior)
        return lambda x: tempered(model(x), temperature)

    def diagnose(self, task: Task, state: ExactState, x: Tensor) -> dict[str, Any]:
        if not len(state.chosen):
            return self.pool(task).diagnose(task, state, x)
        index, share, temperature = torch.as_tensor(state.chosen).tolist()
        head = type(self.chosen_heads(task)[int(index)]).__name__
        diagnosis = {"head": head, "penalty_per_row": share, "temperature": temperature}
        if isinstance(state.totals, Sums):
            diagnosis |= at_an_end(share, least_share(self.wire, state.totals), temperature)
        return diagnosis

    def doubt(self, task: Task, message: Any, send: Any) -> str | None:
        if isinstance(send, (Sums, Released)):
            return self.pool(task).doubt(task, message, send)
        if classes_of(task) is not None and bool((send > 0).any()):
            return "it sums log-probabilities to more than 0."
        return None

    def hand_out(self, state: ExactState, ensemble: bool) -> Tree:
        return ExactPooling().hand_out(state, ensemble)

    def summation(self) -> Summation | None:
        return ExactPooling(wire=self.wire).summation()

    def sums_by_class(self, task: Task) -> bool:
        return self.pool(task).sums_by_class(task)

    def pool(self, task: Task) -> ExactPooling:
        """Return exact pooling with the first head."""
        return ExactPooling(self.chosen_heads(task)[0], None, self.wire, self.privacy)

    def chosen_heads(self, task: Task) -> tuple[Head, ...]:
        """Return the candidates, or the usual ones for the task."""
        if self.candidates is not None:
            return self.candidates
        if classes_of(task) is None:
            return (Ridge(),)
        return OneHot(floor=False, rates=False), Discriminant()  # a temperature is chosen, so that no rule is needed

    def score(self, head: Head, totals: Sums, phi: Tensor, part: Any) -> Tensor:
        """Sum the log-scores of rows left out, one for each λ and temperature."""
        predictions = head.left_out(prepared(head, totals), phi, part.y, SHARES)
        w = part.w.double()
        return torch.stack([w @ log_prob(tempered(p, t), part.y).double() for p in predictions for t in TEMPERATURES])


def choose_setting(scores: Tensor, totals: Sums) -> tuple[int, float, float]:
    """Choose by summed log-scores; of settings as good as the best, the largest λ.

    Where λ hardly matters scores differ by rounding, which depends on the order of the sites: the choice must not.

    Args:
        scores: Of each head and each setting of `GRID`.

    Returns:
        The head's index, λ/n and the temperature.
    """
    enough = scores.max() - SAME * whole_gram(totals)[0]
    index, setting = divmod(int(scores.argmax()), len(GRID))
    _, temperature = GRID[setting]
    alike = [
        share for score, (share, t) in zip(scores[index], GRID, strict=True) if score >= enough and t == temperature
    ]
    return index, max(alike), temperature


def part_of(values: Tensor) -> float:
    """Tell by its form which share of μ² a private message takes: moments [d], or scores [1, m]."""
    if values.ndim == 2:
        return SCORES
    return 1 - SCORES


def aggregate_private(
    pool: ExactPooling, privacy: Privacy, task: Task, state: ExactState, replies: Sequence[Received]
) -> ExactState:
    """Fit a head to noisy moments, or choose its temperature by noisy scores.

    Args:
        pool: Exact pooling with the head.
        state: The state before the round.

    Returns:
        The state after it.
    """
    if not isinstance(state.fit, Spectrum):
        fitted = fit_replies(task, replies, privacy, 1 - SCORES)
        return ExactState(as_point(pool.noisy_head(task).linear(fitted), fitted, task.like), fitted)
    total = add_released(payloads(replies))
    privacy.check_shares(total)
    temperature = choose_temperature(total, privacy.deviation(len(LOG_TEMPERATURES), SCORES))
    return state._replace(chosen=torch.tensor([0, 0, temperature], dtype=torch.float64))
