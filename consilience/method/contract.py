"""What a federated method is: two functions, and what else a round calls."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from consilience.distributions.posterior import Point, Posterior
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method.declared import name
from consilience.method.handing import Handing
from consilience.method.sending import Sending
from consilience.method.states import State
from consilience.task import Task
from consilience.tree import Tree


class Method(Sending, Handing):
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
    their values. `aggregate` runs at the server. Neither changes what it was given.

    What a method is, it says in the class variables of `Declared`; most methods state two or three. What leaves a site
    and is added up there is in `Sending`, what becomes of the model after the rounds in `Handing`. All have defaults.
    """

    @abstractmethod
    def local(self, task: Task, message: Any, client: Client) -> Reply:
        """Answer a message, at the site.

        Args:
            task: The statistical problem.
            message: What the server sent.
            client: The client's rows, memory and key.

        Returns:
            What is sent, how many rows stand behind it, and what the client keeps.
        """

    @abstractmethod
    def aggregate(self, task: Task, state: Any, replies: Sequence[Received], server: Server) -> Any:
        """Pool the replies, at the server.

        Args:
            task: The statistical problem.
            state: The state before the round.
            replies: One for each client that replied.
            server: The server's rows and key.

        Returns:
            The state after the round.
        """

    def init(self, task: Task, server: Server) -> Any:
        """Make the state before the first round.

        Args:
            task: The statistical problem.
            server: The server's rows and key.

        Returns:
            The state.
        """
        return State(task.init(server.key))

    def broadcast(self, state: Any) -> Tree:
        """Make the message to the clients.

        Args:
            state: The server's state.

        Returns:
            What is sent.
        """
        return state.posterior

    def memory(self, message: Any) -> Tree:
        """Make what a client remembers before its first round.

        Args:
            message: What the server sent.

        Returns:
            The memory; () for none.
        """
        return ()

    def predictive(self, task: Task, state: Any) -> Predictive:
        """Make the model.

        Args:
            task: The statistical problem.
            state: The server's state.

        Returns:
            A function from inputs to a distribution.
        """
        return task.predictive(state.posterior)

    def personal(self, task: Task, state: Any, memories: Mapping[int, Tree]) -> dict[int, Any] | None:
        """Make the states as they are at sites, where sites have models of their own; most methods write `at_home`.

        Args:
            task: The statistical problem.
            state: The server's state.
            memories: What each site kept in the last round, by its number; () for a site that took no part.

        Returns:
            A state for each of these sites, whose model is the site's own; None where there is one model for all.
        """
        if type(self).at_home is Method.at_home:
            return None
        return {k: self.at_home(task, state, memory) for k, memory in memories.items()}

    def at_home(self, task: Task, state: Any, memory: Tree) -> Any:
        """Make the state as it is at a site, where sites have models of their own.

        Scores, prediction sets, `predict` and exports are of this model for the site's rows: see `method.which`.

        Args:
            task: The statistical problem.
            state: What was handed out.
            memory: What the site kept in the last round; () for a newcomer.

        Returns:
            A state whose model is the site's own; the same state where there is one model for all.
        """
        return state

    def members(self, state: Any) -> tuple[tuple[Posterior, ...], Tensor]:
        """List the posteriors whose disagreement is uncertainty.

        Args:
            state: The server's state.

        Returns:
            The posteriors behind the model, and their weights.
        """
        if isinstance(state, State) or not hasattr(state, "posteriors"):
            return (state.posterior,), torch.ones(1)
        return state.posteriors, state.weights

    def diagnose(self, task: Task, state: Any, x: Tensor) -> dict[str, Any]:
        """Say what a method can say about itself, for the report.

        Args:
            task: The statistical problem.
            state: The server's state.
            x: The inputs to say it at.

        Returns:
            Values by name, as JSON has them.
        """
        return {}

    def monitored(self, task: Task, state: Any) -> dict[str, Predictive]:
        """Make further models whose scores belong in the history of the rounds.

        Args:
            task: The statistical problem.
            state: The server's state.

        Returns:
            Models by name.
        """
        return {}

    def points(self, replies: Sequence[Received]) -> tuple[Point, ...]:
        """Find the clients' weights among what they sent, for methods that go around this one.

        Args:
            replies: The clients' replies.

        Returns:
            Their weights.

        Raises:
            InputError: The clients send no weights.
        """
        if not all(isinstance(reply.payload, Point) for reply in replies):
            raise InputError(
                f"Clients of {name(self)} do not send their weights: choose another inner method, for example fedavg."
            )
        return payloads(replies)

    def imputed(self, marks: str, tables: int) -> Method:
        """Fill gaps several times at the client, and add the spread between the fits to what it sends.

        Args:
            marks: Which feature holds a column and which one marks its gaps, as `1:2,4:5`.
            tables: How many times.

        Returns:
            The method that does so; bounds take a filled gap for a number.

        Raises:
            InputError: It sends no Gaussian, which Rubin's rules combine.
        """
        if self.bound:
            return self
        raise InputError(
            f"{name(self)} sends no Gaussian posterior, and multiple imputation combines Gaussians: choose a method "
            "that does, or let gaps be filled by means."
        )
