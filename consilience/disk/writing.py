"""Files written whole or not at all, and kept when the power fails: the only place where this package writes one.

A file is made beside its target under a name that nobody can foresee, so that no link planted there is followed,
reaches the disk, and then takes the target's place.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from consilience.errors import InputError

SHARED = 0o666  # permissions of a file that others may read; the umask takes what it takes from all files
PRIVATE = 0o600  # of one that holds what a site or a study knows
STALE = 86_400.0  # seconds after which nobody is writing a part any more
PART = re.compile(r"\.[0-9a-f]{16}\.part")
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EISDIR}  # what systems say that do not sync folders
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # the same of hard links, as on a memory stick


def write_whole(path: Path, content: bytes, remedy: str, mode: int = SHARED, sync: bool = True) -> None:
    """Write a file whole or not at all, in place of the one that is there.

    Args:
        path: The file; its folder is made.
        remedy: A sentence that says what to do where it cannot be written.
        mode: Its permissions; a folder made for a private file is private too.
        sync: Whether its name must survive a loss of power at once; False where `sync_folder` follows.

    Raises:
        InputError: The file cannot be written.
    """
    try:
        make_folder(path.parent, private=mode == PRIVATE)
        with _part(path.parent, content, mode) as part:
            os.replace(part, path)
        if sync:
            sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. {remedy}") from error


def write_new(path: Path, content: bytes, mode: int, caution: str) -> None:
    """Write a file whole or not at all; one that exists is left as it is.

    Args:
        path: The file; its folder is made.
        caution: What to tell the user where the file exists.

    Raises:
        InputError: The file exists or cannot be written.
    """
    try:
        make_folder(path.parent)
        with _part(path.parent, content, mode) as part:
            _link(part, path)
        sync_folder(path.parent)
    except FileExistsError:
        raise InputError(f"{path} already exists: {caution}.") from None
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}.") from error


def append_line(path: Path, line: str) -> None:
    """Add a line to a private file, which is made where there is none; a link in its place is not followed.

    Args:
        path: The file; its folder is made.
        line: The line, without its end.

    Raises:
        OSError: The file cannot be written.
    """
    make_folder(path.parent, private=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags, PRIVATE), "a", encoding="utf-8") as file:
        file.write(line + "\n")


def make_folder(path: Path, private: bool = False) -> list[Path]:
    """Make a folder, and those around it that are missing.

    Args:
        path: The folder; one that exists stays as it is.
        private: Whether only its owner may look into what is made.

    Returns:
        The folders that were made, the outermost first.

    Raises:
        OSError: It cannot be made, or something else lies there.
    """
    mode = 0o777
    if private:
        mode = 0o700
    made = []
    for folder in [*reversed(path.parents), path]:
        if folder.is_dir():
            continue
        try:
            folder.mkdir(mode)
        except FileExistsError:
            if not folder.is_dir():  # else another process was faster
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        else:
            sync_folder(folder.parent)
            made.append(folder)
    return made


def sync_folder(folder: Path) -> None:
    """Let the names in a folder reach the disk, where the system can.

    Raises:
        OSError: The disk failed.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def remove_parts(folder: Path, age: float = 0.0) -> None:
    """Remove what writers that were killed left in a folder.

    Args:
        age: The seconds that a part has not been written to; 0 for whoever has the folder to itself.
    """
    before = time.time() - age
    with suppress(OSError):
        for path in folder.iterdir():
            if PART.fullmatch(path.name) and (not age or path.lstat().st_mtime < before):
                path.unlink(missing_ok=True)


@cache
def _tidy(folder: Path) -> None:
    """Remove old parts, once a process: folders may hold many files."""
    remove_parts(folder, STALE)


@contextmanager
def _part(folder: Path, content: bytes, mode: int) -> Iterator[Path]:
    """A new file whose content has reached the disk; gone afterwards unless it was given another name."""
    _tidy(folder.absolute())
    part = folder / f".{secrets.token_hex(8)}.part"
    try:
        with os.fdopen(os.open(part, _NEW, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield part
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _link(part: Path, path: Path) -> None:
    """Give a file its name, unless that is taken."""
    try:
        os.link(part, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(part, path)
