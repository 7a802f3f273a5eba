"""What leaves a site: replies that add up, noise, and what the server doubts of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from consilience.aggregation.summands import Mean, Summation, Total, fold_total
from consilience.data.sites import Data
from consilience.distributions.posterior import SMALLEST
from consilience.messages import Received, Reply, fold
from consilience.method.declared import Declared, usual_rounds
from consilience.privacy.entropy import Source
from consilience.task import Task


class Sending(Declared):
    """The part of a method that says how its replies may travel."""

    @property
    def averages(self) -> bool:
        """Whether `aggregate` uses Σₖ (nₖ/n) payloadₖ alone.

        Such a method is a sum: replies may be folded into it as they arrive, and added up securely.
        """
        return False

    def summation(self) -> Summation | None:
        """Say how replies are added up, so that the server need not see a single one.

        Returns:
            How a reply becomes summands and a total what `aggregate` needs; None where the method, as it is set, is no
            sum.
        """
        if self.averages:
            return Mean()
        return None

    @property
    def folds(self) -> bool:
        """Whether replies may become one as they arrive, so that a round of many clients needs little memory."""
        return self.averages or self.summation() == Total()

    def fold(self, replies: Sequence[Received]) -> list[Received]:
        """Fold some of a round's replies, where the method `folds`.

        Args:
            replies: Some that arrived, with what earlier ones were folded into.

        Returns:
            What `aggregate` makes the same of, to rounding.
        """
        if self.averages:
            return fold(replies)
        return fold_total(replies)

    def protect(self, reply: Reply, source: Source) -> Reply:
        """Add noise to a reply, at the site, before anything else is done with it.

        Args:
            reply: What `local` returned.
            source: Where the noise comes from: a simulation's key, or the operating system.

        Returns:
            What may leave the site.
        """
        return reply

    def spends(self, round: int) -> float:
        """Say which share of a budget's μ² a client's reply of a round takes, where the method is private.

        Args:
            round: The round, from 1 on.

        Returns:
            The share; over the usual rounds they add up to 1.
        """
        return 1 / usual_rounds(self)

    def fewest(self, reply: Reply) -> Tensor:
        """Count the rows behind the smallest part of what a client sends: a study has a least number.

        Args:
            reply: A client's reply.

        Returns:
            The count.
        """
        return reply.size

    def sums_by_class(self, task: Task) -> bool:
        """Say whether a client adds up products of features over the rows of each class by themselves.

        Few rows of a class then stand out in them, whatever rows of other classes there are.

        Args:
            task: The statistical problem.
        """
        return False

    def weighs(self, task: Task, message: Any, data: Data) -> tuple[Tensor, Tensor] | None:
        """Say how much each row counts in sums over them, where a message may make few rows count alone.

        Args:
            task: The statistical problem.
            message: What the client answers; () in a first round.
            data: The client's rows.

        Returns:
            The weights of products of features, a column for each such sum [N, P], and of features themselves, a
            column for each sum that is known by then [N, L]; None where all rows count alike, or nobody can say.
        """
        return None

    @property
    def narrowest(self) -> float | None:
        """The smallest variance of a client's Gaussian that its rows need not explain.

        None where every precision is the prior's plus the rows' curvature, as Laplace's approximation computes it.
        """
        narrowest: float | None = getattr(getattr(self, "inference", None), "narrowest", SMALLEST)
        return narrowest

    def implied(self, task: Task, message: Any, send: Any) -> Any:
        """Work out the posterior that a client found, where it sends something made from it: its weights have bounds.

        Args:
            task: The statistical problem.
            message: What the client answers.
            send: What it sent, which has the form of this method's replies and finite numbers.

        Returns:
            The posterior; () where what was sent says all.
        """
        return ()

    def doubt(self, task: Task, message: Any, send: Any) -> str | None:
        """Say why no client can have sent this, beyond what holds for all methods; the server then does not use it.

        Args:
            task: The statistical problem.
            message: What the client answers.
            send: What it sent, which has the form of this method's replies and finite numbers.

        Returns:
            A sentence about the reply, as "it"; None where there is nothing to say.
        """
        return None
