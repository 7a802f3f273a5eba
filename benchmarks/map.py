"""The map of the package, for a person to read: python -m benchmarks.map, or make map. Nothing here is a limit.

Rooms and how many imports stay inside theirs, who uses a room alone, file names that occur in several rooms, how wide
the contract is, and what a reader walks through who follows a run, a comparison and a study from call to answer.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path(__file__).parents[1] / "consilience"
FILES = sorted(PACKAGE.rglob("*.py"))


def name(file: Path) -> str:
    """The dotted name of a file, without the package's."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name(file) for file in FILES}


@cache
def imported(file: Path, first: bool = False) -> tuple[str, ...]:
    """What a file imports from the package; `first`: as it is loaded, not when a function is called."""
    found = []
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in tree.body if first else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "consilience":
            home = ".".join((node.module or "").split(".")[1:])
            for alias in node.names:
                whole = f"{home}.{alias.name}".strip(".")
                found.append(whole if whole in NAMES else home)
    return tuple(module for module in found if module)


def room(module: str) -> str:
    return module.split(".", maxsplit=1)[0]


def longest_chain() -> int:
    """How many files lie on the longest way down by imports."""
    below = {name(file): {m for m in imported(file, first=True) if m != name(file)} for file in FILES}

    @cache
    def depth(module: str) -> int:
        return 1 + max((depth(m) for m in below.get(module, ()) if "." in m), default=0)

    try:
        return max(depth(module) for module in below if "." in module)
    except RecursionError:
        return 0  # a cycle of files


def widths() -> Iterator[tuple[int, str]]:
    """How many parameters each public function takes."""
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and "cli" not in file.parts:
                count = len(node.args.args) + len(node.args.kwonlyargs) + len(node.args.posonlyargs)
                yield count, f"{name(file)}.{node.name}"


def named_getattrs(file: Path) -> int:
    """How often a file asks for an attribute that may not be there, by a name that is written out."""
    calls = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    asked = [node.args for node in calls if isinstance(node.func, ast.Name) and node.func.id == "getattr"]
    return sum(len(args) > 1 and isinstance(args[1], ast.Constant) for args in asked)


@contextlib.contextmanager
def walking() -> Iterator[dict[str, set[str]]]:
    """Note the functions, files and rooms that are entered."""
    seen: dict[str, set[str]] = {"functions": set(), "files": set(), "rooms": set()}
    root = str(PACKAGE)

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(root):
            where = Path(file).relative_to(PACKAGE)
            seen["functions"].add(f"{where}:{frame.f_code.co_qualname}")
            seen["files"].add(str(where))
            seen["rooms"].add(where.parts[0].removesuffix(".py"))

    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)


def run_once() -> None:
    """FedAvg, two rounds on moons."""
    import consilience as co

    sites = co.datasets.moons(90, seed=0).split(co.splits.iid(), sites=3, calibration=0, seed=0)
    task = co.classification(co.models.linear(sites.features, sites.classes))
    co.run(co.methods.METHODS["fedavg"](), task, sites, rounds=2, engine="sequential")


def compare_once() -> None:
    """Two rows, one seed."""
    import consilience as co

    with tempfile.TemporaryDirectory() as folder:
        co.compare(
            ["fedavg", "mixture"],
            co.Problem("moons", model="linear", sites=3),
            out=f"{folder}/comparison",
            bounds=False,
        )


COLUMNS = """
[target]
name = "ill"
classes = ["no", "yes"]
[columns]
age = { type = "number", range = [0, 6], centre = 3, spread = 2 }
dose = { type = "number", range = [0, 4], centre = 2, spread = 1.5 }
"""
SITES = ("north", "south", "west")


def in_a_study(follow: Callable[[], None]) -> Callable[[], None]:
    """Walk in a folder with the tables of three sites."""

    def walk() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            Path("columns.toml").write_text(COLUMNS, encoding="utf-8")
            for k, site in enumerate(SITES):
                rows = "\n".join(f"{i % 7},{(3 * i + k) % 5},{'yes' if (i * 7) % 3 else 'no'}" for i in range(90))
                Path(f"{site}.csv").write_text(f"age,dose,ill\n{rows}\n", encoding="utf-8")
            follow()

    return walk


def type_in(*lines: str) -> None:
    """Type command lines, which must work."""
    from consilience.cli import main

    for line in lines:
        sys.argv = ["consilience", *line.split()]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"{line}: exit code {end.code}") from end


def join_study() -> None:
    """A study that three sites sign."""
    type_in("study new s --columns columns.toml --method exact --rows-per-parameter 1")
    type_in(*(f"site join s.toml {site} {site}.csv" for site in SITES))
    type_in(f"study add s.toml {' '.join(f'{site}.join' for site in SITES)}")


def play_by_files() -> None:
    """From the first command to a model that the sites' statistics tempered."""
    join_study()
    for site in SITES:
        type_in(f"site fit s.toml {site}.csv --key {site}.key")
    type_in(f"study pool s.toml {' '.join(f'{site}.reply' for site in SITES)}")
    for site in SITES:
        type_in(f"site statistics s.toml s.model {site}.csv --key {site}.key")
    type_in(f"study choose s.toml s.model {' '.join(f'{site}.statistics' for site in SITES)}")


def play_deployed() -> None:
    """One round over Flower's messages, carried by a grid in this process."""
    sys.path.insert(0, str(PACKAGE.parent / "tests" / "helpers"))
    import loopback

    from consilience.study.flower.server import rounds
    from consilience.study.flower.site import site_of
    from consilience.study.protocol.members import read
    from consilience.study.protocol.signature import read_key

    join_study()
    study = read(Path("s.toml"))
    sites = [
        site_of(study, member, read_key(Path(f"{member.name}.key")), Path(f"{member.name}.csv"), Path(member.name))
        for member in study.active
    ]
    rounds(study, read_key(Path("s.key")), loopback.Loopback(sites), Path("run"), wait=5.0, deadline=5.0)


WALKS = {
    "run": run_once,
    "compare": compare_once,
    "study until all have joined": in_a_study(join_study),
    "study": in_a_study(play_by_files),
    "deployed round": in_a_study(play_deployed),
}


def main() -> None:
    """Print the map."""
    from consilience.method import About, Method, capabilities

    rooms = sorted({room(name(file)) for file in FILES if len(file.relative_to(PACKAGE).parts) > 1})
    pairs = [(name(file), module) for file in FILES for module in imported(file)]
    edges = [(a, b) for a, b in pairs if room(a) in rooms and room(b) in rooms]
    inside = sum(room(a) == room(b) for a, b in edges)
    users: dict[str, set[str]] = defaultdict(set)
    for a, b in edges:
        if room(a) != room(b):
            users[room(b)].add(room(a))
    names = Counter(file.name for file in FILES if file.name not in ("__init__.py", "__main__.py"))
    functions = [n for n, v in vars(Method).items() if inspect.isfunction(v) and not n.startswith("_")]
    facts = [field.name for field in dataclasses.fields(About)]
    able = {
        n: sum(not hook.startswith("_") and callable(v) for hook, v in vars(kind).items())
        for n, kind in vars(capabilities).items()
        if inspect.isclass(kind) and kind.__module__ == capabilities.__name__ and not issubclass(kind, tuple)
    }
    print(f"rooms / files at the root: {len(rooms)} / {len(list(PACKAGE.glob('*.py')))}; {len(FILES)} files in all")
    print(f"imports that stay inside their room: {inside / len(edges):.0%}")
    print(f"longest import chain: {longest_chain() or 'a cycle'}")
    print(f"rooms with one user: {', '.join(r for r in rooms if len(users[r]) == 1) or 'none'}")
    print(
        f"file names that occur in several rooms: {', '.join(sorted(n for n, c in names.items() if c > 1)) or 'none'}"
    )
    print(f"About: {len(facts)} facts ({', '.join(facts)})")
    print(f"Method: {len(functions)} functions ({', '.join(functions)})")
    print("capabilities, with their functions: " + ", ".join(f"{n} {count}" for n, count in able.items()))
    print(f"calls of getattr with a name written out: {sum(map(named_getattrs, FILES))}")
    print("widest public functions: " + ", ".join(f"{n} ({w})" for w, n in sorted(widths(), reverse=True)[:5]))
    for title, follow in WALKS.items():
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), walking() as seen:
            follow()
        print(
            f"{title}: {len(seen['functions'])} functions in {len(seen['files'])} files of {len(seen['rooms'])} rooms"
        )


if __name__ == "__main__":
    main()
