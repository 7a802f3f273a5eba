"""What a method says about itself, and what follows from it as it is set."""

from __future__ import annotations

import enum
from typing import ClassVar


class Needs(enum.Enum):
    """What the server must hold."""

    NOTHING = "nothing"
    INPUTS = "inputs"  # unlabelled rows
    LABELS = "labels"  # a few labelled rows


class Declared:
    """What a method is, by class variables; all have defaults.

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
        network: The network that is usual for it; a perceptron if empty.
        on_linear: Settings that are usual on a linear model of few weights without a learned noise, `field=value` each.
        own_prior: It weighs a prior of its own, whatever the task's is.
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
    network: ClassVar[str] = ""
    on_linear: ClassVar[tuple[str, ...]] = ()
    own_prior: ClassVar[bool] = False
    explains: ClassVar[bool] = False
    sends_inference: ClassVar[bool] = False
    carries: ClassVar[tuple[type, ...]] = ()
    bound: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    silent: ClassVar[bool] = False
    tempers: ClassVar[bool] = True
    common: ClassVar[bool] = True
    private: ClassVar[bool] = False
    private_rounds: ClassVar[int] = 0

    @property
    def shows_inputs(self) -> bool:
        """Whether the first message holds the server's unlabelled rows, so that a site cannot make it for itself."""
        return self.needs is Needs.INPUTS


def needs(method: Declared) -> set[Needs]:
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


def group(method: Declared) -> str:
    """Name what tables group a method by.

    Args:
        method: The method with its settings.

    Returns:
        `bound`, or the most that the method wants at the server.
    """
    if method.bound:
        return "bound"
    return max(needs(method), key=list(Needs).index).value


def moves_statistics(method: Declared) -> bool:
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


def usual_rounds(method: Declared | type[Declared], private: bool = False) -> int:
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


def name(method: Declared | type[Declared]) -> str:
    """Name a method as the command line does.

    Args:
        method: The method, or its class.

    Returns:
        The name.
    """
    kind = method if isinstance(method, type) else type(method)
    return kind.name or kind.__name__.lower()
