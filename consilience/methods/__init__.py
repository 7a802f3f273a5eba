"""Every method, found by itself: a file in this folder with a final subclass of `Method` is a method.

Methods of your own are added by `register`, by the environment variable CONSILIENCE_METHODS (modules or .py files,
separated by commas), or by an installed package with an entry point in the group `consilience.methods`. They then work
wherever a method's name is asked for, studies included. A study or a run folder never imports anything by itself.

Every method is `co.methods.NAME` by the name of its class, your own ones too once they are known.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from consilience.errors import InputError, unknown_name
from consilience.method import Method, name
from consilience.plugins import VARIABLE, import_own, installed_methods, named_modules, refuse_import

METHODS: dict[str, type[Method]] = {}


def register(kind: type[Method]) -> type[Method]:
    """Make a method known by its name; usable as a decorator.

    Returns:
        The class.

    Raises:
        InputError: Another method has that name.
    """
    known = METHODS.get(name(kind))
    if known is not None and known is not kind:
        raise InputError(f"There is a method '{name(kind)}' already: give {kind.__name__} another `name`.")
    METHODS[name(kind)] = kind
    return kind


def register_module(module: ModuleType) -> None:
    """Make the methods that a module defines known."""
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if issubclass(kind, Method) and not inspect.isabstract(kind) and kind.__module__ == module.__name__:
            register(kind)


def known_method(text: str) -> str:
    """Find a method; one of your own is imported because you name it, and known from then on.

    Args:
        text: Its name, or `package.module:Class`, where the module may lie in the current folder.

    Raises:
        InputError: There is no method of that name, or what is imported is not a method.
    """
    if not is_own_method(text):
        if text not in METHODS:
            raise unknown_name("method", text, METHODS)
        return text
    kind = import_own(text, "The method")
    if not (inspect.isclass(kind) and issubclass(kind, Method)) or inspect.isabstract(kind):
        raise InputError(f"'{text}' is not a method: name a class that derives from `consilience.Method` and is whole.")
    return name(register(kind))


def is_own_method(text: str) -> bool:
    """Say whether a method is named by code to be imported.

    Args:
        text: A method as people name it.
    """
    return ":" in text


def method(text: str) -> Method:
    """Make a method with its default settings.

    Args:
        text: Its name, or `package.module:Class` for one of your own.

    Raises:
        InputError: There is no method of that name.

    Example:
        >>> import consilience as co
        >>> co.methods.method("fedprox").mu
        0.01
    """
    return METHODS[known_method(text)]()


def _import(text: str) -> ModuleType:
    """A module by its name, or a .py file by its path."""
    if not text.endswith(".py"):
        with refuse_import(f"{VARIABLE} names the module '{text}', which cannot be imported"):
            return importlib.import_module(text)
    path = Path(text)
    known = sys.modules.get(path.stem)
    if known is not None and known.__file__ == str(path.absolute()):
        return known
    spec = importlib.util.spec_from_file_location(path.stem, path.absolute())
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{VARIABLE} names the file '{text}', which does not exist: correct or unset it.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # the types that its messages may hold are looked up there
    try:
        with refuse_import(f"{VARIABLE} names the file '{text}', which cannot be imported"):
            spec.loader.exec_module(module)
    except InputError:
        del sys.modules[path.stem]  # half of a module
        raise
    return module


def register_plugins() -> None:
    """Make the methods of installed packages and of CONSILIENCE_METHODS known; the command line does so at its start.

    Raises:
        InputError: A module or file cannot be imported, or two methods have one name.
    """
    for entry in installed_methods():
        register(entry.load())
    for text in named_modules():
        register_module(_import(text))


def __getattr__(name: str) -> Any:
    """Return a known method's class by its Python name: `co.methods.FedAvg`."""
    found = {kind.__name__: kind for kind in METHODS.values()}
    if name not in found:
        raise AttributeError(f"module {__name__!r} has no method {name!r}")
    return found[name]


def __dir__() -> list[str]:
    kinds = [kind.__name__ for kind in METHODS.values()]
    return sorted([*kinds, "METHODS", "method", "known_method", "register", "register_module", "register_plugins"])


for _file in pkgutil.iter_modules(__path__):
    register_module(importlib.import_module(f"{__name__}.{_file.name}"))
