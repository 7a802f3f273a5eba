"""A site's end of a Flower message: compare the request with what was agreed, run `local`, keep the memory, answer.

Nothing of what runs here comes with the message: method, network and rows are the site's own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.messages import Reply
from consilience.method import Method
from consilience.method import name as name_of
from consilience.method.declared import combines
from consilience.methods.claims import privacy_statement, promised_privacy
from consilience.privacy.disclosure.hidden_rows import RowSearch
from consilience.privacy.entropy import secret_draws
from consilience.runs.engines.client_turn import Turn, alone, client_view
from consilience.serialisation.codec import kept_types_of, types_of
from consilience.serialisation.settings import describe
from consilience.study.flower.wire import (
    carried,
    carry,
    digest,
    open_record,
    pack,
    record,
    signature_in,
    signed_text,
    unpack,
    weight,
)
from consilience.study.protocol.envelope import MOST_BYTES
from consilience.study.protocol.rehearsal import Broadcasts
from consilience.study.reply import check_answered, check_leaving, check_start
from consilience.study.validation.gate import Refused, Rules, limit_bytes
from consilience.task import Task
from consilience.tree import Tree
from consilience.version import __version__

RAISED = 2  # Flower's code for a ClientApp that raised
COUNTS = "counts"  # what a question for counts is called
UNMASK = "unmask"  # and one for the masks shared with missing sites
ASKED = "asked "  # of entries that hold a message
KEPT = 2  # memories a site holds: of the last round, and of the one before, should the last be asked again


@dataclass(frozen=True, eq=False)
class Site:
    """What a site brings, and what it agreed to.

    Attributes:
        number: Its number in the study; decides its random numbers.
        name: Its name, for people.
        method: The method it runs.
        task: The problem it runs it on.
        data: Its training rows.
        study: The study's hash; empty in a simulation.
        turns: The rounds it agreed to, each answered once; empty in a simulation, which asks as it likes.
        rules: What it lets leave; their size holds for messages in both directions.
        log: Is given a line for every message.
        sign: Signs a message for a purpose.
        verify: Tells whether the coordinator signed a message for a purpose.
        simulated: Whether it hands its memory over, so that a simulation can be resumed.
        first: What the first round begins with, by the site's own account; None where the coordinator begins it.
        release: Enters a reply to a round, from 1 on, and a question into the site's ledger before it leaves, and masks
            it where that was agreed; with noise it is made once, and the same again after that. None in a simulation.
        count: Makes the file of counts for the prediction sets of a model, which is given as a file; None where none
            are agreed on.
        tell: Answers a request to go on without sites, which is given as a file, with the masks shared with them; None
            where replies are in the open.
        said: What every reply says of the rows behind it.
    """

    number: int
    name: str
    method: Method
    task: Task
    data: Data
    study: str = ""
    turns: Sequence[Turn] = ()
    rules: Rules = Rules()
    log: Callable[[dict[str, Any]], None] | None = None
    sign: Callable[[str, bytes], str] | None = None
    verify: Callable[[str, bytes, str], bool] | None = None
    simulated: bool = False
    first: Tree | None = None
    release: Callable[[int, str, Callable[[], Reply]], Reply] | None = None
    count: Callable[[bytes], bytes] | None = None
    tell: Callable[[bytes], bytes] | None = None
    said: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def broadcasts(self) -> Broadcasts:
        """What the method's messages look like; tried out once."""
        return Broadcasts(self.method, self.task, self.data)

    @cached_property
    def rows(self) -> RowSearch:
        """What is looked for in every reply; learned once."""
        return RowSearch(self.data)


def client_app(site_of: Callable[[Context], Site]) -> ClientApp:
    """Make a ClientApp; it answers every message, with an error if need be.

    Args:
        site_of: Finds the site that a context is of.
    """
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return introduce(site_of(context), message, context)

    @app.query(COUNTS)
    def count(message: Message, context: Context) -> Message:
        return answer(site_of(context), message, context, count_for)

    @app.query(UNMASK)
    def unmask(message: Message, context: Context) -> Message:
        return answer(site_of(context), message, context, tell_for)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(site_of(context), message, context, reply_to)

    return app


def introduce(site: Site, message: Message, context: Context) -> Message:
    """Say who this is, and with which version, before anything is computed.

    Args:
        site: The site that is asked.
        context: Flower's; names the node.

    Returns:
        The reply.
    """
    log_message(site, "in", message)
    signature = ""
    if site.sign is not None:
        signature = site.sign("node", f"{site.study} {context.node_id}".encode())
    about = {"site": site.number, "study": site.study, "consilience": __version__, "signature": signature}
    content = RecordDict({"header": ConfigRecord({"about": json.dumps(about, sort_keys=True)})})
    reply = Message(content, reply_to=message)
    log_message(site, "out", reply)
    return reply


def answer(
    site: Site, message: Message, context: Context, respond: Callable[[Site, RecordDict, Context], RecordDict]
) -> Message:
    """Reply to one message. What went wrong inside is told in our own words or by its kind, never with values.

    Args:
        site: The site that is asked.
        context: Flower's; holds what the site remembers.
        respond: Makes the reply's content of the site, the question's content and the context.

    Returns:
        The reply, or the error.
    """
    log_message(site, "in", message)
    try:
        reply = Message(respond(site, message.content, context), reply_to=message)
    except InputError as error:
        reply = Message(Error(RAISED, str(error)), reply_to=message)
    except Exception as error:  # a site always answers: silence would wedge its SuperNode
        logging.getLogger(__name__).exception("Site %s, round %s", site.name, message.metadata.group_id)
        reply = Message(Error(RAISED, f"{type(error).__name__}; the site's own log says more."), reply_to=message)
    log_message(site, "out", reply)
    return reply


def count_for(site: Site, content: RecordDict, context: Context) -> RecordDict:
    """Answer a model with this site's counts for its prediction sets: the file of `site calibrate`.

    Args:
        site: The site that is asked.
        content: Carries the model's file.
        context: Flower's; holds which model was answered.

    Returns:
        Carries the file of counts.

    Raises:
        InputError: The study agreed on no counts, or the site has counted for another model.
    """
    if site.count is None:
        raise Refused("no counts for prediction sets are agreed on in this study.")
    model = carried(content, MOST_BYTES)
    asked = hashlib.sha256(model).hexdigest()
    before = context.state.get("counted")
    if isinstance(before, ConfigRecord) and before["model"] != asked:
        raise Refused(
            "this site has counted for another model, and counts about a second would show more of its rows: calibrate "
            "the first, or ask its people for counts by file."
        )
    counts = site.count(model)
    context.state["counted"] = ConfigRecord({"model": asked})
    return carry(counts)


def tell_for(site: Site, content: RecordDict, context: Context) -> RecordDict:
    """Answer a request to go on without sites with the masks shared with them: the file of `site unmask`.

    Args:
        site: The site that is asked.
        content: Carries the coordinator's signed request.

    Returns:
        Carries the keys of these masks, for one sum.

    Raises:
        InputError: Nothing is masked in this study, or these masks stay here.
    """
    if site.tell is None:
        raise Refused("nothing is masked in this study: there is nothing to tell.")
    return carry(site.tell(carried(content, MOST_BYTES)))


@torch.no_grad()
def reply_to(site: Site, content: RecordDict, context: Context) -> RecordDict:
    """Check a request, run the method, remember, and pack the reply.

    Args:
        site: The site that is asked.
        context: Flower's; holds what the site remembers.

    Returns:
        The reply's content.

    Raises:
        InputError: The request is not what the site agreed to, or the reply may not leave.
    """
    arrays, outline, about = open_record(content, site.rules.most_bytes)
    turn = agree(site, about)
    question = ""
    if not site.simulated:
        question = digest(content)
    if site.verify is not None and not site.verify("request", signed_text(site.study, question), signature_in(content)):
        raise Refused("the request is not signed by the study's coordinator, or was changed on its way.")
    check_new(site, context, turn.round, question)
    request = unpack(arrays, outline, types_of(site.method))
    if not isinstance(request, dict) or "message" not in request or set(request) - {"message", "memory"}:
        raise Refused("the request is not put together as ours are.")
    if not site.simulated:
        first = site.first if turn.round == 0 else None
        sent = site.broadcasts.until(turn.round + 1)
        check_start(request["message"], sent, site.task, first, "The message")
    reply = _release(site, request, context, turn, question)
    remember(site, context, turn.round, reply.keep)
    remember_asked(site, context, turn.round, request["message"])
    sealed = _seal(site, reply, turn.round, question)
    if site.turns:
        context.state["answered"] = ConfigRecord({"round": turn.round, "digest": question})
    return sealed


def _release(site: Site, request: dict[str, Tree], context: Context, turn: Turn, question: str) -> Reply:
    """The method's reply, entered into the site's ledger where it has one."""
    if site.release is None:
        if promised_privacy(site.method) is not None and not site.simulated:
            raise Refused("the study promises differential privacy, and this site keeps no ledger.")
        return _checked(site, request, context, turn)
    return site.release(turn.round + 1, question, lambda: _checked(site, request, context, turn))


def _checked(site: Site, request: dict[str, Tree], context: Context, turn: Turn) -> Reply:
    """A reply that may leave: what may not is not paid for."""
    asked = [*asked_before(site, context, turn.round), request["message"]]
    check_answered(site.method, site.task, asked, site.data, site.rules.smallest)
    reply = _run(site, request, context, turn)
    check_leaving(reply, site.rows, site.method, site.task, site.rules)
    return reply


def _run(site: Site, request: dict[str, Tree], context: Context, turn: Turn) -> Reply:
    """The method's reply, from what the site remembers or, in a simulation, was handed."""
    if site.simulated and "memory" in request:
        memories = {site.number: request["memory"]}
    else:
        memories = recall(site, context, turn.round)
    message = request["message"]
    client = client_view(site.method, message, site.data, memories, site.number, turn._replace(key=turn.key.tensor))
    with contextlib.ExitStack() as stack:
        if site.study:
            stack.enter_context(secret_draws())  # noise that protects somebody; a simulation's can be repeated
        return alone(site.method, site.task, message, client, site.number, turn.round)


def _seal(site: Site, reply: Reply, t: int, question: str) -> RecordDict:
    """The reply's content, signed together with the question, and not larger than agreed."""
    value = {"send": reply.send, "size": reply.size}
    if site.simulated and reply.keep != ():
        value["memory"] = reply.keep
    about = {**site.said, "round": t, "site": site.number, "message": question}
    content = record(*pack(value, types_of(site.method)), about)
    if site.sign is not None:
        signature = site.sign("reply", signed_text(site.study, question, digest(content)))
        content.config_records["header"]["signature"] = signature
    limit_bytes(weight(content), site.rules.most_bytes)
    return content


def agree(site: Site, about: dict[str, Any]) -> Turn:
    """Find the round that is asked for.

    Args:
        site: The site that is asked.
        about: What the request says about itself.

    Returns:
        The round, with its key and progress.

    Raises:
        Refused: The request is for another study, site, version, method or seed than this site agreed to.
    """
    try:
        study = str(about["study"])
        number = int(about["site"])
        version = str(about["consilience"])
        settings = about["method"]
        turn = Turn(int(about["round"]), Key(int(about["seed"])), float(about["progress"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Refused("the request does not say what it is for.") from error
    if version != __version__:
        raise Refused(f"the server runs consilience {version}, this site {__version__}: install the same.")
    if study != site.study:
        raise Refused("the request is for another study than the one this site agreed to.")
    if number != site.number:
        raise Refused(f"the request is for site {number}; this is site {site.number}.")
    if settings != method_json(site.method):
        raise Refused(f"the server asks for another method or other settings than {name_of(site.method)} as agreed.")
    if site.turns and turn not in site.turns:
        raise Refused(f"the request is for no round of the study, which has {len(site.turns)} and its own seed.")
    return turn


def check_new(site: Site, context: Context, t: int, question: str) -> None:
    """Refuse a round that was answered, or passed; only the last may be asked again, in the same words.

    Args:
        site: The site that is asked.
        context: Flower's; holds what was answered last.
        t: The round, from 0 on.

    Raises:
        Refused: The site has answered.
    """
    before = context.state.get("answered")
    if not site.turns or not isinstance(before, ConfigRecord):
        return
    last = int(str(before["round"]))
    if t < last or (t == last and question != before["digest"]):
        raise Refused(
            f"this site has answered round {last + 1} of the study and does not answer round {t + 1} to another "
            "question: resume that run at the server, or start the site with another folder for a second run."
        )
    if t == last and privacy_statement(site.method) is not None:
        raise Refused(
            f"this site has answered round {t + 1}, and a second answer with other noise would cost twice the privacy "
            "budget: go on without it."
        )


def method_json(method: Method) -> Any:
    """Describe a method's settings as they look after a journey through JSON."""
    return json.loads(json.dumps(describe(method)))


def remember(site: Site, context: Context, t: int, keep: Tree) -> None:
    """Put a round's memory where it stays: in the site's own context. Rounds to come are of a run before: forgotten.

    Args:
        t: The round, from 0 on.
    """
    forget(context, [r for r in rounds_of(context) if r > t])
    if keep == ():
        return
    arrays, outline = pack(keep, kept_types_of(site.method))
    context.state[f"memory {t}"] = arrays
    context.state[f"outline {t}"] = ConfigRecord({"outline": outline})
    forget(context, sorted(rounds_of(context))[:-KEPT])


def forget(context: Context, rounds: Sequence[int]) -> None:
    """Drop the memories of some rounds.

    Args:
        rounds: The rounds, from 0 on.
    """
    for t in rounds:
        del context.state[f"memory {t}"], context.state[f"outline {t}"]


def recall(site: Site, context: Context, t: int) -> dict[int, Tree]:
    """Find what the site remembered when it was first asked for a round: the same question has the same answer.

    Args:
        t: The round, from 0 on.

    Returns:
        The memory by the site's number; nothing before the first round.
    """
    before = [r for r in rounds_of(context) if r < t]
    if not before:
        return {}
    arrays = context.state[f"memory {max(before)}"]
    outline = context.state[f"outline {max(before)}"]
    assert isinstance(arrays, ArrayRecord) and isinstance(outline, ConfigRecord)
    return {site.number: unpack(arrays, str(outline["outline"]), kept_types_of(site.method))}


def rounds_of(context: Context) -> list[int]:
    """List the rounds that are remembered, from 0 on."""
    return [int(name.split()[1]) for name in context.state if name.startswith("memory ")]


def remember_asked(site: Site, context: Context, t: int, message: Tree) -> None:
    """Keep a message whose answer could be combined with later ones; those of rounds to come are of a run before.

    Args:
        t: The round, from 0 on.
        message: What was answered.
    """
    if site.simulated or not combines(site.method):
        return
    for name in [name for name in context.state if name.startswith(ASKED) and int(name.removeprefix(ASKED)) > t]:
        del context.state[name], context.state[f"outline of {name}"]
    arrays, outline = pack(message, types_of(site.method))
    context.state[f"{ASKED}{t}"] = arrays
    context.state[f"outline of {ASKED}{t}"] = ConfigRecord({"outline": outline})


def asked_before(site: Site, context: Context, t: int) -> list[Tree]:
    """Find the messages of earlier rounds whose answers could be combined with this one's.

    Args:
        t: The round, from 0 on.
    """
    names = [name for name in context.state if name.startswith(ASKED) and int(name.removeprefix(ASKED)) < t]
    found = []
    for name in names:
        arrays, outline = context.state[name], context.state[f"outline of {name}"]
        assert isinstance(arrays, ArrayRecord) and isinstance(outline, ConfigRecord)
        found.append(unpack(arrays, str(outline["outline"]), types_of(site.method)))
    return found


def log_message(site: Site, way: str, message: Message) -> None:
    """Log a message with its size and hash.

    Args:
        way: `in` or `out`.
    """
    if site.log is None:
        return
    line = {"time": time.time(), "way": way, "round": message.metadata.group_id, "site": site.name}
    if message.has_content():
        line |= {"bytes": weight(message.content), "sha256": digest(message.content)}
    else:
        line |= {"refused": message.error.reason}
    site.log(line)
