"""Files for the data folder from OpenML, checked against the published originals before they are kept."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from consilience.data.datasets.vision import encode_delta
from consilience.disk.writing import write_whole
from consilience.errors import InputError

Array = np.ndarray[Any, Any]
WINE = (
    "fixed acidity",
    "volatile acidity",
    "citric acid",
    "residual sugar",
    "chlorides",
    "free sulfur dioxide",
    "total sulfur dioxide",
    "density",
    "pH",
    "sulphates",
    "alcohol",
    "quality",
)


class Source(NamedTuple):
    """Where a file comes from, and what must be in it.

    Attributes:
        file: Its name in the data folder.
        number: The number of the data set on OpenML.
        shape: The shape of a row's features.
        train: How many rows come before the official test part; 0 where there is none.
        checksum: SHA-256 of the official rows, features then labels: bytes for images, float32 for tables.
    """

    file: str
    number: int
    shape: tuple[int, ...]
    train: int
    checksum: str


SOURCES = {
    "mnist": Source(
        "mnist.npz", 554, (28, 28), 60000, "c2069063c1105f2bf96266aef1ff68c6e13bdda7a54e37bf19c16f1db24efc83"
    ),
    "fashion_mnist": Source(
        "fashion_mnist.npz", 40996, (28, 28), 60000, "2cbc59191665e1ba3f2494648f17edac5974f748ab89fb2ae05597d658161f54"
    ),
    "cifar10": Source(
        "cifar10.npz", 40927, (3, 32, 32), 50000, "14a2bd144501de0a338b4c67a69c1d3c335f24e5f4e22c78ea4775ad4d3c9e6a"
    ),
    "wine": Source(
        "winequality-red.csv", 40691, (11,), 0, "0ddcf5da7e29881b4753587b47154266e8102d5cfbf40b0870b3c48b9c2e8b00"
    ),
}


def download(name: str, folder: Path) -> Path:
    """Fetch the file of a data set from OpenML, unless it is there.

    Rows that are not the official ones in their official order are refused, since the test part goes by the order.

    Args:
        name: One of `SOURCES`.
        folder: Where to put the file.

    Raises:
        InputError: The connection failed, OpenML sent something else, or the file cannot be written.
    """
    source = SOURCES[name]
    path = folder / source.file
    if path.is_file():
        return path
    x, y = _query(name, source)
    if _checksum(x, y) != source.checksum:
        raise InputError(
            f"What OpenML sent for {name} is not the published file, so nothing was kept: put {source.file} into "
            f"'{folder}' yourself."
        )
    write_whole(path, _content(source, x, y), "Choose another folder with data_dir.")
    return path


def _query(name: str, source: Source) -> tuple[Array, Array]:
    """Features and labels as OpenML has them: bytes for images, double precision for tables."""
    from sklearn.datasets import fetch_openml  # here, because it takes a second that few commands need

    parser = "liac-arff"  # slow, and always there
    if importlib.util.find_spec("pandas"):
        parser = "pandas"
    dtype = np.uint8 if source.train else np.float64
    try:
        x, y = fetch_openml(data_id=source.number, as_frame=False, parser=parser, return_X_y=True)
        return np.asarray(x).astype(dtype).reshape(-1, *source.shape), np.asarray(y).astype(np.float64).astype(dtype)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{name} could not be fetched from OpenML ({error}): check the connection, or pass the folder that has "
            f"{source.file} as data_dir."
        ) from None


def _checksum(x: Array, y: Array) -> str:
    digest = hashlib.sha256()
    for part in (x, y):
        if part.dtype != np.uint8:
            part = part.astype(np.float32)  # noqa: PLW2901 — the published numbers have no more digits
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()


def _content(source: Source, x: Array, y: Array) -> bytes:
    if source.train:
        return _images(source, x, y)
    return _table(x, y)


def _table(x: Array, y: Array) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=";")
    writer.writerow(WINE)
    for row, label in zip(x, y, strict=True):
        writer.writerow([f"{value:.15g}" for value in (*row, label)])
    return text.getvalue().encode()


def _images(source: Source, x: Array, y: Array) -> bytes:
    train = slice(source.train)
    test = slice(source.train, None)
    arrays: dict[str, Any] = {"y_train": y[train], "y_test": y[test]}
    if len(source.shape) == 3:
        arrays |= {"x_train_delta": encode_delta(x[train]), "x_test_delta": encode_delta(x[test])}
    else:
        arrays |= {"x_train": x[train], "x_test": x[test]}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()
