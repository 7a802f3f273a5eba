"""Where a report comes from: when it was made, from which files, with which model, settings and version."""

from __future__ import annotations

from consilience.report.page import Facts, join_words, known_fields
from consilience.report.schema.wording import Json

DIGITS = 16  # of a hash
MOST_FILES = 30  # that are listed one by one


def provenance(content: Json) -> Facts:
    """List what it takes to make a report again.

    Args:
        content: What `run.json`, `compare.json` or a study's account holds.

    Returns:
        Names and texts; what an older report does not say is left out.
    """
    versions = content.get("versions") or {}
    libraries = [f"{name} {version}" for name, version in versions.items() if name != "consilience"]
    version = str(content.get("consilience") or versions.get("consilience") or "")
    return known_fields(
        ("Date", str(content.get("date") or "")),
        ("consilience", version),
        ("With", join_words(*libraries)),
        ("Files", _files(content)),
        ("Data, SHA-256", _hash(content.get("data_hash"))),
        ("Agreement", _hash(content.get("hash"))),
        ("Model", str(content.get("model") or "")),
        ("Model file, SHA-256", _model_file(content)),
    )


def _files(content: Json) -> str:
    """The names of the tables and the first digits of their hashes."""
    tables = content.get("tables") or {}
    listed = [f"{name} ({_hash(digest)})" for name, digest in list(tables.items())[:MOST_FILES]]
    if len(tables) > MOST_FILES:
        listed.append(f"and {len(tables) - MOST_FILES} more")
    return ", ".join(listed)


def _hash(digest: object) -> str:
    return str(digest or "")[:DIGITS]


def _model_file(content: Json) -> str:
    if content.get("kind") != "study":
        return ""
    return _hash(content.get("checksum"))
