"""Rows on the same sites, start and server rows: those that share an inference train once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from consilience.benchmark.row_words import Row
from consilience.data.sites import Data, Sites
from consilience.errors import Diverged
from consilience.messages import Received
from consilience.method import Bound, is_made_at_home
from consilience.method.declared import reply_settings
from consilience.progress import track
from consilience.runs.engines.participation import Participation
from consilience.runs.heard import untold
from consilience.runs.result import Result
from consilience.runs.run import Compute, EngineFactory, run
from consilience.serialisation.settings import describe
from consilience.task import Task
from consilience.tree import Tree


class Replay:
    """An engine that gives the replies of another run's one round, and its losses.

    Args:
        data: The sites' rows, of which only the number counts.
        first: The run whose replies are used.
    """

    def __init__(self, data: Sequence[Data], first: Result) -> None:
        self.replies = list(first.replies)
        self.memories: dict[int, Tree] = {}
        self.clients = range(len(data))
        self.forgiving = False
        self.lost = {first.sites.names.index(f["site"]): f["why"] for f in first.report["failures"]}

    def gather(self, *_: Any) -> list[Received]:
        """Return the replies, whatever is asked."""
        return self.replies


class Outcome(NamedTuple):
    """How one row ended.

    Attributes:
        row: The row.
        result: Its run; None where training diverged.
        failure: Why there is no result.
    """

    row: Row
    result: Result | None
    failure: str = ""


def outcomes(
    rows: Sequence[Row],
    task: Task,
    sites: Sites,
    seed: int,
    engine: str = "auto",
    participation: Participation = Participation(),
    device: str = "cpu",
) -> Iterator[Outcome]:
    """Run the rows one after another.

    The numbers are those of separate runs: shared replies go through the same loop, in place of training.

    Args:
        task: The network, its likelihood and its prior.
        sites: Everybody's rows, by role.
        engine: Where the sites' work runs.
        participation: Who replies in a round, for every row that is not a bound.
        device: Where sites and server compute.

    Yields:
        Every row's outcome as soon as it exists.
    """
    trained: dict[str, Result] = {}
    for r in track(rows, "row"):
        present = participation
        if isinstance(r.method, Bound):
            present = Participation()
        key = _sharing_key(r, present)
        where: str | EngineFactory = engine
        if key in trained:
            where = _replay(trained[key])
        try:
            compute = Compute(where, device=device)
            with untold():
                result = run(
                    r.method,
                    task,
                    sites,
                    rounds=r.rounds,
                    seed=seed,
                    engine=compute,
                    participation=present,
                    effects=False,
                )
        except Diverged as error:
            yield Outcome(r, None, str(error))
            continue
        if key:
            trained.setdefault(key, result)
        yield Outcome(r, result)


def _replay(first: Result) -> EngineFactory:
    """An engine for another run with the replies of the first, and with the name of the engine that made them."""

    def replay(data: Sequence[Data]) -> Replay:
        return Replay(data, first)

    replay.__name__ = first.report["engine"]  # which a run writes into its report
    return replay


def _sharing_key(r: Row, present: Participation) -> str:
    """What two rows must have in common to use the same replies; empty where nothing can be shared."""
    settings = reply_settings(r.method)
    if settings is None or r.rounds != 1 or is_made_at_home(r.method):  # of what its sites keep, not of replies alone
        return ""
    return json.dumps(describe([settings, present]), sort_keys=True)
