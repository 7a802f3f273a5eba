"""Commands that only say something answer at once: they load neither torch nor numpy, which take seconds."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import consilience as co
from consilience import cli
from consilience.console import listing
from consilience.console.catalogue import listing as gather
from consilience.plugins import VARIABLE

SAYING = """
import contextlib, io, sys
import consilience
import consilience.cli

LATE = {"torch", "numpy", "scipy", "sklearn", "safetensors", "matplotlib", "jinja2", "flwr"}
loaded = {"import": sorted(LATE & set(sys.modules))}
for words in ("--version", "--help", "run --help", "study pool --help", "methods", "datasets", "run --no", "no"):
    sys.argv = ["consilience", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        with contextlib.suppress(SystemExit):
            consilience.cli.main()
    loaded[words] = sorted(LATE & set(sys.modules))
print({words: names for words, names in loaded.items() if names})
assert {"FedAvg", "data", "run"} <= set(dir(consilience))
from consilience import InputError
assert not LATE & set(sys.modules)
"""


def test_what_only_says_something_loads_no_numerical_library() -> None:
    done = subprocess.run([sys.executable, "-c", SAYING], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "{}", done.stderr
    assert done.returncode == 0, done.stderr


def test_the_lists_say_what_the_code_says() -> None:
    assert json.loads(listing.FILE.read_text()) == gather(), "run: python docs/pages.py"


def test_methods_of_other_packages_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    listing.read_listing.cache_clear()
    monkeypatch.setenv(VARIABLE, "somebody.elses")
    monkeypatch.setattr("consilience.console.catalogue.listing", lambda: {"methods": ["gathered from the code"]})
    try:
        assert listing.read_listing() == {"methods": ["gathered from the code"]}
    finally:
        listing.read_listing.cache_clear()


def test_type_checkers_and_programs_see_the_same_names() -> None:
    """The imports for type checkers, the table of homes and `__all__` name the same things in the same places."""
    seen: dict[str, str] = {}
    for node in ast.walk(ast.parse(Path(co.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("consilience"):
            seen |= {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    homes = {name: f"{home}.{name}" for name, home in co._read_homes().items()}
    rooms = {name: f"consilience.{name}" for name in co.__all__ if name not in homes}
    assert seen == {**homes, **rooms, "__version__": "consilience.version.__version__"}
    assert set(seen) == set(co.__all__)
    assert all(getattr(co, name) is not None for name in co.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        getattr(co, "nosuch")  # noqa: B009 — type checkers refuse the name


def test_every_file_of_commands_is_loaded() -> None:
    files = {f"consilience.cli.{path.stem}" for path in Path(cli.__file__).parent.glob("*.py")}
    assert files - {"consilience.cli.__init__", "consilience.cli.__main__"} <= set(sys.modules)
