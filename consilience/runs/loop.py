"""The one loop: rounds until they are done, each kept before the next begins. It sees no site's rows."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from consilience.errors import Diverged, InputError, SiteWarning
from consilience.key import Key
from consilience.messages import Received, Server
from consilience.method import Method
from consilience.progress import track
from consilience.runs.callbacks import RoundEvent, tell
from consilience.runs.device import CPU, move
from consilience.runs.engines.client_turn import Engine, closing
from consilience.runs.engines.gathering import Gathering
from consilience.runs.engines.influence import Influence, measure_influence
from consilience.runs.engines.ledger import Ledger
from consilience.runs.engines.participation import Participation, shortfall
from consilience.runs.engines.round import Round, play_round, server_in_round
from consilience.runs.engines.soundness import UNSOUND, NotFinite, predicts_finite
from consilience.runs.engines.workers import using_threads
from consilience.runs.store import Checkpoint, Store
from consilience.task import Task
from consilience.tree import Tree


@dataclass
class Loop:
    """A run under way.

    Attributes:
        method: The method.
        task: The statistical problem, on the device where it is computed.
        engine: Where the clients' work runs.
        server: The server's rows, on the same device.
        key: The run's key.
        rounds: How many rounds the run has.
        names: The clients' names, for people.
        sizes: Rows of each client, where they are known; what a deadline is measured by.
        fingerprint: What decides the numbers.
        header: What run.json says before there is a result.
        participation: Who is asked and lost.
        folding: Replies become one as they arrive, and are not kept.
        threads: Torch's.
        matmul: How matrices are multiplied; None: as the processor does best.
        device: Where tensors lie while the run computes.
        store: The run's folder, if it has one.
        score: Scores a state, with what clients kept, for the history; None: nobody can.
        probes: Rows that a round's model is tried on before it is kept; None: only its own numbers are looked at.
        measures: Whether the sites' influence on the last round's model is measured.
        spent: Seconds of the run before it was resumed.
        influence: What was measured.
        reveal: Sums masked replies into what the method pools; None where replies are in the open.
    """

    method: Method
    task: Task
    engine: Engine
    server: Server
    key: Key
    rounds: int
    names: tuple[str, ...]
    sizes: Sequence[int]
    fingerprint: str
    header: dict[str, Any]
    participation: Participation = Participation()
    folding: bool = False
    threads: int = 1
    matmul: str | None = None
    device: torch.device = CPU
    store: Store | None = None
    score: Callable[[Tree, dict[int, Tree]], dict[str, float]] | None = None
    probes: Tensor | None = None
    measures: bool = False
    spent: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    influence: Influence = Influence({})
    reveal: Callable[[Sequence[Received]], list[Received]] | None = None

    def __call__(self, checkpoint: Checkpoint) -> tuple[Checkpoint, list[Received]]:
        """Play the rounds that are left.

        Args:
            checkpoint: Where the run stands.

        Returns:
            Where it stands at its end, and the replies of the last round that was played.
        """
        self.engine.memories.update(move(checkpoint.memories, self.device))
        gathering = Gathering(self.engine, self.participation, self.sizes, self.folding, self.rounds, self.key)
        replies = list[Received]()
        self.write_unfinished()
        if self.store is not None and checkpoint.rounds:
            self.store.write_history(checkpoint)
        threads = using_threads(self.threads, self.matmul)
        with closing(self.engine), threads, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for t in track(range(checkpoint.rounds, self.rounds), "round"):
                checkpoint, replies = self.play(t, checkpoint, gathering, caught)
        if self.folding:
            replies = []
        return checkpoint, replies

    def play(
        self, t: int, before: Checkpoint, gathering: Gathering, caught: Sequence[warnings.WarningMessage]
    ) -> tuple[Checkpoint, list[Received]]:
        """Play one round and keep it.

        Args:
            t: Its number, from 0.
            before: Where the run stands.
            caught: The warnings so far.

        Returns:
            Where the run stands after it, and its replies.

        Raises:
            Diverged: The round's model predicts numbers that are not finite; it is not kept.
        """
        ledger = before.ledger
        gathered: list[Received] = []

        def gather(message: Tree) -> list[Received]:
            try:
                gathered.extend(gathering(self.method, self.task, message, t, ledger))
                if self.reveal is not None:
                    return self.reveal(gathered)
                return gathered
            except InputError as error:
                self.write_unfinished(failures=(*before.failures, *self.failures(gathering.lost, t)))
                error.args = (self.by_name(str(error)),)
                raise

        state = move(before.state, self.device)
        try:
            played = play_round(self.method, self.task, state, self.server, self.key, t, gather, self.is_sound)
        except NotFinite as error:
            raise Diverged(f"Round {t + 1}: {error} {self._last_saved(t)}") from error
        self._leave_out(played, before, gathering, t)
        if self.measures and self.probes is not None and t + 1 == self.rounds:
            drawing = server_in_round(self.server, self.key, t)
            probes = move(self.probes, self.device)
            self.influence = measure_influence(self.method, self.task, state, drawing, played.replies, probes)
        received = played.replies
        if self.reveal is not None:
            received = gathered  # as they came; the method's are sums
        state, replies, memories = move((played.state, received, self.engine.memories), CPU)
        scores = {} if self.score is None else self.score(state, memories)
        after = Checkpoint(
            rounds=t + 1,
            state=state,
            memories=memories,
            history=[*before.history, {"round": t + 1, **scores, **ledger.moved(t + 1)}],
            ledger=ledger,
            fingerprint=self.fingerprint,
            failures=(*before.failures, *self.failures(gathering.lost, t)),
            warnings=collect_warnings(before.warnings, caught, self.names),
        )
        if self.store is not None:
            self.store.save(after, replies)
            self.write_unfinished()
        self._tell(after)
        return after, replies

    def _tell(self, after: Checkpoint) -> None:
        """Tell those who listen that a round has ended."""
        header = self.header
        scores = {name: value for name, value in after.history[-1].items() if name != "round"}
        about = (str(header.get("method")), str(header.get("data")), int(header.get("seed", 0)))
        tell(RoundEvent(*about, after.rounds, self.rounds, scores, self.seconds))

    def is_sound(self, state: Tree) -> bool:
        """Say whether a round's model can be kept.

        Args:
            state: The state after the round, on the run's device.
        """
        return predicts_finite(self.method, self.task, state, move(self.probes, self.device), self.engine.memories)

    def _leave_out(self, played: Round, before: Checkpoint, gathering: Gathering, t: int) -> None:
        """Go on without those to blame for a model that cannot be used, as without those who did not reply."""
        if not played.left_out:
            return
        gathering.lost |= dict.fromkeys(played.left_out, UNSOUND)
        asked = len(played.replies) + len(gathering.lost)
        stop: InputError | None = shortfall(self.participation, gathering.lost, asked, t)
        sites = ", ".join(self.names[k] for k in played.left_out)
        if not self.engine.forgiving:
            stop = Diverged(f"Round {t + 1}, site {sites}: {UNSOUND} {self._last_saved(t)}")
        if stop is not None:
            self.write_unfinished(failures=(*before.failures, *self.failures(gathering.lost, t)))
            raise stop
        warnings.warn(f"Round {t + 1} was pooled without {sites}: {UNSOUND}", stacklevel=2)
        for k in played.left_out:  # they remember what they remembered before, as the lost do
            self.engine.memories.pop(k, None)
            if k in before.memories:
                self.engine.memories[k] = move(before.memories[k], self.device)

    def _last_saved(self, t: int) -> str:
        """Where to go on after a round whose model cannot be kept."""
        saved = "Nothing is saved yet: start again"
        if self.store is not None and t:
            saved = f"Round {t} is saved: go on with resume=True (--resume)"
        return f"{saved} when this is put right, or with min_replies to do without a site."

    def failures(self, lost: dict[int, str], round: int) -> list[dict[str, Any]]:
        """Say who was lost, when and why.

        Args:
            lost: The reasons by client.
            round: The number of the round, from 0.

        Returns:
            One entry a client, as run.json has them.
        """
        return [
            {"site": self.names[k], "round": round + 1, "why": self.by_name(why)} for k, why in sorted(lost.items())
        ]

    def by_name(self, sentence: str) -> str:
        """Name the sites of a sentence about a round by their names, which an engine knows by their numbers alone."""
        return re.sub(r"\bSite (\d+), round", lambda found: f"Site {self.names[int(found[1])]}, round", sentence)

    def finish(
        self, checkpoint: Checkpoint, evaluate: Callable[[Tree, dict[int, Tree]], dict[str, Any]] | None
    ) -> dict[str, Any]:
        """Say what the run found, and write it down if the run has a folder.

        Args:
            checkpoint: Where the run stands at its end.
            evaluate: Scores a state, with what clients kept; None: nobody can.

        Returns:
            What run.json holds.
        """
        with using_threads(self.threads, self.matmul), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            evaluation = {} if evaluate is None else evaluate(checkpoint.state, checkpoint.memories)
        report = {
            **self.header,
            **evaluation,
            "history": checkpoint.history,
            "ledger": checkpoint.ledger.summary(self.names),
            "failures": list(checkpoint.failures),
            "warnings": list(join_sites(collect_warnings(checkpoint.warnings, caught, self.names), self.names)),
            "seconds": self.seconds,
            "finished": True,
        }
        if self.measures:
            shares = {self.names[k]: share for k, share in self.influence.shares.items()}
            report["influence"] = {"shares": shares, "unknown": self.influence.unknown}
        if self.store is not None:
            self.store.write_report(report)
        return report

    @property
    def seconds(self) -> float:
        """The seconds the run has taken, those before a resume included."""
        return self.spent + time.perf_counter() - self.started

    def write_unfinished(self, **known: Any) -> None:
        """Write run.json as far as it is known, if the run has a folder.

        Args:
            known: What is known beside the header.
        """
        if self.store is not None:
            self.store.write_checked("run.json", {**self.header, **known, "seconds": self.seconds, "finished": False})


def collect_warnings(
    before: Sequence[str], caught: Sequence[warnings.WarningMessage], names: Sequence[str] | Mapping[int, str]
) -> tuple[str, ...]:
    """List what people should hear of, each sentence once.

    Args:
        before: Sentences of earlier rounds.
        caught: Warnings that were raised since.
        names: Of the sites, which take the place of their numbers.

    Returns:
        The sentences, sorted.
    """
    sentences = set(before)
    for warning in caught:
        if isinstance(warning.message, SiteWarning):
            sentences.add(f"Site {names[warning.message.client]}: {warning.message.sentence}")
        elif issubclass(warning.category, UserWarning):
            sentences.add(str(warning.message))
    return tuple(sorted(sentences))


def join_sites(sentences: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Make one sentence of those that say the same of several sites.

    Args:
        sentences: Some of which are about one site: 'Site A: …'.

    Returns:
        The sentences; for example 'Sites A, B: …'.
    """
    others = set(sentences)
    sites: dict[str, list[str]] = {}
    for name in names:
        start = f"Site {name}: "
        for sentence in sentences:
            if sentence.startswith(start):
                others.discard(sentence)
                sites.setdefault(sentence.removeprefix(start), []).append(name)
    for rest, affected in sites.items():
        noun = "Site"
        if len(affected) > 1:
            noun = "Sites"
        others.add(f"{noun} {', '.join(affected)}: {rest}")
    return tuple(sorted(others))


def new_checkpoint(state: Tree, fingerprint: str) -> Checkpoint:
    """Make the checkpoint before the first round.

    Args:
        fingerprint: What decides the numbers.
    """
    return Checkpoint(0, state, {}, [], Ledger(), fingerprint)
