"""A command that is killed (SIGKILL) before it changes a file for the n-th time, or before a file takes its place.

    python killing.py 7 site fit sepsis.toml data.csv            # dies before the seventh change
    python killing.py north.reply site fit sepsis.toml data.csv  # dies before north.reply is there
    python killing.py 0 site fit sepsis.toml data.csv            # comes to its end, and says how many there were

The interpreter itself reports what it opens for writing, renames, links, removes and makes, whoever's code does it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.truncate"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


def watch(folder: Path, when: str) -> Callable[[], int]:
    """Die at the agreed moment; what it returns tells how many changes there were so far."""
    count = 0

    def changes(event: str, words: tuple[Any, ...]) -> bool:
        if event == "open":
            return isinstance(words[0], str | bytes | os.PathLike) and bool((words[2] or 0) & WRITES)
        return event in CHANGES

    def hook(event: str, words: tuple[Any, ...]) -> None:
        nonlocal count
        if not changes(event, words):
            return
        paths = [Path(os.fsdecode(word)).absolute() for word in words[:2] if isinstance(word, str | bytes | Path)]
        if not any(path.is_relative_to(folder) for path in paths):
            return
        count += 1
        lands = event in ("os.rename", "os.link") and paths[-1].name == when
        if lands or str(count) == when:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: count


def main() -> None:
    from consilience import cli

    when, *words = sys.argv[1:]
    sys.argv = ["consilience", *words]
    counted = watch(Path.cwd(), when)
    try:
        cli.main()
    finally:
        print(f"changes {counted()}", file=sys.stderr)


SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["consilience.cli", "consilience.study.site", "torch"])


def fork(folder: Path, when: str, words: list[str]) -> int:
    """The same in a child of a process that loaded torch and runs nothing, so that no thread's lock is copied.

    Returns its exit code, or minus the signal it died of.
    """
    child = SERVER.Process(target=_be, args=(folder, when, words))
    child.start()
    child.join()
    assert child.exitcode is not None
    return child.exitcode


def _be(folder: Path, when: str, words: list[str]) -> None:
    os.chdir(folder)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 — until the child ends
    sys.argv = ["killing.py", when, *words]
    main()


if __name__ == "__main__":
    main()
