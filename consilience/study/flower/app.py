"""The Flower app of a study: a description and the agreement, no code. Everybody can make it and so knows its hash."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path

from flwr.cli.build import build_fab_from_files

from consilience.disk.writing import write_whole
from consilience.study.protocol.agreement import Agreement
from consilience.version import __version__

MOST_BYTES = 10_000_000  # unpacked; ours are a few thousand
PROJECT = """\
# Written by `consilience study deploy`. The app holds no code: server and sites run what they have installed.
[project]
name = "consilience-study"
version = "{version}"
description = "A study of consilience."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "consilience"

[tool.flwr.app.components]
serverapp = "consilience.study.flower.refusal:server"
clientapp = "consilience.study.flower.refusal:client"

[tool.flwr.app.config]
study = "{hash}"
"""


def app_files(agreement: Agreement) -> dict[str, bytes]:
    """Write the files of a study's app.

    Returns:
        Contents by name.
    """
    text = json.dumps(agreement.fields, sort_keys=True, ensure_ascii=False, indent=1)
    return {
        "pyproject.toml": PROJECT.format(version=__version__, hash=agreement.hash).encode(),
        "agreement.json": text.encode(),
    }


def pin(agreement: Agreement) -> str:
    """Hash the study's app: what a site lets its SuperNode receive, and nothing else."""
    packed, _ = build_fab_from_files(app_files(agreement))
    return content_hash(packed)


def content_hash(packed: bytes) -> str:
    """Hash the names and contents in a packed app, read in memory; the bytes themselves if it is no such thing.

    Not the bytes in general, because two builds of zlib pack the same files differently.

    Args:
        packed: The app as it came.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            members = sorted(archive.infolist(), key=lambda m: m.filename)
            if sum(m.file_size for m in members) > MOST_BYTES:
                raise ValueError("too large")
            for member in members:
                content = archive.read(member)
                digest.update(f"{member.filename} {len(content)}\n".encode())
                digest.update(content)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, zlib.error, EOFError):
        return hashlib.sha256(packed).hexdigest()
    return digest.hexdigest()


def write_app(agreement: Agreement, folder: Path) -> Path:
    """Write the app as a folder that `flwr run` takes.

    Args:
        folder: Where it is written.

    Raises:
        InputError: The folder cannot be written.
    """
    for name, content in app_files(agreement).items():
        write_whole(folder / name, content, "Choose another folder with --out.")
    return folder
