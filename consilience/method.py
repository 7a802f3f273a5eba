"""The contract: a method is two pure functions with typed values between them."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.parties import Client, Received, Reply, Server, fold, payloads, weights
from consilience.pooling.averages import Average
from consilience.pooling.summands import Mean, Summation, Total, fold_total
from consilience.posterior import SMALLEST, Point, Posterior, average
from consilience.predictive import Distribution, Predictive
from consilience.privacy.entropy import Source
from consilience.task import Task
from consilience.training.optimisers import Optimiser
from consilience.tree import Tree


class Needs(enum.Enum):
    """What the server must hold."""

    NOTHING = "nothing"
    INPUTS = "inputs"  # unlabelled rows
    LABELS = "labels"  # a few labelled rows


class State(NamedTuple):
    """What the server knows between rounds; every state has `.posterior` first.

    Attributes:
        posterior: The model, and the next round's start.
    """

    posterior: Posterior


class Pooled(NamedTuple):
    """The state of a method that keeps its clients' posteriors and pools their predictions.

    Attributes:
        posterior: What the round started from, or the student.
        posteriors: One for each client that replied.
        weights: nₖ / n.
    """

    posterior: Posterior
    posteriors: tuple[Posterior, ...]
    weights: Tensor


class Stepped(NamedTuple):
    """The state of a method whose server takes steps of an optimiser.

    Attributes:
        posterior: The weights θ.
        optimiser: What the optimiser remembers.
    """

    posterior: Point
    optimiser: Tree


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


def server_step(
    task: Task, state: Stepped, optimiser: Optimiser, replies: Sequence[Received], rule: Average = average
) -> Stepped:
    """Take one step of the server's optimiser along θ − Σₖ (nₖ/n) θₖ, the clients' average step as a gradient.

    Args:
        task: The task, for the running statistics of its network.
        state: The server's state before the step.
        optimiser: Whose step is taken.
        replies: The clients' weights.
        rule: What takes the place of the weighted mean.

    Returns:
        The state after the step.
    """
    before = state.posterior.params
    mean = rule(payloads(replies), weights(replies))
    theta = tree.ravel(before)
    theta, memory = optimiser.step(theta, theta - tree.ravel(mean.params), state.optimiser, optimiser.rate)
    return Stepped(with_statistics(task, Point(tree.unravel(theta, before)), mean), memory)


def with_statistics(task: Task, point: Point, mean: Point) -> Point:
    """Give a point the clients' mean running statistics: an optimiser's step could make a variance negative.

    Args:
        task: The task, which knows which parameters are statistics.
        point: The weights after a step.
        mean: The clients' average.

    Returns:
        The weights of `point` with the statistics of `mean`.
    """
    statistics = {name: mean.params[name] for name in task.statistics}
    return Point({**point.params, **statistics})


def keep_fields(state: Any, fields: Sequence[str]) -> Tree:
    """Empty every field of a state but these.

    Args:
        state: A named tuple.
        fields: The names of the fields to keep; names that the state lacks are ignored.

    Returns:
        The state with () in the other fields.
    """
    return state._replace(**{name: () for name in state._fields if name not in fields})


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
    their values. `aggregate` runs at the server. Neither changes what it was given.

    The class variables say what a method is. All have defaults; most methods state two or three.

    Attributes:
        name: On the command line; the class's name in lower case if empty.
        title: In words, with `source` its paper; both from the first line of the method's file if empty.
        source: The paper.
        sends: What leaves a site, in words.
        needs: What the server must hold, however the method is set; all that it wants as it is set: `needs(method)`.
        tasks: What it can learn: classification, regression, counts, survival.
        one_shot: A second round would repeat the first.
        usual_rounds: How many rounds, unless asked otherwise; 1 if `one_shot`.
        everyone: It needs a reply from every client in every round.
        moves_statistics: Batch normalisation's statistics are averaged or kept whole.
        shares: A first reply is the inference's posterior on the untouched task, which other methods can pool.
        by_site: The pool must know whose posterior is whose, so it cannot be handed out as unnamed samples.
        sums: The model is made of a sum over the clients, so that two models less one another show who is in one alone.
        multiplies: Densities or predictions are multiplied, so that the errors of overconfident clients multiply too.
        heads: It learns one linear layer on a fixed feature map.
        explains: Of a table it learns the effects of the columns themselves, unless features are asked for.
        sends_inference: All it sends is what its inference returns, and how many rows there are: a private inference
            makes it private.
        carries: Named tuples of other files that its messages, replies or states hold.
        bound: Not a federated method, but what to compare one with.
        pooled: A bound that runs on all sites' rows in one place.
        silent: A bound that sends nothing outside a simulation.
        tempers: False where the calibration rows were trained on.
        common: There is a model for all sites, which a newcomer gets; False where each site has only its own.
        private: Takes a setting `privacy`, with which all that clients send is differentially private.
        private_instead: Where it does not, what does for the same problem, in words; empty: docs/private.md says.
        private_rounds: How many rounds it has then, no more and no less; 0: as many as usual, or fewer.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    source: ClassVar[str] = ""
    sends: ClassVar[str] = "its weights"
    needs: ClassVar[Needs] = Needs.NOTHING
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression")
    one_shot: ClassVar[bool] = False
    usual_rounds: ClassVar[int] = 10
    everyone: ClassVar[bool] = False
    moves_statistics: ClassVar[bool] = False
    shares: ClassVar[bool] = False
    by_site: ClassVar[bool] = False
    sums: ClassVar[bool] = False
    multiplies: ClassVar[bool] = False
    heads: ClassVar[bool] = False
    explains: ClassVar[bool] = False
    sends_inference: ClassVar[bool] = False
    carries: ClassVar[tuple[type, ...]] = ()
    bound: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    silent: ClassVar[bool] = False
    tempers: ClassVar[bool] = True
    common: ClassVar[bool] = True
    private: ClassVar[bool] = False
    private_instead: ClassVar[str] = ""
    private_rounds: ClassVar[int] = 0

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

    def personal(self, task: Task, state: Any) -> Sequence[Predictive] | None:
        """Make one model a site, where sites have models of their own.

        Args:
            task: The statistical problem.
            state: The server's state.

        Returns:
            The sites' models in their order, or None. A site that took no part has the common one, if there is one.
        """
        return None

    def at_home(self, task: Task, state: Any, memory: Tree) -> Any:
        """Make the state as it is at a site, where sites have models of their own.

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

    @property
    def shows_inputs(self) -> bool:
        """Whether the first message holds the server's unlabelled rows, so that a site cannot make it for itself."""
        return self.needs is Needs.INPUTS

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

    @property
    def narrowest(self) -> float | None:
        """The smallest variance of a client's Gaussian that its rows need not explain.

        None where every precision is the prior's plus the rows' curvature, as Laplace's approximation computes it.
        """
        narrowest: float | None = getattr(getattr(self, "inference", None), "narrowest", SMALLEST)
        return narrowest

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
            f"{self.name} sends no Gaussian posterior, and multiple imputation combines Gaussians: choose a method "
            "that does, or let gaps be filled by means."
        )

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

    def reply_settings(self) -> Any:
        """Describe what decides a first reply.

        Two methods whose first replies are decided by equal settings can use each other's.

        Returns:
            Settings that can be compared, or None where no other method can use the replies.
        """
        if not self.shares:
            return None
        return getattr(self, "inference", None)

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


def needs(method: Method) -> set[Needs]:
    """List all that a method, as it is set, wants to see at the server.

    Args:
        method: The method with its settings.

    Returns:
        Its needs, and those of its inner method and its student.
    """
    wanted = {method.needs}
    if method.shows_inputs or getattr(method, "distil", None):
        wanted.add(Needs.INPUTS)
    inner = getattr(method, "inner", None)
    if inner is not None:
        wanted |= needs(inner)
    return wanted


def group(method: Method) -> str:
    """Name what tables group a method by.

    Args:
        method: The method with its settings.

    Returns:
        `bound`, or the most that the method wants at the server.
    """
    if method.bound:
        return "bound"
    return max(needs(method), key=list(Needs).index).value


def moves_statistics(method: Method) -> bool:
    """Tell whether a method, with its inferences as they are set, can train batch normalisation.

    Args:
        method: The method with its settings.

    Returns:
        Whether it can.
    """
    owners = (method, getattr(method, "distil", None))
    inferences = [getattr(owner, "inference", None) for owner in owners]
    inner = getattr(method, "inner", None)
    return (
        method.moves_statistics
        and all(getattr(inference, "moves_statistics", False) for inference in inferences if inference is not None)
        and (inner is None or moves_statistics(inner))
    )


def usual_rounds(method: Method | type[Method], private: bool = False) -> int:
    """Tell how many rounds a method runs for unless asked otherwise.

    Args:
        method: The method, or its class.
        private: Whether its private form is meant; a method with the setting `privacy` has it in any case.

    Returns:
        The number of rounds.
    """
    private = private or getattr(method, "privacy", None) is not None
    if private and method.private_rounds:
        return method.private_rounds
    if method.one_shot:
        return 1
    return method.usual_rounds


def name(method: Method | type[Method]) -> str:
    """Name a method as the command line does.

    Args:
        method: The method, or its class.

    Returns:
        The name.
    """
    kind = method if isinstance(method, type) else type(method)
    return kind.name or kind.__name__.lower()
