"""What a site may be called."""

from __future__ import annotations

import re
import unicodedata

from consilience.errors import InputError

LONGEST_NAME = 64
DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))}  # of Windows
SCRIPTS = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "IDEOGRAPHIC": "CJK"}  # written together
COMPOSED = {"LATIN", "GREEK", "CYRILLIC"}  # where a mark beside a letter is part of it; elsewhere it may be a vowel


def check_name(name: str) -> None:
    """Refuse a site's name that could be taken for another's, for a path, or for more than a name.

    Raises:
        InputError: It mixes scripts, holds other signs than names do, is too long, or is the server's.
    """
    scripts = {_script(c) for c in name if c.isalpha()}
    marks: tuple[str, ...] = ()
    if scripts and not scripts & COMPOSED:
        marks = ("Mn", "Mc")
    allowed = (c.isalpha() or unicodedata.category(c) in marks or c in "0123456789 -._,()&'’" for c in name)
    plain = all(allowed) and unicodedata.normalize("NFKC", name) == name
    whole = name[:1].isalnum() and name[-1:] not in " -._,(&'’" and len(name) <= LONGEST_NAME
    if not (plain and whole and len(scripts) <= 1) or name.casefold() == "server":
        raise InputError(
            f"{name!r} cannot be a site's name: choose one of at most {LONGEST_NAME} letters of one script, digits, "
            "spaces and -._,()&' that begins with a letter or digit, ends with one or with ), and is not 'server'."
        )


def check_new_name(name: str) -> None:
    """Refuse a name that a site should not begin with; those of studies that exist stay.

    Args:
        name: The name, of which files are called.

    Raises:
        InputError: It is no site's name, or Windows cannot write its files.
    """
    check_name(name)
    if is_device(name):
        raise InputError(f"{name!r} cannot be a site's name: Windows takes such files for a device; add a word.")


def is_device(name: str) -> bool:
    """Say whether Windows takes a file's name for a device, with whatever ending."""
    return name.partition(".")[0].strip().casefold() in DEVICES


def _script(letter: str) -> str:
    """The script of a letter; scripts that are written together count as one."""
    script = re.split("[ -]", unicodedata.name(letter, "?"))[0]
    return SCRIPTS.get(script, script)
