"""The example of docs/add-a-method.md passes the suite that its page says to run."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tiny

from consilience.methods import METHODS, register_module

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-method.md").read_text()
FILE = re.search(r"For example `(consilience/methods/(\w+)\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
assert FILE is not None
PLACE, NAME, CODE = FILE.groups()


def module_at(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up their types
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def documented(tmp_path: Path) -> Iterator[None]:
    """The page's file as a module, whose method is known by its name; forgotten afterwards."""
    path = tmp_path / f"{NAME}.py"
    path.write_text(CODE)
    register_module(module_at(path, NAME))
    yield
    METHODS.pop(NAME, None)
    sys.modules.pop(NAME, None)


@pytest.mark.usefixtures("documented")
def test_the_example_passes_what_the_page_says_to_run() -> None:
    command = f"pytest tests/methods/test_every_method.py -k {NAME}"
    assert command in PAGE

    suite = module_at(Path(__file__).with_name("test_every_method.py"), "suite_for_the_example")
    suite.test_is_documented_in_its_own_file(NAME)
    cases = [problem for problem in tiny.PROBLEMS if tiny.works_on(NAME, problem)]
    assert cases == ["classification", "regression"]
    checks = [check for title, check in inspect.getmembers(suite, inspect.isfunction) if title.startswith("test_")]
    by_problem = [check for check in checks if list(inspect.signature(check).parameters) == ["name", "problem"]]
    assert len(by_problem) > 5
    for check in by_problem:
        check(NAME, cases[0])


@pytest.mark.slow
def test_the_whole_suite_passes_with_the_example_in_its_place(tmp_path: Path) -> None:
    for part in ("consilience", "tests/helpers", "tests/methods", "tests/conftest.py", "pyproject.toml"):
        copy = shutil.copy2 if (ROOT / part).is_file() else shutil.copytree
        (tmp_path / part).parent.mkdir(exist_ok=True)
        copy(ROOT / part, tmp_path / part)
    (tmp_path / PLACE).write_text(CODE)

    words = [sys.executable, "-m", "pytest", "-q", "tests/methods/test_every_method.py", "-k", NAME]
    environment = {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stdout
