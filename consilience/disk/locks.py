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
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from consilience.disk.writing import PRIVATE, make_folder, remove_parts
from consilience.errors import InputError

if TYPE_CHECKING:  # no part of the reference
    P = ParamSpec("P")
    R = TypeVar("R")
FILE_WAIT = 10.0  # seconds that a command waits for a file, which others hold for a moment
FOLDER_WAIT = 1.0  # seconds that it waits for a folder, which others hold as long as they run
PAUSE = 0.02  # seconds between two tries
NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # what file systems without locks say
_held = threading.local()  # the locks of this thread, so that what it calls may ask for them again

if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # beyond the note, which others may read

    def _try(descriptor: int) -> None:
        os.lseek(descriptor, FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _end(descriptor: int) -> None:
        os.lseek(descriptor, FAR, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _try(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _end(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


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
    held: set[str] = _held.__dict__.setdefault("paths", set())
    name = os.path.realpath(path)
    if name in held:
        yield
        return
    try:
        descriptor = _acquire(path, target, time.monotonic() + wait)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Choose another place.") from error
    held.add(name)
    try:
        yield
    finally:
        held.discard(name)
        _release(path, descriptor)


def _acquire(path: Path, target: Path, end: float) -> int:
    """Open and lock a file, trying until the end; one that its last owner removed meanwhile is opened anew."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        descriptor = os.open(path, flags, PRIVATE)
        try:
            _try(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno in NO_LOCKS:
                return _go_without(path, target)
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise
            if time.monotonic() >= end:
                raise InputError(_refusal(path, target)) from None
            time.sleep(PAUSE)
            continue
        if _is_at(path, descriptor):
            _sign(descriptor)
            return descriptor
        os.close(descriptor)


def _go_without(path: Path, target: Path) -> int:
    """Go on where the file system has no locks, and say so."""
    path.unlink(missing_ok=True)
    warnings.warn(
        f"{target} lies on a file system without locks: see to it that no two commands change it at once.",
        stacklevel=2,
    )
    return -1


def _release(path: Path, descriptor: int) -> None:
    """Remove the lock's file while it is still ours, then end the lock."""
    if descriptor < 0:
        return
    with suppress(OSError):  # Windows removes no open file: it stays, and blocks nobody
        path.unlink(missing_ok=True)
    with suppress(OSError):
        _end(descriptor)  # also where a child has a copy of the descriptor
    os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one at its path."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write who holds the lock, and since when."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    note = {"process": os.getpid(), "host": socket.gethostname(), "since": now}
    with suppress(OSError):  # a full disk does not unlock
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, (json.dumps(note) + "\n").encode())


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
