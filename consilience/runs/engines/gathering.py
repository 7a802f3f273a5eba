"""One round's replies: who is asked, what crossed, and who was lost on the way and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.messages import Received
from consilience.method import Method
from consilience.method.declared import fold_replies
from consilience.progress import track
from consilience.runs.engines import participation as part
from consilience.runs.engines.client_turn import Engine, Turn
from consilience.runs.engines.ledger import Ledger
from consilience.runs.engines.participation import Participation
from consilience.task import Task
from consilience.tree import Tree


@dataclass
class Gathering:
    """Asks an engine, round by round; `lost` is of the last one, also when it had to be given up.

    Attributes:
        engine: Where the clients run.
        taking: Who takes part.
        sizes: Rows of each site.
        folding: Whether replies become one as they come.
        rounds: How many rounds the run has.
        key: The run's key.
        lost: Who was lost in the last round, and why.
    """

    engine: Engine
    taking: Participation
    sizes: Sequence[int]
    folding: bool
    rounds: int
    key: Key
    lost: dict[int, str] = field(default_factory=dict)

    def __call__(self, method: Method, task: Task, message: Tree, round: int, ledger: Ledger) -> list[Received]:
        """Ask a round's cohort.

        Args:
            method: What the clients compute.
            message: What the server sends.
            round: The number of the round, from 0.
            ledger: Where to record what crossed.

        Returns:
            The replies, or what they are folded into.

        Raises:
            InputError: Too few replied.
        """
        key = self.key.fold(Stream.PARTICIPATION)
        cohort = part.cohort(self.taking, self.engine.clients, round, key)
        self.lost = part.losses(self.taking, cohort, self.sizes, round, key)
        present = [k for k in cohort if k not in self.lost]
        turn = Turn(round, self.key.fold(Stream.LOCAL), round / self.rounds)
        replies: list[Received] = []
        for portion in track(part.portions(present, self.sizes, self.folding), "part"):
            portion_replies = self._ask(method, task, message, portion, turn)
            for reply in portion_replies:
                ledger.record(round + 1, reply.client, message, reply.payload)
            if self.folding:
                replies = fold_replies(method, [*replies, *portion_replies])
            else:
                replies = portion_replies
        for k in sorted(self.lost):
            ledger.record(round + 1, k, message, ())
        if stop := part.shortfall(self.taking, self.lost, len(cohort), round):
            raise stop
        return replies

    def _ask(self, method: Method, task: Task, message: Tree, portion: list[int], turn: Turn) -> list[Received]:
        """Ask a part of the cohort, and note who of it was lost."""
        try:
            replies = self.engine.gather(method, task, message, portion, turn)
        except InputError:
            self.lost |= self.engine.lost
            raise
        silent = set(portion) - {reply.client for reply in replies}
        self.lost |= {k: self.engine.lost.get(k, "no reply") for k in silent}
        return replies
