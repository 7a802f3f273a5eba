"""What crossed the line, by round and client: payload bytes and floats, up and down."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from consilience.distributions.payload import floats, nbytes
from consilience.tree import Tree

COLUMNS = ("up_bytes", "down_bytes", "up_floats", "down_floats")


@dataclass
class Ledger:
    """What every client sent and received, an entry for each round and client.

    Attributes:
        entries: One for each round and client: `round`, `site`, and the columns of `COLUMNS`.
    """

    entries: list[dict[str, int]] = field(default_factory=list)

    def record(self, round: int, client: int, message: Tree, payload: Tree) -> None:
        """Record one client's round.

        Args:
            round: The number of the round, from 1.
            message: What it was sent.
            payload: What it sent; () if it was lost.
        """
        self.entries.append(
            {
                "round": round,
                "site": client,
                "up_bytes": nbytes(payload),
                "down_bytes": nbytes(message),
                "up_floats": floats(payload),
                "down_floats": floats(message),
            }
        )

    def total(self, what: str, **only: int) -> int:
        """Add one column up over the entries that match, e.g. `total("up_bytes", round=3)`.

        Args:
            **only: Values that an entry must have.

        Returns:
            The sum.
        """
        matching = (e for e in self.entries if all(e[column] == value for column, value in only.items()))
        return sum(entry[what] for entry in matching)

    def moved(self, round: int) -> dict[str, int]:
        """Add up what crossed in the round that was recorded last.

        Args:
            round: Its number, from 1.

        Returns:
            The sums by column.
        """
        entries = list(takewhile(lambda e: e["round"] == round, reversed(self.entries)))
        return {column: sum(entry[column] for entry in entries) for column in COLUMNS}

    def summary(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Add everything up.

        Args:
            names: The sites' names, by number.

        Returns:
            The sums by column, and under `per_site` the same of each site.
        """
        sums = [dict.fromkeys(COLUMNS, 0) for _ in names]
        for entry in self.entries:  # one pass: there may be thousands of sites
            for column in COLUMNS:
                sums[entry["site"]][column] += entry[column]
        totals: dict[str, Any] = {column: self.total(column) for column in COLUMNS}
        totals["per_site"] = [{"site": name, **columns} for name, columns in zip(names, sums, strict=True)]
        return totals
