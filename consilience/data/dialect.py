"""How a file writes its cells: its encoding, what separates them, what stands before decimals. Found by looking."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from consilience.errors import InputError

LINES = 200  # that are looked at
CHUNK = 2**24  # bytes that are looked at together
DELIMITERS = ",;\t|"
NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
COMMA = re.compile(r"[-+]?(\d{1,3}(\.\d{3})+|\d+),\d+")
SURE_COMMA = re.compile(r"[-+]?\d+,(\d{1,2}|\d{4,})")  # 1,234 may be a thousand
POINT = re.compile(r"[-+]?\d+\.\d+")
UTF8 = "utf-8-sig"  # with a byte-order mark or without
WESTERN = "cp1252"  # which holds Latin-1, and what spreadsheets write where it is not enough
ENCODINGS = {UTF8: "UTF-8", "utf-16": "UTF-16", WESTERN: "Windows-1252 (Latin-1)"}
UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Dialect(NamedTuple):
    """How a file writes its cells.

    Attributes:
        delimiter: What stands between two cells.
        decimal: What stands before decimals.
        encoding: How bytes become text.
        format: The kind of file; the rest is for CSV alone.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = UTF8
    format: str = "CSV"

    def __str__(self) -> str:
        """In words, as in 'semicolons between cells, decimal commas'."""
        if self.format != "CSV":
            return self.format
        words = f"{NAMES.get(self.delimiter, repr(self.delimiter))} between cells"
        if self.decimal == ",":
            words += ", decimal commas"
        return words


def find_encoding(path: Path, file: str | None = None) -> str:
    """Find a text file's encoding by its bytes, all of them.

    Args:
        file: What it is called in messages; by its name if None.

    Returns:
        Python's name of UTF-8, of UTF-16, which begins with its mark, or of Windows-1252, which is all that can be
        told of other files that people in the west write.

    Raises:
        InputError: It is text in none of them.
    """
    with path.open("rb") as opened:
        if opened.read(2) in UTF16_MARKS:
            return "utf-16"
        for encoding in (UTF8, WESTERN):
            opened.seek(0)
            if _decodes(opened, encoding):
                return encoding
    raise InputError(
        f"{file or path.name} is not UTF-8 text: save it as 'CSV UTF-8' in the spreadsheet, or name its encoding under "
        '[files] in columns.toml, for example encoding = "cp1250".'
    )


def _decodes(opened: BinaryIO, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while chunk := opened.read(CHUNK):
            if not chunk.isascii():
                decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def first_lines(path: Path, encoding: str) -> list[str]:
    """Read a file's first lines; whoever reads the whole of it says what is wrong with it."""
    try:
        with path.open(newline="", encoding=encoding) as opened:
            return list(islice(opened, LINES))
    except (OSError, UnicodeError):
        return []


def sniff(path: Path, encoding: str | None = None) -> Dialect:
    """Find a file's dialect from its first lines.

    Args:
        encoding: How bytes become text; UTF-8 if None.

    Returns:
        The dialect; commas and points where the file cannot be read or nothing else fits.
    """
    encoding = encoding or UTF8
    lines = [line for line in first_lines(path, encoding) if line.strip()]
    tables = {delimiter: split_lines(lines, delimiter) for delimiter in DELIMITERS}
    delimiter = max(DELIMITERS, key=lambda d: (_columns(tables[d]), -DELIMITERS.index(d)))
    cells = [cell.strip() for row in tables[delimiter][1:] for cell in row]
    decimal = "."
    if any(SURE_COMMA.fullmatch(cell) for cell in cells) and not any(POINT.fullmatch(cell) for cell in cells):
        decimal = ","
    return Dialect(delimiter, decimal, encoding)


def split_lines(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    """Split lines into cells; nothing where they cannot be."""
    try:
        return [row for row in csv.reader(io.StringIO("".join(lines), newline=""), delimiter=delimiter) if row]
    except csv.Error:
        return []


def _columns(table: list[list[str]]) -> int:
    """How many columns there are, if every row but a few has as many as the header; 1 otherwise."""
    if not table:
        return 0
    width = len(table[0])
    like_header = sum(len(row) == width for row in table)
    if width < 2 or like_header < 0.8 * len(table):
        return 1
    return width


def to_points(text: str) -> str:
    """Write a number with a decimal comma as the rest of the world does.

    Returns:
        '1234.5' for '1.234,5'; any other text as it is.
    """
    if COMMA.fullmatch(text):
        return text.replace(".", "").replace(",", ".")
    return text
