"""Arrays whose header lies: refused before memory is taken for what it claims."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from consilience.data.datasets.vision import _members
from consilience.data.npy import check_npz, read_npy
from consilience.errors import InputError

MANY = 10**9


def npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def lying(shape: tuple[int, ...], descr: str = "<f4", content: bytes = b"") -> bytes:
    """A file of numpy's whose header claims what is not there."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + content


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_come_back(order: Any) -> None:
    for kind in ("?", "<i8", "<f4", "<f8", "<u1", ">f4"):
        for shape in ((), (0,), (0, 3), (4,), (2, 3, 2)):
            array = np.array(np.arange(np.prod(shape, dtype=int)).reshape(shape), kind, order=order)
            back = read_npy(npy(array))
            assert back.dtype == array.dtype and np.array_equal(back, array) and back.flags.c_contiguous


@pytest.mark.parametrize(
    "raw",
    [
        lying((MANY,)),
        lying((MANY, MANY)),
        lying((2,), content=b"1234"),
        lying((1,), content=b"12345678"),
        lying((-1,), content=b"1234"),
        lying((1,), "|O", b"12345678"),
        lying((4,), "|S1", b"1234"),
        lying((2, MANY), "|V0"),
        lying((1,), content=b"1234")[:40],
        b"",
        b"\x93NUMPY\x09\x00",
        b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
    ],
)
def test_a_header_that_lies_is_refused_without_memory(raw: bytes) -> None:
    with little_memory(), pytest.raises(InputError):
        read_npy(raw)


def test_an_archive_whose_header_lies_is_refused_without_memory(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("x_train.npy", lying((MANY,)))

    with little_memory():
        with pytest.raises(InputError, match="4,000,000,000 bytes, and there are 0"):
            check_npz(path)
        with pytest.raises(InputError, match=r"images\.npz cannot be read"):
            _members(path, "_train")

    np.savez(path, x_train=np.zeros((2, 3)), names=np.array(["a", "bc"]))
    check_npz(path)
