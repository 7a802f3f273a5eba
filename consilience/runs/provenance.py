"""What is run, on what, with what; refused, before anything is computed, where it cannot work."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from typing import Any

import numpy
import torch

from consilience.data.sites import Sites
from consilience.engines.participation import Participation
from consilience.errors import InputError
from consilience.formats.settings import describe
from consilience.method import Method, Needs, group, moves_statistics, name, needs
from consilience.methods import METHODS
from consilience.runs.device import on
from consilience.task import Task
from consilience.version import __version__


def check(method: Method, task: Task, sites: Sites, rounds: int) -> None:
    """Refuse, before anything is computed, what cannot work."""
    if rounds < 1:
        raise InputError(f"{rounds} rounds: at least one is needed.")
    if method.one_shot and rounds > 1:
        raise InputError(f"{name(method)} is a one-round method, a second would repeat the first: use --rounds 1.")
    wanted = needs(method)
    no_labels, no_inputs = sites.calibration is None, sites.inputs is None
    if (Needs.LABELS in wanted and no_labels) or (Needs.INPUTS in wanted and no_inputs):
        free = ", ".join(sorted(n for n, m in METHODS.items() if needs(m()) == {Needs.NOTHING} and not m.bound))
        both = [("labelled rows (--calibration 30)", Needs.LABELS), ("unlabelled rows (--inputs 0.2)", Needs.INPUTS)]
        what = " and ".join(words for words, need in both if need in wanted)
        raise InputError(f"{name(method)} needs {what} at the server; methods that need nothing there: {free}.")
    kind = "classification" if sites.classes else "regression"
    if kind not in method.tasks:
        raise InputError(f"{name(method)} is for {method.tasks[0]} only; these rows are a {kind} problem.")
    if sites.inputs is not None and sites.inputs.shape[1:] != sites.train[0].x.shape[1:]:
        theirs, ours = tuple(sites.inputs.shape[1:]), tuple(sites.train[0].x.shape[1:])
        raise InputError(
            f"The server's inputs have the shape {theirs} a row, the sites' rows {ours}: resize them first."
        )
    if task.statistics and not moves_statistics(method):
        raise InputError(
            f"{name(method)} as it is set cannot move the running statistics of batch normalisation "
            f"('{task.statistics[0]}'): use GroupNorm in the model, or a method that averages weights."
        )
    task.check(sites.train[0], sites.classes)


def facts(
    method: Method, task: Task, sites: Sites, rounds: int, seed: int, engine: str, threads: int
) -> dict[str, Any]:
    """What was run, on what, with what."""
    title, source = citation(type(method))
    return {
        "method": name(method),
        "title": title,
        "summary": source,
        "needs": group(method),
        "multiplies": method.multiplies,
        "data": sites.name,
        "split": sites.split,
        "sites": len(sites),
        "rounds": rounds,
        "seed": seed,
        "engine": engine,
        "threads": threads,
        "model": type(task.model).__name__,
        "parameters": sum(p.numel() for p in task.weights(task.like).values()),
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
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    return {
        "consilience": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def citation(kind: type[Method]) -> tuple[str, str]:
    """Name a method in words, and its paper.

    Args:
        kind: The method's class.

    Returns:
        The title and the source: what the class says, else the first line of its file.
    """
    if kind.title:
        return kind.title, kind.source
    first = (sys.modules[kind.__module__].__doc__ or kind.__name__).strip().splitlines()[0]
    title, _, source = first.partition(".  ")
    return title.rstrip("."), source


def identity(
    method: Method, task: Task, sites: Sites, seed: int, engine: str, takes_part: dict[str, Any] | None = None
) -> str:
    """A hash of all that decides the numbers; `takes_part` says who is asked and lost, if not everyone replies."""
    shapes = {k: [list(v.shape), str(v.dtype)] for k, v in task.like.items()}
    parts = [
        describe(method),
        describe(task.prior),
        describe(task.likelihood),
        shapes,
        seed,
        engine,
        sites.fingerprint(),
        *([takes_part] if takes_part else []),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def reported_identity(report: dict[str, Any], method: Method, task: Task, sites: Sites) -> str:
    """The same hash, from what run.json says about seed, engine, device and who took part."""
    taking = Participation(**report.get("participation", {})).fingerprint()
    return identity(method, task, sites, report["seed"], on(report["engine"], report.get("device", "cpu")), taking)
