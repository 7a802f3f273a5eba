"""A split that is a function of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from consilience.data.splits.split import Rows, Split
from consilience.errors import InputError
from consilience.key import Key

Dealing: TypeAlias = Callable[[Rows, int, Key], Sequence[Any]]


@dataclass(frozen=True)
class Own(Split):
    """Rows dealt by a function; test rows are dealt by the same function.

    Attributes:
        dealing: From rows, the number of sites and a key to the row numbers of every site.
    """

    dealing: Dealing

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Ask the function, and refuse what is not row numbers for every site.

        Raises:
            InputError: The function returned something else; the sentence says what.
        """
        parts = [torch.as_tensor(part) for part in self.dealing(rows, sites, key)]
        if len(parts) != sites:
            raise InputError(f"The split '{self}' dealt to {len(parts)} sites, not to {sites}: return a part for each.")
        parts = [part.long() if not len(part) else part for part in parts]
        for part in parts:
            whole = part.dtype == torch.int64 and part.ndim == 1
            if not whole or (len(part) and not 0 <= int(part.min()) <= int(part.max()) < len(rows.y)):
                raise InputError(f"The split '{self}' should return row numbers from 0 to {len(rows.y) - 1}, as int64.")
        return parts

    def __str__(self) -> str:
        """The function's name."""
        return getattr(self.dealing, "__name__", type(self.dealing).__name__)
