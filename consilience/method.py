"""The contract: a method is two pure functions with typed values between them."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.posterior import Point, Posterior, average
from consilience.predictive import Predictive
from consilience.task import Task
from consilience.training.optimisers import Optimiser
from consilience.tree import Tree


class Needs(enum.Enum):
    """What the server must hold."""

    NOTHING = "nothing"
    INPUTS = "inputs"  # unlabelled rows
    LABELS = "labels"  # a few labelled rows


class State(NamedTuple):
    """What the server knows between rounds; `.posterior` comes first: the model, and the next round's start."""

    posterior: Posterior


class Pooled(NamedTuple):
    """The state of a method that keeps its clients' posteriors and pools their predictions."""

    posterior: Posterior  # what the round started from
    posteriors: tuple[Posterior, ...]
    weights: Tensor  # nₖ / n


class Stepped(NamedTuple):
    """The state of a method whose server takes steps of an optimiser."""

    posterior: Point
    optimiser: Tree  # its memory


def server_step(task: Task, state: Stepped, optimiser: Optimiser, replies: Sequence[Received]) -> Stepped:
    """One step of the server's optimiser along θ − Σₖ (nₖ/n) θₖ, the clients' average step taken as a gradient."""
    before, mean = state.posterior.params, average(payloads(replies), weights(replies))
    theta = tree.ravel(before)
    theta, memory = optimiser.step(theta, theta - tree.ravel(mean.params), state.optimiser, optimiser.rate)
    return Stepped(with_statistics(task, Point(tree.unravel(theta, before)), mean), memory)


def with_statistics(task: Task, point: Point, mean: Point) -> Point:
    """The point with the clients' mean running statistics: an optimiser's step could make a variance negative."""
    return Point({**point.params, **{k: mean.params[k] for k in task.statistics}})


class Method(ABC):
    """Final subclasses are frozen dataclasses whose fields are the settings. A complete one:

        @dataclass(frozen=True)
        class FedAvg(Method):
            inference: Inference = SGD()                     # how a client trains

            def local(self, task, message, client):
                return Reply(self.inference(task, message, client), client.data.size)

            def aggregate(self, task, state, replies, server):
                return State(average(payloads(replies), weights(replies)))

    `local` runs where the data are and must give the same on every engine: tensors in, tensors out, no reading of
    their values. `aggregate` runs at the server. Neither changes what it was given.
    """

    name: ClassVar[str] = ""  # on the command line; the class's name in lower case if empty
    needs: ClassVar[Needs] = Needs.NOTHING
    sends: ClassVar[str] = "its weights"  # what leaves a site, in words
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    one_shot: ClassVar[bool] = False  # a second round would repeat the first
    bound: ClassVar[bool] = False  # not a federated method, but what to compare one with
    usual_rounds: ClassVar[int] = 10  # unless asked otherwise; 1 if one_shot
    tempers: ClassVar[bool] = True  # False where the calibration rows were trained on
    shares: ClassVar[bool] = False  # a first reply is the inference's posterior on the untouched task: usable by others
    pooled: ClassVar[bool] = False  # runs on all sites' rows in one place
    everyone: ClassVar[bool] = False  # needs a reply from every client in every round
    carries: ClassVar[tuple[type, ...]] = ()  # named tuples of other files that its messages, replies or states hold
    moves_statistics: ClassVar[bool] = False  # True where batch normalisation's statistics are averaged or kept whole

    @abstractmethod
    def local(self, task: Task, message: Any, client: Client) -> Reply:
        """At the site."""

    @abstractmethod
    def aggregate(self, task: Task, state: Any, replies: Sequence[Received], server: Server) -> Any:
        """At the server."""

    def init(self, task: Task, server: Server) -> Any:
        """The state before the first round."""
        return State(task.init(server.key))

    def broadcast(self, state: Any) -> Tree:
        """What is sent to the clients."""
        return state.posterior

    def memory(self, message: Any) -> Tree:
        """What a client remembers before its first round."""
        return ()

    def predictive(self, task: Task, state: Any) -> Predictive:
        """The model."""
        return task.predictive(state.posterior)

    def members(self, state: Any) -> tuple[tuple[Posterior, ...], Tensor]:
        """The posteriors behind the model and their weights: whose disagreement is uncertainty."""
        if isinstance(state, State) or not hasattr(state, "posteriors"):
            return (state.posterior,), torch.ones(1)
        return state.posteriors, state.weights

    def diagnose(self, task: Task, state: Any, x: Tensor) -> dict[str, Any]:
        """What a method can say about itself at these inputs, for the report."""
        return {}

    def monitored(self, task: Task, state: Any) -> dict[str, Predictive]:
        """Further models whose scores belong in the history of the rounds, by name."""
        return {}

    def points(self, replies: Sequence[Received]) -> tuple[Point, ...]:
        """The clients' weights among what they sent, for methods that go around this one."""
        if not all(isinstance(reply.payload, Point) for reply in replies):
            raise InputError(
                f"Clients of {name(self)} do not send their weights: choose another inner method, as fedavg."
            )
        return payloads(replies)

    @property
    def averages(self) -> bool:
        """Whether `aggregate` uses Σₖ (nₖ/n) payloadₖ alone, so that replies may be folded into it as they come."""
        return False

    def fewest(self, reply: Reply) -> Tensor:
        """How many rows stand behind the smallest part of what a client sends: a study has a least number."""
        return reply.size

    def personal(self, task: Task, state: Any) -> Sequence[Predictive] | None:
        """One model a site, where a method has no common one."""
        return None


def needs(method: Method) -> set[Needs]:
    """All that a method, as it is set, wants to see at the server."""
    inner = getattr(method, "inner", None)
    own = {method.needs} | ({Needs.INPUTS} if getattr(method, "distil", None) else set())
    return own if inner is None else own | needs(inner)


def group(method: Method) -> str:
    """What tables group a method by: a bound, or the most that it wants at the server."""
    return "bound" if method.bound else max(needs(method), key=list(Needs).index).value


def moves_statistics(method: Method) -> bool:
    """Whether a method, with its inferences as they are set, can train batch normalisation."""
    inner, owners = getattr(method, "inner", None), (method, getattr(method, "distil", None))
    inferences = [getattr(owner, "inference", None) for owner in owners]
    own = method.moves_statistics and all(getattr(i, "moves_statistics", False) for i in inferences if i is not None)
    return own and (inner is None or moves_statistics(inner))


def usual_rounds(method: Method | type[Method]) -> int:
    """How many rounds a method runs for unless asked otherwise."""
    return 1 if method.one_shot else method.usual_rounds


def name(method: Method | type[Method]) -> str:
    kind = method if isinstance(method, type) else type(method)
    return kind.name or kind.__name__.lower()
