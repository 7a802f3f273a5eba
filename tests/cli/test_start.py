"""Commands that only say something answer at once: they load neither torch nor numpy, which take seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

import consilience as co
from consilience import cli
from consilience.cli import listing
from consilience.cli.app import COMMANDS, app, name_of
from consilience.cli.catalogue import listing as gather
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
assert {"data", "methods", "run"} <= set(dir(consilience))
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
    monkeypatch.setenv(VARIABLE, "json")  # a module; what it holds does not matter here
    monkeypatch.setattr("consilience.cli.catalogue.listing", lambda: {"methods": ["gathered from the code"]})
    assert listing.read_listing() == {"methods": ["gathered from the code"]}


def test_every_public_name_can_be_loaded_and_there_are_few() -> None:
    assert len(co.__all__) <= 60
    assert dir(co) == sorted(co.__all__)
    assert all(getattr(co, name) is not None for name in co.__all__)
    with pytest.raises(AttributeError, match="methods are in co"):
        getattr(co, "FedAvg")  # noqa: B009 — type checkers refuse the name


def test_every_method_is_in_methods_by_the_name_of_its_class() -> None:
    for kind in co.methods.METHODS.values():
        assert getattr(co.methods, kind.__name__) is kind and kind.__name__ in dir(co.methods)


def test_every_command_is_in_the_table_with_its_file() -> None:
    """Nothing is said twice: the table holds names and files, and a command that is not in it could not be reached."""
    group = cli.every_command()
    made = {name for name in map(name_of, app.registered_commands)} | {g.name for g in app.registered_groups}
    assert made == set(COMMANDS) == set(group.commands)
    folder = Path(cli.__file__).parent / "commands"
    files = {f"consilience.cli.commands.{path.stem}" for path in folder.glob("*.py")}
    assert files - {"consilience.cli.commands.__init__"} <= set(sys.modules)
    for name in ("study", "site", "datasets"):
        command = group.commands[name]
        assert isinstance(command, click.Group) and command.help == COMMANDS[name].about


def test_a_command_loads_its_own_file_and_no_other() -> None:
    script = """
import sys
import consilience.cli
sys.argv = ["consilience", "methods"]
try:
    consilience.cli.main()
except SystemExit:
    pass
print(sorted(name for name in sys.modules if name.startswith("consilience.cli.commands.") or name == "cryptography"))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['consilience.cli.commands.lists']"
