"""The one loop: broadcast, gather, aggregate, save."""

from __future__ import annotations

import hashlib
import json
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

import consilience
from consilience.data.data import Data, Sites
from consilience.engines import ENGINES, Engine, chosen
from consilience.errors import InputError
from consilience.evaluate import evaluate, quick
from consilience.key import Key
from consilience.ledger import Ledger
from consilience.method import Method, Needs, name
from consilience.methods import METHODS
from consilience.parties import Received, Server
from consilience.progress import track
from consilience.result import Result
from consilience.spec import describe
from consilience.store import FORMAT, Checkpoint, Store
from consilience.task import Task


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
    about: dict[str, Any] | None = None,
) -> Result:
    """Run a method over the sites → its result.

    `rounds` is 1 for one-round methods and 10 for the others unless given. With `out` everything is kept in that folder;
    `resume=True` goes on from its last whole round. `about` is added to run.json.
    """
    sites = sites.pooled() if method.pooled else sites
    rounds = rounds if rounds is not None else (1 if method.one_shot else 10)
    check(method, task, sites, rounds)
    engine_name = chosen(engine, task, len(sites)) if isinstance(engine, str) else getattr(engine, "__name__", "custom")
    where = (ENGINES[engine_name] if isinstance(engine, str) else engine)(sites.train)
    store = None if out is None else Store(out, keep_replies)
    if store is not None and store.exists and not resume:
        raise InputError(f"{store.folder} already holds a run; go on with --resume, or choose another folder.")
    fingerprint = identity(method, task, sites, seed, engine_name)

    key = Key(seed)
    server = Server(sites.inputs, sites.calibration, key.fold(0), len(sites))
    saved = store.load(method) if store is not None and resume else None
    if saved is not None and saved.fingerprint != fingerprint:
        raise InputError(f"{out} was made with another method, model, data, seed or engine; use what it was made with.")
    at = saved or Checkpoint(0, method.init(task, server), {}, [], Ledger(), fingerprint)
    where.memories.update(at.memories)
    header = {
        **{"consilience": consilience.__version__, "format": FORMAT},
        **facts(method, task, sites, rounds, seed, engine_name),
        **(about or {}),
    }
    if store is not None:
        store.write_json("run.json", {**header, "finished": False})

    started, replies = time.perf_counter(), list[Received]()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for t in track(range(at.rounds, rounds), "round"):
            message = method.broadcast(at.state)
            replies = where.gather(method, task, message, where.clients, t, key.fold(1))
            state = method.aggregate(task, at.state, replies, server._replace(key=key.fold(2).fold(t)))
            for r in replies:
                at.ledger.record(t + 1, r.client, message, r.payload)
            sent = {c: at.ledger.total(c, round=t + 1) for c in ("up_bytes", "down_bytes")}
            row = {"round": t + 1, **quick(method, task, state, sites), **sent}
            at = Checkpoint(t + 1, state, where.memories, [*at.history, row], at.ledger, fingerprint)
            if store is not None:
                store.save(at, replies)
        if not replies and store is not None and keep_replies != "none":
            replies = store.replies(at.rounds, method)
        found = evaluate(method, task, at.state, sites)
    report = {
        **header,
        **found,
        **{"history": at.history, "ledger": at.ledger.summary(sites.names), "failures": []},
        "warnings": sorted({str(w.message) for w in heard if issubclass(w.category, UserWarning)}),
        "seconds": time.perf_counter() - started,
        "finished": True,
    }
    if store is not None:
        store.write_json("run.json", report)
    return Result(method, task, sites, at.state, replies, server, report, store)


def check(method: Method, task: Task, sites: Sites, rounds: int) -> None:
    """Refuse, before anything is computed, what cannot work."""
    if rounds < 1:
        raise InputError(f"{rounds} rounds: at least one is needed.")
    if method.one_shot and rounds > 1:
        raise InputError(f"{name(method)} is a one-round method: a second round would repeat the first. Use --rounds 1.")
    missing = (method.needs is Needs.LABELS and sites.calibration is None) or (
        method.needs is Needs.INPUTS and sites.inputs is None
    )
    if missing:
        free = ", ".join(sorted(n for n, m in METHODS.items() if m.needs is Needs.NOTHING and not m.bound))
        what = "labelled rows (calibration=30)" if method.needs is Needs.LABELS else "unlabelled rows (inputs=0.2)"
        raise InputError(f"{name(method)} needs {what} at the server; methods that need nothing there: {free}.")
    task.check(sites.train[0], sites.classes)


def facts(method: Method, task: Task, sites: Sites, rounds: int, seed: int, engine: str) -> dict[str, Any]:
    """What was run, on what, with what."""
    paper = (__import__(type(method).__module__, fromlist=["_"]).__doc__ or "").strip().splitlines()
    title, _, source = (paper[0] if paper else type(method).__name__).partition(".  ")
    return {
        "method": name(method),
        "title": title.rstrip("."),
        "summary": source,
        "needs": "bound" if method.bound else method.needs.value,
        "data": sites.name,
        "split": sites.split,
        "sites": len(sites),
        "rounds": rounds,
        "seed": seed,
        "engine": engine,
        "threads": torch.get_num_threads(),
        "model": type(task.model).__name__,
        "parameters": sum(p.numel() for p in task.like.values()),
        "task": "classification" if sites.classes else "regression",
        "classes": sites.classes,
        "class_names": list(sites.class_names) if sites.class_names else None,
        "settings": describe(method),
        "prior": describe(task.prior),
        "likelihood": describe(task.likelihood),
        "rows": {
            "train": sum(len(d.x) for d in sites.train),
            "calibration": 0 if sites.calibration is None else len(sites.calibration.x),
            "inputs": 0 if sites.inputs is None else len(sites.inputs),
            "validation": 0 if sites.validation is None else sum(len(d.x) for d in sites.validation),
            "test": len(sites.all_test.x),
        },
        "versions": {
            "consilience": consilience.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
    }


def identity(method: Method, task: Task, sites: Sites, seed: int, engine: str) -> str:
    """A hash of all that decides the numbers."""
    shapes = {k: [list(v.shape), str(v.dtype)] for k, v in task.like.items()}
    parts = [describe(method), describe(task.prior), describe(task.likelihood), shapes, seed, engine, sites.fingerprint()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
