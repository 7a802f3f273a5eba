"""Processes that want the same thing at the same time."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HOLDER = """
import sys
from pathlib import Path
from consilience.disk.locks import lock_file, lock_folder
kind, path = sys.argv[1:]
with {"file": lock_file, "folder": lock_folder}[kind](Path(path)):
    print("held", flush=True)
    sys.stdin.read()
"""
Try = tuple[str, list[str]]  # a folder, and the words of a command that is run there


@contextlib.contextmanager
def holder(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of a file or a folder."""
    command = [sys.executable, "-c", HOLDER, kind, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def race(*rivals: Sequence[Try]) -> list[list[tuple[int, str]]]:
    """Run commands in as many processes as there are rivals, each try of all of them at once → codes and errors."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["consilience.cli", "consilience.runs.run"])  # once for all races of a process
    barrier = context.Barrier(len(rivals))
    pipes = [context.Pipe(duplex=False) for _ in rivals]
    arguments = zip(rivals, pipes, strict=True)
    processes = [context.Process(target=_act, args=(barrier, tries, pipe[1])) for tries, pipe in arguments]
    for process in processes:
        process.start()
    for _, writer in pipes:
        writer.close()  # else a rival that dies is waited for without end
    outcomes = [reader.recv() for reader, _ in pipes]
    for process in processes:
        process.join()
    return outcomes


def _act(barrier: Any, tries: Sequence[Try], pipe: Any) -> None:
    from consilience import cli
    from consilience.cli import screen

    outcomes = []
    for folder, words in tries:
        os.chdir(folder)
        sys.argv = ["consilience", *words]
        error = io.StringIO()
        barrier.wait()
        with contextlib.redirect_stdout(io.StringIO()):
            screen.err.file = error
            try:
                cli.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except Exception:  # the other must not wait for ever
                code = 1
                error.write(traceback.format_exc())
        outcomes.append((code, error.getvalue()))
    pipe.send(outcomes)
