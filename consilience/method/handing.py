"""What becomes of a model after the rounds: settings that sites choose, and what is handed out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from torch import Tensor

from consilience.distributions.predictive import Distribution, Predictive
from consilience.method.declared import Declared
from consilience.method.states import keep_fields
from consilience.task import Task
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.method.contract import Method


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


class Handing(Declared, ABC):
    """The part of a method that says what is chosen and handed out when its rounds are over."""

    @abstractmethod
    def predictive(self, task: Task, state: Any) -> Predictive:
        """See `Method.predictive`."""

    def knob(self, state: Any) -> Knob | None:
        """Name the setting of the pool that sites can choose by summed log-scores.

        Args:
            state: The server's state after the round.

        Returns:
            The setting, or None where there is none.
        """
        return None

    def turn(self, state: Any, value: float) -> tuple[Self, Any]:
        """Set the knob.

        Args:
            state: The server's state.
            value: One of the knob's values.

        Returns:
            The method and the state with the knob at that value.
        """
        return self, state

    def sweep(self, task: Task, state: Any, x: Tensor) -> list[Distribution]:
        """Predict with the knob at each of its values.

        Args:
            task: The statistical problem.
            state: The server's state.
            x: The inputs.

        Returns:
            A distribution for each value; the only one where there is no knob.
        """
        knob = self.knob(state)
        if knob is None:
            return [self.predictive(task, state)(x)]
        settings = [self.turn(state, value) for value in knob.values]
        return [method.predictive(task, turned)(x) for method, turned in settings]

    def hand_out(self, state: Any, ensemble: bool) -> Tree:
        """Strip a state to what predicting needs: anything else stays with the coordinator.

        Args:
            state: The server's state.
            ensemble: Whether the sites' posteriors are handed out, and not one posterior or student alone.

        Returns:
            The state with () in the other fields.
        """
        if ensemble:
            return keep_fields(state, ("posterior", "posteriors", "weights"))
        return keep_fields(state, ("posterior",))

    def without_names(self) -> Method | None:
        """Name the method that predicts when nobody knows whose posterior is whose.

        Returns:
            The method, or None where the pool cannot do without.
        """
        return None

    def remarks(self, state: Any, hand_out: str, labelled: bool) -> list[str]:
        """Say what somebody who is handed the model should know of its settings.

        Args:
            state: The server's state.
            hand_out: How it is handed out: mixture, student or ensemble.
            labelled: Whether the coordinator's own labelled rows fitted something.

        Returns:
            Sentences.
        """
        return []

    def reply_settings(self) -> Any:
        """Describe what decides a first reply.

        Two methods whose first replies are decided by equal settings can use each other's.

        Returns:
            Settings that can be compared, or None where no other method can use the replies.
        """
        if not self.shares:
            return None
        return getattr(self, "inference", None)
