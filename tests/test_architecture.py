"""The shape of the code: imports go down only, files stay small, names say what they hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "consilience"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each line may import from itself and from the lines above.
LAYERS = [
    ["errors", "tree", "key", "softmax", "version", "progress", "signature", "compiled", "remembered", "memory"],
    ["posterior", "payload", "predictive", "merging"],
    ["data", "likelihood", "prior", "models", "ensemble"],
    ["task", "parties", "optim"],
    ["slope", "backprop", "exposure"],
    ["inference", "distil"],
    ["method", "twoway"],
    ["methods"],
    ["spec", "metrics"],
    ["study", "envelope"],
    ["study_text", "admission", "choice"],
    ["joining", "proposal"],
    ["engines", "ledger", "provenance", "communication", "participation", "blueprint", "device", "gathering"],
    ["store", "evaluate", "report"],
    ["result", "start", "site"],
    ["modelfile"],
    ["account"],
    ["pooling"],
    ["run", "recipe", "rows"],
    ["deploy"],
    ["comparison", "estimator"],
    ["compare"],
    ["demo", "catalogue", "tune", "reproduce"],
    ["screen"],
    ["cli"],
    ["__main__"],
]
LEVEL = {name: i for i, layer in enumerate(LAYERS) for name in layer}


def part(module: str) -> str:
    """`consilience.data.partition` → `data`."""
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
    assert own in LEVEL, f"give {own} a place in LAYERS"
    for module in imported(file):
        assert LEVEL[part(module)] <= LEVEL[own], f"{file.name} imports {module}, which lies above it"


def test_methods_never_import_engines() -> None:
    for file in (PACKAGE / "methods").glob("*.py"):
        assert not any(part(m) in ("engines", "run", "store") for m in imported(file)), file.name


@pytest.mark.parametrize("file", sorted((PACKAGE / "methods").glob("*.py")), ids=lambda f: f.name)
def test_a_method_file_fits_on_a_screen(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 80


def test_no_file_is_named_for_its_role_or_grows_without_end() -> None:
    for file in FILES:
        assert file.stem not in ("utils", "base", "common", "core", "misc", "helpers"), file
        assert len(file.relative_to(PACKAGE).parts) <= 2, file
        assert len(file.read_text().splitlines()) <= 360, file


def test_nothing_is_pickled() -> None:
    for file in FILES:
        text = file.read_text()
        assert "pickle" not in text and "torch.load" not in text and "torch.save" not in text, file
