"""What crossed the line, by round and client: payload bytes and floats, up and down."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from consilience.payload import floats, nbytes
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
        """One client's round; a payload of () is that of a client that was asked and lost."""
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
        """The sum of one column, over the entries that match, e.g. `total("up_bytes", round=3)`."""
        return sum(e[what] for e in self.entries if all(e[k] == v for k, v in only.items()))

    def moved(self, round: int) -> dict[str, int]:
        """What crossed in the round that was recorded last."""
        last = list(takewhile(lambda e: e["round"] == round, reversed(self.entries)))
        return {c: sum(e[c] for e in last) for c in COLUMNS}

    def summary(self, names: tuple[str, ...]) -> dict[str, Any]:
        sums = [dict.fromkeys(COLUMNS, 0) for _ in names]
        for entry in self.entries:  # one pass: there may be thousands of sites
            for column in COLUMNS:
                sums[entry["site"]][column] += entry[column]
        each = [{"site": name, **own} for name, own in zip(names, sums, strict=True)]
        return {**{c: self.total(c) for c in COLUMNS}, "per_site": each}
