"""One round's replies: who is asked, what crossed, and who was lost on the way and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from consilience.engines import participation as part
from consilience.engines.exchange import Engine, Turn
from consilience.engines.ledger import Ledger
from consilience.engines.participation import Participation
from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.method import Method
from consilience.parties import Received, fold
from consilience.progress import track
from consilience.task import Task
from consilience.tree import Tree


@dataclass
class Gathering:
    """Asks an engine, round by round; `lost` is of the last one, also when it had to be given up.

    Attributes:
        engine: Where the clients run.
        taking: Who takes part.
        sizes: Rows of each site.
        folding: Whether replies become their average as they come.
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
        """The replies of those asked; too few of them end the run with a sentence."""
        draw, turn = self.key.fold(Stream.PARTICIPATION), Turn(round, self.key.fold(Stream.LOCAL), round / self.rounds)
        asked = part.cohort(self.taking, self.engine.clients, round, draw)
        self.lost = part.losses(self.taking, asked, self.sizes, round, draw)
        there, replies = [k for k in asked if k not in self.lost], list[Received]()
        for portion in track(part.portions(there, self.sizes, self.folding), "part"):
            try:
                came = self.engine.gather(method, task, message, portion, turn)
            except InputError:
                self.lost |= self.engine.lost
                raise
            for r in came:
                ledger.record(round + 1, r.client, message, r.payload)
            self.lost |= {k: self.engine.lost.get(k, "no reply") for k in set(portion) - {r.client for r in came}}
            replies = fold([*replies, *came]) if self.folding else came
        for k in sorted(self.lost):
            ledger.record(round + 1, k, message, ())
        if stop := part.shortfall(self.taking, self.lost, len(asked), round):
            raise stop
        return replies
