"""What there is to choose from: methods and data sets, described from their own files."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from consilience.data import DATASETS, WITH_VARIANTS, describe_dataset
from consilience.errors import unknown
from consilience.method import Method, Needs, needs
from consilience.methods import METHODS
from consilience.provenance import citation
from consilience.spec import describe

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
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("method", "what it is", "a site sends", "the server needs"):
        table.add_column(column)
    for name, kind in sorted(METHODS.items(), key=lambda item: (item[1].bound, item[0])):
        table.add_row(name, citation(kind)[0], kind.sends, needed(kind()))
    return table


def method_page(name: str) -> RenderableType:
    """The algorithm box, the paper, what a site sends, what the server needs, the settings with their defaults."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
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
    """Every field, nested ones by their path, with its default and the comment on its line."""
    rows = []
    comments = dict(re.findall(r"^    (\w+):.*?#\s*(.*)$", inspect.getsource(type(settings)), re.MULTILINE))
    for field in dataclasses.fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        nested = dataclasses.is_dataclass(value)
        shown = type(value).__name__ if nested else str(describe(value))
        rows.append((prefix + field.name, shown, comments.get(field.name, "")))
        if nested:
            rows += settings_of(value, f"{prefix}{field.name}.")
    return rows


def dataset_table(data_dir: str | None) -> RenderableType:
    """One line a data set."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("data", "rows", "features", "task", "sites", "file", "what it is"):
        table.add_column(column, justify="right" if column in ("rows", "features") else "left")
    for name in DATASETS:
        table.add_row(name, *describe_dataset(name, data_dir))
    variants = f"With @hasan2023 after the name, as that paper had them: {', '.join(WITH_VARIANTS)}."
    return Group(table, Text(variants, style="dim"))
