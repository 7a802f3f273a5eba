"""What is run, on what, with what; refused, before anything is computed, where it cannot work."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from datetime import UTC, datetime
from typing import Any

import numpy
import torch

from consilience.data.formats import part_of
from consilience.data.sites import Sites
from consilience.data.tables import file_names, is_tables, list_files
from consilience.errors import InputError
from consilience.inference.capabilities import FromMode, TakesAllRows
from consilience.method import Bound, Method, Multiplied, Needs, Streaming, group, moves_statistics, name, needs
from consilience.methods import METHODS
from consilience.methods.claims import check_releases, promised_privacy
from consilience.metrics.times import check_events
from consilience.models.controlled import describe_constants
from consilience.models.maps import describe_maps
from consilience.runs.device import on
from consilience.runs.engines.participation import Participation
from consilience.serialisation.settings import check_settings, describe
from consilience.task import Task
from consilience.version import __version__


def check(method: Method, task: Task, sites: Sites, rounds: int) -> None:
    """Refuse, before anything is computed, what cannot work.

    Raises:
        InputError: The method cannot run so many rounds, or on such rows, or with such a network.
    """
    if rounds < 1:
        raise InputError(f"rounds={rounds}: at least one is needed.")
    check_settings(method)
    if method.about.one_shot and rounds > 1:
        raise InputError(f"{name(method)} is a one-round method, a second would repeat the first: use rounds=1.")
    _check_needs(method, sites)
    if sites.streamed and (not isinstance(method, Streaming) or promised_privacy(method) is not None):
        able = ", ".join(sorted(n for n, m in METHODS.items() if issubclass(m, Streaming)))
        raise InputError(
            f"{name(method)} with these settings needs all rows in memory, and these stay in their files: use one of "
            f"{able}, without noise, or read them whole (--no-stream, stream=False)."
        )
    kind = sites.kind
    if kind not in method.about.tasks:
        learns = " and ".join(method.about.tasks)
        if len(method.about.tasks) == 1:
            learns = f"{method.about.tasks[0]} only"
        able = ", ".join(sorted(n for n, m in METHODS.items() if kind in m.about.tasks and not issubclass(m, Bound)))
        raise InputError(f"{name(method)} is for {learns}; these rows are a {kind} problem: use one of {able}.")
    if task.outcome != sites.outcome:
        raise InputError(f"These rows are a {kind} problem: build the task with `co.{kind}(model)`.")
    if sites.outcome == "survival":
        check_events(sites)
    check_rows(method, task)
    if sites.inputs is not None and sites.inputs.shape[1:] != sites.train[0].x.shape[1:]:
        server_shape = tuple(sites.inputs.shape[1:])
        site_shape = tuple(sites.train[0].x.shape[1:])
        raise InputError(
            f"A row of the server's inputs has the shape {server_shape}, a row of the sites {site_shape}: resize the "
            "inputs first."
        )
    if task.statistics and not moves_statistics(method):
        raise InputError(
            f"{name(method)} with these settings cannot move the running statistics of batch normalisation "
            f"('{task.statistics[0]}'): use GroupNorm in the model, or a method that averages weights."
        )
    task.check(sites.train[0], sites.classes)
    privacy = promised_privacy(method)
    if privacy is not None:
        check_releases(method, rounds)
        privacy.check(len(sites), sum(len(rows.y) for rows in sites.train))


def _check_needs(method: Method, sites: Sites) -> None:
    """Refuse a method that needs rows which the server does not have."""
    required = needs(method)
    labels_missing = Needs.LABELS in required and sites.calibration is None
    inputs_missing = Needs.INPUTS in required and sites.inputs is None
    if not labels_missing and not inputs_missing:
        return
    rows = []
    if Needs.LABELS in required:
        rows.append("labelled rows (for example calibration=30)")
    if Needs.INPUTS in required:
        rows.append("unlabelled rows (for example inputs=0.2)")
    free = ", ".join(
        sorted(n for n, m in METHODS.items() if needs(m()) == {Needs.NOTHING} and not issubclass(m, Bound))
    )
    raise InputError(
        f"{name(method)} needs {' and '.join(rows)} at the server; methods that need nothing there: {free}."
    )


def kind_of(sites: Sites) -> str:
    """Name the kind of problem.

    Returns:
        `classification`, `regression`, `counts` or `survival`.
    """
    return sites.kind


def check_rows(method: Method, task: Task) -> None:
    """Refuse an inference that takes some rows at a time where the likelihood needs all of a site's at once.

    Raises:
        InputError: It takes mini-batches.
    """
    inference = method.inference
    if task.by_rows or inference is None or takes_all_rows(inference):
        return
    raise InputError(
        "A partial likelihood compares each row with all others of its site, and "
        f"{type(mode_of(inference)).__name__} learns from some rows at a time: set "
        "inference.mode=Newton and inference.dense=True, or use a method of summed derivatives."
    )


def takes_all_rows(inference: Any) -> bool:
    """Say whether an inference takes all rows of a client in every step.

    Args:
        inference: How clients infer; one that starts from a mode is as its `mode` is.

    Returns:
        Whether it does.
    """
    mode = mode_of(inference)
    return isinstance(mode, TakesAllRows) and mode.all_rows


def mode_of(inference: Any) -> Any:
    """Return the inference that finds the mode, where one starts from such; else the same."""
    if isinstance(inference, FromMode):
        return inference.mode
    return inference


def facts(
    method: Method, task: Task, sites: Sites, rounds: int, seed: int, engine: str, threads: int
) -> dict[str, Any]:
    """Say what is run, on what, with what.

    Args:
        threads: How many BLAS threads.

    Returns:
        Values by the names of `run.json`.
    """
    title, source = citation(type(method))
    class_names = None
    if sites.class_names:
        class_names = list(sites.class_names)
    return {
        "method": name(method),
        "title": title,
        "summary": source,
        "needs": group(method),
        "multiplies": isinstance(method, Multiplied),
        "data": sites.name,
        "split": sites.split,
        "sites": len(sites),
        "rounds": rounds,
        "seed": seed,
        "engine": engine,
        "threads": threads,
        "model": type(task.model).__name__,
        "parameters": sum(p.numel() for p in task.weights(task.like).values()),
        "task": sites.kind,
        "classes": sites.classes,
        "class_names": class_names,
        "settings": describe(method),
        "prior": describe(task.prior),
        "likelihood": describe(task.likelihood),
        "rows": _row_counts(sites),
        "versions": versions(),
        "date": today(),
        "data_hash": sites.fingerprint(),
        "sends": method.about.sends,
    }


def _row_counts(sites: Sites) -> dict[str, int]:
    counts = {
        "train": sum(len(d.x) for d in sites.train),
        "calibration": 0,
        "inputs": 0,
        "validation": 0,
        "test": len(sites.all_test.x),
    }
    if sites.calibration is not None:
        counts["calibration"] = len(sites.calibration.x)
    if sites.inputs is not None:
        counts["inputs"] = len(sites.inputs)
    if sites.validation is not None:
        counts["validation"] = sum(len(d.x) for d in sites.validation)
    if sites.conformal is not None:
        counts["conformal"] = sum(len(d.x) for d in sites.conformal)
    return counts


def today() -> str:
    """Return the date as a report gives it: in universal time, as 2026-11-17."""
    return datetime.now(UTC).date().isoformat()


def hash_tables(data: str) -> dict[str, str]:
    """Hash the files that a run reads.

    Args:
        data: A data set's name, or patterns of CSV files.

    Returns:
        The SHA-256 of each file by its name, without its folder unless files have one name; none for a data set.
    """
    if not is_tables(data):
        return {}
    paths = list_files(data)
    files = zip(file_names(paths), paths, strict=True)
    return {name: hashlib.sha256(part_of(path)[0].read_bytes()).hexdigest() for name, path in files}


def versions() -> dict[str, str]:
    """Return the versions of what computes the numbers, by name."""
    return {
        "consilience": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def citation(kind: type[Method]) -> tuple[str, str]:
    """Name a method in words, and its paper.

    Returns:
        The title and the source: what the class says, else the first line of its file.
    """
    first = kind.about.paper
    if not first:
        first = (sys.modules[kind.__module__].__doc__ or kind.__name__).strip().splitlines()[0]
    title, _, source = first.partition(".  ")
    return title.rstrip("."), source


def identity(
    method: Method, task: Task, sites: Sites, seed: int, engine: str, takes_part: dict[str, Any] | None = None
) -> str:
    """Hash all that decides the numbers.

    Args:
        engine: The engine's name, with its device where that decides the numbers.
        takes_part: Who is asked and lost; None or empty if everyone always replies.

    Returns:
        The hash, in hexadecimal digits.
    """
    shapes = {k: [list(v.shape), str(v.dtype)] for k, v in task.like.items()}
    parts: list[Any] = [
        describe(method),
        describe(task.prior),
        describe(task.likelihood),
        shapes,
        seed,
        engine,
        sites.fingerprint(),
    ]
    if takes_part:
        parts.append(takes_part)
    maps = describe_maps(task.model)
    if maps:
        parts.append({"features": maps})
    constants = describe_constants(task.model)
    if constants:
        parts.append({"constants": constants})
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def reported_identity(report: dict[str, Any], method: Method, task: Task, sites: Sites) -> str:
    """Hash the same, from what `run.json` says about seed, engine, device and who took part.

    Args:
        report: The content of `run.json`.

    Returns:
        The hash, in hexadecimal digits.
    """
    takes_part = Participation(**report.get("participation", {})).fingerprint()
    engine = on(report["engine"], report.get("device", "cpu"))
    return identity(method, task, sites, report["seed"], engine, takes_part)
