"""What crossed the line, by round and client: payload bytes and floats, up and down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from consilience.payload import floats, nbytes
from consilience.tree import Tree


@dataclass
class Ledger:
    entries: list[dict[str, int]] = field(default_factory=list)

    def record(self, round: int, client: int, message: Tree, payload: Tree) -> None:
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

    def summary(self, names: tuple[str, ...]) -> dict[str, Any]:
        columns = ("up_bytes", "down_bytes", "up_floats", "down_floats")
        each = [{"site": name, **{c: self.total(c, site=k) for c in columns}} for k, name in enumerate(names)]
        return {**{c: self.total(c) for c in columns}, "per_site": each}
