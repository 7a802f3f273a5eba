"""What a method says about itself: nine facts, and nothing that its functions know already."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Needs(enum.Enum):
    """What the server must hold."""

    NOTHING = "nothing"
    INPUTS = "inputs"  # unlabelled rows
    LABELS = "labels"  # a few labelled rows


class ReplyKind(enum.Enum):
    """What a client sends, and so what others may do with it."""

    WEIGHTS = "weights"  # what its inference found on a target of the method's own, and nothing beside it
    POSTERIOR = "posterior"  # the same on the untouched task, so that other methods can pool a first reply
    SUM = "sum"  # numbers of which the sum over the clients makes the model
    MEAN = "mean"  # numbers of which the mean over the clients makes the model
    OTHER = "other"


class Rounds(NamedTuple):
    """How many rounds a method runs for.

    Attributes:
        usual: Unless asked otherwise.
        most: 1 where a second round would repeat the first; None: as many as asked.
    """

    usual: int
    most: int | None = None


ONE_SHOT = Rounds(1, most=1)


@dataclass(frozen=True)
class About:
    """What a method is.

    Attributes:
        name: On the command line; the class's name in lower case if empty.
        paper: The method in words, full stop, two spaces, its paper; the first line of the method's file if empty.
        sends: What leaves a site, in words.
        needs: What the server must hold, whatever the settings; for all that it wants with its own: `needs(method)`.
        tasks: What it can learn: classification, regression, counts, survival.
        rounds: How many; `ONE_SHOT` where a second would repeat the first.
        everyone: Whether it needs a reply from every client in every round.
        reply: What kind of reply a client gives.
        types: Named tuples of other files that its messages, replies or states hold.
    """

    name: str = ""
    paper: str = ""
    sends: str = "its weights"
    needs: Needs = Needs.NOTHING
    tasks: tuple[str, ...] = ("classification", "regression")
    rounds: Rounds = Rounds(10)
    everyone: bool = False
    reply: ReplyKind = ReplyKind.OTHER
    types: tuple[type, ...] = ()

    @property
    def one_shot(self) -> bool:
        """Whether a second round would repeat the first."""
        return self.rounds.most == 1
