"""Begin where another run ended: any method can start from the posterior of any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from consilience.engines.ledger import COLUMNS
from consilience.errors import InputError
from consilience.methods import method
from consilience.posterior import Posterior, centre
from consilience.runs.store import Store
from consilience.task import Task


class Start(NamedTuple):
    """The posterior of a finished run, to begin another one with.

    Attributes:
        posterior: The posterior.
        about: Whose it is, and what it had cost to get there.
    """

    posterior: Posterior
    about: dict[str, Any]

    def into(self, state: Any, task: Task) -> Any:
        """A fresh state that begins at the middle of this posterior."""
        return state._replace(posterior=centre(self.posterior, task.like))


def start_from(folder: str | Path, task: Task) -> Start:
    """The posterior that a finished run left in its folder, if it fits the task's network."""
    store = Store(folder)
    report = store.read_report()
    saved = store.load(method(report["method"]))
    if saved is None:
        raise InputError(f"{folder} holds no state to start from: it was written by `pool`; name the run's own folder.")
    posterior: Posterior = saved.state.posterior
    found, wanted = centre(posterior, task.like).params, task.like
    if [(k, v.shape) for k, v in found.items()] != [(k, v.shape) for k, v in wanted.items()]:
        sizes = [sum(v.numel() for v in params.values()) for params in (found, wanted)]
        raise InputError(
            f"The network in {folder} has {sizes[0]} parameters and this one {sizes[1]}, or other layers: start with "
            f"the same --model ({report.get('model')})."
        )
    before = report.get("started_from") or {}
    cost = {c: report["ledger"][c] + before.get(c, 0) for c in COLUMNS}
    return Start(posterior, {"folder": str(folder), **{k: report[k] for k in ("method", "rounds")}, **cost})
