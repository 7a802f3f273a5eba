"""The shape of the code: imports go down only, files stay small, names say what they hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "consilience"
FILES = sorted(PACKAGE.rglob("*.py"))

# Rooms, and the vocabulary at the root, from the ground up: each may import from itself and from those before it.
ORDER = [
    *("errors", "version", "progress", "tree", "key"),
    "models",
    *("predictive", "posterior", "payload"),
    *("splits", "data", "datasets"),
    *("parties", "prior", "likelihood", "tilt", "task"),
    *("training", "privacy", "inference", "pooling"),
    "method",
    *("methods", "metrics", "formats", "engines", "report", "runs", "study", "flower", "comparison", "cli"),
    "__main__",
]
LEVEL = {name: i for i, name in enumerate(ORDER)}


def part(module: str) -> str:
    """`consilience.splits.labels` → `data`."""
    return module.split(".")[1] if "." in module else ""


def imported(file: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("consilience"):
            found += [f"{node.module}.{a.name}" for a in node.names] if node.module == "consilience" else [node.module]
        elif isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.startswith("consilience")]
    return found


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
        assert not any(part(m) in ("engines", "runs") for m in imported(file)), file.name


@pytest.mark.parametrize("file", sorted((PACKAGE / "methods").glob("*.py")), ids=lambda f: f.name)
def test_a_method_file_fits_on_a_screen(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 80


def test_no_file_is_named_for_its_role_or_grows_without_end() -> None:
    for file in FILES:
        assert file.stem not in ("utils", "base", "common", "core", "misc", "helpers"), file
        assert len(file.relative_to(PACKAGE).parts) <= 2, file
        assert len(file.read_text().splitlines()) <= 400, file


def test_nothing_is_pickled() -> None:
    for file in FILES:
        text = file.read_text()
        assert "pickle" not in text and "torch.load" not in text and "torch.save" not in text, file
