"""Where data files lie, and a cache for what takes long to decode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from consilience.errors import InputError

VARIABLE = "CONSILIENCE_DATA"


def folder(data_dir: str | None) -> Path:
    """Where data files lie: the folder given, else the one in CONSILIENCE_DATA, else the user's cache."""
    given = data_dir or os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else _cache()


def locate(name_of_file: str, data_dir: str | None) -> Path | None:
    """The file, in the data folder or in its part for tables; None where there is no such file."""
    places = (folder(data_dir) / name_of_file, folder(data_dir) / "tabular" / name_of_file)
    return next((place for place in places if os.path.isfile(place)), None)


def find(name_of_file: str, data_dir: str | None, get: str | None = None) -> Path:
    """The file, or the error that says where it was looked for; `get` is the name under which it can be fetched."""
    path = locate(name_of_file, data_dir)
    if path is None:
        fetched = f"type `consilience datasets get {get}`, or " if get else ""
        raise InputError(
            f"There is no {name_of_file} in '{folder(data_dir)}': {fetched}pass the folder that has it with "
            f"--data-dir, or set {VARIABLE} to it."
        )
    return path


def decode(path: Path, decode: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What `decode` makes of a file, kept until the file changes; where nothing can be kept, decoded every time."""
    facts = path.stat()
    form = 1  # one more whenever `decode` returns something else, so that nothing stale is read
    key = hashlib.sha256(f"{form} {path.resolve()} {facts.st_size} {facts.st_mtime_ns}".encode()).hexdigest()[:16]
    kept = _cache() / "decoded" / f"{path.stem}-{key}.safetensors"
    with suppress(OSError, SafetensorError):
        return load_file(kept)
    made = decode(path)
    partial = kept.with_suffix(f".{os.getpid()}")  # renamed when complete, so that nobody reads half a file
    with suppress(OSError, SafetensorError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        save_file(made, partial)
        partial.replace(kept)
    with suppress(OSError):
        partial.unlink(missing_ok=True)
    return made


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "consilience"
