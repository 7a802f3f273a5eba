"""The reference of the package, made from its docstrings: a page a room, and one for the names at `consilience`.

Docstrings are plain text in Google style with boxes of mathematics in them, not reStructuredText, so that they read
well in an editor. `to_rst` escapes what Sphinx would take for markup and turns boxes into literal blocks.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import click

import consilience
from consilience.cli import every_command


class Room(NamedTuple):
    """A folder of the package, or the files at its root.

    Attributes:
        title: What the page is called.
        about: One sentence on what lives there.
    """

    title: str
    about: str


ROOT = "vocabulary"
ROOMS = {
    ROOT: Room("Vocabulary", "What every other room uses: keys, posteriors, predictives, tasks, replies, methods."),
    "distributions": Room("Distributions", "Posteriors, predictives, priors, likelihoods; counts and times."),
    "models": Room("Models", "Networks and feature maps by name, and what a network may not hide from an engine."),
    "data": Room("Data", "Rows and their roles: sites from arrays and tables, splits, and data sets by name."),
    "inference": Room("Inference", "How a client gets from a prior and its rows to a posterior, and optimisers."),
    "aggregation": Room("Aggregation", "Rules that make one answer of many: of Gaussians, of evidence, of ensembles."),
    "glm": Room("Linear models", "Models of one layer on fixed features from what sites add up; partial pooling."),
    "method": Room("Method", "The contract of a method: two functions, what it declares, its states, what it sends."),
    "methods": Room("Methods", "One class a method; [each has a page](../methods/index.md) with its settings."),
    "metrics": Room("Metrics", "Proper scores, calibration, uncertainty, baselines, and scores against what was sent."),
    "prediction_sets": Room("Prediction sets", "Sets with a guarantee in finite samples: scores, kinds, coverage."),
    "biostatistics": Room("Biostatistics", "Effects, heterogeneity, table one and survival curves of several sites."),
    "draws": Room("Draws", "Posteriors of any model, pooled from their draws, with what speaks against the pool."),
    "privacy": Room("Privacy", "Differential privacy, masked sums, disclosure rules and audits."),
    "disk": Room("Disk", "Files written whole or not at all, and locks on files and folders."),
    "serialisation": Room("Serialisation", "How settings, networks, envelopes and signatures are written to files."),
    "runs": Room("Runs", "A run from start to result, its engines, its folder, and the scikit-learn estimators."),
    "study": Room("Study", "A study between real sites: agreement, files, what is admitted and pooled; Flower."),
    "benchmark": Room("Benchmark", "Methods side by side: tables, tuning, reproductions and the demo."),
    "report": Room("Report", "Pages that need nothing but a browser, and the words they use."),
    "cli": Room("Command line", "Every command with its arguments and options, as `--help` has them."),
}
SECTIONS = ("Args", "Arguments", "Attributes", "Example", "Examples", "Note", "Raises", "Returns", "Warns", "Yields")


def write() -> dict[str, str]:
    """Return the pages of the reference by their paths."""
    pages = {f"api/{room}.md": room_page(room) for room in rooms() if room != "cli"}
    pages["api/cli.md"] = command_page()
    pages["api/consilience.md"] = public_page()
    pages["api/index.md"] = index()
    return pages


def rooms() -> list[str]:
    """Return the names of all rooms, those of ROOMS first and in its order."""
    folders = [m.name for m in pkgutil.iter_modules(consilience.__path__) if m.ispkg]
    return [*ROOMS, *(name for name in folders if name not in ROOMS)]


def room(name: str) -> Room:
    """Return a room's title and sentence, for one that ROOMS does not know from its docstring."""
    if name in ROOMS:
        return ROOMS[name]
    module = importlib.import_module(f"consilience.{name}")
    return Room(name.capitalize(), first_sentence(module))


def modules(name: str) -> list[str]:
    """Return the modules of a room, in the order of the alphabet, the room itself first."""
    if name == ROOT:
        files = [m.name for m in pkgutil.iter_modules(consilience.__path__) if not m.ispkg]
        return [f"consilience.{file}" for file in files if not file.startswith("_")]
    package = importlib.import_module(f"consilience.{name}")
    inside = [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return [package.__name__, *(module for module in inside if not module.rpartition(".")[2].startswith("_"))]


def room_page(name: str) -> str:
    """Return a room's page: every module with its public names, each described where it is defined."""
    parts = [f"# {room(name).title}", room(name).about]
    for module in modules(name):
        if describes(module):
            parts.append(f"## {module.removeprefix('consilience.')}")
            parts.append(f"```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n   :ignore-module-all:\n```")
    return "\n\n".join(parts) + "\n"


def describes(name: str) -> bool:
    """Whether a module has words or public names of its own."""
    module = importlib.import_module(name)
    names = [value for value in vars(module).values() if getattr(value, "__module__", None) == name]
    return bool(module.__doc__ or names)


def index() -> str:
    """Return the page that leads to all others."""
    rows = [f"| [{room(name).title}]({name}.md) | {room(name).about} |" for name in rooms()]
    return (
        "\n\n".join(
            [
                "# API reference",
                "Made from the docstrings of the code. [The names at `consilience`](consilience.md) are the public "
                "ones; whatever else a part of the package holds may move between releases.",
                "\n".join(["| part | what is in it |", "| --- | --- |", *rows]),
                "\n".join(["```{toctree}", ":hidden:", "", "consilience", *rooms(), "```"]),
            ]
        )
        + "\n"
    )


def public_page() -> str:
    """Return the names at `consilience` by their rooms, each with its first sentence and a link to its description."""
    lines: dict[str, list[str]] = {}
    for name in sorted(consilience.__all__, key=str.lower):
        value = getattr(consilience, name)
        if inspect.ismodule(value):
            lines.setdefault("namespaces", []).append(namespace_line(name, value))
        elif hasattr(value, "__module__") and hasattr(value, "__qualname__"):
            lines.setdefault(room_of(value), []).append(name_line(name, value))
    parts = ["# consilience", "`import consilience as co`, then `co.run(…)`. Each name leads to its description."]
    titles = {"namespaces": "Namespaces"}
    for group in ("namespaces", *rooms()):
        if group in lines:
            parts += [
                f"## {titles.get(group) or room(group).title}",
                "\n".join(["| name | what it is |", "| --- | --- |", *lines[group]]),
            ]
    return "\n\n".join(parts) + "\n"


def room_of(value: Any) -> str:
    """Return the room in which a class or function is defined."""
    words = str(value.__module__).split(".")
    if len(words) > 1 and words[1] in ROOMS:
        return words[1]
    return ROOT


def name_line(name: str, value: Any) -> str:
    """Return a line of a table: `co.name`, linked to where it is described, and what it is."""
    target = f"{value.__module__}.{value.__qualname__}"
    return f"| {{py:obj}}`co.{name} <{target}>` | {to_markdown(first_sentence(value))} |"


def namespace_line(name: str, module: Any) -> str:
    """Return a line of a table for a namespace such as `co.splits`, with the names in it."""
    page = module.__name__.split(".")[-1]
    if page not in ROOMS:
        page = ROOT
    names = ", ".join(f"`{n}`" for n in getattr(module, "__all__", ()) if not n.startswith("_"))
    return f"| [`co.{name}`]({page}.md) | {names or to_markdown(first_sentence(module))} |"


def first_sentence(value: Any) -> str:
    """Return what a docstring says first, on one line; nothing for docstrings that Python wrote."""
    if is_automatic(value):
        return ""
    paragraph = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", paragraph)[0]


def is_automatic(value: Any) -> bool:
    """Whether a docstring is the signature that dataclasses and named tuples get when they have none."""
    doc = getattr(value, "__doc__", None) or ""
    return inspect.isclass(value) and doc.startswith(f"{value.__name__}(")


def to_markdown(text: str) -> str:
    """Return text for a cell of a table, with what Markdown would take for markup escaped outside backticks."""
    pieces = text.split("`")
    pieces[::2] = [re.sub(r"([*_<>\[\]$])", r"\\\1", piece) for piece in pieces[::2]]
    return "`".join(pieces).replace("|", "\\|")


# ---------------------------------------------------------------------------------------------------------- commands


def command_page() -> str:
    """Return every command with its help, arguments and options."""
    parts = [f"# {ROOMS['cli'].title}", ROOMS["cli"].about]
    for path, command in commands(every_command(), "consilience"):
        parts += [f"## {path}", paragraphs(command.help or ""), parameters(command)]
    return "\n\n".join(part for part in parts if part) + "\n"


def commands(group: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group with what one types for it."""
    for name, command in getattr(group, "commands", {}).items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def paragraphs(text: str) -> str:
    """Return a command's help, with its examples (indented, or each on its own line after a `\\b`) as they stand."""
    parts = []
    for part in inspect.cleandoc(text).replace("\b\n", "\b").split("\n\n"):
        if part.startswith(("\b", " ")):
            parts.append("```text\n" + part.replace("\b", "") + "\n```")
        else:
            parts.append(to_markdown(" ".join(part.split())))
    return "\n\n".join(parts)


def parameters(command: click.Command) -> str:
    """Return a table of a command's arguments and options."""
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        if isinstance(parameter, click.Argument):
            names = [parameter.human_readable_name]
        meaning = " ".join((getattr(parameter, "help", None) or "").split())
        rows.append(f"| {', '.join(f'`{name}`' for name in names)} | {to_markdown(meaning)} |")
    if not rows:
        return ""
    return "\n".join(["| argument or option | meaning |", "| --- | --- |", *rows])


# -------------------------------------------------------------------------------------------------------- docstrings


def setup(app: Any) -> None:
    """Connect to autodoc, ahead of Napoleon, which reads the sections afterwards."""
    app.connect("autodoc-process-docstring", process, priority=100)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-skip-member", skip)


def process(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Replace a docstring's lines by reStructuredText, or by nothing where Python wrote them."""
    if is_automatic(value):
        lines[:] = []
    else:
        lines[:] = to_rst(lines)


def shorten(
    app: Any, what: str, name: str, value: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Return a signature whose defaults are names: `constant` for `<function constant>`."""
    if signature:
        signature = re.sub(r"<(?:function|class) '?([\w.]+)'?>", lambda match: match[1].split(".")[-1], signature)
    return signature, returns


def skip(app: Any, what: str, name: str, value: Any, skipped: bool, options: Any) -> bool | None:
    """Leave out fields, which `Attributes:` describes, and what only inherits its docstring."""
    if type(value).__name__ == "_tuplegetter":
        return True
    if not inspect.isfunction(value):
        return None
    is_field = value.__name__ != name and what == "class"  # whose default is a function
    is_foreign = not value.__module__.startswith("consilience")  # scikit-learn adds methods to its estimators
    if is_field or is_foreign or not value.__doc__:
        return True
    return None


def to_rst(lines: Iterable[str]) -> list[str]:
    """Return a docstring as reStructuredText.

    Args:
        lines: The docstring, its margin removed.

    Returns:
        Lines in which sections keep their form, boxes and code are literal blocks, and nothing else is markup but code
        between backticks.
    """
    converted: list[str] = []
    section = ""
    for paragraph in split_paragraphs(lines):
        head = re.fullmatch(rf"({'|'.join(SECTIONS)}):", paragraph[0])
        if head:
            section = head[1]
        elif not paragraph[0].startswith(" "):
            section = ""
        if section.startswith("Example"):
            converted += example(paragraph)
        elif section or not is_box(paragraph):
            converted += escape("\n".join(paragraph)).split("\n")
        else:
            converted += ["::", "", *(f"    {line}" for line in paragraph)]
        converted.append("")
    return converted


def split_paragraphs(lines: Iterable[str]) -> list[list[str]]:
    """Return runs of lines between blank ones; boxes that only a blank line parts, as in code, are one."""
    paragraphs: list[list[str]] = []
    for text in "\n".join(lines).strip("\n").split("\n\n"):
        paragraph = [line.rstrip() for line in text.split("\n") if line.strip()]
        if not paragraph:
            continue
        if paragraphs and paragraph[0].startswith(" ") and is_box(paragraphs[-1]):
            paragraphs[-1] += ["", *paragraph]
        else:
            paragraphs.append(paragraph)
    return paragraphs


def is_box(paragraph: list[str]) -> bool:
    """Whether lines keep their place: some are indented or numbered, and it is neither a section nor a list."""
    if re.fullmatch(rf"({'|'.join(SECTIONS)}):", paragraph[0]) or re.match(r"([-*•]|\d+[.)]) ", paragraph[0]):
        return False
    return any(re.match(r" |\d+ {3}", line) for line in paragraph)


def example(paragraph: list[str]) -> list[str]:
    """Return code of an `Example:` section as a block; a session with `>>>` is one already."""
    head = [line for line in paragraph if not line.startswith(" ")]
    code = paragraph[len(head) :]
    if not code or code[0].lstrip().startswith(">>>"):
        return [*head, *code]
    return [*head, "    .. code-block:: python", "", *(f"    {line}" for line in code)]


def escape(paragraph: str) -> str:
    """Return a paragraph in which only backticks are markup, and those stand for code."""
    pieces = paragraph.split("`")
    if len(pieces) % 2 == 0:  # a backtick without a partner
        return escape_text(paragraph).replace("`", "\\`")
    text = ""
    for i, piece in enumerate(pieces):
        if i % 2 == 0:
            text += escape_text(piece)
            continue
        text += "\\ " * bool(re.search(r"\w$", text)) + f"``{piece}``"  # code is set apart from letters beside it
        text += "\\ " * bool(re.match(r"\w", pieces[i + 1]))
    return text


def escape_text(text: str) -> str:
    """Return text without code, in which nothing is markup: no emphasis, no substitution, no reference."""
    bullet = r"(?m:^ *\* )"
    return re.sub(rf"({bullet})|([\\*|]|(?<=\w)_(?=\W|$))", lambda m: m[1] or f"\\{m[2]}", text)
