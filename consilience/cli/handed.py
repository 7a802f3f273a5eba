"""What the commands of studies share: finding keys, writing files whole, and tables of what is inside them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from consilience.cli.screen import out, plain
from consilience.disk.locks import lock_file
from consilience.disk.writing import PRIVATE, SHARED, write_whole
from consilience.errors import InputError
from consilience.study.protocol.signature import public, read_key

if TYPE_CHECKING:  # no part of the reference
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from consilience.study.home import Home
    from consilience.study.model import Model
    from consilience.study.protocol.agreement import Agreement
    from consilience.study.protocol.members import Member, Study

    P = ParamSpec("P")


def write_files(path: Path, content: bytes | str, what: str, shared: bool = False) -> None:
    """Write a file whole or not at all, and say so; only its owner may read it unless it is shared."""
    raw = content
    if isinstance(raw, str):
        raw = raw.encode()
    mode = PRIVATE
    if shared:
        mode = SHARED
    write_whole(path, raw, "Choose another place with -o.", mode)
    if what:
        say(f"{what}: {path} ({len(raw):,} bytes)")


def locking_study(command: Callable[P, None]) -> Callable[P, None]:
    """Let a command have its study file to itself, from reading it to writing it again."""

    @functools.wraps(command)
    def run(*args: P.args, **options: P.kwargs) -> None:
        with lock_file(Path(str(options["study_file"]))):
            command(*args, **options)

    return run


def site_identity(study: Study, path: Path | None) -> tuple[Member, Ed25519PrivateKey]:
    """Find the site whose key is at hand."""
    member, key, _ = _own_key(study, path)
    return member, key


def site_home(study: Study, path: Path | None) -> Home:
    """Find the site whose key is at hand, and what it keeps beside it."""
    from consilience.study.home import Home

    member, key, file = _own_key(study, path)
    if file.is_symlink():
        file = file.resolve()
    home = Home(study, member, key, file)
    home.adopt(Path())
    return home


def only_key(path: Path | None) -> Path:
    """Find the private key in this folder, where there is one."""
    found = [path] if path else sorted(Path().glob("*.key"))
    if len(found) != 1:
        raise InputError(f"This folder holds {len(found)} keys: choose one with --key.")
    return found[0].resolve() if found[0].is_symlink() else found[0]


def _own_key(study: Study, path: Path | None) -> tuple[Member, Ed25519PrivateKey, Path]:
    """The site whose key is at hand, the key and its file."""
    candidates = sorted(Path().glob("*.key"))
    if path:
        candidates = [path]
    matches = []
    for candidate in candidates:
        key = read_key(candidate)
        matches += [(site, key, candidate) for site in study.active if site.key == public(key)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise InputError(_no_match(study, path))
    names = ", ".join(site.name for site, _, _ in matches)
    raise InputError(f"This folder holds the keys of {names}: choose one with --key.")


def at_home(pooled: Model, study: Study, memory: Path) -> Model:
    """Make this site's own model of one that is released, with what the site kept."""
    from consilience.study.reply import read_memory

    if not pooled.is_personal:
        raise InputError("This model is one for all sites: leave --memory out.")
    if not memory.exists():
        raise InputError(f"{memory} is not here: give what this site kept with --memory.")
    if memory.suffix == ".bin":  # of a site that took part over Flower
        from consilience.study.flower.site import read_kept

        kept = read_kept(memory, pooled.method, pooled.facts.rounds)
    else:
        kept = read_memory(study, memory, pooled.facts.rounds)
    own = pooled.at_home(kept)
    say(f"This site's own model: what all sites share, and what this site kept in {memory}.")
    return own


def own_number(study: Study) -> int:
    """Return the number of the site whose key is at hand, or the number that the next site to join will have."""
    keys = {public(read_key(path)) for path in Path().glob("*.key")}
    own = [site.number for site in study.active if site.key in keys]
    if len(own) == 1:
        return own[0]
    return study.next_number


def _no_match(study: Study, path: Path | None) -> str:
    names = ", ".join(site.name for site in study.active) or "none yet"
    if path:
        return f"{path} is not the key of a site in the study ({names}): give another with --key."
    return f"What lies in this folder is not the key of a site in the study ({names}): give one with --key."


def server_key(study_file: Path, path: Path | None) -> Ed25519PrivateKey:
    """Read the coordinator's key, by default the one beside the study file."""
    return read_key(path or study_file.with_suffix(".key"))


def warn_unsigned(agreement: Agreement) -> None:
    """Say who signed a model, where only the model itself says so."""
    signer = f"{agreement.server[8:20]}…"
    study = agreement.hash[:12]
    say(f"By its own account, signed with the key {signer} in the study {study}: give --study to check.", "yellow")


class Listing(Table):
    """A table of what files say, as it stands: brackets are not markup."""

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row, with texts as they stand."""
        super().add_row(*(_as_it_stands(cell) for cell in cells), **options)


def _as_it_stands(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return Text(plain(cell))
    return cell


def columns(names: Iterable[str], right: Iterable[str] = ()) -> Listing:
    """Make an empty table with these columns, some of them aligned to the right."""
    table = Listing(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name)
        if name in right:
            table.columns[-1].justify = "right"
    return table


def say_table(path: Path) -> None:
    """Say how a table is written."""
    from consilience.data.inspection import describe_files, summarise_files

    say(f"Read {summarise_files(describe_files([path]))}")


def say(text: str, style: str = "") -> None:
    """Print a line as it stands."""
    out.print(plain(text), style=style or None, soft_wrap=True, markup=False, highlight=False)
