"""Arrays in numpy's format from strangers: what a header claims is compared with the bytes before memory is taken."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from consilience.errors import InputError

KINDS = "biuf"  # booleans, whole numbers and floats: no objects, which would be code


def read_npy(raw: bytes, kinds: str = KINDS) -> np.ndarray[Any, Any]:
    """Read an array of numbers from the bytes of an `.npy` file.

    Args:
        kinds: The kinds of numbers that may be inside, by numpy's letters.

    Returns:
        The array, a copy of the bytes.

    Raises:
        InputError: The bytes are not such a file, or it claims another size than it has.
    """
    file = io.BytesIO(raw)
    shape, fortran, dtype = _read_header(file)
    start = file.tell()
    if dtype.kind not in kinds:
        raise InputError(f"The array holds values of type '{dtype}', and only numbers are read.")
    _check_size(shape, dtype, len(raw) - start)
    if len(raw) == start:
        return np.zeros(shape, dtype)
    values = np.frombuffer(raw, dtype, offset=start)
    if fortran:
        return values.reshape(shape[::-1]).T.copy()
    return values.reshape(shape).copy()


def check_npz(path: Path) -> None:
    """Compare the header of every array in an `.npz` archive with the size of its part, before any is decoded.

    Raises:
        InputError: The file is not such an archive, or an array in it claims another size than it has.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                with archive.open(part) as file:
                    shape, _, dtype = _read_header(file)
                    _check_size(shape, dtype, part.file_size - file.tell())
    except (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        raise InputError(f"{path.name} cannot be read ({error}): remove it and get it again.") from None


def _read_header(file: BinaryIO | Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type as the header gives them."""
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(file)
    except Exception as error:  # numpy evaluates the header as a literal: any byte may be anything
        raise InputError("The header of the array is damaged.") from error
    raise InputError(f"The array is in format {version[0]}.{version[1]} of numpy, and 1.0 and 2.0 are read.")


def _check_size(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> None:
    claimed = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or claimed != nbytes:
        raise InputError(f"The header claims an array of {claimed:,} bytes, and there are {nbytes:,}: it is damaged.")
