"""What a federated method is: six functions, and what it says about itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from consilience.distributions.predictive import Predictive
from consilience.messages import Client, Received, Reply, Server
from consilience.method.about import About
from consilience.method.moved import refuse_old_names
from consilience.method.states import State
from consilience.task import Task
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.aggregation.distil import Distil
    from consilience.inference import Inference
    from consilience.privacy.dp.mechanisms import Privacy


class Method(ABC):
    """What a federated method is: `local` at a client, `aggregate` at the server.

    Final subclasses are frozen dataclasses whose fields are the settings. A complete one:

        @dataclass(frozen=True)
        class FedAvg(Method):
            inference: Inference = SGD()                     # how a client trains

            def local(self, task, message, client):
                return Reply(self.inference(task, message, client), client.data.size)

            def aggregate(self, task, state, replies, server):
                return State(average(payloads(replies), weights(replies)))

    `local` runs where the data are and must give the same on every engine: tensors in, tensors out, no reading of
    their values. `aggregate` runs at the server. Neither changes what it was given. The other four functions have
    defaults that suit most methods.

    What a method is, it says in `about`. What else it can do, it says by deriving from a capability as well, which
    has two or three functions of its own: see `consilience.method.capabilities`. Bounds derive from `Bound`.

    Attributes:
        about: Name, paper, what leaves a site, what the server must hold, and five more facts.
        inference: How a client infers, where that is a setting. These four settings are known to others by name: bounds
            infer as the method's clients do, students need inputs at the server, and privacy is charged to a ledger.
        inner: The method that this one goes around, where that is a setting.
        distil: How the server trains one student, where that is a setting.
        privacy: Differential privacy of all that is sent, where that is a setting.
    """

    about: ClassVar[About] = About()

    inference: Inference | None = None
    inner: Method | None = None
    distil: Distil | None = None
    privacy: Privacy | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_old_names(cls)

    @abstractmethod
    def local(self, task: Task, message: Any, client: Client) -> Reply:
        """Answer a message, at the site: what is sent, how many rows stand behind it, and what the client keeps."""

    @abstractmethod
    def aggregate(self, task: Task, state: Any, replies: Sequence[Received], server: Server) -> Any:
        """Pool the replies, at the server: the state after the round, from the one before it."""

    def init(self, task: Task, server: Server) -> Any:
        """Make the state before the first round; refuse settings and tasks that make no sense."""
        return State(task.init(server.key))

    def broadcast(self, state: Any) -> Tree:
        """Make the message to the clients."""
        return state.posterior

    def memory(self, message: Any) -> Tree:
        """Make what a client remembers before its first round; () for nothing."""
        return ()

    def predictive(self, task: Task, state: Any) -> Predictive:
        """Make the model, a function from inputs to a distribution."""
        return task.predictive(state.posterior)


class Bound(Method):
    """Not a federated method, but what to compare one with.

    Attributes:
        pooled: It runs on all sites' rows in one place.
        silent: It sends nothing outside a simulation.
        tempers: False where the calibration rows were trained on.
        common: There is a model for all sites, which a newcomer gets; False where each site has only its own, which
            `alone` makes.
    """

    pooled: ClassVar[bool] = False
    silent: ClassVar[bool] = False
    tempers: ClassVar[bool] = True
    common: ClassVar[bool] = True

    def alone(self, state: Any, client: int) -> Any:
        """Make the state of a site's own model, where there is none for all."""
        return state
