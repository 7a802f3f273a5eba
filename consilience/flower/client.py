"""A site's end of a Flower message: compare the request with what was agreed, run `local`, keep the memory, answer.

Nothing of what runs here comes with the message: method, network and rows are the site's own.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from consilience.data.sites import Data
from consilience.engines.exchange import Turn, alone, client_view
from consilience.errors import InputError
from consilience.flower.wire import (
    LARGEST,
    Refused,
    check_leaves_rows_behind,
    digest,
    open_record,
    pack,
    record,
    signed_text,
    unpack,
    weight,
)
from consilience.formats.codec import kept_types_of, types_of
from consilience.formats.settings import describe
from consilience.key import Key
from consilience.method import Method
from consilience.method import name as name_of
from consilience.parties import Reply
from consilience.task import Task
from consilience.tree import Tree
from consilience.version import __version__

RAISED = 2  # Flower's code for a ClientApp that raised
KEPT = 2  # memories a site holds: of the last round, and of the one before, should the last be asked again


@dataclass(frozen=True, eq=False)
class Site:
    """What a site brings, and what it agreed to."""

    number: int
    name: str
    method: Method
    task: Task
    data: Data
    study: str = ""  # its hash; empty in a simulation
    turns: Sequence[Turn] = ()  # agreed to, each answered once; empty in a simulation, which asks as it likes
    permit: Callable[[Reply], None] | None = None  # refuses a reply that the study does not let leave
    largest: int = LARGEST  # bytes of one message, in or out
    log: Callable[[dict[str, Any]], None] | None = None  # is told of every message
    sign: Callable[[str, bytes], str] | None = None  # purpose, message → signature
    verify: Callable[[str, bytes, str], bool] | None = None  # the coordinator's: purpose, message, signature
    simulated: bool = False  # hands its memory over, so that a simulation can be resumed


def client_app(site_of: Callable[[Context], Site]) -> ClientApp:
    """A ClientApp for whoever the context says; it answers every message, with an error if need be."""
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return introduce(site_of(context), message, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(site_of(context), message, context)

    return app


def introduce(site: Site, message: Message, context: Context) -> Message:
    """Who this is, and with which version, before anything is computed."""
    log_message(site, "in", message)
    signature = site.sign("node", f"{site.study} {context.node_id}".encode()) if site.sign else ""
    about = {"site": site.number, "study": site.study, "consilience": __version__, "signature": signature}
    said = RecordDict({"header": ConfigRecord({"about": json.dumps(about, sort_keys=True)})})
    reply = Message(said, reply_to=message)
    log_message(site, "out", reply)
    return reply


def answer(site: Site, message: Message, context: Context) -> Message:
    """The reply to one message. What went wrong inside is told in our own words or by its kind, never with values."""
    log_message(site, "in", message)
    try:
        reply = Message(reply_to(site, message.content, context), reply_to=message)
    except InputError as error:
        reply = Message(Error(RAISED, str(error)), reply_to=message)
    except Exception as error:  # a site always answers: silence would wedge its SuperNode
        logging.getLogger(__name__).exception("Site %s, round %s", site.name, message.metadata.group_id)
        reply = Message(Error(RAISED, f"{type(error).__name__}; the site's own log says more."), reply_to=message)
    log_message(site, "out", reply)
    return reply


@torch.no_grad()
def reply_to(site: Site, content: RecordDict, context: Context) -> RecordDict:
    arrays, outline, about = open_record(content, site.largest)
    turn, asked = agree(site, about), "" if site.simulated else digest(content)
    signature = str(content.config_records["header"].get("signature", ""))
    if site.verify is not None and not site.verify("request", signed_text(site.study, asked), signature):
        raise Refused("the request is not signed by the study's coordinator, or was changed on its way.")
    once(site, context, turn.round, asked)
    types = types_of(site.method)
    request = unpack(arrays, outline, types)
    if not isinstance(request, dict) or set(request) - {"message", "memory"}:
        raise Refused("the request is not put together as ours are.")
    t = turn.round
    memories = {site.number: request["memory"]} if "memory" in request and site.simulated else recall(site, context, t)
    seeded = turn._replace(key=turn.key.tensor)
    client = client_view(site.method, request["message"], site.data, memories, site.number, seeded)
    reply = alone(site.method, site.task, request["message"], client, site.number, t)
    check_leaves_rows_behind(reply.send, site.data)
    if site.permit is not None:
        site.permit(reply)
    remember(site, context, t, reply.keep)
    kept = {"memory": reply.keep} if site.simulated and reply.keep != () else {}
    sent = record(*pack({"payload": reply.send, "size": reply.size, **kept}, types), {"round": t, "site": site.number})
    if site.sign is not None:
        sent.config_records["header"]["signature"] = site.sign("reply", signed_text(site.study, asked, digest(sent)))
    if weight(sent) > site.largest:
        raise Refused(f"the reply weighs {weight(sent):,} bytes, more than the {site.largest:,} the study allows.")
    if site.turns:
        context.state["answered"] = ConfigRecord({"round": t, "digest": asked})
    return sent


def agree(site: Site, about: dict[str, Any]) -> Turn:
    """The round that is asked for; another study, site, version, method or seed than this site agreed to is refused."""
    try:
        asked = {"study": str(about["study"]), "site": int(about["site"]), "consilience": str(about["consilience"])}
        settings = about["method"]
        turn = Turn(int(about["round"]), Key(int(about["seed"])), float(about["progress"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise Refused("the request does not say what it is for.") from error
    if asked["consilience"] != __version__:
        raise Refused(f"the server runs consilience {asked['consilience']}, this site {__version__}: install the same.")
    if asked["study"] != site.study:
        raise Refused("the request is for another study than the one this site agreed to.")
    if asked["site"] != site.number:
        raise Refused(f"the request is for site {asked['site']}; this is site {site.number}.")
    if settings != method_json(site.method):
        raise Refused(f"the server asks for another method or other settings than {name_of(site.method)} as agreed.")
    if site.turns and turn not in site.turns:
        raise Refused(f"the request is for no round of the study, which has {len(site.turns)} and its own seed.")
    return turn


def once(site: Site, context: Context, t: int, asked: str) -> None:
    """Refuse a round that was answered, or passed; only the last may be asked again, in the same words."""
    before = context.state.get("answered")
    if not site.turns or not isinstance(before, ConfigRecord):
        return
    last = int(str(before["round"]))
    if t < last or (t == last and asked != before["digest"]):
        raise Refused(
            f"this site has answered round {last + 1} of the study and does not answer round {t + 1} to another "
            "question: go on with --resume; for a second run, the site starts with another --out."
        )


def method_json(method: Method) -> Any:
    """A method's settings as they look after a journey through JSON."""
    return json.loads(json.dumps(describe(method)))


def remember(site: Site, context: Context, t: int, keep: Tree) -> None:
    """Put a round's memory where it stays: in the site's own context. Rounds to come are of a run before: forgotten."""
    forget(context, [r for r in rounds_of(context) if r > t])
    if keep == ():
        return
    arrays, outline = pack(keep, kept_types_of(site.method))
    context.state[f"memory {t}"], context.state[f"outline {t}"] = arrays, ConfigRecord({"outline": outline})
    forget(context, sorted(rounds_of(context))[:-KEPT])


def forget(context: Context, rounds: Sequence[int]) -> None:
    for t in rounds:
        del context.state[f"memory {t}"], context.state[f"outline {t}"]


def recall(site: Site, context: Context, t: int) -> dict[int, Tree]:
    """What the site remembered when it was asked for round t the first time: the same question has the same answer."""
    before = [r for r in rounds_of(context) if r < t]
    if not before:
        return {}
    arrays, outline = context.state[f"memory {max(before)}"], context.state[f"outline {max(before)}"]
    assert isinstance(arrays, ArrayRecord) and isinstance(outline, ConfigRecord)
    return {site.number: unpack(arrays, str(outline["outline"]), kept_types_of(site.method))}


def rounds_of(context: Context) -> list[int]:
    return [int(name.split()[1]) for name in context.state if name.startswith("memory ")]


def log_message(site: Site, way: str, message: Message) -> None:
    """One line for every message, with its size and hash."""
    if site.log is None:
        return
    line = {"time": time.time(), "way": way, "round": message.metadata.group_id, "site": site.name}
    if message.has_content():
        line |= {"bytes": weight(message.content), "sha256": digest(message.content)}
    else:
        line |= {"refused": message.error.reason}
    site.log(line)
