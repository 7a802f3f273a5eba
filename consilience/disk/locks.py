"""Locks: a file or folder that one command changes at a time. Who holds one, and since when, is written in it.

The operating system ends a lock with the process that holds it, however that dies: what is left of a lock never blocks.
"""

from __future__ import annotations

import datetime
import errno
import functools
import inspect
import json
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from filelock import FileLock, Timeout

from consilience.disk.writing import PRIVATE, make_folder, remove_parts
from consilience.errors import InputError

if TYPE_CHECKING:  # no part of the reference
    P = ParamSpec("P")
    R = TypeVar("R")
FILE_WAIT = 10.0  # seconds that a command waits for a file, which others hold for a moment
FOLDER_WAIT = 1.0  # seconds that it waits for a folder, which others hold as long as they run
PAUSE = 0.02  # seconds between two tries
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # what file systems without locks say


@contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Have a file to oneself, from reading it to writing it again. A thread that has it may ask again.

    Args:
        path: The file; where its folder does not exist, there is nothing to lock.

    Yields:
        Nothing.

    Raises:
        InputError: Another process has the file, or its folder cannot be written.
    """
    if not path.parent.is_dir():
        yield
        return
    with _lock(path.with_name(f".{path.name}.lock"), path, FILE_WAIT):
        yield


@contextmanager
def lock_folder(folder: Path, private: bool = False) -> Iterator[None]:
    """Have a folder to oneself, as long as one writes into it. A thread that has it may ask again.

    Args:
        folder: The folder; it is made, and removed again if nothing was written.
        private: Whether only its owner may look into it, where it is made.

    Yields:
        Nothing.

    Raises:
        InputError: Another process has the folder, or it cannot be written.
    """
    try:
        made = make_folder(folder, private)
    except OSError as error:
        raise InputError(f"Cannot write {folder}: {error.strerror}. Choose another folder.") from error
    try:
        with _lock(folder / ".lock", folder, FOLDER_WAIT):
            remove_parts(folder)
            yield
    finally:
        with suppress(OSError):
            for empty in reversed(made):
                empty.rmdir()


def locking(parameter: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function have to itself the folder that one of its arguments names; None names no folder.

    Returns:
        A decorator.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            folder = signature.bind(*args, **kwargs).arguments.get(parameter)
            if folder is None:
                return function(*args, **kwargs)
            with lock_folder(Path(folder)):
                return function(*args, **kwargs)

        return call

    return decorate


@contextmanager
def _lock(path: Path, target: Path, wait: float) -> Iterator[None]:
    """Hold the lock at a path, once for however many ask for it one inside the other."""
    place = os.path.join(os.path.realpath(path.parent), path.name)
    lock = FileLock(place, wait, mode=PRIVATE, poll_interval=PAUSE, is_singleton=True, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(_refusal(path, target)) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise InputError(f"Cannot write {path}: {error.strerror}. Choose another place.") from error
        path.unlink(missing_ok=True)
        warnings.warn(
            f"{target} lies on a file system without locks: see to it that no two commands change it at once.",
            stacklevel=2,
        )
        yield
        return
    is_first = lock.lock_counter == 1
    if is_first:
        _sign(path)
    try:
        yield
    finally:
        if is_first:
            with suppress(OSError):  # removed while it is still ours; Windows removes no open file, which blocks nobody
                path.unlink(missing_ok=True)
        lock.release()


def _sign(path: Path) -> None:
    """Write who holds the lock, and since when."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    note = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
    with suppress(OSError):  # a full disk does not unlock
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0))
        try:
            os.write(descriptor, (json.dumps(note) + "\n").encode())
        finally:
            os.close(descriptor)


def _refusal(path: Path, target: Path) -> str:
    """The sentence for whoever comes second."""
    holder = "another process"
    with suppress(OSError, ValueError, KeyError, TypeError):
        with path.open("rb") as file:
            note = json.loads(file.read(1000))
        since = datetime.datetime.fromisoformat(note["since"])
        age = datetime.datetime.now(datetime.UTC) - since
        seconds = datetime.timedelta(seconds=max(0, int(age.total_seconds())))
        holder = f"process {int(note['process'])} on {note['host']} since {since:%Y-%m-%d %H:%M:%S} UTC ({seconds} ago)"
    return f"{target} is in use by {holder}: run the command again when that has ended. Nothing was changed."
