"""What there is to choose from in full: methods, networks and feature maps, described from their own files."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from consilience.cli.listing import list_rows
from consilience.data import datasets
from consilience.data.datasets import DATASETS, FACTS, WITH_VARIANTS
from consilience.errors import InputError, unknown_name
from consilience.method import Bound, Method, Needs, needs
from consilience.methods import METHODS
from consilience.models import FEATURES, MODELS, features, width_of
from consilience.runs.identity import citation
from consilience.serialisation.settings import describe

SHOWN = (3, 32, 32)  # the inputs for which sizes of networks are given
COLUMNS = 20  # the columns for which sizes of feature maps are given
Json = dict[str, Any]
NEEDS = {
    Needs.NOTHING: "nothing",
    Needs.INPUTS: "unlabelled rows (inputs)",
    Needs.LABELS: "a few labelled rows (calibration)",
}


def needed(method: Method) -> str:
    """Say what the server must have for a method.

    Args:
        method: The method with its settings.

    Returns:
        The rows it needs, in words.
    """
    rows = [words for need, words in NEEDS.items() if need in needs(method) and need is not Needs.NOTHING]
    return " and ".join(rows) or NEEDS[Needs.NOTHING]


def listing() -> Json:
    """Gather what `methods` and `datasets` list, methods that do not come with the package included.

    Returns:
        What `listing.json` holds, written by `python docs/pages.py` and held against the code by a test.
    """
    kinds = sorted(METHODS.items(), key=lambda item: (issubclass(item[1], Bound), item[0]))
    methods = [
        {"name": name, "title": citation(k)[0], "sends": k.about.sends, "needs": needed(k())} for name, k in kinds
    ]
    data = []
    for name in DATASETS:
        rows, width, task, sites, _, sentence = datasets.describe(name)
        facts = {"name": name, "rows": rows, "features": width, "task": task, "sites": sites}
        data.append({**facts, "file": FACTS[name].file, "about": sentence})
    return {
        "methods": methods,
        "datasets": data,
        "variants": list(WITH_VARIANTS),
        "models": [{"name": name} for name in MODELS],
        "features": [{"name": name} for name in FEATURES],
    }


def method_page(name: str) -> RenderableType:
    """Show a method in full: algorithm, paper, what a site sends, what the server needs, settings with defaults."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    kind = METHODS[name]
    title, paper = citation(kind)
    box = Padding(Text(textwrap.dedent(described(kind))), (1, 2))
    facts = Table.grid(padding=(0, 2))
    rounds = f"any number ({kind.about.rounds.usual} by default)"
    if kind.about.one_shot:
        rounds = "one"
    for label, value in (("A site sends", kind.about.sends), ("The server needs", needed(kind())), ("Rounds", rounds)):
        facts.add_row(Text(label, style="bold"), value)
    settings = Table(title="Settings", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in ("name", "default", ""):
        settings.add_column(column)
    for path, default, meaning in settings_of(kind()):
        settings.add_row(path, default, meaning)
    return Group(Text(title, style="bold") + Text(f"   {paper}", style="dim"), box, facts, Text(""), settings)


def described(kind: type[Method]) -> str:
    """A method's sentence and algorithm box; its settings have a table of their own."""
    return re.split(r"\n\n(?:Attributes|Example):\n", inspect.getdoc(kind) or "")[0]


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
    """List the networks, one per line, with their sizes on images."""
    rows = []
    for name, factory in MODELS.items():
        size = sum(p.numel() for p in factory(SHOWN, 10).parameters())
        first_paragraph = (inspect.getdoc(getattr(factory, "func", factory)) or "").split("\n\n")[0]
        summary = " ".join(first_paragraph.split())
        if "norm" in getattr(factory, "keywords", {}):
            summary += " Normalised by batch."
        rows.append((name, f"{size:,}".replace(",", " "), summary))
    channels, height, width = SHOWN
    note = (
        f"Parameters for {channels} × {height} × {width} inputs and 10 classes. For a network of your own, give "
        "package.module:factory."
    )
    return Group(list_rows(("model", "parameters", "what it is"), rows, ("parameters",)), Text(note, style="dim"))


def feature_table() -> RenderableType:
    """List the feature maps, one per line, with the number of features they make of images and of tables."""
    rows = []
    for name, builder in FEATURES.items():
        sizes = []
        for shape in (SHOWN, COLUMNS):
            sizes.append(_feature_count(name, shape))
        rows.append((name, *sizes, inspect.getdoc(builder) or ""))
    heads = ("map", "of images", f"of {COLUMNS} columns", "what it is")
    channels, height, width = SHOWN
    note = (
        f"Numbers that a map makes of a row unless asked otherwise; images are {channels} × {height} × {width}. Write "
        "conv:512 for 512 of them, conv:512:7 for those of seed 7, or a run's folder for its network without the last "
        "layer."
    )
    return Group(list_rows(heads, rows, heads[1:3]), Text(note, style="dim"))


def _feature_count(name: str, shape: int | tuple[int, ...]) -> str:
    """How many features a map makes of a row; nothing where it is not for such rows."""
    try:
        count = width_of(features(name, shape), shape)
    except InputError:
        return ""
    return f"{count:,}".replace(",", " ")
