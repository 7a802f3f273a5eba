"""Every code block of the documentation runs, and what is generated from elsewhere is up to date.

`python` blocks of a page run one after another; of `console` blocks the lines that begin with `$ consilience`, with ten
epochs where the page leaves the default. The fast suite takes one step an epoch, the slow one all of them. Output that
a page prints below a command must be in what the command prints.
A block whose first line is `# not run here: …` tells its reader why. `# file: name.py` writes the block to that file.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tiny import Invoke, copy_tracked, hospitals

ROOT = Path(__file__).parents[2]
COPIES = {"changes.md", "contributing.md"}  # generated from files at the root
PAGES = [p for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in COPIES]
PAGES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
SHOWN = {"python", "console", "text", "json", "toml", "yaml", "ini", "csv", "dockerfile", "html"}
ELSEWHERE = {"study.md": "sh"}  # blocks that tests/documentation/test_docs_study.py runs
NOT_RUN = "# not run here:"


class Block(NamedTuple):
    kind: str
    line: int
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, without the directives of Sphinx."""
    text = page.read_text()
    for match in re.finditer(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL):
        if not match[2].startswith("{"):
            yield Block(match[2], text[: match.start()].count("\n") + 1, textwrap.dedent(match[3]))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three hospitals' files and the tables of a fresh clone, where a page may write and import."""
    hospitals(tmp_path / "hospitals")
    copy_tracked("examples/clinics", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_block_says_what_it_is() -> None:
    for page in PAGES:
        for block in blocks(page):
            where = f"{page.name}:{block.line}"
            assert block.kind in {*SHOWN, ELSEWHERE.get(page.name)}, (
                f"{where}: name the block's language: python, console, or text if it is neither"
            )
            if block.kind == "console" and not block.text.startswith(NOT_RUN):
                commands = re.findall(r"^\$ (\S+)", block.text, re.MULTILINE)
                assert commands, f"{where}: a console block's commands begin with '$ '"
                assert set(commands) == {"consilience"}, f"{where}: only consilience runs here; say '{NOT_RUN} …'"


WITH_CODE = [p for p in PAGES if any(b.kind in ("python", "console") for b in blocks(p))]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.stem)
@pytest.mark.usefixtures("elsewhere", "hurried")
def test_code_of_a_page_runs(page: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, invoke, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: p.stem)
@pytest.mark.usefixtures("elsewhere")
def test_code_of_a_page_trains(page: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, invoke, monkeypatch)


def run_page(page: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(page):
        if block.text.startswith(NOT_RUN):
            continue
        if block.kind == "python":
            run_python(block, page, module)
        elif block.kind == "console":
            run_console(block, page, invoke)


def run_python(block: Block, page: Path, module: types.ModuleType) -> None:
    named = re.match(r"# file: (\S+)\n", block.text)
    if named:
        Path(named[1]).write_text(block.text)
        return
    padded = "\n" * block.line + block.text  # so that an error names the page's line
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(padded, str(page), "exec"), module.__dict__)
    for line in re.findall(r"# prints: (.*)", block.text):
        assert line in printed.getvalue().splitlines(), f"{page.name}:{block.line}: does not print '{line}'"


def run_console(block: Block, page: Path, invoke: Invoke) -> None:
    joined = block.text.replace("\\\n", " ")
    for command, below in re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n?)*)", joined, re.MULTILINE):
        words = shlex.split(command, comments=True)[1:]
        paced = "inference.epochs" in command or "inference.steps" in command
        exact = "--event" in command or words[1:2] == ["glm"]  # sums, which take no epochs
        if words[0] in ("run", "compare") and not exact and not paced and "--resume" not in command:
            words += ["--set", "inference.epochs=10"]
        if words[0] == "run" and "--resume" not in command:
            words.append("--no-bounds")  # which take most of the time
        code, out, err = invoke(*words)
        assert code == 0, f"{page.name}:{block.line}: '{command}' failed: {err}"
        printed = " ".join(out.split())
        for line in below.splitlines():
            assert " ".join(line.split()) in printed, f"{page.name}:{block.line}: '{command}' does not print '{line}'"


@pytest.fixture(scope="module")
def pages() -> Iterator[types.ModuleType]:
    """`docs/pages.py`."""
    sys.path.insert(0, str(ROOT / "docs"))
    import pages

    yield pages
    sys.path.remove(str(ROOT / "docs"))


def test_every_method_has_its_page_from_its_file(pages: types.ModuleType) -> None:
    from consilience.methods import METHODS

    for name in METHODS:
        page = pages.method_page(name)
        assert page.startswith(f"# {name}\n")
        assert METHODS[name].about.sends in page
    beta = pages.method_page("beta")
    assert "Hasan et al., AAAI 2024" in beta and "4   β ← argmax" in beta and "`inference.temperature`" in beta


def test_an_absent_page_is_left_out_and_a_new_one_is_listed(pages: types.ModuleType, tmp_path: Path) -> None:
    for name in ("index", "known", "new"):
        (tmp_path / f"{name}.md").write_text("# Page\n")
    index = f"```{{toctree}}\n:caption: Start\n\nknown\nabsent\n```\n\n{pages.OTHERS}\n"

    made = pages.complete(index, tmp_path)

    assert made == "```{toctree}\n:caption: Start\n\nknown\n```\n\n```{toctree}\n:caption: More\n\nnew\n```\n"


def test_the_threat_model_asks_every_method_whether_it_is_a_sum(pages: types.ModuleType) -> None:
    from consilience.method import Bound
    from consilience.method.declared import summation
    from consilience.methods import METHODS

    table = {row.split("`")[1]: row for row in pages.threats().splitlines() if "`" in row}
    federated = {name: kind for name, kind in METHODS.items() if not issubclass(kind, Bound)}

    assert table.keys() == federated.keys()
    for name, kind in federated.items():
        assert kind.about.sends in table[name]
        assert ("the sum" in table[name]) == (summation(kind()) is not None), name


@pytest.mark.parametrize("page", sorted(path.stem for path in (ROOT / "docs").glob("*.md")))
def test_tables_in_pages_are_those_of_the_results(pages: types.ModuleType, page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()

    assert pages.fill(text) == text, "run: python docs/pages.py"
    assert "{include} parts/" not in text  # a table can be read without building the page


def test_the_page_of_choices_has_its_tables(pages: types.ModuleType) -> None:
    page = (ROOT / "docs" / "choose.md").read_text()

    for name in ("situations", "regression", "traffic"):
        assert pages.TABLES[name]() in page


def test_the_readme_is_short_and_counts_the_methods_there_are() -> None:
    from consilience.methods import METHODS

    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= 120
    assert f"There are {len(METHODS)} in all." in readme
