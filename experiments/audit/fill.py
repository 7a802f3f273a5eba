"""Write the tables of docs/privacy.md from results/: python experiments/audit/fill.py"""

from __future__ import annotations

import json
from pathlib import Path

import private
import reconstruct
import table

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
RESULTS = Path(__file__).parent / "results"


def fill(text: str, name: str, lines: str) -> str:
    """Put a table between its two marks."""
    begin, end = f"<!-- {name} -->", f"<!-- end of the {name} -->"
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n\n{lines}\n\n{end}{after}"


if __name__ == "__main__":
    page = PAGE.read_text()
    page = fill(page, "audit table", table.table(table.read()))
    page = fill(page, "private table", private.table(json.loads((RESULTS / "private.json").read_text())))
    if (RESULTS / "reconstruct.json").exists():
        found = json.loads((RESULTS / "reconstruct.json").read_text())
        page = fill(page, "reconstruction table", reconstruct.table(found))
    PAGE.write_text(page)
