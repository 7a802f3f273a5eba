"""Text that spreadsheets leave alone."""

from __future__ import annotations

from consilience.data.cells import number

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a formula of a spreadsheet may begin with


def inert(text: str) -> str:
    """Write a text so that no spreadsheet takes it for a formula.

    Args:
        text: A name, a level, a class: whatever somebody else wrote.

    Returns:
        The text, with a quote before it, which is not shown there, where it could be a formula.
    """
    if text.startswith(FORMULA) and number(text) is None:
        return f"'{text}"
    return text
