"""What the commands of studies share: keys found by themselves, files written whole, tables of what is inside."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from consilience.cli.screen import out, plain
from consilience.errors import InputError
from consilience.formats.signature import public, read_key
from consilience.study.agreement import Agreement, Member, Study

Study_ = Annotated[Path, typer.Argument(help="The study's file, NAME.toml.")]
Table_ = Annotated[Path, typer.Argument(help="The site's rows: CSV UTF-8 with a header row.")]
Model_ = Annotated[Path, typer.Argument(help="The pooled model's file.")]
Key_ = Annotated[Path | None, typer.Option("--key", help="This party's private key; found in this folder if unique.")]
Inputs_ = Annotated[Path | None, typer.Option("--inputs", help="The coordinator's rows without labels, for a student.")]


def write_files(path: Path, content: bytes | str, what: str) -> None:
    """Write a file whole or not at all, and say so."""
    raw = content.encode() if isinstance(content, str) else content
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.unlink(missing_ok=True)  # what lies there may be a link to somewhere else
        with part.open("xb") as file:
            file.write(raw)
        os.replace(part, path)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; choose another place with -o.") from error
    if what:
        say(f"{what}: {path} ({len(raw):,} bytes)")


def site_identity(study: Study, path: Path | None) -> tuple[Member, Ed25519PrivateKey]:
    """The site whose key is at hand."""
    found = []
    for candidate in [path] if path else sorted(Path().glob("*.key")):
        key = read_key(candidate)
        found += [(site, key) for site in study.active if site.key == public(key)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(site.name for site in study.active) or "none yet"
    if not found:
        where = path or "A key in this folder"
        raise InputError(f"{where} is not the key of a site in the study ({names}): say which file is with --key.")
    raise InputError(f"There are keys of {', '.join(site.name for site, _ in found)} here: say which with --key.")


def server_key(study_path: Path, path: Path | None) -> Ed25519PrivateKey:
    return read_key(path or study_path.with_suffix(".key"))


def warn_unsigned(agreement: Agreement) -> None:
    """Say whose model it is where the model alone says so."""
    signer, of = f"{agreement.server[8:20]}…", agreement.hash[:12]
    say(f"Signed with the key {signer} in the study {of}, as the model itself says: give --study to check.", "yellow")


class Listing(Table):
    """A table of what files say, as it stands: brackets are no markup."""

    def add_row(self, *cells: RenderableType | None, **words: Any) -> None:
        super().add_row(*(Text(plain(c)) if isinstance(c, str) else c for c in cells), **words)


def columns(names: Iterable[str], right: Iterable[str] = ()) -> Listing:
    table = Listing(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def say(text: str, style: str = "") -> None:
    out.print(plain(text), style=style or None, soft_wrap=True, markup=False, highlight=False)
