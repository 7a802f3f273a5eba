"""What there is to choose from: methods, networks and data sets, described from their own files."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from consilience import datasets
from consilience.datasets import DATASETS, WITH_VARIANTS
from consilience.errors import unknown_name
from consilience.formats.settings import describe
from consilience.method import Method, Needs, needs
from consilience.methods import METHODS
from consilience.models import MODELS
from consilience.report.table import Fitting
from consilience.runs.provenance import citation

SHOWN = (3, 32, 32)  # what networks are measured on
LEGIBLE = 72  # columns below which tables of words are hard to read
NEEDS = {
    Needs.NOTHING: "nothing",
    Needs.INPUTS: "unlabelled rows (inputs)",
    Needs.LABELS: "a few labelled rows (calibration)",
}


def needed(method: Method) -> str:
    wanted = needs(method)
    return " and ".join(
        words for need, words in NEEDS.items() if need in wanted and (len(wanted) == 1 or need is not Needs.NOTHING)
    )


def method_table() -> RenderableType:
    """One line a method, bounds last."""
    every = sorted(METHODS.items(), key=lambda item: (item[1].bound, item[0]))
    rows = [(name, citation(kind)[0], kind.sends, needed(kind())) for name, kind in every]
    return listed(("method", "what it is", "a site sends", "the server needs"), rows)


def listed(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> RenderableType:
    """A table, or, where the terminal is too narrow for one, a paragraph a row."""
    table = Table(box=None, pad_edge=False, header_style="bold", min_width=LEGIBLE)
    for head in heads:
        first = head == heads[0]
        table.add_column(head, justify="right" if head in right else "left", no_wrap=first, overflow="fold")
    for row in rows:
        table.add_row(*row)
    said = (Text.assemble((row[0], "bold"), "\n", _told(heads[1:], row[1:]), "\n") for row in rows)
    return Fitting(table, Group(*said))


def _told(heads: Sequence[str], row: Sequence[str]) -> str:
    return "; ".join(f"{head}: {cell}" for head, cell in zip(heads, row, strict=True) if cell)


def method_page(name: str) -> RenderableType:
    """The algorithm box, the paper, what a site sends, what the server needs, the settings with their defaults."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    kind = METHODS[name]
    title, paper = citation(kind)
    box = Padding(Text(textwrap.dedent(inspect.getdoc(kind) or "")), (1, 2))
    facts = Table.grid(padding=(0, 2))
    rounds = "one round" if kind.one_shot else f"as many rounds as asked ({kind.usual_rounds} by default)"
    for label, value in (("A site sends", kind.sends), ("The server needs", needed(kind())), ("Rounds", rounds)):
        facts.add_row(Text(label, style="bold"), value)
    settings = Table(title="Settings", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("name", "default", ""):
        settings.add_column(column)
    for path, default, meaning in settings_of(kind()):
        settings.add_row(path, default, meaning)
    return Group(Text(title, style="bold") + Text(f"   {paper}", style="dim"), box, facts, Text(""), settings)


def settings_of(settings: object, prefix: str = "") -> list[tuple[str, str, str]]:
    """Every field of a dataclass, nested ones by their path.

    Args:
        settings: a method, an inference or anything else with settings
        prefix: of the paths, for a nested one

    Returns:
        For each field its path, its default and what it means.
    """
    rows = []
    meanings = _meanings(type(settings))
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        path = prefix + field.name
        value = getattr(settings, field.name)
        meaning = meanings.get(field.name, "")
        if dataclasses.is_dataclass(value):
            rows.append((path, type(value).__name__, meaning))
            rows += settings_of(value, f"{path}.")
        else:
            rows.append((path, str(describe(value)), meaning))
    return rows


def _meanings(kind: type) -> dict[str, str]:
    """What each field means: by `Attributes:` in the docstring of its class, else by the comment on its line."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= _comments(base)
            meanings |= _attributes(base)
    return meanings


def _comments(kind: type) -> dict[str, str]:
    """The comments on the lines of a class's own fields."""
    return dict(re.findall(r"^    (\w+):.*?#\s*(.*)$", inspect.getsource(kind), re.MULTILINE))


def _attributes(kind: type) -> dict[str, str]:
    """The `Attributes:` section of a class's own docstring, Google style; a text may go on, indented further."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("\nAttributes:\n")
    texts: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break  # another section
        entry = re.fullmatch(r"    (\w+): *(.*)", line)
        if entry:
            name = entry[1]
            texts[name] = entry[2]
        elif name and line:
            texts[name] = f"{texts[name]} {line.strip()}".strip()
    return texts


def model_table() -> RenderableType:
    """One line a network, with its size on images."""
    rows = []
    for name, factory in MODELS.items():
        size = sum(p.numel() for p in factory(SHOWN, 10).parameters())
        about = " ".join((inspect.getdoc(getattr(factory, "func", factory)) or "").split("\n\n")[0].split())
        about += " Normalised by batch." if "norm" in getattr(factory, "keywords", {}) else ""
        rows.append((name, f"{size:,}".replace(",", " "), about))
    channels, height, width = SHOWN
    told = f"Parameters for {channels} × {height} × {width} inputs and 10 classes. Or your own: package.module:factory."
    return Group(listed(("model", "parameters", "what it is"), rows, ("parameters",)), Text(told, style="dim"))


def dataset_table(data_dir: str | None) -> RenderableType:
    """One line a data set."""
    heads = ("data", "rows", "features", "task", "sites", "file", "what it is")
    table = listed(heads, [(name, *datasets.describe(name, data_dir)) for name in DATASETS], ("rows", "features"))
    variants = f"With @hasan2023 after the name, as that paper had them: {', '.join(WITH_VARIANTS)}."
    return Group(table, Text(variants, style="dim"))
