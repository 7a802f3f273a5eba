"""The one loop: broadcast, gather, aggregate, save."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from consilience import participation as part
from consilience.compiled import worthwhile
from consilience.data.data import Data, Sites
from consilience.device import CPU, moved, on, placed
from consilience.device import device as named_device
from consilience.engines import Engine, Vectorised, chosen, threads_for, using_threads
from consilience.engines import engine as named_engine
from consilience.engines.exchange import forgive, missing
from consilience.errors import InputError
from consilience.evaluate import evaluate, quick
from consilience.key import Key
from consilience.ledger import Ledger
from consilience.method import Method, usual_rounds
from consilience.participation import Participation
from consilience.parties import Received, Server, folded
from consilience.progress import track
from consilience.provenance import check, facts, identity
from consilience.result import Result
from consilience.store import FORMAT, Checkpoint, Store
from consilience.task import Task
from consilience.version import __version__

__all__ = ["Participation", "load", "run"]


def run(
    method: Method,
    task: Task,
    sites: Sites,
    *,
    rounds: int | None = None,
    seed: int = 0,
    engine: str | Callable[[Sequence[Data]], Engine] = "auto",
    out: str | Path | None = None,
    keep_replies: str = "last",
    resume: bool = False,
    threads: int | None = None,
    participation: float | Participation | None = None,
    compiled: bool | None = None,
    device: str = "cpu",
    scored: bool = True,
    about: dict[str, Any] | None = None,
) -> Result:
    """Run a method over the sites → its result.

    `rounds` is 1 for one-round methods and what is usual for the others unless given. With `out` everything is kept in
    that folder; `resume=True` goes on from its last whole round. With `keep_replies="none"` a method that averages
    folds replies as they come, so that thousands of sites need little memory. `threads` are torch's, one for small
    networks unless given. `participation` is how many sites, or which fraction of them, are asked a round; a
    `Participation` also says who is lost and how many replies suffice. `scored=False` leaves the scores to the caller.
    `compiled` says whether vectorised steps are compiled; by default if enough of them lie ahead, and as before after a
    resume. `device` is where sites and server compute; what is kept, scored and given back lies on the processor.
    `about` is added to run.json.
    """
    sites = sites.pooled() if method.pooled else sites
    rounds = rounds if rounds is not None else usual_rounds(method)
    check(method, task, sites, rounds)
    taking = part.participation(participation)
    part.check(taking, method, len(sites))
    place = named_device(device)
    there, rows = placed(task, sites, place)
    if isinstance(engine, str):
        engine_name = chosen(engine, task, sites.train)
        where = named_engine(engine_name, rows.train)
    else:
        engine_name, where = getattr(engine, "__name__", "custom"), engine(rows.train)
    store = None if out is None else Store(out, keep_replies)
    if store is not None and store.exists and not resume:
        raise InputError(f"{store.folder} already holds a run; go on with --resume, or choose another folder.")
    used = threads or threads_for(task)
    if isinstance(where, Vectorised):
        begun = store is not None and (store.folder / "run.json").exists()
        before = store.read_json().get("compiled") if store is not None and begun else compiled
        where.compiled = worthwhile(rounds * where.steps(method, task)) if before is None else before
    fingerprint = identity(method, task, sites, seed, on(engine_name, device), taking.fingerprint())
    if taking.min_replies is not None:
        forgive(where)

    key = Key(seed)
    here = Server(sites.inputs, sites.calibration, key.fold(0), len(sites))
    server = here._replace(inputs=rows.inputs, calibration=rows.calibration)
    saved = store.load(method) if store is not None and resume else None
    if saved is not None and saved.fingerprint != fingerprint:
        raise InputError(f"{out} was made with another method, model, data, seed or engine; use what it was made with.")
    at = saved or Checkpoint(0, method.init(task, here), {}, [], Ledger(), fingerprint)
    where.memories.update(moved(at.memories, place))
    state = moved(at.state, place)
    header = {
        **{"consilience": __version__, "format": FORMAT},
        **facts(method, task, sites, rounds, seed, engine_name, used),
        **{"compiled": getattr(where, "compiled", False), "device": device},
        **({"participation": dataclasses.asdict(taking)} if taking.partial else {}),
        **(about or {}),
    }
    if store is not None:
        store.write_json("run.json", {**header, "finished": False})

    sizes, folding = [len(d.w) for d in sites.train], keep_replies == "none" and method.averages
    started, replies = time.perf_counter(), list[Received]()
    with using_threads(used), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for t in track(range(at.rounds, rounds), "round"):
            message, failures = method.broadcast(state), at.failures
            asked = part.cohort(taking, where.clients, t, key.fold(3))
            lost = part.losses(taking, asked, sizes, t, key.fold(3))
            replies = []
            for portion in track(part.portions([k for k in asked if k not in lost], sizes, folding), "part"):
                came = where.gather(method, there, message, portion, t, key.fold(1), t / rounds)
                for r in came:
                    at.ledger.record(t + 1, r.client, message, r.payload)
                lost |= missing(where, portion, came)
                replies = folded([*replies, *came]) if folding else came
            for k, why in sorted(lost.items()):
                at.ledger.record(t + 1, k, message, ())
                failures = (*failures, {"site": sites.names[k], "round": t + 1, "why": why})
            if stop := part.shortfall(taking, len(asked) - len(lost), len(asked), t):
                if store is not None:
                    store.write_json("run.json", {**header, "failures": failures, "finished": False})
                raise InputError(stop)
            state = method.aggregate(there, state, replies, server._replace(key=key.fold(2).fold(t)))
            known, replies, memories = moved((state, replies, where.memories), CPU)
            scores = quick(method, task, known, sites) if scored else {}
            row = {"round": t + 1, **scores, **at.ledger.moved(t + 1)}
            at = Checkpoint(t + 1, known, memories, [*at.history, row], at.ledger, fingerprint, failures)
            if store is not None:
                store.save(at, replies)
        if folding:
            replies = []
        elif not replies and store is not None and keep_replies != "none":
            replies = store.replies(at.rounds, method)
        found = evaluate(method, task, at.state, sites) if scored else {}
    report = {
        **header,
        **found,
        **{"history": at.history, "ledger": at.ledger.summary(sites.names), "failures": list(at.failures)},
        "warnings": sorted({str(w.message) for w in heard if issubclass(w.category, UserWarning)}),
        "seconds": time.perf_counter() - started,
        "finished": True,
    }
    if store is not None:
        store.write_json("run.json", report)
    return Result(method, task, sites, at.state, replies, here, report, run, store)


def load(folder: str | Path, method: Method, task: Task, sites: Sites) -> Result:
    """A finished run from its folder, given what it was made from; nothing is trained."""
    sites = sites.pooled() if method.pooled else sites
    store = Store(folder)
    report = store.read_json()
    saved = store.load(method)
    if saved is None or not report.get("finished"):
        raise InputError(f"The run in {folder} has not finished; go on with «consilience run --resume {folder}».")
    taking = Participation(**report.get("participation", {})).fingerprint()
    where = on(report["engine"], report.get("device", "cpu"))
    if saved.fingerprint != identity(method, task, sites, report["seed"], where, taking):
        raise InputError(f"{folder} was made with another method, model or data than these.")
    server = Server(sites.inputs, sites.calibration, Key(report["seed"]).fold(0), len(sites))
    return Result(method, task, sites, saved.state, store.replies(saved.rounds, method), server, report, run, store)
