"""What is told while a run goes on: an event after every round, for a log of your own or one of those here.

    co.run(method, task, sites, on_round=print)
    co.run(method, task, sites, on_round=jsonl_log("rounds.jsonl"))

The logs of other programs are imported when they are asked for; none of them is needed otherwise.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from consilience.disk.writing import append_line
from consilience.errors import InputError


class RoundEvent(NamedTuple):
    """A round that has ended and is kept.

    Attributes:
        method: The method's name.
        data: The data's name.
        seed: What all random numbers come from.
        round: The number of the round, from 1.
        rounds: How many the run has.
        scores: The scores of the round's model on the test rows, and what was sent, by name.
        seconds: The seconds of the run so far.
    """

    method: str
    data: str
    seed: int
    round: int
    rounds: int
    scores: Mapping[str, float]
    seconds: float


OnRound = Callable[[RoundEvent], None]
_LISTENERS: ContextVar[tuple[OnRound, ...]] = ContextVar("listeners", default=())


@contextmanager
def observing(listener: OnRound | None) -> Iterator[None]:
    """Tell somebody of every round that is played in the block, by whichever run.

    Args:
        listener: Is called with every event; None for nobody.
    """
    if listener is None:
        yield
        return
    token = _LISTENERS.set((*_LISTENERS.get(), listener))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def tell(event: RoundEvent) -> None:
    """Tell everybody who listens.

    Args:
        event: The round that has ended.
    """
    for listener in _LISTENERS.get():
        listener(event)


def jsonl_log(path: str | Path) -> OnRound:
    """Write one line of JSON for every round.

    Args:
        path: The file, which grows.

    Returns:
        What to pass as `on_round`.
    """

    def write(event: RoundEvent) -> None:
        append_line(Path(path), json.dumps({**event._asdict(), "scores": dict(event.scores)}))

    return write


def mlflow_log() -> OnRound:
    """Log every round's scores to the active run of MLflow.

    Returns:
        What to pass as `on_round`.

    Raises:
        InputError: MLflow is not installed.
    """
    mlflow = _import("mlflow")
    return lambda event: mlflow.log_metrics(_numbers(event), step=event.round)


def wandb_log() -> OnRound:
    """Log every round's scores to the active run of Weights & Biases.

    Returns:
        What to pass as `on_round`.

    Raises:
        InputError: It is not installed.
    """
    wandb = _import("wandb")
    return lambda event: wandb.log(_numbers(event), step=event.round)


def tensorboard_log(folder: str | Path) -> OnRound:
    """Write every round's scores for TensorBoard.

    Returns:
        What to pass as `on_round`.

    Raises:
        InputError: TensorBoard is not installed.
    """
    _import("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))

    def write(event: RoundEvent) -> None:
        for name, value in _numbers(event).items():
            writer.add_scalar(f"{event.method}/{name}", value, event.round)
        writer.flush()

    return write


def _numbers(event: RoundEvent) -> dict[str, float]:
    return {name: float(value) for name, value in event.scores.items()}


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"This log needs {name}, which is not installed: run `pip install {name}`.") from error
