"""Who takes part in a round, who is lost on the way, and how many must be left.

Drawn from the run's key, the round and the client alone: the same on every engine, and after a resume. A lost client
was sent the message, does not reply, and remembers what it remembered before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.errors import Diverged, InputError
from consilience.key import Key
from consilience.method import Method, name

PORTION = 256  # replies held at a time where they are folded
FAILED = "training failed"  # how the reason of a client that left the finite numbers begins
SPREAD = 0.5  # standard deviation of the log of a duration


@dataclass(frozen=True)
class Participation:
    """Everyone, always, unless told otherwise.

    Attributes:
        clients: How many clients are asked in a round: a number, or a fraction below 1; None: all.
        dropout: The chance that a client that was asked never replies.
        deadline: Replies that take longer do not count; 1: the usual time of a client of mean size.
        min_replies: Fewer replies end the run. Where it is given, a client whose training fails is lost and not an
            error.
    """

    clients: float | None = None
    dropout: float = 0.0
    deadline: float | None = None
    min_replies: int | None = None

    @property
    def partial(self) -> bool:
        return self != Participation()

    def count(self, clients: int) -> int:
        """How many are asked."""
        if self.clients is None:
            return clients
        return max(1, round(self.clients * clients)) if self.clients < 1 else int(self.clients)

    def fingerprint(self) -> dict[str, Any]:
        """What decides the numbers; how many replies suffice may change when a run goes on. Empty for everyone."""
        parts = dataclasses.asdict(dataclasses.replace(self, min_replies=None))
        return parts if self.clients or self.dropout or self.deadline else {}


def participation(value: float | Participation | None) -> Participation:
    """From a number or a fraction of clients."""
    return value if isinstance(value, Participation) else Participation(value)


def check(p: Participation, method: Method, clients: int) -> None:
    """Refuse what cannot work."""
    asked = p.clients
    if asked is not None and not (0 < asked < 1 or (asked >= 1 and asked == int(asked))):
        raise InputError(f"--participation {asked:g}: give a number of sites, or a fraction below 1.")
    if asked is not None and asked > clients:
        raise InputError(f"--participation {asked:g} asks for more sites a round than there are: {clients}.")
    if not 0 <= p.dropout < 1:
        raise InputError(f"--dropout {p.dropout:g}: give the chance of losing a site, from 0 to below 1.")
    if p.deadline is not None and not p.deadline > 0:
        raise InputError(f"--deadline {p.deadline:g}: give a time above 0; a site of mean size usually takes 1.")
    if p.min_replies is not None and not 1 <= p.min_replies <= p.count(clients):
        raise InputError(
            f"--min-replies {p.min_replies}: {p.count(clients)} sites are asked a round, so 1 to that many."
        )
    if p.partial and method.everyone:
        raise InputError(
            f"{name(method)} needs a reply from every site in every round: leave out --participation, --dropout, "
            "--deadline and --min-replies."
        )


def cohort(p: Participation, clients: Sequence[int], round: int, key: Key) -> list[int]:
    """Who is asked in a round, sorted."""
    count = p.count(len(clients))
    if count == len(clients):
        return list(clients)
    return sorted(clients[int(i)] for i in key.fold(round).fold(0).permutation(len(clients))[:count])


def losses(p: Participation, asked: Sequence[int], sizes: Sequence[int], round: int, key: Key) -> dict[int, str]:
    """Who of those asked is lost, and why."""
    lost: dict[int, str] = {}
    if p.deadline is not None:
        taken = durations(sizes, round, key)
        late = [k for k in asked if taken[k] > p.deadline]
        lost |= {k: f"too late: took {taken[k]:.2f}, the deadline is {p.deadline:g}" for k in late}
    if p.dropout:
        chance = key.fold(round).fold(1).uniform(len(sizes)).tolist()
        lost |= {k: "dropped out" for k in asked if chance[k] < p.dropout}
    return lost


def durations(sizes: Sequence[int], round: int, key: Key) -> list[float]:
    """How long every client takes in a round: as many rows as it has over the mean, times a log-normal of median 1."""
    mean = sum(sizes) / len(sizes)
    luck = (SPREAD * key.fold(round).fold(2).normal((len(sizes),))).exp().tolist()
    return [size / mean * factor for size, factor in zip(sizes, luck, strict=True)]


def portions(cohort: Sequence[int], sizes: Sequence[int], folding: bool) -> list[list[int]]:
    """The cohort in one go; cut where replies are folded as they come, clients of similar size together."""
    if not folding:
        return [list(cohort)] if cohort else []
    order = sorted(cohort, key=lambda k: (-sizes[k], k))
    return [order[i : i + PORTION] for i in range(0, len(order), PORTION)]


def shortfall(p: Participation, lost: Mapping[int, str], asked: int, round: int) -> InputError | None:
    """Why a run must stop after too few replies, and how it goes on; `Diverged` where failed training made them few."""
    least, replies = p.min_replies or 1, asked - len(lost)
    if replies >= least:
        return None
    said = f"Round {round + 1}: {replies} of {asked} sites replied and at least {least} must"
    failed = [lost[k] for k in sorted(lost) if lost[k].startswith(FAILED)]
    if replies + len(failed) >= least:
        return Diverged(f"{said}; {failed[0]}")
    easier = [f"a {word}" for word, used in (("lower --dropout", p.dropout), ("longer --deadline", p.deadline)) if used]
    if easier and not replies:
        how = f"start again with {' or '.join(easier)}"
    else:
        how = f"go on with --resume {'with a lower --min-replies' if replies else 'when sites are back'}"
    why = f"site {min(lost)}: {lost[min(lost)].rstrip('.')}"
    return InputError(f"{said} ({why}); all rounds before it are kept: {how}.")
