"""Features that are never whole: rows that stay in their files, and are read a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from consilience.errors import InputError

HEAD = 64  # rows that are looked at where a network is tried


class Streamed:
    """The features of rows [N, D], of which sums are made batch by batch; what else a tensor can do, this cannot.

    Args:
        batches: Reads the rows from the first on, in parts of any size.
        rows: N.
        width: D.
        digest: What tells these rows from others.
    """

    dtype: ClassVar[torch.dtype] = torch.float32
    device: ClassVar[torch.device] = torch.device("cpu")
    ndim: ClassVar[int] = 2

    def __init__(self, batches: Callable[[], Iterable[Tensor]], rows: int, width: int, digest: str) -> None:
        self.batches = batches
        self.shape = torch.Size([rows, width])
        self.digest = digest

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        """Its shape: no row is shown."""
        return f"Streamed({self.shape[0]} × {self.shape[1]})"

    def is_floating_point(self) -> bool:
        """Tell that these are amounts."""
        return True

    def split(self, size: int) -> Iterator[Tensor]:
        """Read all rows.

        Args:
            size: How many at a time; the last part may have fewer.

        Yields:
            Features of `size` rows.
        """
        rest = torch.empty(0, self.shape[1])
        for batch in self.batches():
            whole = torch.cat([rest, batch])
            stop = len(whole) // size * size
            yield from whole[:stop].split(size) if stop else ()
            rest = whole[stop:]
        if len(rest):
            yield rest

    def __getitem__(self, index: Any) -> Tensor:
        """Take some of the first rows."""
        return self._head[index]

    @cached_property
    def _head(self) -> Tensor:
        return next(self.split(min(HEAD, len(self)) or 1), torch.empty(0, self.shape[1])).clone()

    def to(self, *where: Any) -> NoReturn:
        """Refuse another device: rows are read on the processor."""
        raise InputError("Rows that stay in their files are computed on the processor: leave the device out.")

    @staticmethod
    def chain(parts: Sequence[Streamed]) -> Streamed:
        """Put rows under each other."""
        if len(parts) == 1:
            return parts[0]
        rows = sum(map(len, parts))
        digest = " ".join(part.digest for part in parts)
        return Streamed(lambda: (batch for part in parts for batch in part.batches()), rows, parts[0].shape[1], digest)
