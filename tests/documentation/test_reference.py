"""The reference is made from docstrings, whatever they hold: sections, boxes of mathematics, code."""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import consilience

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def api() -> Iterator[types.ModuleType]:
    """`docs/api.py`."""
    sys.path.insert(0, str(ROOT / "docs"))
    import api

    yield api
    sys.path.remove(str(ROOT / "docs"))


def docstrings(module: types.ModuleType) -> Iterator[str]:
    """Every docstring of a module, its margin removed."""
    yield module.__doc__ or ""
    for value in vars(module).values():
        ours = inspect.isclass(value) or inspect.isfunction(value)  # type variables have docstrings of Python's own
        if not ours or value.__module__ != module.__name__:
            continue
        yield inspect.cleandoc(getattr(value, "__doc__", None) or "")
        if inspect.isclass(value):
            members = [m for m in vars(value).values() if inspect.isfunction(m) and m.__module__ == module.__name__]
            yield from (inspect.cleandoc(member.__doc__ or "") for member in members)


def rendered(texts: Iterable[str], api: types.ModuleType) -> tuple[str, str]:
    """What docutils makes of docstrings, and what it complains about."""
    core = pytest.importorskip("docutils.core")
    napoleon = pytest.importorskip("sphinx.ext.napoleon")
    settings = napoleon.Config(napoleon_use_ivar=True)
    sources = [str(napoleon.GoogleDocstring(api.to_rst(t.splitlines()), settings, what="class")) for t in texts]
    complaints = io.StringIO()
    page = core.publish_string(
        "\n\n".join(sources), writer="pseudoxml", settings_overrides={"warning_stream": complaints}
    )
    return page.decode(), complaints.getvalue()


@pytest.mark.parametrize("rooms", [2, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_docstring_is_taken_for_broken_markup(api: types.ModuleType, rooms: int) -> None:
    """Of a few rooms; the slow suite looks at all of them, as `make docs` does."""
    for room in list(api.rooms())[:rooms]:
        for name in api.modules(room):
            _, complaints = rendered(docstrings(importlib.import_module(name)), api)
            assert not complaints, f"{name}: {complaints}"


GOOGLE = """Average |θ| of `clients`, *not* of rows_; p(y|x)^β.

    for each client k
1       send θₖ*
2   θ ← Σₖ θₖ

Each counts `n`-fold.

- one item
  that goes on
- another

Args:
    weights: One a client;
        `None` for equal ones.
    *rest: More.

Returns:
    The mean, [P].

Raises:
    InputError: There is none.

Example:
    mean = average(weights)
"""


def test_sections_boxes_and_code_keep_their_form(api: types.ModuleType) -> None:
    page, complaints = rendered([GOOGLE], api)

    assert not complaints
    box = page.split("<literal_block")[1]
    assert "        for each client k" in box and "1       send θₖ*" in box
    assert "Average |θ| of" in page and "*not* of rows_" in page
    assert page.count("<list_item>") == 2
    assert "<literal>" in page and "<emphasis>" not in page.split("<field_list>")[0]
    for field in ("param weights", "*rest", "returns", "raises InputError"):
        assert field in page
    assert 'classes="code python"' in page.split("<literal_block")[2]


def test_every_module_is_on_a_page_and_every_public_name_on_its_own(api: types.ModuleType) -> None:
    pages: dict[str, Any] = api.write()
    listed = {module for room in api.rooms() for module in api.modules(room)}
    everything = {m.name for m in pkgutil.walk_packages(consilience.__path__, "consilience.")}

    public = pages["api/consilience.md"]
    assert {name for name in everything if not name.endswith("__main__")} <= listed
    for name in consilience.__all__:
        if hasattr(getattr(consilience, name), "__qualname__"):
            assert f"`co.{name} <" in public
    assert "## consilience study pool" in pages["api/cli.md"]
