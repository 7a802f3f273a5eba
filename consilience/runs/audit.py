"""Audit a method: one site alone, canaries among its rows, guesses from what it sends.

The guesser knows everything but the coins: the method, the task, the site's other rows, the canaries and the message.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from consilience import tree
from consilience.data.sites import Data, concatenate
from consilience.distributions.posterior import Posterior, centre, find_posterior
from consilience.distributions.predictive import log_prob
from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.messages import Received, Server
from consilience.method import Method, OnFeatures
from consilience.method.declared import spends
from consilience.methods.claims import promised_privacy
from consilience.privacy.audit.one_run import CONFIDENCE, Bound, bound, flip
from consilience.progress import track
from consilience.runs.engines.client_turn import Turn, client_view
from consilience.runs.engines.round import play_round, server_view
from consilience.runs.engines.sequential import Sequential
from consilience.task import Task
from consilience.tree import Params, Tree

FEW = 16  # rows beside which a canary's part of a sum is found
CHUNK = 64  # rows whose gradients are computed at a time
RIDGES = (10.0, 1.0, 0.1, 0.01, 1e-3)  # ρ, as shares of the kernel's mean diagonal
LINEAR = 1e-6  # of a sum, by which parts may miss it

Prepare = Callable[[Data], Data]


class Audited(NamedTuple):
    """What an audit of a method found.

    Attributes:
        bound: The lower bound on ε.
        scores: How much spoke for each canary being in [m].
        included: The coins [m].
        attack: How was guessed: `likelihood` or `sums`.
    """

    bound: Bound
    scores: Tensor
    included: Tensor
    attack: str


class Release(NamedTuple):
    """What one site, alone, sends and what becomes of it.

    Attributes:
        sent: Its first reply.
        log_likelihoods: log p(y | x) of every canary under the model that the server makes of it, and under the weights
            at the centre of what was sent, where weights are sent [V, m].
        centre: The weights at the centre of what was sent; None where no weights were sent.
    """

    sent: Tree
    log_likelihoods: Tensor
    centre: Params | None


class Guesser(NamedTuple):
    """Ways to score the canaries of one run, and how well each of them tells coins that are known.

    Attributes:
        scores: One row a way [W, m].
        told: How well each way tells the coins of other runs [W].
        attack: How was guessed: `likelihood` or `sums`.
    """

    scores: Tensor
    told: Tensor
    attack: str


def audit_method(
    method: Method,
    task: Task,
    known: Data | None,
    canaries: Data,
    key: Key,
    *,
    rounds: int = 1,
    runs: int = 1,
    delta: float = 0.0,
    confidence: float = CONFIDENCE,
    references: int = 3,
    plain: Method | None = None,
    prepare: Prepare = lambda rows: rows,
) -> Audited:
    """Bound what a method shows of single rows, from below.

    Where replies are sums over rows, every canary's part is known and the coins are what fits the sum best. Otherwise
    a canary's score is its log-likelihood under the model made of the reply, or under the weights in its centre, less
    its mean under models of the same method that saw other coins, freed of what other canaries like it explain. Which
    likelihood, and how far it is freed, is chosen by how well it tells those other coins.

    Canaries hide each other, and fewer of them in a run are told better. Every canary is in one run alone, so that all
    runs together are as private in each coin as one of them, and the theorem holds for all coins at once.

    Args:
        method: What the site computes.
        known: The site's rows that are always in; None: there are none.
        canaries: The rows that are in or out.
        key: The randomness: coins, and keys of runs.
        rounds: How many rounds are played with this site alone.
        runs: Over how many runs the canaries are spread.
        delta: δ of the claim to be refuted.
        references: How many models with other coins a score is compared with, in each run.
        plain: The same method without noise, by which parts of a sum are found; None: the method itself.
        prepare: What a site does with its rows before they are fitted.

    Returns:
        The bound, and what it was computed from.

    Raises:
        InputError: The method cannot run alone, or there are too few canaries.
    """
    count = len(canaries.y)
    if not 1 <= runs <= count:
        raise InputError(f"runs={runs}: spread {count} canaries over at least one run and at most as many as they are.")
    included = flip(count, key.fold(0))
    site = Site(method, plain or method, task, known, rounds, prepare)
    guessers = []
    with torch.no_grad():
        for i in track(range(runs), "run"):
            part = Data(*(leaf[i::runs] for leaf in canaries))
            guessers.append(_guess(site, part, included[i::runs], references, key.fold(1).fold(i)))
    best = int(torch.stack([guesser.told for guesser in guessers]).sum(0).argmax())
    scores = torch.empty(count, dtype=torch.float64)
    for i, guesser in enumerate(guessers):
        scores[i::runs] = guesser.scores[best]
    return Audited(bound(scores, included, delta, confidence), scores, included, guessers[0].attack)


class Site(NamedTuple):
    """What is audited, and what its guesser knows.

    Attributes:
        method: What the site computes.
        plain: The same without noise.
        task: The statistical problem.
        known: The rows that are always in, if any.
        rounds: How many rounds are played.
        prepare: What a site does with its rows before they are fitted.
    """

    method: Method
    plain: Method
    task: Task
    known: Data | None
    rounds: int
    prepare: Prepare


def _guess(site: Site, canaries: Data, included: Tensor, references: int, key: Key) -> Guesser:
    """Score the canaries of one run."""
    server = server_view(key.fold(0), 1, canaries.x, site.known)

    def release(coins: Tensor, run: Key) -> Release:
        rows = site.prepare(_join(site.known, Data(*(leaf[coins] for leaf in canaries))))
        return _play(site, rows, canaries, server, run)

    released = release(included, key.fold(1))
    if isinstance(site.method, OnFeatures):
        scores = _score_by_sums(site, canaries, released.sent, server)
        if scores is not None:
            return Guesser(scores.unsqueeze(0), torch.zeros(1), "sums")
    keys = [key.fold(2).fold(i) for i in range(references)]
    coins = [flip(len(canaries.y), k.fold(0)) for k in keys]
    others = [release(drawn, k.fold(1)) for drawn, k in zip(coins, keys, strict=True)]
    start = site.method.init(site.task, server).posterior
    return _guess_by_likelihood(site.task, canaries, released, others, coins, start)


def _join(known: Data | None, rows: Data) -> Data:
    if known is None:
        return rows
    return concatenate([known, rows])


def _play(site: Site, rows: Data, canaries: Data, server: Server, key: Key) -> Release:
    """Run the method with one site, as an engine would."""
    method, _, task, _, rounds, _ = site
    engine = Sequential([rows])
    state: Any = method.init(task, server)
    sent: list[Tree] = []
    for t in range(rounds):
        turn = Turn(t, key.fold(Stream.LOCAL), t / rounds)

        def gather(message: Tree, turn: Turn = turn) -> list[Received]:
            replies = engine.gather(method, task, message, [0], turn)
            sent.append(replies[0].payload)
            return replies

        state = play_round(method, task, state, server, key, t, gather).state
    distribution = method.predictive(task, state)(canaries.x)
    views = [log_prob(distribution, canaries.y)]
    posterior = find_posterior(sent[-1])
    middle = None
    if posterior is not None:
        middle = centre(posterior, task.like).params
        views.append(-task.likelihood.nll(task.outputs(middle, canaries.x), canaries.y, middle))
    return Release(sent[0], torch.stack([view.double() for view in views]), middle)


def _guess_by_likelihood(
    task: Task, canaries: Data, released: Release, others: Sequence[Release], coins: Sequence[Tensor], start: Posterior
) -> Guesser:
    """Log-likelihoods beyond the usual, in units of the usual gap, freed of what other canaries explain."""
    if not others:
        return Guesser(released.log_likelihoods, torch.zeros(len(released.log_likelihoods)), "likelihood")
    usual = torch.stack([other.log_likelihoods for other in others])  # [R, V, m]
    gaps = usual - usual.mean(0)  # of each other model from all of them
    beyond = released.log_likelihoods - usual.mean(0)
    places = [centre(start, task.like).params]
    places += [others[0].centre or places[0]]
    scores, told = [], []
    solvers = [solver for weights in places for solver in _solvers(_kernel(task, weights, canaries))]
    for view, solver in itertools.product(range(len(beyond)), solvers):
        freed = gaps[:, view] @ solver
        told.append(sum(_correlation(gap, drawn) for gap, drawn in zip(freed, coins, strict=True)))
        scores.append(solver @ beyond[view] / freed.square().mean().sqrt().clamp(min=1e-300))
    return Guesser(torch.stack(scores), torch.tensor(told), "likelihood")


def _solvers(kernel: Tensor) -> list[Tensor]:
    """(K + ρ I)⁻¹ for every ρ, up to a factor; the identity for the largest."""
    ones = torch.eye(len(kernel), dtype=kernel.dtype)
    scaled = kernel / kernel.diagonal().mean().clamp(min=1e-300)
    return [ones, *(torch.linalg.inv(scaled + ridge * ones) for ridge in RIDGES)]


def _kernel(task: Task, params: Params, rows: Data) -> Tensor:
    """Inner products of the rows' gradients: how far one row in the training explains another's likelihood [m, m]."""

    def loss(weights: Params, x: Tensor, y: Tensor) -> Tensor:
        return task.likelihood.nll(task.outputs(weights, x.unsqueeze(0)), y.unsqueeze(0), weights).sum()

    gradients = vmap(torch.func.grad(loss), (None, 0, 0), chunk_size=CHUNK)(params, rows.x, rows.y)
    flat = tree.ravel(gradients, 1).double()
    return flat @ flat.T


def _correlation(scores: Tensor, coins: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([scores, coins.double()]))[0, 1].nan_to_num())


def _score_by_sums(site: Site, canaries: Data, sent: Tree, server: Server) -> Tensor | None:
    """How far each coin fits a reply that is a sum over rows; None where it is not one."""
    method, task, known = site.plain, site.task, site.known
    message = method.broadcast(method.init(task, server))

    def total(rows: Data) -> Tensor:
        client = client_view(method, message, rows, {}, 0, Turn(0, Key(0)))
        return _flat(method.local(task, message, client).send)

    def pick(index: slice) -> Data:
        return Data(*(leaf[index] for leaf in canaries))

    few = canaries
    if known is not None and len(known.y) >= FEW:
        few = known
    beside = Data(*(leaf[:FEW] for leaf in few))
    start = total(beside)
    parts = torch.stack([total(concatenate([beside, pick(slice(i, i + 1))])) - start for i in range(len(canaries.y))])
    pair = total(concatenate([beside, pick(slice(0, 2))])) - start
    if not torch.allclose(pair, parts[0] + parts[1], rtol=LINEAR, atol=LINEAR * float(pair.abs().max())):
        return None
    background = torch.zeros_like(start)
    if known is not None:
        background = total(site.prepare(known))
    seen = _flat(sent)[: len(background)]  # behind the sums stands how many shares of noise there are
    promise = promised_privacy(site.method)
    noise_var = 0.0
    if promise is not None:
        noise_var = promise.deviation(len(background), spends(site.method, 1)) ** 2  # public: the guesser knows it
    return fit_coins(parts, seen - background, noise_var)


def fit_coins(parts: Tensor, total: Tensor, noise_var: float = 0.0) -> Tensor:
    """Find coins b whose sum Σ bᵢ partᵢ comes nearest to a total: ridge regression with b ~ (½, variance ¼).

    Args:
        parts: What each canary adds [m, P].
        total: The sum that was released, less what is known of it [P]; there may be noise in it.
        noise_var: The variance of that noise, where it is known; 0: estimated, where there are more numbers than coins.

    Returns:
        b̂ [m].
    """
    half = total - 0.5 * parts.sum(0)
    gram = parts @ parts.T
    linear = parts @ half
    count = len(parts)
    ridge = torch.maximum(1e-9 * gram.diagonal().mean(), torch.tensor(4 * noise_var).double())
    if not noise_var and parts.shape[1] > count:
        fitted = torch.linalg.solve(gram + ridge * torch.eye(count, dtype=gram.dtype), linear)
        noise = (half - fitted @ parts).square().sum() / (parts.shape[1] - count)
        ridge = torch.maximum(ridge, 4 * noise)  # σ² over the coins' variance
    coins: Tensor = torch.linalg.solve(gram + ridge * torch.eye(count, dtype=gram.dtype), linear)
    return coins


def _flat(sent: Tree) -> Tensor:
    leaves = [leaf.double().flatten() for leaf in tree.leaves(sent)]
    if not leaves:
        raise InputError("Nothing was sent in the first round: there is nothing to audit.")
    return torch.cat(leaves)
