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
FAILED = "training failed"  # how the reason begins for a client whose numbers are not finite
SPREAD = 0.5  # standard deviation of the log of a duration


@dataclass(frozen=True)
class Participation:
    """Who takes part in a round; everyone, unless it says otherwise.

    Attributes:
        clients: How many clients are asked in a round: a number, or a fraction below 1; None: all.
        dropout: The chance that a client that was asked never replies.
        deadline: Replies that take longer do not count; 1: the usual time of a client of mean size.
        min_replies: Fewer replies end the run. Where it is given, a client whose training fails is lost and not an
            error.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=4, split="iid", model="linear")
        >>> half = co.Participation(clients=0.5)
        >>> result = co.run("fedavg", problem, rounds=2, participation=half)
        >>> len(result.replies)
        2
    """

    clients: float | None = None
    dropout: float = 0.0
    deadline: float | None = None
    min_replies: int | None = None

    @property
    def partial(self) -> bool:
        """Whether anything but everyone, always."""
        return self != Participation()

    def count(self, clients: int) -> int:
        """Count the clients that are asked in a round.

        Returns:
            How many are asked; at least one.
        """
        if self.clients is None:
            return clients
        if self.clients < 1:
            return max(1, round(self.clients * clients))
        return int(self.clients)

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides the numbers; how many replies suffice may change when a run is resumed.

        Returns:
            The fields; empty for everyone.
        """
        if not (self.clients or self.dropout or self.deadline):
            return {}
        return dataclasses.asdict(dataclasses.replace(self, min_replies=None))


def participation(value: float | Participation | None) -> Participation:
    """Make a participation.

    Args:
        value: How many clients are asked in a round, as a number or a fraction; or a participation.
    """
    if isinstance(value, Participation):
        return value
    return Participation(value)


def check(p: Participation, method: Method, clients: int) -> None:
    """Refuse what cannot work.

    Args:
        method: The method to be run.

    Raises:
        InputError: A value is out of its range, or the method needs everyone.
    """
    if p.clients is not None:
        _check_clients(p.clients, clients)
    if not 0 <= p.dropout < 1:
        raise InputError(f"dropout={p.dropout:g}: give the chance of losing a site, from 0 to below 1.")
    if p.deadline is not None and not p.deadline > 0:
        raise InputError(f"deadline={p.deadline:g}: give a time above 0; a site of mean size usually takes 1.")
    cohort_size = p.count(clients)
    if p.min_replies is not None and not 1 <= p.min_replies <= cohort_size:
        raise InputError(
            f"min_replies={p.min_replies} (--min-replies): {cohort_size} sites are asked in a round, so give a number "
            f"from 1 to {cohort_size}."
        )
    if p.partial and method.about.everyone:
        raise InputError(
            f"{name(method)} needs a reply from every site in every round: leave out participation, dropout, deadline "
            "and min_replies."
        )


def _check_clients(asked: float, clients: int) -> None:
    """Refuse what is neither a fraction nor a whole number of clients, and more than there are."""
    fraction = 0 < asked < 1
    number = asked >= 1 and asked == int(asked)
    if not fraction and not number:
        raise InputError(f"participation={asked:g}: give a number of sites, or a fraction below 1.")
    if asked > clients:
        raise InputError(f"participation={asked:g} asks for more sites in a round than there are: {clients}.")


def cohort(p: Participation, clients: Sequence[int], round: int, key: Key) -> list[int]:
    """Draw who is asked in a round.

    Args:
        round: The number of the round, from 0.
        key: Key of the run's participation.

    Returns:
        The clients' numbers, sorted.
    """
    count = p.count(len(clients))
    if count == len(clients):
        return list(clients)
    return sorted(clients[int(i)] for i in key.fold(round).fold(0).permutation(len(clients))[:count])


def losses(p: Participation, asked: Sequence[int], sizes: Sequence[int], round: int, key: Key) -> dict[int, str]:
    """Draw who of a cohort is lost.

    Args:
        sizes: Rows of every client.
        round: The number of the round, from 0.
        key: Key of the run's participation.

    Returns:
        The reasons, by client.
    """
    lost: dict[int, str] = {}
    if p.deadline is not None:
        times = durations(sizes, round, key)
        late = [k for k in asked if times[k] > p.deadline]
        lost |= {k: f"too late: took {times[k]:.2f}, the deadline is {p.deadline:g}" for k in late}
    if p.dropout:
        chance = key.fold(round).fold(1).uniform(len(sizes)).tolist()
        lost |= {k: "dropped out" for k in asked if chance[k] < p.dropout}
    return lost


def durations(sizes: Sequence[int], round: int, key: Key) -> list[float]:
    """Draw how long every client takes in a round: its rows over the mean, times a log-normal of median 1.

    Args:
        sizes: Rows of every client.
        round: The number of the round, from 0.
        key: Key of the run's participation.

    Returns:
        The durations; 1 is the usual one of a client of mean size.
    """
    mean = sum(sizes) / len(sizes)
    luck = (SPREAD * key.fold(round).fold(2).normal((len(sizes),))).exp().tolist()
    return [size / mean * factor for size, factor in zip(sizes, luck, strict=True)]


def portions(cohort: Sequence[int], sizes: Sequence[int], folding: bool) -> list[list[int]]:
    """Cut a cohort where replies are folded as they come, clients of similar size together.

    Args:
        sizes: Rows of every client.
        folding: Whether replies are folded.

    Returns:
        The parts of the cohort; one, unless replies are folded; none, if nobody is asked.
    """
    if not cohort:
        return []
    if not folding:
        return [list(cohort)]
    order = sorted(cohort, key=lambda k: (-sizes[k], k))
    return [order[i : i + PORTION] for i in range(0, len(order), PORTION)]


def shortfall(p: Participation, lost: Mapping[int, str], asked: int, round: int) -> InputError | None:
    """Find out whether a run must stop after too few replies.

    Args:
        lost: Who was lost, and why.
        asked: How many were asked.
        round: The number of the round, from 0.

    Returns:
        The error to raise, which says why and how to continue; `Diverged` where failed training left too few. None if
        there are enough replies.
    """
    least = p.min_replies or 1
    replies = asked - len(lost)
    if replies >= least:
        return None
    count = f"Round {round + 1}: {replies} of {asked} sites replied, and at least {least} must"
    failed = [lost[k] for k in sorted(lost) if lost[k].startswith(FAILED)]
    if replies + len(failed) >= least:
        return Diverged(f"{count}; {failed[0]}")
    why = f"site {min(lost)}: {lost[min(lost)].rstrip('.')}"
    return InputError(f"{count} ({why}); all rounds before it are kept: {_remedy(p, replies)}.")


def _remedy(p: Participation, replies: int) -> str:
    """What helps after too few replies."""
    if replies:
        return "resume with a lower min_replies"
    easier = []
    if p.dropout:
        easier.append("a lower dropout")
    if p.deadline:
        easier.append("a longer deadline")
    if easier:
        return f"start again with {' or '.join(easier)}"
    return "resume when sites are back"
