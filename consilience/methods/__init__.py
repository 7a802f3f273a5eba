"""Every method, found by itself: a file in this folder with a final subclass of Method is a method."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from consilience.errors import unknown_name
from consilience.method import Method, name


def _found() -> dict[str, type[Method]]:
    methods = {}
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Method) and kind.__module__ == module.__name__:
                methods[name(kind)] = kind
    return methods


METHODS = _found()


def method(text: str) -> Method:
    """A method by its name, with its default settings."""
    if text not in METHODS:
        raise unknown_name("method", text, METHODS)
    return METHODS[text]()
