"""What is printed, where a terminal or a pipe cannot write it: signs that its encoding lacks are spelt out."""

from __future__ import annotations

import codecs
import sys
import unicodedata

HANDLER = "consilience.spelt"
SPELT = {"×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...", "≥": ">=", "≤": "<=", "≈": "~", "±": "+-"}
SPELT |= {"→": "->", "←": "<-", "√": "sqrt ", "∞": "inf", "‘": "'", "’": "'", "“": '"', "”": '"', "█": "#", "✓": "ok"}


def spell_out() -> None:
    """Let standard output and error spell what they cannot write, in place of stopping there."""
    codecs.register_error(HANDLER, _spelt)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # not every stand-in for a stream has it
        if reconfigure is not None:
            reconfigure(errors=HANDLER)


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Spell the signs that an encoding lacks."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(spell(sign) for sign in error.object[error.start : error.end]), error.end


def spell(sign: str) -> str:
    """Spell a sign in ASCII: by a table, a Greek letter by its name, an accented letter without its accent.

    Args:
        sign: One character.

    Returns:
        Its spelling; a question mark where there is none.
    """
    if sign in SPELT:
        return SPELT[sign]
    words = unicodedata.name(sign, "").split()
    if words[:1] == ["GREEK"] and words[2:3] == ["LETTER"]:
        name = words[3].lower()
        return name.capitalize() if words[1] == "CAPITAL" else name
    return unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode() or "?"
