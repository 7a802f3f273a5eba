"""A cache for what takes long to decode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from consilience.disk.data_folder import cache_folder


def decode(path: Path, decoder: Callable[[Path], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Decode a file, or read what it was decoded to before; the cache is keyed by path, size and time of change.

    Args:
        decoder: What makes tensors of it.

    Returns:
        The tensors by name; where the cache cannot be written, they are decoded every time.
    """
    status = path.stat()
    form = 1  # one more whenever a decoder returns something else, so that nothing stale is read
    key = hashlib.sha256(f"{form} {path.resolve()} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]
    cached = cache_folder() / "decoded" / f"{path.stem}-{key}.safetensors"
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
