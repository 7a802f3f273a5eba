"""Tables for pandas and for notebooks, from rows of plain values."""

from __future__ import annotations

import html
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from consilience.errors import InputError


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Make a data frame.

    Args:
        rows: A mapping from columns to values for each.

    Returns:
        A `pandas.DataFrame`.

    Raises:
        InputError: Pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError as error:
        raise InputError("Data frames need pandas, which is not installed: run `pip install pandas`.") from error
    return pandas.DataFrame(list(rows))


def to_html(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay out rows for a notebook.

    Args:
        rows: A mapping from columns to values for each.

    Returns:
        HTML that loads nothing.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(row.get(name))}</td>' for name in names)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div><strong>{html.escape(title)}</strong>{table}</div>"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return html.escape(str(value))
