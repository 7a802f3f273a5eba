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


def data_folder(data_dir: str | None) -> Path:
    """Find the folder of the data files.

    Args:
        data_dir: The folder; by default the one in CONSILIENCE_DATA, or the user's cache.

    Returns:
        The folder, which need not exist.
    """
    path = data_dir or os.environ.get(VARIABLE)
    if not path:
        return _cache()
    return Path(path).expanduser()


def locate(name_of_file: str, data_dir: str | None) -> Path | None:
    """Look for a file in the data folder, and in its part for tables.

    Args:
        name_of_file: The name of the file.
        data_dir: The folder, as in `data_folder`.

    Returns:
        Where it is; None where there is no such file.
    """
    folder = data_folder(data_dir)
    places = (folder / name_of_file, folder / "tabular" / name_of_file)
    return next((place for place in places if os.path.isfile(place)), None)


def find(name_of_file: str, data_dir: str | None, get: str | None = None) -> Path:
    """Find a file in the data folder.

    Args:
        name_of_file: The name of the file.
        data_dir: The folder, as in `data_folder`.
        get: The name under which the file can be fetched, for the error message; None where it cannot.

    Returns:
        Where it is.

    Raises:
        InputError: There is no such file.
    """
    path = locate(name_of_file, data_dir)
    if path is None:
        remedy = f"pass the folder that has it as data_dir, or set {VARIABLE} to it"
        if get:
            remedy = f"type `consilience datasets get {get}`, or {remedy}"
        raise InputError(f"There is no {name_of_file} in '{data_folder(data_dir)}': {remedy}.")
    return path


def decode(path: Path, decoder: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Decode a file, or read what it was decoded to before; the cache is keyed by path, size and time of change.

    Args:
        path: The file.
        decoder: What makes tensors of it.

    Returns:
        The tensors by name; where the cache cannot be written, they are decoded every time.
    """
    status = path.stat()
    form = 1  # one more whenever a decoder returns something else, so that nothing stale is read
    key = hashlib.sha256(f"{form} {path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    cached = _cache() / "decoded" / f"{path.stem}-{key}.safetensors"
    with suppress(OSError, SafetensorError):
        return load_file(cached)
    tensors = decoder(path)
    partial = cached.with_suffix(f".{os.getpid()}")  # renamed when complete, so that nobody reads half a file
    with suppress(OSError, SafetensorError):
        cached.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial)
        partial.replace(cached)
    with suppress(OSError):
        partial.unlink(missing_ok=True)
    return tensors


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "consilience"
