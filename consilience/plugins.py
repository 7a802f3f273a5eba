"""Methods and networks of your own and of other packages: where they are named, and how one is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from consilience.errors import InputError

VARIABLE = "CONSILIENCE_METHODS"  # modules or .py files, separated by commas
GROUP = "consilience.methods"  # of entry points


def named_modules() -> list[str]:
    """List the modules and files that the environment names."""
    names = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
    return [name for name in names if name]


def import_own(path: str, what: str) -> Any:
    """Import what somebody names by its place; the current folder is searched too.

    Args:
        path: `package.module:name`.
        what: What it is, for the sentence that refuses it.

    Returns:
        The object of that name.

    Raises:
        InputError: There is no such thing, or its module fails.
    """
    module, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder, as `python -m` has it
    with refuse_import(f"{what} '{path}' cannot be imported"):
        return getattr(importlib.import_module(module), attribute)


@contextmanager
def refuse_import(sentence: str) -> Iterator[None]:
    """Say in a sentence why code of somebody's own cannot be imported: any line of it may fail in any way.

    Args:
        sentence: What cannot be imported.

    Raises:
        InputError: Whatever went wrong.
    """
    try:
        yield
    except (InputError, ImportError, AttributeError) as error:
        raise InputError(f"{sentence}: {error}.") from error
    except Exception as error:
        raise InputError(f"{sentence}: {type(error).__name__}: {error}; correct its code.") from error


def installed_methods() -> EntryPoints:
    """List the methods that installed packages offer."""
    return entry_points(group=GROUP)


def any_plugins() -> bool:
    """Say whether there are methods that do not come with the package."""
    return bool(named_modules()) or bool(installed_methods())
