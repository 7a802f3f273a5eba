"""Methods of your own and of other packages: where they are named. Nothing is imported here."""

from __future__ import annotations

import os
from importlib.metadata import EntryPoints, entry_points

VARIABLE = "CONSILIENCE_METHODS"  # modules or .py files, separated by commas
GROUP = "consilience.methods"  # of entry points


def named_modules() -> list[str]:
    """List the modules and files that the environment names."""
    names = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
    return [name for name in names if name]


def installed_methods() -> EntryPoints:
    """List the methods that installed packages offer."""
    return entry_points(group=GROUP)


def any_plugins() -> bool:
    """Tell whether there are methods that do not come with the package."""
    return bool(named_modules()) or bool(installed_methods())
