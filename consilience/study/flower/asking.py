"""One round's questions: a site that goes away while it is asked is asked again when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import Error, Message

from consilience.study.flower.roster import Roster, push

LOOK = 1.0  # seconds between two looks at who is connected
DEAD = "it stopped answering: its machine or its program died."
AWAY = {
    3: "its message was lost.",
    4: "its reply was lost.",
    5: DEAD,
}  # not the site's own words: it can be asked again
WHY = {**AWAY, 8: "its program crashed."}


class Asking:
    """Questions to sites until all have answered, or nothing more is to be expected.

    Attributes:
        answers: All that each site answered.
        lost: Who did not answer, and why.
    """

    def __init__(
        self,
        roster: Roster,
        write: Callable[[Sequence[int]], Mapping[int, Message]],
        deadline: float,
        needed: int,
        pause: float,
    ) -> None:
        """Begin without having asked.

        Args:
            roster: Which node is which site.
            write: Writes the messages to sites that are there.
            deadline: Seconds until all must have answered.
            needed: How many must answer; only for their sake is a site waited for that went away.
            pause: Seconds between two looks for replies.
        """
        self.roster = roster
        self.write = write
        self.deadline = deadline
        self.needed = needed
        self.pause = pause
        self.answers: dict[int, list[Message]] = {}
        self.lost: dict[int, str] = {}
        self._waiting: dict[str, int] = {}  # question → the site that has not answered it
        self._asked: dict[str, int] = {}  # the same, with those that have
        self._connections: dict[int, tuple[int, str] | None] = {}  # site → the connection it was asked through
        self._away: dict[int, tuple[float, str]] = {}  # site → since when it is away, and why

    def __call__(self, cohort: Sequence[int]) -> None:
        """Ask sites, and wait.

        Args:
            cohort: Those that are there.
        """
        end = time.monotonic() + self.deadline
        next_look = time.monotonic() + LOOK
        self._ask(cohort)
        while (self._waiting or self._away) and time.monotonic() < end:
            self._collect()
            self._give_up(len(cohort))
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + LOOK
            if self._waiting or self._away:
                time.sleep(self.pause)
        self._collect()  # what came at the last moment, or while a busy machine did not look
        for k in self._waiting.values():
            self.lost[k] = f"no reply within {self.deadline:g} seconds."
        self.lost |= {k: why for k, (_, why) in self._away.items()}
        for k, replies in self.answers.items():
            errors = [reply.error for reply in replies if reply.has_error()]
            if errors:
                self.lost[k] = explain(errors[0])

    def _ask(self, sites: Sequence[int]) -> None:
        """Send the question."""
        requests = self.write(sites)
        if not requests:
            return
        waiting, refused = push(self.roster.grid, requests)
        self._waiting |= waiting
        self._asked |= waiting
        self._connections |= {k: self.roster.connection(k) for k in requests}
        self._away |= {k: (time.monotonic(), "Flower did not take the message for it.") for k in refused}

    def _collect(self) -> None:
        """Take what has come."""
        if not self._waiting:
            return
        for reply in self.roster.grid.pull_messages(list(self._waiting)):
            number = reply.metadata.reply_to_message_id
            if number not in self._asked:  # nobody asked: late, or to an old question
                continue
            k = self._asked[number]
            self._waiting.pop(number, None)
            if reply.has_error() and reply.error.code in AWAY and k not in self.answers:
                self._away[k] = time.monotonic(), AWAY[reply.error.code]
            else:
                self.answers.setdefault(k, []).append(reply)
                self.roster.watch.answered(k)

    def _give_up(self, asked: int) -> None:
        """Go on without sites that are away, if enough others answer or they are away for too long."""
        enough = asked - len(self.lost) - len(self._away) >= self.needed
        for k, (since, why) in list(self._away.items()):
            if enough or time.monotonic() - since >= self.roster.wait:
                del self._away[k]
                self.lost[k] = why
                self.roster.missing.add(k)

    def _look(self) -> None:
        """Notice who went away, and ask those again who are back."""
        self.roster.look()
        for number, k in list(self._waiting.items()):
            if self.roster.connection(k) != self._connections[k]:
                del self._waiting[number]
                self._away[k] = time.monotonic(), DEAD
        back = [k for k in self._away if k in self.roster.nodes]
        for k in back:
            del self._away[k]
        self._ask(back)


def explain(error: Error) -> str:
    """Put Flower's codes in words; what a site itself reports as it says it.

    Args:
        error: What came instead of a reply.
    """
    reason = error.reason or f"error {error.code}"
    return WHY.get(error.code, f"it reports: {reason}")
