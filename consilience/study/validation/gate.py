"""The gate: what a reply must be before it counts, the same for files and for messages over Flower.

A door (study/files.py, flower/engine.py) says in plain facts how a reply came and how to read it. The gate judges it by
the rules below, one small function each, and a reply that breaks one is refused with that rule's sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Dense, Gaussian
from consilience.errors import InputError
from consilience.messages import Received, Reply
from consilience.privacy.disclosure.rules import SMALLEST_CELL, by_rule
from consilience.study.validation.form import Form, counts_of, form_of, kinds_of, nodes_of
from consilience.study.validation.magnitudes import Bounds
from consilience.study.validation.plausible import (
    implausible_numbers,
    implausible_precision,
    implausible_rows,
    implausible_weights,
    known_at,
)
from consilience.tree import Tree

MOST_ROWS = 10**8  # more than any site has
ASYMMETRY = 1e-4  # of a precision matrix, relative to its largest number, that rounding may cause


class Refused(InputError):
    """Something that was received and is not used; the sentence says why."""


class Rules(NamedTuple):
    """What may leave a site; by default what holds in a simulation, where no study says more.

    Attributes:
        smallest: The smallest count of rows that may be shown.
        leaves: The kinds of value that may leave a site; None for all that the method sends.
        most_bytes: The size of one reply.
        largest_site: The most rows a site may speak for: as many as it committed to, or more than any site has.
        bounds: What an honest site's numbers cannot exceed; None where nothing was agreed to know it by.
    """

    smallest: int = 1
    leaves: tuple[str, ...] | None = None
    most_bytes: int = 2**30
    largest_site: int = MOST_ROWS
    bounds: Bounds | None = None


Identity: TypeAlias = str | int | tuple[str, int]  # a name, a number, or both


class Arrival(NamedTuple):
    """How a reply came. A door states these facts, the gate judges them.

    Attributes:
        sender: Who it came from: the owner of the key that signed it, or of the node that was asked, by the number that
            the study lists; None for nobody that takes part.
        claimed: Whom it says it comes from, and by which number it was made.
        round: The round it says it answers, from 1 on.
        signed: Whether its signature is the sender's; True where nobody signs, as in a simulation.
        nbytes: Its size on the way.
        answers: How many different answers the sender gave to the question.
        message: The hash of the message that it says it answers; empty where nobody says.
        rows: The most rows that the sender committed to when it joined; 0 where it did not.
    """

    sender: Identity | None
    claimed: Identity
    round: int
    signed: bool = True
    nbytes: int = 0
    answers: int = 1
    message: str = ""
    rows: int = 0


class Gate(NamedTuple):
    """What replies of one round must be.

    Attributes:
        rules: What may leave a site.
        form: What a reply looks like, by a rehearsal; None where invented rows do not do.
        round: The round that is collected, from 1 on.
        message: The hash of the message that is to be answered; empty where any is.
        doubt: What the method itself says about what was sent, `doubt` with task and message; None for nothing.
        implied: The posterior behind what was sent, `implied` with task and message; None for nothing.
    """

    rules: Rules
    form: Form | None
    round: int
    message: str = ""
    doubt: Callable[[Tree], str | None] | None = None
    implied: Callable[[Tree], Tree] | None = None

    def check_arrival(self, arrival: Arrival) -> None:
        """Judge how a reply came.

        Raises:
            Refused: The reply breaks a rule.
        """
        for check in ARRIVAL:
            check(arrival, self)

    def for_site(self, rows: int) -> Gate:
        """Hold a site to the number of rows it committed to.

        Args:
            rows: That number; 0 where it committed to none.

        Returns:
            The gate for that site's replies.
        """
        if not rows:
            return self
        return self._replace(rules=self.rules._replace(largest_site=min(rows, self.rules.largest_site)))

    def answering(self, message: Tree) -> Gate:
        """Hold replies to what can come of the weights in a message."""
        if self.rules.bounds is None:
            return self
        return self._replace(rules=self.rules._replace(bounds=known_at(self.rules.bounds, message)))

    def admit(self, client: int, arrival: Arrival, read: Callable[[], Tree]) -> Received:
        """Let a reply in.

        Args:
            client: The site's number at the server.
            arrival: How the reply came.
            read: Decodes the reply; called only if it came as it should.

        Returns:
            What the server uses.

        Raises:
            Refused: The reply breaks a rule.
        """
        self.check_arrival(arrival)
        with refuse_errors():
            reply = _reply_in(read())
            gate = self.for_site(arrival.rows)
            for check in CONTENT:
                check(reply, gate)
        return Received(client, reply.size.reshape(()), reply.send)


@contextmanager
def refuse_errors() -> Iterator[None]:
    """Take any error for the sender's while a stranger's bytes are read.

    Raises:
        Refused: Whatever went wrong.
    """
    try:
        yield
    except InputError as error:
        raise Refused(str(error)) from error
    except Exception as error:  # any byte may be anything
        raise Refused(f"the bytes cannot be read ({type(error).__name__}).") from error


def _reply_in(value: Tree) -> Reply:
    """The two parts of an answer and nothing beside them."""
    if not isinstance(value, dict) or set(value) != {"send", "size"}:
        raise Refused("it is not put together as replies are.")
    return Reply(value["send"], value["size"])


# The rules. Each raises `Refused` if it is broken, with a sentence that speaks of the reply as "it": a door says which.


def check_bytes(arrival: Arrival, gate: Gate) -> None:
    """Refuse a reply larger than agreed, before anything in it is decoded.

    Args:
        arrival: How the reply came.
    """
    limit_bytes(arrival.nbytes, gate.rules.most_bytes)


def limit_bytes(nbytes: int, most_bytes: int) -> None:
    """Refuse what is larger than agreed, whichever way it goes.

    Args:
        nbytes: The size of a file or message.

    Raises:
        Refused: It is larger.
    """
    if nbytes > most_bytes:
        raise Refused(f"it has {nbytes:,} bytes, more than the {most_bytes:,} agreed.")


def check_sender(arrival: Arrival, gate: Gate) -> None:
    """Refuse a reply in another site's name, or made under another number: numbers decide what is drawn at random.

    Args:
        arrival: How the reply came.
    """
    if arrival.claimed != arrival.sender:
        raise Refused("it answers in another site's name, or under another number than the study lists for it.")


def check_signature(arrival: Arrival, gate: Gate) -> None:
    """Refuse what the sender did not sign, or not as it came.

    Args:
        arrival: How the reply came.
    """
    if not arrival.signed:
        raise Refused("its signature is not that site's, or what was signed has been changed.")


def check_round(arrival: Arrival, gate: Gate) -> None:
    """Refuse a reply to another round.

    Args:
        arrival: How the reply came.
    """
    if arrival.round != gate.round:
        raise Refused(f"it answers another round than round {gate.round}.")


def check_once(arrival: Arrival, gate: Gate) -> None:
    """Refuse a site that answers the same question in two ways; a copy of an answer does no harm.

    Args:
        arrival: How the reply came.
    """
    if arrival.answers > 1:
        raise Refused(f"there are {arrival.answers} different answers of this site: keep the right one.")


def check_message(arrival: Arrival, gate: Gate) -> None:
    """Refuse a reply to another message.

    Args:
        arrival: How the reply came.
    """
    if gate.message and arrival.message != gate.message:
        raise Refused(f"it answers another message than the coordinator's of round {gate.round}: let it answer that.")


def check_form(reply: Reply, gate: Gate) -> None:
    """Refuse other names, types, shapes or another structure than the method's replies have."""
    if gate.form is None:
        return
    form = form_of(reply.send)
    if missing := sorted(gate.form.leaves.keys() - form.leaves.keys()):
        raise Refused(f"its names are wrong: '{missing[0]}' is missing.")
    if strange := sorted(form.leaves.keys() - gate.form.leaves.keys()):
        raise Refused(f"its names are wrong: '{strange[0]}' is not expected.")
    for path, expected in gate.form.leaves.items():
        leaf = form.leaves[path]
        if not expected.fits(leaf):
            raise Refused(f"'{path}' has the shape {leaf}; {expected} is expected.")
    if form.outline != gate.form.outline:
        raise Refused("it is put together in another way than this method does.")


def check_finite(reply: Reply, gate: Gate) -> None:
    """Refuse infinite numbers and those that are none."""
    if not tree.all_finite(reply.send):
        raise Refused("it holds numbers that are not finite; try a smaller rate.")


def check_gaussians(reply: Reply, gate: Gate) -> None:
    """Refuse a variance that is not positive and a precision matrix that is not positive definite."""
    for node in nodes_of(reply.send):
        if isinstance(node, Gaussian) and any(bool((v <= 0).any()) for v in node.var.values()):
            raise Refused("it has a variance that is not positive.")
        if isinstance(node, Dense) and not _positive_definite(node.precision):
            raise Refused("it has a precision matrix that is not positive definite.")


def _positive_definite(matrix: Tensor) -> bool:
    asymmetry = float((matrix - matrix.mT).abs().max())
    _, failed = torch.linalg.cholesky_ex(matrix.double())
    return asymmetry <= ASYMMETRY * float(matrix.abs().max()) and not bool(failed)


def check_size(reply: Reply, gate: Gate) -> None:
    """Refuse a number of rows that is neither withheld (0) nor a plausible count."""
    count = _one_number(reply.size)
    if count == 0:
        return
    smallest, largest = gate.rules.smallest, gate.rules.largest_site
    if not smallest <= count <= largest or count != round(count):
        raise Refused(
            f"it claims {count:g} rows; 0 (withheld) or a whole number from {smallest} to {largest:,} is expected."
        )


def _one_number(value: Tree) -> float:
    """A tensor of one real number as such; anything else is not a number."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    return math.nan


def check_counts(reply: Reply, gate: Gate) -> None:
    """Refuse class counts that are no counts, tell about too few rows, or are not those of the site's rows."""
    smallest = gate.rules.smallest
    size = _one_number(reply.size)
    for counts in counts_of(reply.send):
        numbers = counts.double()
        if bool((numbers < 0).any()) or not torch.equal(numbers, numbers.round()):
            raise Refused("its class counts are negative or fractional.")
        if bool(((numbers > 0) & (numbers < smallest)).any()):
            sentence = f"it says that a class was seen fewer than {smallest} times, and no smaller count may be shown."
            raise Refused(by_rule(SMALLEST_CELL, sentence))
        total = float(numbers.sum())
        everyone = gate.form is not None and gate.form.counts_everyone
        if size and (total > size or (everyone and total != size)):
            raise Refused(f"its class counts add up to {total:g} and it claims {size:g} rows.")
        if total > gate.rules.largest_site:
            most = gate.rules.largest_site
            raise Refused(f"its class counts add up to {total:g}, more than the {most:,} rows it may speak for.")


def check_kinds(reply: Reply, gate: Gate) -> None:
    """Refuse a kind of value that the study does not let leave a site; one without a number is none."""
    if gate.rules.leaves is None or not tree.leaves(reply.send):
        return
    for kind in kinds_of(reply.send):
        if kind not in gate.rules.leaves:
            raise Refused(f"it holds a '{kind}', which the study does not let leave a site.")


def check_weights(reply: Reply, gate: Gate) -> None:
    """Refuse weights that are larger than prior and rows allow."""
    _check_plausible(implausible_weights, reply, gate)


def check_precisions(reply: Reply, gate: Gate) -> None:
    """Refuse Gaussians that are narrower or wider than prior and rows allow."""
    _check_plausible(implausible_precision, reply, gate)


def check_pseudo_rows(reply: Reply, gate: Gate) -> None:
    """Refuse pseudo-rows with weights below 0, of more rows than there are, with unknown labels, or far out."""
    _check_plausible(implausible_rows, reply, gate)


def check_numbers(reply: Reply, gate: Gate) -> None:
    """Refuse steps, gradients and scores that are larger than prior and rows allow."""
    _check_plausible(implausible_numbers, reply, gate)


def _check_plausible(find: Callable[[Tree, Bounds, int], str | None], reply: Reply, gate: Gate) -> None:
    """Refuse with the sentence that is found; behind a withheld size may stand all rows that the site committed to."""
    bounds = gate.rules.bounds
    if bounds is None:
        return
    rows = int(_one_number(reply.size)) or gate.rules.largest_site
    problem = find(reply.send, bounds, rows)
    if problem is not None:
        raise Refused(problem)


def check_method(reply: Reply, gate: Gate) -> None:
    """Refuse what the method itself says that no client can have sent in answer to the message, or found behind it."""
    if gate.doubt is not None:
        problem = gate.doubt(reply.send)
        if problem is not None:
            raise Refused(problem)
    if gate.implied is not None and gate.rules.bounds is not None:
        _check_plausible(implausible_weights, reply._replace(send=gate.implied(reply.send)), gate)


ARRIVAL: tuple[Callable[[Arrival, Gate], None], ...] = (
    check_bytes,
    check_sender,
    check_signature,
    check_round,
    check_once,
    check_message,
)
CONTENT: tuple[Callable[[Reply, Gate], None], ...] = (
    check_form,
    check_finite,
    check_gaussians,
    check_size,
    check_counts,
    check_kinds,
    check_weights,
    check_precisions,
    check_pseudo_rows,
    check_numbers,
    check_method,
)
