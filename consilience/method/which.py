"""Which model predicts: a site's own where it has one, else the one for all, which a newcomer gets.

Whatever predicts, scores, calibrates or exports a model asks here, so that what is scored is what is released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.distributions.predictive import Predictive
from consilience.method.capabilities import Personal
from consilience.method.contract import Bound, Method
from consilience.method.declared import kind_of
from consilience.task import Task
from consilience.tree import Tree


def is_made_at_home(method: Method) -> bool:
    """Say whether sites make models of their own of what they keep."""
    return isinstance(method, Personal)


def has_common(method: Method | type[Method]) -> bool:
    """Say whether there is a model for all sites, which a newcomer gets."""
    kind = kind_of(method)
    return not issubclass(kind, Bound) or kind.common


def is_personal(method: Method) -> bool:
    """Say whether sites have models of their own, made at home or known to the server of a simulation."""
    return is_made_at_home(method) or not has_common(method)


def own_states(method: Method, task: Task, state: Any, memories: Mapping[int, Tree]) -> dict[int, Any] | None:
    """Make the states as they are at sites.

    Args:
        memories: What each site kept in the last round, by its number; () for a site that took no part.

    Returns:
        A state for each of these sites, whose model is the site's own; None where there is one model for all.
    """
    if isinstance(method, Personal):
        return {k: method.at_home(task, state, memory) for k, memory in memories.items()}
    if isinstance(method, Bound) and not method.common:
        return {k: method.alone(state, k) for k in memories}
    return None


def state_at_home(method: Method, task: Task, state: Any, memory: Tree) -> Any:
    """Make the state as it is at a site, of what it kept; the same state where there is one model for all."""
    if isinstance(method, Personal):
        return method.at_home(task, state, memory)
    return state


def state_for(method: Method, task: Task, state: Any, memories: Mapping[int, Tree], client: int | None) -> Any:
    """Find the state whose model predicts a site's rows.

    Args:
        memories: What each client kept in the last round, by number; a client without is a newcomer.
        client: Whose rows they are; None: a newcomer's.

    Returns:
        The site's own state, where sites have such; else the server's.
    """
    if client is None:
        return state
    own = own_states(method, task, state, {client: memories.get(client, ())})
    if own is None:
        return state
    return own[client]


def own_models(
    method: Method, task: Task, state: Any, memories: Mapping[int, Tree], clients: int
) -> list[Predictive] | None:
    """Make the sites' own models.

    Args:
        memories: What each client kept in the last round, by number.
        clients: How many sites there are.

    Returns:
        A model for each site in order, the common one where a site took no part; None where there is one for all.
    """
    own = own_states(method, task, state, {k: memories.get(k, ()) for k in range(clients)})
    if own is None:
        return None
    return [method.predictive(task, own[k]) for k in range(clients)]
