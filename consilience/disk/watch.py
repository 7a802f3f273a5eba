"""What a coordinator sees of its sites: a line of the log for every event, and how things stand for those who ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from consilience.disk.metrics import Metrics

LOOKS = 120.0  # seconds within which the coordinator looks at its sites again
POOLS = 600.0  # seconds that pooling may take
ALONE = 60.0  # seconds without any site, after which something is wrong


class Watch:
    """Is told what happens to the sites, and says it.

    Attributes:
        names: The sites' names, by their place.
    """

    def __init__(
        self,
        names: Sequence[str] = (),
        rounds: int = 0,
        say: Callable[[str], None] = lambda line: None,
        warn: Callable[[str], None] = lambda line: None,
        beat: Callable[[str, float, str], None] = lambda state, promise, doubt: None,
        metrics: Metrics | None = None,
    ) -> None:
        """Begin without having seen anybody.

        Args:
            rounds: How many rounds the study has.
            say: Is given a line for people.
            warn: Is given a line about something that went wrong.
            beat: Is told what the coordinator does, within how many seconds it speaks again, and what is wrong.
            metrics: Numbers for programs that watch; None: nobody asks.
        """
        self.names = list(names)
        self.rounds = rounds
        self.say = say
        self.warn = warn
        self.beat = beat
        self.metrics = metrics or Metrics()
        self._here: set[int] = set()
        self._alone_since = time.monotonic()
        self._round = 0
        self._asked: set[int] = set()
        self._answered: set[int] = set()
        self._begun = time.monotonic()
        self.metrics.set("sites", len(self.names))
        self.metrics.set("rounds", rounds)

    def look(self, here: Collection[int]) -> None:
        """Take down who is connected.

        Args:
            here: The sites that are.
        """
        if self._here and not here:
            self._alone_since = time.monotonic()
        for k in sorted(set(here) - self._here):
            self.say(f"{self.names[k]} is connected ({len(here)} of {len(self.names)} sites).")
        for k in sorted(self._here - set(here)):
            self.warn(f"{self.names[k]} went away ({len(here)} of {len(self.names)} sites are connected).")
        self._here = set(here)
        self.metrics.set("sites_connected", len(self._here))
        self.beat(self._state(), LOOKS, self._doubt())

    def begin(self, number: int, cohort: Sequence[int]) -> None:
        """Take down that a round begins.

        Args:
            number: Which, from 1 on.
            cohort: The sites that are asked.
        """
        self._round, self._begun = number, time.monotonic()
        self._asked, self._answered = set(cohort), set()
        self.metrics.set("round", number)
        self.say(f"Round {number} of {self.rounds} begins with {len(cohort)} of {len(self.names)} sites.")

    def answered(self, k: int) -> None:
        """Take down that a site answered."""
        if k in self._answered:
            return
        self._answered.add(k)
        seconds = time.monotonic() - self._begun
        self.metrics.add("replies_total", site=self.names[k])
        self.say(f"Round {self._round}: {self.names[k]} answered after {seconds:.1f} seconds.")

    def end(self, used: Sequence[int], lost: Mapping[int, str]) -> None:
        """Take down how a round ended; pooling follows.

        Args:
            used: The sites whose replies are used.
            lost: The others, and why.
        """
        for k, why in sorted(lost.items()):
            self.metrics.add("lost_total", site=self.names[k])
            self.warn(f"Round {self._round} without {self.names[k]}: {why}")
        seconds = time.monotonic() - self._begun
        self.metrics.set("round_seconds", seconds)
        self.say(f"Round {self._round} of {self.rounds}: {len(used)} replies in {seconds:.1f} seconds.")
        self._asked = set()
        self.beat(f"pooling round {self._round} of {self.rounds}", POOLS, "")

    def _state(self) -> str:
        """What the coordinator does."""
        waiting = sorted(self._asked - self._answered)
        if waiting:
            names = ", ".join(self.names[k] for k in waiting)
            return f"in round {self._round} of {self.rounds}, waiting for {names} ({self._connected()})"
        return f"waiting for sites ({self._connected()})"

    def _connected(self) -> str:
        return f"{len(self._here)} of {len(self.names)} sites are connected"

    def _doubt(self) -> str:
        """What is wrong; nothing if there is somebody, or nobody for a moment only."""
        if self._here or time.monotonic() - self._alone_since < ALONE:
            return ""
        return "no site is connected"
