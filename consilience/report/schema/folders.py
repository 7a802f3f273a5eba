"""Paths in sentences: a report is handed on, and the folders in it show who works where."""

from __future__ import annotations

import re

# A folder in a sentence reaches from a root to the last separator. Names within it may hold blanks and full stops, as
# in `/data/St. Mary/va.reply`; one that ends with a blank, or goes on after a file's ending, is words after a file.
_ENDING = r"\.[A-Za-z]\w{0,11}[\s,;:)]"
_NAME = rf"(?:(?!{_ENDING})[^/\\\n\"'`])*(?<!\s)"
_FOLDERS = re.compile(rf"(?<![\w./\\~:])(?:~|[A-Za-z]:)?[/\\](?=\S)(?:{_NAME}[/\\])+")


def hide_folders(text: str) -> str:
    """Leave the folders out of every path in a sentence: they show who works where, and a report is handed on.

    Args:
        text: A sentence, or any other text.

    Returns:
        The text with the file's name where its path was.
    """
    return _FOLDERS.sub("", text)
