"""The examples in docstrings run, and print what they say: a test for each room of the package."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path

import pytest

from consilience.methods import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # tiny data deserve their warnings
PACKAGE = Path(__file__).parents[2] / "consilience"
SHOWING = sorted(path for path in PACKAGE.rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
ROOMS = list(dict.fromkeys(path.relative_to(PACKAGE).parts[0] for path in SHOWING))
LONG = {"benchmark", "biostatistics", "draws", "inference", "methods", "privacy", "runs"}  # over half a second
FEW = {"inference/point.py", "methods/exact.py", "methods/fedavg.py", "privacy/dp/accountant.py", "runs/result.py"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented(path: Path) -> Iterator[tuple[str, int, str]]:
    """Name, line and text of every docstring of a file with an example."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(node)
        if text and ">>>" in text:
            yield getattr(node, "name", path.stem), getattr(node, "lineno", 0), text


def examples(room: str) -> Iterator[doctest.DocTest]:
    """The examples of a room; each begins with nothing imported."""
    for path in SHOWING:
        if path.relative_to(PACKAGE).parts[0] != room:
            continue
        file = path.relative_to(PACKAGE).as_posix()
        for name, line, text in documented(path):
            yield doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, f"{file}:{name}", file, line)


def run(tests: Iterator[doctest.DocTest]) -> int:
    """Run examples; how many prompts there were. What differs is shown with what was expected."""
    complaints: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in tests:
        runner.run(test, out=complaints.append)
    assert not runner.failures, "".join(complaints)
    return runner.tries


@pytest.mark.parametrize("room", [pytest.param(r, marks=[pytest.mark.slow] * (r in LONG)) for r in ROOMS])
def test_the_examples_of_a_room_print_what_they_say(room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(examples(room))


def test_some_examples_of_the_long_rooms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow suite runs them all."""
    monkeypatch.chdir(tmp_path)
    few = [test for room in sorted(LONG) for test in examples(room) if test.filename in FEW]
    assert {test.filename for test in few} == FEW
    assert run(test for test in few if test.name not in ("runs/result.py:save", "runs/result.py:influence"))


def test_every_method_has_an_example() -> None:
    shown = {test.name.partition(":")[2] for test in examples("methods")}
    assert {kind.__name__ for kind in METHODS.values() if kind.__module__.startswith("consilience.")} <= shown


def test_an_example_that_prints_something_else_is_found() -> None:
    wrong = doctest.DocTestParser().get_doctest(">>> 1 + 1\n3", {}, "wrong", "wrong", 0)
    with pytest.raises(AssertionError, match=r"Expected:\n *3\n *Got:\n *2"):
        run(iter([wrong]))
