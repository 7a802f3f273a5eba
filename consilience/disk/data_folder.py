"""Where data files lie, and where what takes long to decode is kept."""

from __future__ import annotations

import os
from pathlib import Path

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
        return cache_folder()
    return Path(path).expanduser()


def locate(name_of_file: str, data_dir: str | None) -> Path | None:
    """Look for a file in the data folder, and in its part for tables.

    Args:
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


def presence(name_of_file: str | None, data_dir: str | None) -> str:
    """Say whether a data set can be used.

    Args:
        name_of_file: The name of its file; None where it needs none.
        data_dir: The folder, as in `data_folder`.

    Returns:
        `built in`, `present` or `missing`.
    """
    if name_of_file is None:
        return "built in"
    if locate(name_of_file, data_dir):
        return "present"
    return "missing"


def cache_folder() -> Path:
    """Find the user's own cache.

    Returns:
        The folder, which need not exist.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "consilience"
