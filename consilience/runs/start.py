"""Begin where another run ended: any method can start from the posterior of any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from consilience.distributions.posterior import Posterior, centre
from consilience.errors import InputError
from consilience.methods import method
from consilience.runs.engines.ledger import COLUMNS
from consilience.runs.store import Store
from consilience.task import Task
from consilience.tree import Params


class Start(NamedTuple):
    """The posterior of a finished run, to begin another one with.

    Attributes:
        posterior: The posterior.
        about: Whose it is, and what it had cost to get there.
    """

    posterior: Posterior
    about: dict[str, Any]

    def into(self, state: Any, task: Task) -> Any:
        """Begin at the centre of this posterior.

        Args:
            state: A method's first state.

        Returns:
            The state with that centre for its posterior.
        """
        return state._replace(posterior=centre(self.posterior, task.like))


def start_from(folder: str | Path, task: Task) -> Start:
    """Read the posterior of a finished run.

    Args:
        task: The statistical problem, whose network it must fit.

    Raises:
        InputError: The run has not finished, its folder holds no state, or its network is another one.
    """
    store = Store(folder)
    report = store.read_report()
    saved = store.load(method(report["method"]))
    if saved is None:
        raise InputError(
            f"{folder} holds no state to start from, as it was written by `pool`: give the folder of the run itself."
        )
    posterior: Posterior = saved.state.posterior
    params = centre(posterior, task.like).params
    if _shapes(params) != _shapes(task.like):
        raise InputError(
            f"The network in {folder} has {_size(params)} parameters and this one {_size(task.like)}, or other layers: "
            f"start with the same model ({report.get('model')})."
        )
    about: dict[str, Any] = {"folder": str(folder), "method": report["method"], "rounds": report["rounds"]}
    before = report.get("started_from") or {}
    for column in COLUMNS:
        about[column] = report["ledger"][column] + before.get(column, 0)
    return Start(posterior, about)


def _shapes(params: Params) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(value.shape)) for name, value in params.items()]


def _size(params: Params) -> int:
    return sum(value.numel() for value in params.values())
