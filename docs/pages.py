"""What the documentation takes from elsewhere: pages of methods from their docstrings, tables from measured results."""

from __future__ import annotations

import fnmatch
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import api

from consilience.cli.catalogue import described, listing, needed, settings_of
from consilience.cli.listing import FILE
from consilience.method import Bound, Method, Needs, Private, needs, usual_rounds
from consilience.method.declared import is_sum, knows_sites, sends_inference, shows_inputs, summation
from consilience.methods import METHODS
from consilience.report.schema.wording import human_bytes, number
from consilience.runs.identity import citation

RESULTS = Path(__file__).parent.parent / "experiments"
OTHERS = "<!-- the pages that nothing above names -->"


def write(folder: Path) -> None:
    """Write what is generated, touching only what has changed, so that a second build has little to do."""
    texts = {f"methods/{name}.md": method_page(name) for name in METHODS}
    texts["methods/index.md"] = method_index()
    texts |= copies(folder.parent)
    texts |= api.write()
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    for generated in ("methods", "experiments", "api"):
        for path in folder.glob(f"{generated}/*.md"):
            if f"{generated}/{path.name}" not in texts:
                path.unlink()


def adapt(name: str, text: str, folder: Path) -> str:
    """A page as Sphinx should see it: links into the project lead to the copies here, and the index is complete."""
    text = re.sub(r"\]\(\.\./experiments/(\w+)/README\.md", r"](experiments/\1.md", text)
    text = text.replace("](../CHANGELOG.md", "](changes.md").replace("](../CONTRIBUTING.md", "](contributing.md")
    if name == "index":
        return complete(text, folder)
    return text


def complete(index: str, folder: Path) -> str:
    """The index without the pages that are not there, and with those that no table of contents names."""
    every = {str(p.relative_to(folder).with_suffix("")) for p in folder.rglob("*.md")} - {"index"}
    inner = ("methods/", "api/", "parts/", "_build/")
    every = {p for p in every if p in ("methods/index", "api/index") or not p.startswith(inner)}
    named: set[str] = set()

    def present(block: re.Match[str]) -> str:
        lines = []
        for line in block[0].split("\n"):
            if re.fullmatch(r"[\w/*-]+", line):
                lines += sorted(fnmatch.filter(every, line))
            else:
                lines.append(line)
        named.update(lines)
        return "\n".join(lines)

    index = re.sub(r"```{toctree}.*?```", present, index, flags=re.DOTALL)
    rest = sorted(every - named)
    more = ""
    if rest:
        more = "\n".join(["```{toctree}", ":caption: More", "", *rest, "```"])
    return index.replace(OTHERS, more)


def copies(root: Path) -> dict[str, str]:
    """Pages that live elsewhere in the project."""
    texts = {"changes.md": (root / "CHANGELOG.md").read_text()}
    texts["contributing.md"] = (root / "CONTRIBUTING.md").read_text().replace("](docs/", "](")
    for path in (root / "experiments").glob("*/README.md"):
        name, text = path.parent.name, path.read_text().replace("](../../docs/", "](../")
        text = text.replace("](results/", f"](../../experiments/{name}/results/")
        texts[f"experiments/{name}.md"] = re.sub(r"\]\(\.\./(\w+)/README\.md", r"](\1.md", text)
    return texts


def ordered() -> list[tuple[str, type[Method]]]:
    """The methods by name, bounds last."""
    return sorted(METHODS.items(), key=lambda item: (issubclass(item[1], Bound), item[0]))


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def method_page(name: str) -> str:
    """A method's name, paper, sentence and algorithm box, what leaves a site, and its settings."""
    kind = METHODS[name]
    title, paper = citation(kind)
    sentence, _, box = described(kind).partition("\n\n")
    rounds = f"as many as asked, {usual_rounds(kind)} by default"
    if kind.about.one_shot:
        rounds = "one"
    facts = [("A site sends", kind.about.sends), ("The server needs", needed(kind())), ("Rounds", rounds)]
    facts += [("For", " and ".join(kind.about.tasks)), ("In Python", f"`co.methods.{kind.__name__}()`")]
    settings = settings_of(kind())
    parts = [
        f"# {name}",
        f"**{title}.** {paper}".strip(),
        " ".join(sentence.split()),
        f"```text\n{textwrap.dedent(box)}\n```",
        "\n".join([line(["", ""]), line(["---", "---"]), *(line(fact) for fact in facts)]),
        f"```pycon\n{example(kind)}\n```",
    ]
    if settings:
        rows = [line([f"`{path}`", f"`{default}`", meaning]) for path, default, meaning in settings]
        parts += ["## Settings", "\n".join([line(["setting", "default", ""]), line(["---"] * 3), *rows])]
        path, default, _ = next(((p, d, m) for p, d, m in settings if p.endswith("epochs")), settings[0])
        parts.append(f"On the command line, for example: `consilience run {name} --set {path}={default}`.")
    return "\n\n".join(parts) + "\n"


def example(kind: type[Method]) -> str:
    """The session that a method's docstring ends with."""
    return textwrap.dedent((inspect.getdoc(kind) or "").partition("\n\nExample:\n")[2])


def method_index() -> str:
    names = "\n".join(name for name, _ in ordered())
    return (
        "\n\n".join(
            [
                "# Methods",
                "One page for each method, made from its file: the paper, the algorithm box, what leaves a site, the "
                "settings. `consilience methods NAME` prints the same.",
                method_table("{name}.md"),
                "```{toctree}\n:hidden:\n\n" + names + "\n```",
            ]
        )
        + "\n"
    )


def method_table(link: str = "methods/{name}.md") -> str:
    """One line a method with ticks: one round, no labels at the server, no rows at all there, regression."""
    heads = [
        "method",
        "what it is",
        "a site sends",
        "one round",
        "no labels at the server",
        "no rows at the server",
        "regression",
    ]
    rows = [line(heads), line(["---", "---", "---", *[":-:"] * 4])]
    for name, kind in ordered():
        server = needs(kind())
        ticks = (
            kind.about.one_shot,
            Needs.LABELS not in server,
            server == {Needs.NOTHING},
            "regression" in kind.about.tasks,
        )
        label = f"[`{name}`]({link.format(name=name)})"
        title = re.split(r",|:| \(", citation(kind)[0])[0]
        if issubclass(kind, Bound):
            title += " (bound)"
        rows.append(line([label, title, kind.about.sends, *("✓" * tick for tick in ticks)]))
    return "\n".join(rows)


def sends() -> str:
    """What leaves a site under each method, and what the coordinator chooses of where it starts."""
    rows = [line(["method", "a site sends", "the coordinator chooses"]), line(["---"] * 3)]
    for name, kind in ordered():
        if issubclass(kind, Bound):
            continue
        chosen = "every message from the second round on"
        if kind.about.one_shot:
            chosen = "nothing"
        if shows_inputs(kind()):
            chosen = "the inputs that are scored"
        rows.append(line([f"[`{name}`](methods/{name}.md)", kind.about.sends, chosen]))
    return "\n".join(rows) + "\n"


def threats() -> str:
    """What the coordinator sees of one site by method, in the open, under masks, with noise, and what comes back."""
    heads = ["method", "the coordinator sees of one site, plain", "under masks", "with ε", "sites get back"]
    rows = [line(heads), line(["---"] * 5)]
    for name, kind in ordered():
        if issubclass(kind, Bound):
            continue
        masked = "not possible: replies are needed one by one"
        if summation(kind()) is not None:
            masked = "nothing; of all sites together, the sum"
        back = "one model"
        if knows_sites(kind):
            back = "every site's part by name, or a student"
        elif not is_sum(kind) and kind().distil is None:
            back = "the model, of samples or parts without names where it has several"
        noisy = "no"
        if issubclass(kind, Private):
            noisy = "`--epsilon`"
        elif sends_inference(kind):
            noisy = "`DPSGD`"
        rows.append(line([f"[`{name}`](methods/{name}.md)", kind.about.sends, masked, noisy, back]))
    return "\n".join(rows) + "\n"


class Situation(NamedTuple):
    """A question a reader has, what we would start with, and the measured column behind it."""

    when: str
    start: str
    column: str


SITUATIONS = (
    Situation("Sites hardly share a class", "`evidence`", "digits/dirichlet:0.1/5"),
    Situation(
        "The same, with fifty small sites",
        "`evidence_tuned`, or `evidence` for a single message",
        "digits/dirichlet:0.1/50",
    ),
    Situation("Some classes are rarer at some sites", "`evidence`", "digits/dirichlet:0.5/5"),
    Situation("All sites look alike", "`fedavg` for ten rounds; `evidence` or `oneshot` for one", "digits/iid/5"),
    Situation(
        "The same class looks different from site to site",
        "`fedavg` for several rounds",
        "digits/dirichlet:0.3/5/rotate:60",
    ),
    Situation("Each site is one person's handwriting", "`evidence`, or `oneshot`", "femnist/natural/50"),
    Situation(
        "The server itself has 300 labelled rows",
        "training there, and no federation",
        "digits/dirichlet:0.1/5/labels:300",
    ),
)
BOUNDS = ("Centralised", "Local only", "Server only")
METHOD_ROWS = {  # a row of the experiment → what it is called here
    **{r: r for r in ("FedAvg, 1 round", "FedAvg, 10 rounds", "Mixture", "BCM", "β", "One-shot FL", "FedKT")},
    **{"Evidence, as it comes": "Evidence", "Evidence, from sites": "Evidence, tuned"},
}


def cells(paper: str, experiment: str) -> list[dict[str, Any]]:
    every: list[dict[str, Any]] = json.loads((RESULTS / paper / "results" / f"{experiment}.json").read_text())["cells"]
    return [c for c in every if c["ours"] is not None]


def spread(cell: dict[str, Any]) -> str:
    error = cell["spread"]
    if error is None:
        return number(cell["ours"])
    return f"{number(cell['ours'])} ± {number(round(error, 3))}"


def situations() -> str:
    """The lowest NLLs of every situation, whichever rows they belong to, with the bounds beside them."""
    rows = [line(["your sites", "start with", "lowest NLL, as they come", "bounds"]), line(["---"] * 4)]
    every = cells("evidence", "table")
    for s in SITUATIONS:
        column = {c["row"]: c for c in every if c["column"] == s.column}
        ranked = sorted((column[r] for r in METHOD_ROWS if r in column), key=lambda c: c["ours"])[:4]
        seeds = ranked[0]["seeds"]
        when = f"**{s.when}**<br>{s.column}, {seeds} seed{'s' * (seeds > 1)}"
        lowest = "<br>".join(f"{METHOD_ROWS[c['row']]} {spread(c)}" for c in ranked)
        short = {"pooled": "Centralised", "server": "Server only", "sites": "Local only"}
        bounds = "<br>".join(f"{name} {number(column[b]['ours'])}" for name, b in short.items())
        rows.append(line([when, s.start, *(text.replace(" ", "\u00a0") for text in (lowest, bounds))]))  # one a line
    return "\n".join(rows) + "\n"


def numbers() -> str:
    """Regression under our protocol: NLL per point, the lowest federated value of a set in bold."""
    every = cells("hasan2024", "honest")
    columns = list(dict.fromkeys(c["column"] for c in every))
    names = [r for r in dict.fromkeys(c["row"] for c in every) if not r.endswith("tempered")]
    names.sort(key=lambda r: r in BOUNDS)
    value = {(c["row"], c["column"]): c for c in every}
    best = {column: min(value[r, column]["ours"] for r in names if r not in BOUNDS) for column in columns}
    rows = [line(["NLL per point", *(c.replace("_", " ") for c in columns)]), line(["---", *["---:"] * len(columns)])]
    for row in names:
        texts = [spread(value[row, c]) for c in columns]
        for i, column in enumerate(columns):
            if value[row, column]["ours"] == best[column]:
                texts[i] = f"**{texts[i]}**"
        rows.append(line([row + " (bound)" * (row in BOUNDS), *texts]))
    return "\n".join(rows) + "\n"


def traffic() -> str:
    """What all sites together sent, and what it bought, on one column."""
    column = "digits/dirichlet:0.1/5"
    sent = [c for c in cells("evidence", "table") if c["column"] == column and c["scores"].get("up_bytes")]
    rivals = [c for c in sent if c["row"] in METHOD_ROWS]
    rows = [line(["", "sent by all sites", "NLL"]), line(["---", "---:", "---:"])]
    for c in sorted(rivals, key=lambda c: (c["scores"]["up_bytes"], c["ours"])):
        rows.append(line([METHOD_ROWS[c["row"]], human_bytes(c["scores"]["up_bytes"]), spread(c)]))
    return "\n".join(rows) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "all_methods": method_table,
    "situations": situations,
    "regression": numbers,
    "traffic": traffic,
    "sends": sends,
    "threats": threats,
}


def fill(text: str) -> str:
    """A page with its tables as they are now: each stands between two comments that name it."""

    def table(block: re.Match[str]) -> str:
        return f"{block[1]}\n\n{TABLES[block[2]]()}\n{block[3]}"

    return re.sub(r"(<!-- table: (\w+), [^>]*-->)\n.*?(<!-- end of \2 -->)", table, text, flags=re.DOTALL)


if __name__ == "__main__":  # python docs/pages.py: bring what is made from the code up to date
    FILE.write_text(json.dumps(listing(), ensure_ascii=False, indent=1) + "\n")
    for page in Path(__file__).parent.glob("*.md"):
        page.write_text(fill(page.read_text()))
