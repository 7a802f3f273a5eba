"""Which model predicts: a site's own where it has one, else the one for all, which a newcomer gets.

Whatever predicts, scores, calibrates or exports a model asks here, so that what is scored is what is handed out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.distributions.predictive import Predictive
from consilience.method.contract import Method
from consilience.task import Task
from consilience.tree import Tree


def is_made_at_home(method: Method) -> bool:
    """Tell whether sites make models of their own of what they keep.

    Args:
        method: The method.
    """
    return type(method).at_home is not Method.at_home


def is_personal(method: Method) -> bool:
    """Tell whether sites have models of their own, made at home or known to the server of a simulation.

    Args:
        method: The method.
    """
    return is_made_at_home(method) or type(method).personal is not Method.personal


def state_for(method: Method, task: Task, state: Any, memories: Mapping[int, Tree], client: int | None) -> Any:
    """Find the state whose model predicts a site's rows.

    Args:
        method: The method.
        task: The statistical problem.
        state: The server's state.
        memories: What each client kept in the last round, by number; a client without is a newcomer.
        client: Whose rows they are; None: a newcomer's.

    Returns:
        The site's own state, where sites have such; else the server's.
    """
    if client is None:
        return state
    own = method.personal(task, state, {client: memories.get(client, ())})
    if own is None:
        return state
    return own[client]


def own_models(
    method: Method, task: Task, state: Any, memories: Mapping[int, Tree], clients: int
) -> list[Predictive] | None:
    """Make the sites' own models.

    Args:
        method: The method.
        task: The statistical problem.
        state: The server's state.
        memories: What each client kept in the last round, by number.
        clients: How many sites there are.

    Returns:
        A model for each site in order, the common one where a site took no part; None where there is one for all.
    """
    own = method.personal(task, state, {k: memories.get(k, ()) for k in range(clients)})
    if own is None:
        return None
    return [method.predictive(task, own[k]) for k in range(clients)]
