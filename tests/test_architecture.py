"""The shape of the code: imports go down only. What cannot be asserted of a map is printed by `make map`."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from consilience.method import Bound
from consilience.methods import METHODS

PACKAGE = Path(__file__).parents[1] / "consilience"
FILES = sorted(PACKAGE.rglob("*.py"))

# Rooms, and the vocabulary at the root, from the ground up: each may import from itself and from those before it.
ORDER = [
    *("errors", "version", "plugins", "progress", "tree", "key", "disk"),
    *("distributions", "models", "data", "messages", "task"),
    *("privacy", "inference", "aggregation", "glm"),
    *("method", "methods", "prediction_sets", "biostatistics", "metrics", "draws"),
    *("serialisation", "report", "runs", "study", "benchmark", "cli"),
    "__main__",
]
LEVEL = {name: i for i, name in enumerate(ORDER)}


def part(module: str) -> str:
    """`consilience.data.splits.labels` → `data`."""
    return module.split(".")[1] if "." in module else ""


class Contents(NamedTuple):
    """What several tests ask of a file: what it imports from the package, and its names and texts with their lines."""

    imports: list[str]
    words: list[tuple[str, int]]


@cache
def contents(file: Path) -> Contents:
    """Read a file once for all tests."""
    imports = []
    words = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("consilience"):
            found = [node.module]
            if node.module == "consilience":
                found = [f"consilience.{alias.name}" for alias in node.names]
            imports += found
        elif isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names if alias.name.startswith("consilience")]
        elif isinstance(node, ast.Name):
            words.append((node.id, node.lineno))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words.append((node.value, node.lineno))
    return Contents(imports, words)


def imported(file: Path) -> list[str]:
    return contents(file).imports


@pytest.mark.parametrize(
    "file", [f for f in FILES if f != PACKAGE / "__init__.py"], ids=lambda f: str(f.relative_to(PACKAGE))
)
def test_imports_go_down_only(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in LEVEL, f"give {own} a place in ORDER"
    for module in imported(file):
        assert LEVEL[part(module)] <= LEVEL[own], f"{file.name} imports {module}, which lies above it"


def test_methods_never_import_engines() -> None:
    for file in (PACKAGE / "methods").glob("*.py"):
        assert not any(part(m) == "runs" for m in imported(file)), file.name


def code_lines(node: ast.AST, text: str) -> int:
    """Lines of code: no blank lines, comments, docstrings or imports."""
    skipped: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Import, ast.ImportFrom)):
            skipped.update(range(inner.lineno, (inner.end_lineno or 0) + 1))
        if isinstance(inner, ast.Expr) and isinstance(inner.value, ast.Constant) and isinstance(inner.value.value, str):
            skipped.update(range(inner.lineno, (inner.end_lineno or 0) + 1))
    lines = text.splitlines()
    first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None) or len(lines)
    counted = [i for i in range(first, last + 1) if lines[i - 1].strip() and not lines[i - 1].strip().startswith("#")]
    return len([i for i in counted if i not in skipped])


@pytest.mark.parametrize("file", sorted((PACKAGE / "methods").glob("*.py")), ids=lambda f: f.name)
def test_a_method_reads_like_its_papers_box(file: Path) -> None:
    text = file.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            assert code_lines(node, text) <= 100, node.name


def test_no_file_is_named_for_its_role() -> None:
    for file in FILES:
        assert file.stem not in ("utils", "base", "common", "core", "misc", "helpers"), file


@pytest.mark.parametrize(
    "file", [f for f in FILES if f.parent.name != "methods"], ids=lambda f: str(f.relative_to(PACKAGE))
)
def test_nothing_outside_methods_knows_a_method_by_name(file: Path) -> None:
    """Neither by its class nor, as a whole text, by its name; bounds are the protocol's own words."""
    named = {word for n, m in METHODS.items() if not issubclass(m, Bound) for word in (n, m.__name__)}
    named -= {"mixture", "coreset", "evidence", "beta", "variational", "hierarchical"}  # words of their own as well
    if file == PACKAGE / "__init__.py":
        return  # where all of them are exported
    for word, line in contents(file).words:
        assert word not in named, f"line {line}: {word}"


def test_nothing_is_pickled() -> None:
    for file in FILES:
        text = file.read_text()
        assert "pickle" not in text and "torch.load" not in text and "torch.save" not in text, file


def test_files_are_written_in_one_place() -> None:
    """Whole, synced and through no planted link: `disk/writing.py`."""
    writes = re.compile(r"\.write_(bytes|text)\(|os\.(replace|rename|link)\(|open\([^()]*[\"'][wx]b?[\"']")
    for file in FILES:
        if file != PACKAGE / "disk" / "writing.py":
            assert not writes.search(file.read_text()), file


def test_no_test_imports_another() -> None:
    """What tests share is in tests/helpers."""
    tests = Path(__file__).parent
    for file in tests.rglob("*.py"):
        text = file.read_text()
        if not re.search(r"\b(from|import)\b.*\btest_", text):  # parse only what may have such an import
            continue
        for node in ast.walk(ast.parse(text)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.split(".")[-1].startswith("test_") for name in modules), file
