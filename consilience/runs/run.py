"""The one loop: broadcast, gather, aggregate, save."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from consilience.data.sites import Data, Sites
from consilience.engines import Engine, Vectorised, choose_engine, threads_for, using_threads
from consilience.engines import engine as named_engine
from consilience.engines import participation as part
from consilience.engines.exchange import closing
from consilience.engines.gathering import Gathering
from consilience.engines.ledger import Ledger
from consilience.engines.participation import Participation
from consilience.errors import InputError
from consilience.formats.blueprint import blueprint, sites_from, task_from
from consilience.formats.settings import restore
from consilience.key import Key, Stream
from consilience.method import Method, usual_rounds
from consilience.parties import Received, Server
from consilience.progress import track
from consilience.runs.device import CPU, move, on, place_on
from consilience.runs.device import device as named_device
from consilience.runs.evaluate import evaluate, quick
from consilience.runs.provenance import check, facts, identity, reported_identity
from consilience.runs.result import Result
from consilience.runs.start import start_from
from consilience.runs.store import FORMAT, Checkpoint, Store
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
    start: str | Path | None = None,
    about: dict[str, Any] | None = None,
) -> Result:
    """Run a method over the sites → its result.

    `rounds` is 1 for one-round methods and what is usual for the others unless given. With `out` everything is kept in
    that folder; `resume=True` goes on from its last whole round. With `keep_replies="none"` a method that averages
    folds replies as they come, so that thousands of sites need little memory. `threads` are torch's, one for small
    networks unless given. `participation` is how many sites, or which fraction of them, are asked a round; a
    `Participation` also says who is lost and how many replies suffice. `scored=False` leaves the scores to the caller.
    `start` is another run's folder, whose posterior this one begins at. `compiled` says whether vectorised steps are
    compiled; by default if enough of them lie ahead on a single core, and as before after a resume. `device` is
    where sites and server compute; what is kept, scored and given back lies on the processor. `about` is added to
    run.json.
    """
    sites = sites.pooled() if method.pooled else sites
    rounds = rounds if rounds is not None else usual_rounds(method)
    check(method, task, sites, rounds)
    taking = part.participation(participation)
    part.check(taking, method, len(sites))
    place = named_device(device)
    there, rows = place_on(task, sites, place)
    engine_name, where = _engine(engine, task, sites, rows)
    store = None if out is None else Store(out, keep_replies)
    if store is not None and store.exists and not resume:
        raise InputError(f"{store.folder} already holds a run; go on with --resume, or choose another folder.")
    if isinstance(where, Vectorised):
        before = _compiled_before(store, compiled)
        where.compiled = where.worth_compiling(method, task, rounds) if before is None else before
    fingerprint = identity(method, task, sites, seed, on(engine_name, device), taking.fingerprint())
    if taking.min_replies is not None:
        where.forgiving = True

    key = Key(seed)
    here = Server(sites.inputs, sites.calibration, key.fold(Stream.INIT), len(sites))
    server = here._replace(inputs=rows.inputs, calibration=rows.calibration)
    origin = None if start is None else start_from(start, task)
    first = method.init(task, here) if origin is None else origin.into(method.init(task, here), task)
    saved = _saved(store, method, fingerprint, rounds) if store is not None and resume else None
    spent = _spent(store) if store is not None and saved is not None else 0.0
    at = saved or Checkpoint(0, first, {}, [], Ledger(), fingerprint)
    where.memories.update(move(at.memories, place))
    state = move(at.state, place)
    used = threads or threads_for(task)
    header = {
        **{"consilience": __version__, "format": FORMAT},
        **facts(method, task, sites, rounds, seed, engine_name, used),
        **{"compiled": getattr(where, "compiled", False), "device": device},
        **({} if origin is None else {"started_from": origin.about}),
        **({"participation": dataclasses.asdict(taking)} if taking.partial else {}),
        **(about or {}),
    }
    started = time.perf_counter()

    def unfinished(**known: Any) -> dict[str, Any]:
        return {**header, **known, "seconds": spent + time.perf_counter() - started, "finished": False}

    if store is not None:
        store.write_json("run.json", unfinished())
        store.write_json("task.json", {"format": FORMAT, **blueprint(task, sites)})

    folding = keep_replies == "none" and method.averages
    gather = Gathering(where, taking, [len(d.w) for d in sites.train], folding, rounds, key)
    replies = list[Received]()
    with closing(where), using_threads(used), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for t in track(range(at.rounds, rounds), "round"):
            message = method.broadcast(state)
            try:
                replies = gather(method, there, message, t, at.ledger)
            except InputError:
                if store is not None:
                    failures = (*at.failures, *_failed(gather.lost, sites, t))
                    store.write_json("run.json", unfinished(failures=failures))
                raise
            failures = (*at.failures, *_failed(gather.lost, sites, t))
            state = method.aggregate(there, state, replies, server._replace(key=key.fold(Stream.AGGREGATE).fold(t)))
            known, replies, memories = move((state, replies, where.memories), CPU)
            scores = quick(method, task, known, sites) if scored else {}
            row = {"round": t + 1, **scores, **at.ledger.moved(t + 1)}
            told = _told(at.warnings, heard)
            at = Checkpoint(t + 1, known, memories, [*at.history, row], at.ledger, fingerprint, failures, told)
            if store is not None:
                store.save(at, replies)
                store.write_json("run.json", unfinished())
        if folding:
            replies = []
        elif not replies and store is not None and keep_replies != "none":
            replies = store.replies(at.rounds, method)
        found = evaluate(method, task, at.state, sites) if scored else {}
    report = {
        **header,
        **found,
        **{"history": at.history, "ledger": at.ledger.summary(sites.names), "failures": list(at.failures)},
        "warnings": list(_told(at.warnings, heard)),
        "seconds": spent + time.perf_counter() - started,
        "finished": True,
    }
    if store is not None:
        store.write_json("run.json", report)
    return Result(method, task, sites, at.state, replies, here, report, run, store, at)


def _engine(
    engine: str | Callable[[Sequence[Data]], Engine], task: Task, sites: Sites, rows: Sites
) -> tuple[str, Engine]:
    """Its name, and the engine over the rows, wherever they lie."""
    if not isinstance(engine, str):
        return getattr(engine, "__name__", "custom"), engine(rows.train)
    name = choose_engine(engine, task, sites.train)
    return name, named_engine(name, rows.train)


def _compiled_before(store: Store | None, wanted: bool | None) -> bool | None:
    """Whether a run that goes on compiled its steps; what is wanted where it begins."""
    begun = store is not None and (store.folder / "run.json").exists()
    return store.read_json().get("compiled") if store is not None and begun else wanted


def _saved(store: Store, method: Method, fingerprint: str, rounds: int) -> Checkpoint | None:
    """The last whole round, if it is of the same run and not beyond its end."""
    saved = store.load(method)
    if saved is not None and saved.fingerprint != fingerprint:
        raise InputError(
            f"{store.folder} was made with another method, model, data, seed or engine; use what it was made with."
        )
    if saved is not None and saved.rounds > rounds:
        raise InputError(f"{store.folder} already holds {saved.rounds} rounds; ask for as many or more, not {rounds}.")
    return saved


def _spent(store: Store) -> float:
    """The seconds of a run before it goes on; in run.json, so that equal runs have equal states."""
    try:
        return float(store.read_json().get("seconds") or 0.0)
    except InputError:  # lost or damaged, and made again
        return 0.0


def _told(before: Sequence[str], heard: Sequence[warnings.WarningMessage]) -> tuple[str, ...]:
    """What people should hear of, each once."""
    return tuple(sorted({*before, *(str(w.message) for w in heard if issubclass(w.category, UserWarning))}))


def _failed(lost: dict[int, str], sites: Sites, round: int) -> list[dict[str, Any]]:
    """Who, when and why, for people."""
    return [{"site": sites.names[k], "round": round + 1, "why": why} for k, why in sorted(lost.items())]


def load(
    folder: str | Path, method: Method | None = None, task: Task | None = None, sites: Sites | None = None
) -> Result:
    """A finished run from its folder; nothing is trained.

    The path alone is enough to predict, unless method or network are your own: hand those in. Rows are not kept: to
    score or pool again, hand the sites in.
    """
    store = Store(folder)
    report = store.read_report()
    plan = {} if task is not None and sites is not None else store.read_json("task.json")
    method = restore(report["settings"]) if method is None else method
    assert isinstance(method, Method)
    task = task_from(plan) if task is None else task
    saved = store.load(method)
    if saved is None:
        raise InputError(f"{folder} holds no state: start the run again.")
    if sites is not None:
        sites = sites.pooled() if method.pooled else sites
        if saved.fingerprint != reported_identity(report, method, task, sites):
            raise InputError(f"{folder} was made with another method, model or data than these.")
    known = sites_from(plan) if sites is None else sites
    server = Server(known.inputs, known.calibration, Key(report["seed"]).fold(Stream.INIT), len(known.names))
    replies = store.replies(saved.rounds, method) if (store.folder / "replies").exists() else []
    return Result(method, task, known, saved.state, replies, server, report, run, store, saved)
