"""What a method can do beside its six functions: it derives from these as well, and others ask by `isinstance`.

    class FedAvg(Summable, BatchNormed, Method): …

| derive from | where | and write |
| --- | --- | --- |
| `Summable` | the server needs a sum or a mean of the replies, not the single ones | `summation` |
| `Private` | a setting `privacy` bounds and noises all that clients send | `protect`, `spends` |
| `Validated` | the server can tell from a reply that no client can have sent it | `doubt`, `implied`, `fewest` |
| `Personal` | sites have models of their own | `at_home`, `members` |
| `Pooling` | clients' posteriors are kept and their predictions pooled | `teacher`, `without_names`, `remarks` |
| `Releasable` | predicting needs other fields of the state than the posterior | `hand_out` |
| `Tunable` | sites can choose a setting of the pool after the round | `knob`, `turn`, `sweep` |
| `Reusable` | methods of other settings can use its first replies | `reply_settings` |
| `Imputable` | clients may fill missing values several times | `imputed` |
| `Diagnosed` | it has something to say about itself in reports | `diagnose`, `monitored` |
| `OnFeatures` | it learns one linear layer on a fixed feature map | `own_prior`, `sums_by_class`, `weighs` |
| `OnColumns` | a linear model of the columns is usual for it | `on_linear` |
| `ShowsInputs` | a setting decides whether the server's inputs go to the sites | `shows_inputs` |
| `BatchNormed` | batch normalisation's running statistics are averaged or kept whole | nothing |
| `Streaming` | it sees rows a part at a time, through `in_chunks`, so that they may stay in their file | nothing |
| `Multiplied` | densities or predictions are multiplied | nothing |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from consilience.aggregation.summands import Mean, Summation, Total, fold_total
from consilience.data.sites import Data
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Distribution, Predictive
from consilience.messages import Received, Reply, fold
from consilience.method.about import About, ReplyKind
from consilience.privacy.dp.mechanisms import Privacy
from consilience.privacy.entropy import Source
from consilience.task import Task
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.aggregation.distil import Distil
    from consilience.method.contract import Method


class Summable:
    """The server needs a sum or a mean of the replies, so that it need not see a single one.

    Studies can then mask what sites send, and rounds of many clients need little memory.
    """

    about: ClassVar[About]

    def summation(self) -> Summation | None:
        """Say how a reply becomes summands and a total what `aggregate` needs: by default the mean by rows, or the sum.

        None where the method, with these settings, is no sum.
        """
        if self.about.reply is ReplyKind.SUM:
            return Total()
        return Mean()

    @property
    def folds(self) -> bool:
        """Whether replies may become one as they arrive."""
        return self.summation() in (Mean(), Total())

    def fold(self, replies: Sequence[Received]) -> list[Received]:
        """Fold replies, with what earlier ones of the round were folded into: `aggregate` makes the same of them."""
        if self.summation() == Mean():
            return fold(replies)
        return fold_total(replies)


class Private:
    """A setting `privacy` makes all that clients send differentially private.

    Attributes:
        private_rounds: How many rounds it has then, no more and no less; 0: as many as usual, or fewer.
    """

    about: ClassVar[About]
    private_rounds: ClassVar[int] = 0
    privacy: Privacy | None

    def protect(self, reply: Reply, source: Source) -> Reply:
        """Add noise to a reply, at the site, before anything else is done with it.

        The source is a simulation's key, or the operating system.
        """
        if self.privacy is None:
            return reply
        return reply._replace(send=self.privacy.add_noise(reply.send, source))

    def spends(self, round: int) -> float:
        """Say which share of the budget's μ² a client's reply of a round takes, from 1 on; all rounds' add up to 1."""
        return 1 / (self.private_rounds or self.about.rounds.usual)


class Validated:
    """The server can tell of some replies that no client can have sent them, beyond what holds for all methods."""

    def doubt(self, task: Task, message: Any, send: Any) -> str | None:
        """Say why no client can have sent this, a sentence about the reply as "it"; None where nothing is wrong.

        What was sent has the form of this method's replies, and finite numbers.
        """
        return None

    def implied(self, task: Task, message: Any, send: Any) -> Any:
        """Work out the posterior behind what was made from it, because weights have bounds; () where there is none."""
        return ()

    def fewest(self, reply: Reply) -> Tensor:
        """Count the rows behind the smallest part of what a client sends: a study has a least number."""
        return reply.size


class Personal(ABC):
    """Sites have models of their own, made at home of what was released and what the site keeps."""

    @abstractmethod
    def at_home(self, task: Task, state: Any, memory: Tree) -> Any:
        """Make the state as it is at a site, of what it kept in the last round; () for a newcomer.

        Scores, prediction sets, `predict` and exports are of this model for the site's rows: see `method.which`.
        """

    def members(self, state: Any) -> tuple[tuple[Posterior, ...], Tensor]:
        """List what a newcomer's posterior could be, and their weights: their disagreement is uncertainty."""
        return (state.posterior,), torch.ones(1)


class Releasable(ABC):
    """Predicting needs other fields of the state than its posterior."""

    @abstractmethod
    def hand_out(self, state: Any, ensemble: bool) -> Tree:
        """Strip a state to what predicting needs, with () in the other fields: they stay with the coordinator.

        `ensemble` asks for the sites' posteriors, and not for one posterior or student alone.
        """


class Pooling(ABC):
    """The server keeps its clients' posteriors and pools their predictions; a student may learn the pool's.

    Attributes:
        by_site: The pool must know whose posterior is whose; False where it is a mixture of them all.
    """

    by_site: ClassVar[bool] = True
    distil: Distil | None

    @abstractmethod
    def teacher(self, task: Task, state: Any) -> Predictive:
        """Make the pool's prediction, which a student learns from."""

    def predictive(self, task: Task, state: Any) -> Predictive:
        """Make the model: the student, or else the pool."""
        if self.distil:
            return self.distil.predictive(task, state.posterior)
        return self.teacher(task, state)

    def without_names(self) -> Method | None:
        """Name the method that predicts when nobody knows whose posterior is whose; None where the pool cannot."""
        return None

    def remarks(self, state: Any, hand_out: str, labelled: bool) -> list[str]:
        """Say what somebody who is handed the model should know of its settings.

        It is released as mixture, student or ensemble; `labelled` where the coordinator's labelled rows fitted it.
        """
        return []


class Knob(NamedTuple):
    """A setting of a pool that sites can choose after the round, by their summed log-scores.

    Attributes:
        name: As in files, for example `beta`.
        symbol: As in reports, for example β.
        values: The grid that is tried.
        value: Where it stands.
    """

    name: str
    symbol: str
    values: tuple[float, ...]
    value: float | None


class Tunable(ABC):
    """Sites can choose a setting of the pool after the round, by their summed log-scores."""

    @abstractmethod
    def predictive(self, task: Task, state: Any) -> Predictive:
        """See `Method.predictive`."""

    @abstractmethod
    def knob(self, state: Any) -> Knob | None:
        """Name the setting; None where this state has none."""

    @abstractmethod
    def turn(self, state: Any, value: float) -> tuple[Self, Any]:
        """Make the method and the state with the knob at one of its values."""

    def sweep(self, task: Task, state: Any, x: Tensor) -> list[Distribution]:
        """Predict with the knob at each of its values; once where there is no knob."""
        knob = self.knob(state)
        if knob is None:
            return [self.predictive(task, state)(x)]
        settings = [self.turn(state, value) for value in knob.values]
        return [method.predictive(task, turned)(x) for method, turned in settings]


class Reusable(ABC):
    """Methods of other settings can use its first replies, beyond those whose reply is a posterior."""

    @abstractmethod
    def reply_settings(self) -> Any:
        """List what decides a first reply: two methods of equal lists can use each other's."""


class Imputable(ABC):
    """Clients may fill missing values several times, and add the spread between the fits to what they send."""

    @abstractmethod
    def imputed(self, marks: str, tables: int) -> Method:
        """Make the method that fills so many tables; `marks` says which feature is whose indicator, as `1:2,4:5`."""


class Diagnosed:
    """It has something to say about itself, for the report."""

    def diagnose(self, task: Task, state: Any, x: Tensor) -> dict[str, Any]:
        """Say it, at the inputs `x`: values by name, as JSON has them."""
        return {}

    def monitored(self, task: Task, state: Any) -> dict[str, Predictive]:
        """Make further models, by name, whose scores belong in the history of the rounds."""
        return {}


class OnFeatures:
    """It learns one linear layer on a fixed feature map.

    Attributes:
        in_studies: Its usual settings in a study whose columns have effects, `field=value` each, where nobody chose
            these fields.
        own_prior: It weighs a prior of its own, whatever the task's is. Where not, it learns the effects of a table's
            columns themselves, unless features are asked for.
    """

    own_prior: ClassVar[bool] = False
    in_studies: ClassVar[tuple[str, ...]] = ()

    def sums_by_class(self, task: Task) -> bool:
        """Say whether a client sums products of features over each class by itself: few rows of one then stand out."""
        return False

    def weighs(self, task: Task, message: Any, data: Data) -> tuple[Tensor, Tensor] | None:
        """Say how much each row counts in sums over them, where a message may make few rows count alone.

        The message is () in a first round. These are the weights of products of features, a column for each such sum
        [N, P], and of features themselves, a column for each sum that is known by then [N, L]; None where all rows
        count alike, or nobody can say.
        """
        return None


class OnColumns:
    """A linear model of the columns is usual for it.

    Attributes:
        on_linear: Its usual settings there, with few weights and without a learned noise, `field=value` each.
    """

    on_linear: ClassVar[tuple[str, ...]] = ()


class ShowsInputs(ABC):
    """A setting decides whether the first message holds the server's inputs, which no site can make for itself."""

    @property
    @abstractmethod
    def shows_inputs(self) -> bool:
        """Whether it does."""


class BatchNormed:
    """Batch normalisation's running statistics are averaged or kept whole, so that networks with it can be trained."""


class Streaming:
    """It makes sums over rows a part at a time, so that rows may stay in their file, larger than memory."""


class Multiplied:
    """Densities or predictions are multiplied, so that the errors of overconfident clients multiply too."""
